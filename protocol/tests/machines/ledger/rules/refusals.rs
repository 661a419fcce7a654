//! What a refusal takes, what it leaves, and what is remembered of it.

use super::*;

#[test]
fn a_refusal_by_membership_takes_its_number() {
    let mut it = group();
    it.member(change(MemberAction::Kick, &["bob"], "ann", "q2"));
    let by_bob = |id: &str, n| Message {
        order: SenderOrder { epoch: 1, n, chained: true },
        ..message("g:a", "bob", id)
    };
    assert_eq!(it.say(by_bob("m0", 0)), refused(Code::NotAMember));
    it.member(change(MemberAction::Join, &["bob"], "ann", "q3"));
    assert_eq!(seq(it.say(by_bob("m1", 1))), 4);
}

#[test]
fn a_refusal_that_takes_no_number_leaves_no_row() {
    let mut it = group();
    it.ledger.take_delta(it.end()).unwrap();
    let nowhere = |id: &str| message("g:nowhere", "eve", id);
    assert_eq!(it.say(nowhere("m1")), refused(Code::NotFound));
    assert_eq!(it.say(message("g:a", "eve", "m2")), refused(Code::NotAMember));
    let late = SenderOrder { epoch: 5, n: 3, chained: true };
    assert_eq!(it.say(Message { order: late, ..nowhere("m3") }), refused(Code::OrderBroken));
    let delta = it.ledger.take_delta(it.end()).unwrap();
    assert!(delta.devices.is_empty() && delta.keys.is_empty() && delta.members.is_empty(), "{delta:?}");
    // The next of a chain takes its number, and a device that is known there is shut out by its own newer conns.
    assert_eq!(
        it.say(Message { order: SenderOrder { n: 0, ..late }, ..nowhere("m4") }),
        refused(Code::NotFound)
    );
    let delta = it.ledger.take_delta(it.end()).unwrap();
    assert_eq!((delta.devices.len(), delta.keys.len()), (1, 1));
    let newer = SenderOrder { epoch: 6, n: 0, chained: false };
    assert_eq!(it.say(Message { order: newer, ..nowhere("m5") }), refused(Code::NotFound));
    assert_eq!(it.say(nowhere("m6")), Outcome::Void { newest: 6 });
}

#[test]
fn a_lasting_refusal_of_a_chained_message_is_given_again_after_a_join() {
    let mut it = group();
    let by_dan = |to: &str, id: &str, epoch, n, chained| Message {
        order: SenderOrder { epoch, n, chained },
        ..message(to, "dan", id)
    };
    assert_eq!(it.say(by_dan("g:a", "m1", 1, 0, true)), refused(Code::NotAMember));
    assert_eq!(it.say(by_dan("g:b", "m2", 1, 0, true)), refused(Code::NotFound));
    assert_eq!(it.say(by_dan("g:a", "loose", 1, 0, false)), refused(Code::NotAMember));
    assert_eq!(it.say(by_dan("g:a", "early", 1, 7, true)), refused(Code::OrderBroken));
    let join = change(MemberAction::Join, &["dan"], "ann", "q2");
    assert_eq!(seq(it.member(join)), 2);
    assert_eq!(seq(it.say(by_dan("g:a", "m3", 1, 1, true))), 3, "the chain goes on");
    let before = |code| Outcome::RefusedBefore { code };
    let again = Message { attempt: 1, ..by_dan("g:a", "m1", 2, 0, true) };
    assert_eq!(it.say(again.clone()), before(Code::NotAMember));
    assert_eq!(
        it.say(Message { order: SenderOrder { chained: false, ..again.order }, ..again }),
        before(Code::NotAMember)
    );
    assert_eq!(it.say(by_dan("g:b", "m2", 2, 0, true)), before(Code::NotFound));
    let other = Message { body_hash: body_hash(b"other"), ..by_dan("g:a", "m1", 2, 1, true) };
    assert_eq!(it.say(other), refused(Code::Conflict));
    // What has nothing behind it is judged anew: the unchained one, and the one that was only early.
    assert_eq!(seq(it.say(by_dan("g:a", "loose", 2, 0, false))), 4);
    assert_eq!(seq(it.say(by_dan("g:a", "early", 2, 2, true))), 5);
}

/// A group that bob is not in any more, under the newest rules.
fn without_bob() -> Partition {
    let mut it = group();
    it.put(Body::Rules(RuleChange { ledger_version: 3, ..RuleChange::default() }));
    it.member(change(MemberAction::Kick, &["bob"], "ann", "q2"));
    it
}

/// Seen in an hour of chaos: copies of a message that its client had sent again lay behind a broker that hung; the first one was refused, and
/// told so, and a join lay between it and the others.
#[test]
fn s21_copies_of_a_refused_message_stay_out_also_behind_a_join() {
    let mut it = without_bob();
    let copy = |attempt| Message { attempt, ..message("g:a", "bob", "m1") };
    assert_eq!(it.say(copy(3)), refused(Code::NotAMember));
    it.member(change(MemberAction::Join, &["bob"], "ann", "q3"));
    let before = Outcome::RefusedBefore { code: Code::NotAMember };
    for attempt in [4, 5, 0] {
        assert_eq!(it.say(copy(attempt)), before);
    }
    let other = Message { body_hash: body_hash(b"other"), ..copy(6) };
    assert_eq!(it.say(other), refused(Code::Conflict));
    seq(it.say(message("g:a", "bob", "m2")));
    let delta = it.ledger.take_delta(it.end()).unwrap();
    assert_eq!(delta.keys.iter().filter(|(_, key)| key.refused.is_some()).count(), 1);
}

#[test]
fn what_is_refused_for_want_of_the_group_or_the_right_to_talk_stays_refused_too() {
    let mut it = group();
    it.put(Body::Rules(RuleChange { ledger_version: 3, ..RuleChange::default() }));
    it.member(change(MemberAction::Mute, &["bob"], "ann", "q2"));
    let muted = message("g:a", "bob", "m1");
    let nowhere = message("g:b", "bob", "m2");
    assert_eq!(it.say(muted.clone()), refused(Code::Muted));
    assert_eq!(it.say(nowhere.clone()), refused(Code::NotFound));
    it.member(change(MemberAction::Unmute, &["bob"], "ann", "q3"));
    it.member(MemberChange {
        conversation: ConversationId::parse("g:b").unwrap(),
        ..change(MemberAction::Create, &["bob"], "bob", "q4")
    });
    assert_eq!(it.say(muted), Outcome::RefusedBefore { code: Code::Muted });
    assert_eq!(it.say(nowhere), Outcome::RefusedBefore { code: Code::NotFound });
    // It is no row of a device that was never heard there.
    let delta = it.ledger.take_delta(it.end()).unwrap();
    assert!(delta.devices.is_empty(), "{delta:?}");
}
