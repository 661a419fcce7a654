//! The self-test of live rooms: which losses are allowed, how they are announced, and which are not.

use std::ops::Range;

use super::*;

/// Returns a history in which Ann, on n1, talks to a room that Bob, on n2, is in. The third message is lost, which is
/// announced; the last message is sent long after the others.
fn hall() -> Tape {
    let mut tape = Tape::default();
    for (nth, Client { user, session }) in [ANN, BOB].into_iter().enumerate() {
        tape.add(HistoryEvent::Open { user, device: "p", session });
        let node = ["n1", "n2"][nth];
        tape.add(HistoryEvent::Joined { session, conv: "r:r", node });
    }
    for seq in 1..=5 {
        let cid = format!("t{seq}");
        tape.send(ANN, "r:r", &cid, false);
        tape.ok(&cid, 100 + seq);
        if seq != 3 {
            let (body, conv) = (body_of(&cid), "r:r");
            let Client { user, session } = BOB;
            let (cid, via) = (Some(cid.as_str()), Via::Push);
            tape.add(HistoryEvent::Recv { user, device: "p", session, conv, seq: 100 + seq, cid, body, via });
        }
        if seq == 3 {
            tape.add(HistoryEvent::Shed { session: 2, conv: "r:r", count: 1 });
        }
    }
    let last = tape.at(is_send("t5"));
    for event in &mut tape.0[last..] {
        event.at += 60_000 * MS;
    }
    tape
}

fn is_shed(event: &HistoryEvent<String>) -> bool {
    matches!(event, HistoryEvent::Shed { .. })
}

/// Adds an event some ms after the third message was accepted.
fn later(tape: &Tape, it: &mut Vec<Stamped<String>>, ms: u64, event: HistoryEvent<&str>) {
    let at = it[tape.at(is_ok("t3"))].at + ms * MS;
    let place = it.iter().rposition(|it| it.at <= at).map_or(0, |place| place + 1);
    it.insert(place, Stamped { at, event: event.map(str::to_owned) });
}

/// Adds a fault that lasts from one time to the other, after which a message to another room is accepted at once.
fn fault(tape: &Tape, it: &mut Vec<Stamped<String>>, ms: Range<u64>, fault: &str) {
    later(tape, it, ms.start, HistoryEvent::Nemesis { on: true, fault });
    later(tape, it, ms.end, HistoryEvent::Nemesis { on: false, fault });
    let Client { user, session } = ANN;
    let (conv, cid) = ("r:other", "after");
    let send =
        HistoryEvent::SendInv { user, device: "p", session, conv, cid, body: 0, attempt: 0, chained: false };
    later(tape, it, ms.end, send);
    later(tape, it, ms.end, HistoryEvent::SendOk { cid, seq: 1, duplicate: false });
}

#[test]
fn what_is_lost_in_a_room_is_told_and_counted() {
    let tape = hall();
    let report = check(&tape.history(), Budget::default());
    assert!(report.is_clean(), "{:#?}", report.violations);
    assert_eq!((report.talks, report.shed, report.talks_lost, report.talks_uncounted), (4, 1, 0, 0));
    let shed = tape.at(is_shed);
    assert_eq!(tape.with(|it| drop(it.remove(shed))), ["shed-untold"]);
    // Nothing was due before the connection learned that it is in the room.
    let late = tape.with(|it| {
        it.remove(shed);
        let joined = it.remove(tape.at(|event| matches!(event, HistoryEvent::Joined { session: 2, .. })));
        it.insert(tape.at(is_ok("t3")), joined);
    });
    assert!(late.is_empty(), "{late:?}");
}

#[test]
fn what_a_slow_connection_had_not_got_when_it_ended_was_not_lost() {
    let tape = hall();
    // The last message came, but a minute late, so nothing sent after it had to come.
    let findings = tape.with(|it| {
        it.remove(tape.at(is_shed));
        let sent = it.iter().position(|it| is_send("t5")(&it.event)).unwrap();
        for event in &mut it[sent..sent + 2] {
            event.at -= 60_000 * MS;
        }
    });
    assert!(findings.is_empty(), "{findings:?}");
}

