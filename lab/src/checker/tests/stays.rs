//! The self-test of stays in live rooms: members that get nothing more, and what an announcement counts.

use super::*;

const S: u64 = 1_000 * MS;
const ROOM: &str = "r:r";

type Events = Vec<Stamped<String>>;

/// Returns a history in which Ann and Bob, on one node, are in a room and get each other's messages. After the closing
/// messages the run is quiet for 10 s.
fn quiet_hall() -> Tape {
    let mut tape = Tape::default();
    for Client { user, session } in [ANN, BOB] {
        tape.add(HistoryEvent::Open { user, device: "p", session });
        tape.add(HistoryEvent::Joined { session, conv: ROOM, node: "n1" });
    }
    for (seq, from, to) in [(1, ANN, BOB), (2, BOB, ANN), (3, ANN, BOB), (4, BOB, ANN)] {
        let cid = format!("t{seq}");
        tape.send(from, ROOM, &cid, false);
        tape.ok(&cid, seq);
        tape.recv(to, ROOM, seq, Some(&cid));
    }
    for Client { user, .. } in [ANN, BOB] {
        tape.add(HistoryEvent::Complete { user, device: "p", hints: true });
    }
    add_after(&mut tape.0, 10 * S, HistoryEvent::Quiet {});
    tape
}

/// Adds an event that much later than the last one.
fn add_after(it: &mut Events, time: u64, event: HistoryEvent<&str>) {
    let at = it.last().map_or(0, |last| last.at) + time;
    it.push(Stamped { at, event: event.map(str::to_owned) });
}

fn is_quiet(event: &HistoryEvent<String>) -> bool {
    matches!(event, HistoryEvent::Quiet {})
}

fn take_out(it: &mut Events, cids: &[&str]) {
    it.retain(|it| match &it.event {
        HistoryEvent::Recv { cid: Some(cid), .. } => !cids.contains(&cid.as_str()),
        _ => true,
    });
}

#[test]
fn leave_and_quiet_come_back_from_their_lines() {
    let mut tape = quiet_hall();
    tape.add(HistoryEvent::Parted { session: 2, conv: ROOM });
    let history = tape.history();
    let lines: Vec<String> = history.events.iter().map(|event| history.line(event).unwrap()).collect();
    assert_eq!(History::parse(&lines.join("\n")).unwrap().events, history.events);
}

#[test]
fn member_that_gets_nothing_until_the_run_is_quiet_is_named() {
    let tape = quiet_hall();
    assert!(tape.with(|_| ()).is_empty());
    assert_eq!(tape.with(|it| take_out(it, &["t1", "t3"])), ["shed-untold"], "nothing came");
    assert_eq!(tape.with(|it| take_out(it, &["t3"])), ["shed-untold"], "the closing message did not come");
    let announced = |count| {
        tape.with(|it| {
            let quiet = it.iter().position(|it| is_quiet(&it.event)).unwrap();
            let shed = HistoryEvent::Shed { session: 2, conv: ROOM.to_owned(), count };
            it.insert(quiet, Stamped { at: it[quiet - 1].at, event: shed });
            take_out(it, &["t1", "t3"]);
        })
    };
    assert!(announced(2).is_empty());
    assert_eq!(announced(1), ["shed-untold"]);
    assert_eq!(announced(0), ["shed-untold"], "within a node each loss has a number");
}

#[test]
fn member_that_nothing_was_due_to_is_not_named() {
    let tape = quiet_hall();
    let silent = |change: &dyn Fn(&mut Events)| {
        tape.with(|it| {
            take_out(it, &["t1", "t3"]);
            change(it);
        })
    };
    let without = |gone: fn(&HistoryEvent<String>) -> bool| {
        silent(&move |it: &mut Events| it.retain(|it| !gone(&it.event)))
    };
    assert!(without(is_quiet).is_empty(), "the run did not come to rest");
    assert!(
        without(|it| matches!(it, HistoryEvent::Joined { session: 2, .. })).is_empty(),
        "it did not join"
    );
    assert!(
        without(|it| matches!(it, HistoryEvent::Complete { .. })).is_empty(),
        "it did not answer at the end"
    );
    let before_quiet = |event: HistoryEvent<&'static str>| {
        silent(&move |it: &mut Events| {
            let quiet = it.iter().position(|it| is_quiet(&it.event)).unwrap();
            it.insert(quiet, Stamped { at: it[quiet - 1].at, event: event.map(str::to_owned) });
        })
    };
    assert!(
        before_quiet(HistoryEvent::Close { session: 2, code: 0 }).is_empty(),
        "what was in flight was cut"
    );
    let parted = HistoryEvent::Parted { session: 2, conv: ROOM };
    assert!(before_quiet(parted).is_empty(), "it left right after the messages");
    let soon = silent(&|it: &mut Events| {
        let (quiet, last) = (it.len() - 1, it[it.len() - 2].at);
        it[quiet].at = last + S;
    });
    assert!(soon.is_empty(), "the messages had no time to come");
    let fault = silent(&|it: &mut Events| {
        let quiet = it.len() - 1;
        let stop = |on| HistoryEvent::Nemesis { on, fault: "stop:n1".to_owned() };
        it.insert(quiet, Stamped { at: it[quiet].at - S, event: stop(false) });
        it.insert(0, Stamped { at: 0, event: stop(true) });
    });
    assert!(fault.is_empty(), "the node stood still until a second before");
}

