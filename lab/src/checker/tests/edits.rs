//! Planted faults of edits.

use super::{super::*, BOB, Client, Tape, body_of};

/// The clean history, in which the first direct message was edited twice, and the second one once.
fn tape() -> Tape {
    let mut tape = super::clean();
    let first_row = tape.at(|event| matches!(event, HistoryEvent::LogMessage { .. }));
    let rows = tape.0.split_off(first_row);
    for (of, cid) in [(1, "e1"), (2, "e2"), (1, "e3")] {
        tape.add(HistoryEvent::EditInv { conv: "d:ann:bob", of, cid, body: body_of(cid), was: 0 });
    }
    tape.0.extend(rows);
    for it in &mut tape.0 {
        let HistoryEvent::LogMessage { conv, seq, body, .. } = &mut it.event else { continue };
        match (conv.as_str(), *seq) {
            ("d:ann:bob", 1) => *body = body_of("e3"),
            ("d:ann:bob", 2) => *body = body_of("e2"),
            _ => {}
        }
    }
    for (seq, cid) in [(5, "e1"), (7, "e3")] {
        tape.add(HistoryEvent::EditOk { cid, seq });
    }
    for (seq, of, cid) in [(5, 1, "e1"), (6, 2, "e2"), (7, 1, "e3")] {
        tape.add(HistoryEvent::LogEdit { conv: "d:ann:bob", seq, of, cid });
    }
    tape
}

fn edits(events: &mut [Stamped<String>]) -> impl Iterator<Item = &mut HistoryEvent<String>> {
    events.iter_mut().map(|it| &mut it.event).filter(|it| matches!(it, HistoryEvent::LogEdit { .. }))
}

#[test]
fn newest_edit_is_the_content_of_its_message() {
    let report = check(&tape().history(), Budget::default());
    assert!(report.is_clean(), "{:?}", report.violations);
    for (stale, rule) in [("a1", "edit-lost"), ("e1", "edit-lost")] {
        let broken = tape().with(|events| {
            for it in events {
                if let HistoryEvent::LogMessage { cid, body, .. } = &mut it.event
                    && cid == "a1"
                {
                    *body = body_of(stale);
                }
            }
        });
        assert_eq!(broken, [rule], "{stale}");
    }
}

#[test]
fn content_of_a_message_without_edits_is_what_was_sent() {
    let broken = tape().with(|events| {
        for it in events {
            if let HistoryEvent::LogMessage { cid, body, .. } = &mut it.event
                && cid == "a3"
            {
                *body = body_of("e1");
            }
        }
    });
    assert_eq!(broken, ["corrupted"]);
}

#[test]
fn acked_edit_is_in_the_log_once_where_its_ack_says() {
    let lost = tape().with(|events| {
        let HistoryEvent::LogEdit { seq, .. } = edits(events).last().unwrap() else { return };
        *seq = 8;
    });
    assert!(lost.contains(&"lost-acked"), "{lost:?}");
    let twice = tape().with(|events| {
        let HistoryEvent::LogEdit { of, cid, .. } = edits(events).nth(1).unwrap() else { return };
        (*of, *cid) = (1, "e1".to_owned());
    });
    assert!(twice.contains(&"stored-twice"), "{twice:?}");
}

#[test]
fn edit_of_another_entry_is_named() {
    let unasked = tape().with(|events| {
        let HistoryEvent::LogEdit { cid, .. } = edits(events).next().unwrap() else { return };
        *cid = "e9".to_owned();
    });
    assert_eq!(unasked, ["edit-unasked", "lost-acked"]);
    // A later entry, one that is no message, and one of another conversation.
    for other in [7, 6, 99] {
        let misplaced = tape().with(|events| {
            let HistoryEvent::LogEdit { of, .. } = edits(events).next().unwrap() else { return };
            *of = other;
        });
        assert!(misplaced.contains(&"edit-misplaced"), "{other}: {misplaced:?}");
    }
    let elsewhere = tape().with(|events| {
        let HistoryEvent::LogEdit { conv, seq, .. } = edits(events).last().unwrap() else { return };
        (*conv, *seq) = ("g:g".to_owned(), 5);
    });
    assert_eq!(
        elsewhere,
        ["edit-lost", "edit-misplaced", "edit-unasked", "lost-acked"],
        "the group has no message 1"
    );
}

#[test]
fn event_may_have_the_content_of_any_edit_of_its_message() {
    let mut tape = tape();
    for (seq, cid, body) in [(1, Some("a1"), "e1"), (2, Some("a2"), "a2")] {
        tape.add(HistoryEvent::Delivered {
            endpoint: "crm",
            conv: "d:ann:bob",
            seq,
            cid,
            body: body_of(body),
        });
    }
    assert!(check(&tape.history(), Budget::default()).is_clean());
    tape.add(HistoryEvent::Delivered {
        endpoint: "crm",
        conv: "d:ann:bob",
        seq: 3,
        cid: Some("a3"),
        body: body_of("e1"),
    });
    assert_eq!(tape.with(|_| {}), ["webhook-phantom"], "the edit is of another message");
}

#[test]
fn edit_comes_with_its_own_content_or_with_none() {
    let broken = |body: u64, via: Via| {
        let mut tape = tape();
        let Client { user, session } = BOB;
        let conv = "d:ann:bob";
        tape.add(HistoryEvent::Recv { user, device: "p", session, conv, seq: 5, cid: None, body, via });
        tape.with(|_| {})
    };
    for (body, via) in [("e1", Via::Push), ("e1", Via::Pull), ("e3", Via::App)] {
        assert!(broken(body_of(body), via).is_empty(), "{body}: {:?}", broken(body_of(body), via));
    }
    assert!(broken(0, Via::Pull).is_empty(), "there is a later edit");
    for (body, via) in [("e3", Via::Push), ("e2", Via::Push), ("a1", Via::Pull), ("e2", Via::App)] {
        assert_eq!(broken(body_of(body), via), ["corrupted"], "{body}");
    }
}