#[test]
fn a_killed_node_takes_with_it_what_it_had_not_passed_on_and_no_more() {
    let tape = hall();
    let untold = |change: &dyn Fn(&mut Vec<Stamped<String>>)| {
        tape.with(|it| {
            it.remove(tape.at(is_shed));
            change(it);
        })
    };
    let down = |node: &'static str, ms| {
        untold(&move |it: &mut Vec<Stamped<String>>| later(&hall(), it, ms, HistoryEvent::Down { node }))
    };
    assert!(down("n1", 500).is_empty());
    assert_eq!(down("n1", 3_000), ["shed-untold"], "by then it had passed it on, or told of it");
    assert_eq!(down("n2", 500), ["shed-untold"], "that was not the speaker's");
    // With a fault the announcement may have waited on the node that was killed.
    let after = |name: &'static str| {
        untold(&move |it: &mut Vec<Stamped<String>>| {
            fault(&hall(), it, 1..4_000, name);
            later(&hall(), it, 9_000, HistoryEvent::Down { node: "n1" });
        })
    };
    assert!(after("peers").is_empty());
    assert!(after("stop:n2").is_empty());
    assert_eq!(after("stop:n3"), ["shed-untold"], "it was none of the two");
    assert_eq!(after("postgres-stop"), ["shed-untold"]);
    assert_eq!(after("receiver"), ["shed-untold"]);
    // Within one node there is no network.
    let same = untold(&|it: &mut Vec<Stamped<String>>| {
        later(&hall(), it, 500, HistoryEvent::Down { node: "n1" });
        for event in it.iter_mut() {
            if let HistoryEvent::Joined { node, .. } = &mut event.event {
                *node = "n1".into();
            }
        }
    });
    assert_eq!(same, ["shed-untold"]);
}

#[test]
fn that_some_is_missing_may_be_told_without_a_number_but_in_time() {
    let tape = hall();
    let findings = |ms, broken: Option<Range<u64>>| {
        tape.with(|it| {
            it.remove(tape.at(is_shed));
            if let Some(times) = broken {
                fault(&tape, it, times, "redis-flush");
            }
            later(&tape, it, ms, HistoryEvent::Shed { session: 2, conv: "r:r", count: 0 });
        })
    };
    assert!(findings(1_500, None).is_empty());
    assert_eq!(findings(2_500, None), ["shed-untold"]);
    assert!(findings(8_500, Some(1..1_000)).is_empty(), "after a fault it takes longer");
    assert_eq!(findings(9_500, Some(1..1_000)), ["shed-untold"]);
    assert_eq!(findings(9_500, Some(20_000..21_000)), ["shed-untold"], "that came when all had been said");
}

#[test]
fn a_room_gives_no_number_twice_and_keeps_the_order_of_each_speaker() {
    let tape = hall();
    let twice = tape.with(|it| {
        for event in it {
            if let HistoryEvent::SendOk { cid, seq, .. } | HistoryEvent::Recv { cid: Some(cid), seq, .. } =
                &mut event.event
                && cid == "t4"
            {
                *seq = 102;
            }
        }
    });
    assert_eq!(twice, ["number-twice"]);
    let (second, fourth) = (tape.at(is_push("t2", Via::Push)), tape.at(is_push("t4", Via::Push)));
    let turned = tape.with(|it| {
        let moved = it.remove(second);
        it.insert(fourth, moved);
    });
    assert_eq!(turned, ["room-order"]);
    // A library may have repeated it in between, but not at once.
    let of_library = |ms: u64, then_third: bool| {
        tape.with(|it| {
            let mut moved = it.remove(second);
            moved.at += ms * 1_000_000;
            for event in &mut it[fourth..] {
                event.at += ms * 1_000_000;
            }
            if then_third {
                let (at, Client { user, session }) = (moved.at, BOB);
                let (cid, conv, via) = (Some("t3"), "r:r", Via::Push);
                let third = HistoryEvent::Recv {
                    user,
                    device: "p",
                    session,
                    conv,
                    seq: 103,
                    cid,
                    body: body_of("t3"),
                    via,
                };
                it.insert(fourth, Stamped { at, event: third.map(str::to_owned) });
            }
            it.insert(fourth, moved);
            let sent = tape.at(is_send("t2"));
            let kept = Stamped { at: it[sent].at, event: HistoryEvent::SendKept { cid: "t2".to_owned() } };
            it.insert(sent + 1, kept);
        })
    };
    assert_eq!(of_library(0, false), ["room-order"]);
    assert!(!of_library(500, false).contains(&"room-order"));
    assert!(of_library(500, true).contains(&"room-order"), "the third one was not repeated");
    let copied = tape.with(|it| {
        let copy = it[fourth].clone();
        it.insert(fourth + 1, copy);
    });
    assert_eq!(copied, ["room-copy"]);
    // A repeated send is fanned out again, under another number.
    let again = tape.with(|it| {
        let copy = it[fourth].clone();
        it.insert(fourth + 1, copy);
        let again = it[tape.at(is_send("t4"))].clone();
        it.insert(tape.at(is_ok("t4")), again);
    });
    assert!(again.is_empty(), "{again:?}");
}
