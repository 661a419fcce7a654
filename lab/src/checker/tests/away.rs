//! The self-test of completeness: a device has to pull what it missed while it was away.

use super::*;

/// Returns a history in which Bob is away for a while, is removed and added again, and pulls what he missed; and the
/// index of the last event before the log, which says that pushes may be lost.
fn away() -> (Tape, usize) {
    let mut tape = Tape::default();
    let open = |tape: &mut Tape, Client { user, session }: Client<'_>| {
        tape.add(HistoryEvent::Open { user, device: "p", session });
    };
    let say = |tape: &mut Tape, seq: u64| {
        let cid = format!("m{seq}");
        tape.send(ANN, "g:g", &cid, false);
        tape.ok(&cid, seq);
    };
    let got = |tape: &mut Tape, session, seq: u64, cid: Option<&str>, via| {
        let body = cid.map_or(0, body_of);
        tape.add(HistoryEvent::Recv { user: "bob", device: "p", session, conv: "g:g", seq, cid, body, via });
    };
    open(&mut tape, ANN);
    open(&mut tape, BOB);
    got(&mut tape, 2, 1, None, Via::Push);
    say(&mut tape, 2);
    got(&mut tape, 2, 2, Some("m2"), Via::Push);
    tape.add(HistoryEvent::Close { session: 2, code: 0 });
    // While Bob is away: a message for him, his removal, a message that is not for him, his return, and another
    // message.
    for seq in [3, 5, 7] {
        say(&mut tape, seq);
    }
    open(&mut tape, Client { user: "bob", session: 4 });
    for (seq, cid) in [(3, Some("m3")), (4, None), (6, None), (7, Some("m7"))] {
        got(&mut tape, 4, seq, cid, Via::Pull);
    }
    say(&mut tape, 8);
    got(&mut tape, 4, 8, Some("m8"), Via::Push);
    for hints in [false, true] {
        tape.add(HistoryEvent::Complete { user: "bob", device: "p", hints });
    }
    for (seq, user, change) in [(1, "ann", Change::Join), (1, "bob", Change::Join)] {
        tape.member(seq, user, change);
    }
    tape.log("g:g", 2, "ann", "m2");
    tape.log("g:g", 3, "ann", "m3");
    tape.member(4, "bob", Change::Kick);
    tape.log("g:g", 5, "ann", "m5");
    tape.member(6, "bob", Change::Join);
    tape.log("g:g", 7, "ann", "m7");
    tape.log("g:g", 8, "ann", "m8");
    let complete = tape.at(|event| matches!(event, HistoryEvent::Complete { hints: true, .. }));
    (tape, complete)
}

/// A device has to pull exactly the missed entries to which its user is entitled.
#[test]
fn a_device_never_gets_what_it_missed_while_it_was_away() {
    let (tape, complete) = away();
    let single = |it: &mut Vec<Stamped<String>>| drop(it.remove(complete));
    assert!(tape.with(|_| {}).is_empty(), "{:?}", check(&tape.history(), Budget::default()).violations);
    assert!(tape.with(single).is_empty());
    for lost in [1_u64, 2, 3, 4, 6, 7] {
        let without = |it: &mut Vec<Stamped<String>>| {
            single(it);
            it.retain(|it| !matches!(&it.event, HistoryEvent::Recv { seq, .. } if *seq == lost));
        };
        assert_eq!(tape.with(without), ["never-got"], "{lost}");
        let silent = tape.with(|it| {
            without(it);
            it.retain(|it| !matches!(it.event, HistoryEvent::Complete { .. }));
        });
        assert!(silent.is_empty(), "it did not say that it has everything: {silent:?}");
    }
    // A pull does not replace a push: within a connection the push is still missing.
    let pulled = |it: &mut Vec<Stamped<String>>| {
        for event in it {
            if let HistoryEvent::Recv { seq: 8, via, .. } = &mut event.event {
                *via = Via::Pull;
            }
        }
    };
    let unpushed = tape.with(|it| {
        single(it);
        pulled(it);
    });
    assert_eq!(unpushed, ["not-delivered"]);
    assert!(tape.with(pulled).is_empty(), "between nodes a push may be lost");
    // A pull returns no more than the user is entitled to.
    let leak = tape.with(|it| {
        let mut more = it[tape.at(is_push("m3", Via::Pull))].clone();
        if let HistoryEvent::Recv { seq, cid, body, .. } = &mut more.event {
            (*seq, *cid, *body) = (5, Some("m5".into()), body_of("m5"));
        }
        it.insert(complete, more);
    });
    assert_eq!(leak, ["leak-after-kick"]);
}

/// A message whose content is from after a leave is `expired` for the user who left, who may also be back since.
#[test]
fn message_edited_after_a_leave_may_be_missing_and_no_other() {
    let (tape, complete) = away();
    let lost = |edited_at: u64| {
        let lose_third = |it: &mut Vec<Stamped<String>>| {
            it.remove(complete);
            it.retain(|it| !matches!(it.event, HistoryEvent::Recv { seq: 3, .. }));
        };
        let mut tape = tape.clone();
        let first_row = tape.at(|event| matches!(event, HistoryEvent::LogMember { .. }));
        let rows = tape.0.split_off(first_row);
        tape.add(HistoryEvent::EditInv { conv: "g:g", of: 3, cid: "e3", body: body_of("e3"), was: 0 });
        tape.0.extend(rows);
        for it in &mut tape.0 {
            match &mut it.event {
                HistoryEvent::LogMessage { seq: 3, body, .. } => *body = body_of("e3"),
                HistoryEvent::LogMember { seq, .. } | HistoryEvent::LogMessage { seq, .. }
                    if *seq >= edited_at =>
                {
                    *seq += 1;
                }
                HistoryEvent::SendOk { seq, .. } | HistoryEvent::Recv { seq, .. } if *seq >= edited_at => {
                    *seq += 1;
                }
                _ => {}
            }
        }
        tape.add(HistoryEvent::LogEdit { conv: "g:g", seq: edited_at, of: 3, cid: "e3" });
        tape.with(lose_third)
    };
    assert!(lost(5).is_empty(), "the edit came after the removal: {:?}", lost(5));
    assert_eq!(lost(4), ["never-got"], "the edit came before the removal");
    assert_eq!(lost(8), ["never-got"], "the edit came when the user was back");
}