/// Returns a history in which Bob gets nothing of what Ann sends, leaves after that time, and is answered later.
fn leaver(time: u64) -> Tape {
    let mut tape = quiet_hall();
    take_out(&mut tape.0, &["t1", "t3"]);
    tape.0.retain(|it| !matches!(it.event, HistoryEvent::Quiet {} | HistoryEvent::Complete { .. }));
    add_after(&mut tape.0, time, HistoryEvent::Parted { session: 2, conv: ROOM });
    let Client { user, session } = BOB;
    let (conv, cid) = ("r:other", "after");
    let send =
        HistoryEvent::SendInv { user, device: "p", session, conv, cid, body: 0, attempt: 0, chained: false };
    add_after(&mut tape.0, MS, send);
    add_after(&mut tape.0, MS, HistoryEvent::SendOk { cid, seq: 1, duplicate: false });
    tape
}

#[test]
fn member_that_gets_nothing_until_it_leaves_is_named() {
    let tape = leaver(9 * S);
    let judged = |tape: &Tape| check(&tape.history(), Budget::default()).leavers;
    assert_eq!((judged(&tape), judged(&leaver(7 * S)), judged(&losses())), (1, 0, 0));
    let mut complete = quiet_hall();
    add_after(&mut complete.0, S, HistoryEvent::Parted { session: 2, conv: ROOM });
    assert_eq!(judged(&complete), 0, "the connection was not answered after it");
    assert_eq!(tape.with(|_| ()), ["shed-untold"]);
    assert!(leaver(7 * S).with(|_| ()).is_empty(), "that is too soon");
    let unanswered = tape.with(|it| drop(it.pop()));
    assert!(unanswered.is_empty(), "the connection may have been broken");
    let fault = |name: &'static str| {
        tape.with(|it| {
            let parted = it.len() - 3;
            let at = it[parted].at - S;
            for on in [false, true] {
                let fault = HistoryEvent::Nemesis { on, fault: name.to_owned() };
                it.insert(parted, Stamped { at: at - u64::from(on) * 5 * S, event: fault });
            }
        })
    };
    assert!(fault("stop:n1").is_empty());
    assert!(fault("network").is_empty());
    assert_eq!(fault("stop:n2"), ["shed-untold"], "that is another node");
    assert_eq!(fault("kafka-stop"), ["shed-untold"]);
}

/// Returns a history in which Bob is due four messages of Ann, each 10 s after the one before, and gets the last.
fn losses() -> Tape {
    let mut tape = Tape::default();
    for Client { user, session } in [ANN, BOB] {
        tape.add(HistoryEvent::Open { user, device: "p", session });
        tape.add(HistoryEvent::Joined { session, conv: ROOM, node: "n1" });
    }
    for (nth, cid) in ["t1", "t2", "t3", "t4"].into_iter().enumerate() {
        let at = tape.0.len();
        tape.send(ANN, ROOM, cid, false);
        tape.ok(cid, nth as u64);
        if matches!(cid, "t2" | "t4") {
            tape.recv(BOB, ROOM, nth as u64, Some(cid));
        }
        for event in &mut tape.0[at..] {
            event.at += (nth as u64 + 1) * 10 * S;
        }
    }
    tape
}

#[test]
fn announcement_may_count_each_message_sent_before_it() {
    let tape = losses();
    // Each announcement comes right after the last event of a message, and before those that were added there.
    let announced = |places: &[(&str, u64)]| {
        tape.with(|it| {
            for (cid, count) in places {
                let last = it.iter().rposition(|it| match &it.event {
                    HistoryEvent::SendOk { cid: other, .. } | HistoryEvent::Recv { cid: Some(other), .. } => {
                        other == cid
                    }
                    _ => false,
                });
                let last = last.unwrap();
                let shed = HistoryEvent::Shed { session: 2, conv: ROOM.to_owned(), count: *count };
                it.insert(last + 1, Stamped { at: it[last].at, event: shed });
            }
        })
    };
    assert_eq!(announced(&[]), ["shed-untold"]);
    assert!(announced(&[("t1", 1), ("t3", 1)]).is_empty());
    assert!(announced(&[("t4", 2)]).is_empty(), "it may wait behind the messages of the room");
    assert_eq!(announced(&[("t1", 2)]), ["shed-untold"], "the third message was not sent yet");
    assert_eq!(announced(&[("t2", 5)]), ["shed-untold"]);
    assert!(announced(&[("t3", 1), ("t4", 1)]).is_empty());
    assert_eq!(announced(&[("t4", 1)]), ["shed-untold"], "it counts one of two");
    // Two losses of the queue, or between shards, are announced after another loss, of a thinned pass.
    assert!(announced(&[("t4", 2), ("t4", 1)]).is_empty(), "the former one may count other losses");
}

#[test]
fn announcement_of_another_room_or_connection_counts_nothing() {
    let tape = losses();
    let announced = |session: u64, conv: &'static str| {
        tape.with(|it| {
            let at = it.last().unwrap().at;
            it.push(Stamped { at, event: HistoryEvent::Shed { session, conv: conv.to_owned(), count: 9 } });
        })
    };
    assert!(announced(2, ROOM).is_empty());
    assert_eq!(announced(2, "r:other"), ["shed-untold"]);
    assert_eq!(announced(1, ROOM), ["shed-untold"]);
}
