//! The self-test of read marks and unread counts: each is made to drift once.

use super::*;

/// Returns a history in which Bob reads messages of Ann, with a sync before and after; the store has his mark.
fn reading() -> Tape {
    let mut tape = clean();
    let end = tape.at(|event| matches!(event, HistoryEvent::LogMessage { .. }));
    let log = tape.0.split_off(end);
    let sync = |tape: &mut Tape, session, states: &[(&str, u64, u64, u64)]| {
        tape.add(HistoryEvent::SyncInv { session });
        for (conv, max, read, unread) in states.iter().copied() {
            tape.add(HistoryEvent::State { user: "bob", session, conv, max, read, unread });
        }
        tape.add(HistoryEvent::SyncEnd { session, unread: states.iter().map(|state| state.3).sum() });
    };
    sync(&mut tape, 2, &[("d:ann:bob", 4, 0, 4), ("g:g", 4, 0, 2)]);
    for seq in [1, 3] {
        tape.add(HistoryEvent::ReadInv { user: "bob", conv: "d:ann:bob", seq });
        tape.add(HistoryEvent::ReadOk { user: "bob", conv: "d:ann:bob", seq });
    }
    // This read has no answer, and may have moved the mark or not.
    tape.add(HistoryEvent::ReadInv { user: "bob", conv: "g:g", seq: 2 });
    sync(&mut tape, 4, &[("d:ann:bob", 4, 3, 1), ("g:g", 4, 2, 1)]);
    tape.0.extend(log);
    for (conv, seq) in [("d:ann:bob", 3), ("g:g", 2)] {
        tape.add(HistoryEvent::LogRead { user: "bob", conv, seq });
    }
    tape
}

/// Returns the index of the last state of a conversation.
fn last_state(tape: &Tape, wanted: &str) -> usize {
    let is_state =
        |it: &Stamped<String>| matches!(&it.event, HistoryEvent::State { conv, .. } if conv == wanted);
    tape.0.iter().rposition(is_state).unwrap()
}

#[test]
fn marks_that_move_forward_and_unread_by_the_log_are_clean() {
    let tape = reading();
    let report = check(&tape.history(), Budget::default());
    assert!(report.is_clean(), "{:#?}", report.violations);
    assert_eq!((report.reads, report.states), (2, 4));
    // A state may be older than an ack that came during the sync.
    let state = last_state(&tape, "d:ann:bob");
    let late = tape.with(|it| {
        let asked = it.iter().rposition(|it| matches!(it.event, HistoryEvent::SyncInv { .. })).unwrap();
        let asked = it.remove(asked);
        let ack = it.iter().position(|it| matches!(it.event, HistoryEvent::ReadOk { seq: 3, .. })).unwrap();
        it.insert(ack, asked);
        let HistoryEvent::State { read, unread, .. } = &mut it[state].event else { panic!("no state") };
        (*read, *unread) = (1, 3);
        let HistoryEvent::SyncEnd { unread, .. } = &mut it[state + 2].event else { panic!("no end") };
        *unread = 4;
    });
    assert!(late.is_empty(), "{late:?}");
}

#[test]
fn a_read_mark_goes_back_or_further_than_asked() {
    let tape = reading();
    let state = last_state(&tape, "d:ann:bob");
    let findings = |to: u64, counted: u64| {
        tape.with(|it| {
            let HistoryEvent::State { read, unread, .. } = &mut it[state].event else { panic!("no state") };
            (*read, *unread) = (to, counted);
            let HistoryEvent::SyncEnd { unread, .. } = &mut it[state + 2].event else { panic!("no end") };
            *unread = counted + 1;
        })
    };
    assert_eq!(findings(1, 3), ["read-went-back"]);
    // A reported mark holds from then on, and the store has a lower one.
    assert_eq!(findings(4, 0), ["read-unasked", "read-went-back"]);
    let kept = tape.at(|event| matches!(event, HistoryEvent::LogRead { conv, .. } if conv == "d:ann:bob"));
    let store = |to: u64| {
        tape.with(|it| {
            let HistoryEvent::LogRead { seq, .. } = &mut it[kept].event else { panic!("no mark") };
            *seq = to;
        })
    };
    assert_eq!(store(2), ["read-went-back"]);
    assert_eq!(store(4), ["read-unasked"]);
    assert_eq!(tape.with(|it| drop(it.remove(kept))), ["read-went-back"]);
    let read_reply = HistoryEvent::ReadOk { user: "bob".into(), conv: "d:ann:bob".into(), seq: 4 };
    assert!(tape.with(|it| it.insert(state, Stamped { at: 0, event: read_reply })).contains(&"read-unasked"));
}

#[test]
fn unread_drifts() {
    let tape = reading();
    for (conv, wrong) in [("d:ann:bob", 2), ("g:g", 2), ("g:g", 0)] {
        let state = last_state(&tape, conv);
        let rules = tape.with(|it| {
            let HistoryEvent::State { unread, .. } = &mut it[state].event else { panic!("no state") };
            *unread = wrong;
        });
        assert_eq!(rules, ["unread-drift", "unread-total"], "{conv} {wrong}");
    }
    let end = last_state(&tape, "g:g") + 1;
    let total = tape.with(|it| {
        let HistoryEvent::SyncEnd { unread, .. } = &mut it[end].event else { panic!("no end") };
        *unread += 1;
    });
    assert_eq!(total, ["unread-total"]);
    // Dan is removed at 3: later messages are not unread for him, and own messages never are.
    let dan = |user: &str, max, unread| {
        let event =
            HistoryEvent::State { user: user.into(), session: 3, conv: "g:g".into(), max, read: 0, unread };
        tape.with(|it| it.insert(end + 1, Stamped { at: 0, event }))
    };
    assert!(dan("dan", 3, 1).is_empty());
    assert_eq!(dan("dan", 4, 2), ["unread-drift"]);
    assert!(dan("ann", 4, 0).is_empty());
}
