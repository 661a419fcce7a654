//! The self-test of calm histories: a push that never came, and a planned stop that left a send without its answer.

use tidegate_protocol::Code;

use super::*;

const CALM: Budget = Budget {
    recovery_ns: 30_000_000_000,
    excuse_ns: 2_000_000_000,
    settle_ns: 8_000_000_000,
    push_ns: Some(10 * MS),
};

/// Returns a calm history in which a message comes by a push, and a planned stop answers the next one.
fn calm() -> Tape {
    let mut tape = Tape::default();
    for Client { user, session } in [ANN, BOB] {
        tape.add(HistoryEvent::Open { user, device: "p", session });
    }
    tape.send(ANN, "d:ann:bob", "a1", false);
    tape.ok("a1", 1);
    tape.recv(BOB, "d:ann:bob", 1, Some("a1"));
    tape.send(ANN, "d:ann:bob", "a2", false);
    tape.ok("a2", 2);
    tape.add(HistoryEvent::Close { session: 1, code: Code::Draining.number() });
    tape.recv(BOB, "d:ann:bob", 2, Some("a2"));
    tape.add(HistoryEvent::Complete { user: "bob", device: "p", hints: true });
    for (seq, cid) in [(1, "a1"), (2, "a2")] {
        tape.log("d:ann:bob", seq, "ann", cid);
    }
    for _ in 0..10 {
        tape.add(HistoryEvent::SyncInv { session: 2 });
    }
    tape
}

fn broken(tape: &Tape) -> Vec<&'static str> {
    check(&tape.history(), CALM).broken.into_keys().collect()
}

#[test]
fn a_push_that_neither_came_nor_was_announced_is_named_where_no_push_may_be_lost() {
    let tape = calm();
    let report = check(&tape.history(), CALM);
    assert!(report.is_clean(), "{:#?}", report.violations);
    assert_eq!(report.calm_pushes, 2);
    let mut lost = tape.clone();
    // The message is pulled instead.
    let push = lost.at(is_push("a1", Via::Push));
    let HistoryEvent::Recv { via, .. } = &mut lost.0[push].event else { panic!("a push") };
    *via = Via::Pull;
    assert_eq!(broken(&lost), ["unpushed"]);
    assert!(lost.with(|_| {}).is_empty(), "elsewhere a pull is as good");
    let mut announced = lost.clone();
    let gap = HistoryEvent::Gap { session: 2, conv: "d:ann:bob".to_owned(), first: 1, last: 1 };
    announced.0.insert(push, Stamped { at: announced.0[push].at, event: gap });
    assert!(broken(&announced).is_empty());
    let mut excused = lost.clone();
    let loss = HistoryEvent::Nemesis { on: true, fault: "redis-flush".to_owned() };
    excused.0.insert(push, Stamped { at: excused.0[push].at, event: loss });
    assert!(broken(&excused).is_empty(), "the loss of routes was not noticed yet");
}

#[test]
fn a_planned_stop_that_took_a_send_and_did_not_answer_it_is_named() {
    let mut tape = calm();
    let ack = tape.at(is_ok("a2"));
    let close = tape.at(|event| matches!(event, HistoryEvent::Close { .. }));
    let mut late = tape.0.remove(ack);
    tape.0.insert(close, Stamped { at: late.at, event: HistoryEvent::SendInfo { cid: "a2".to_owned() } });
    let again = HistoryEvent::SendInv {
        user: "ann".to_owned(),
        device: "p".to_owned(),
        session: 3,
        conv: "d:ann:bob".to_owned(),
        cid: "a2".to_owned(),
        body: body_of("a2"),
        attempt: 1,
        chained: false,
    };
    tape.0.insert(close + 1, Stamped { at: late.at, event: again });
    tape.0.insert(close + 2, late.clone());
    assert!(broken(&tape).is_empty(), "the node had not taken it");
    let HistoryEvent::SendOk { duplicate, .. } = &mut late.event else { panic!("an ack") };
    *duplicate = true;
    tape.0[close + 2] = late;
    assert_eq!(broken(&tape), ["stop-unanswered"]);
}
