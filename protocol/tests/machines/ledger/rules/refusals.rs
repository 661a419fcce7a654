//! Refusals: the numbers they take, the rows they leave, and when they are remembered.

use super::*;

#[test]
fn a_refusal_by_membership_takes_its_number() {
    let mut it = group();
    it.member(change(MemberAction::Kick, &["bob"], "ann", "q2"));
    let by_bob = |id: &str, n| Message {
        order: SenderOrder { epoch: 1, n, chained: true },
        ..message("g:a", "bob", id)
    };
    assert_eq!(it.send(by_bob("m0", 0)), refused(Code::NotAMember));
    it.member(change(MemberAction::Join, &["bob"], "ann", "q3"));
    assert_eq!(seq(it.send(by_bob("m1", 1))), 4);
}

#[test]
fn a_refusal_that_takes_no_number_leaves_no_row() {
    let mut it = group();
    it.ledger.take_delta(it.end()).unwrap();
    let nowhere = |id: &str| message("g:nowhere", "eve", id);
    assert_eq!(it.send(nowhere("m1")), refused(Code::NotFound));
    assert_eq!(it.send(message("g:a", "eve", "m2")), refused(Code::NotAMember));
    let late = SenderOrder { epoch: 5, n: 3, chained: true };
    assert_eq!(it.send(Message { order: late, ..nowhere("m3") }), refused(Code::OrderBroken));
    let delta = it.ledger.take_delta(it.end()).unwrap();
    assert!(delta.devices.is_empty() && delta.keys.is_empty() && delta.members.is_empty(), "{delta:?}");
    // The next message of a chain takes its number, and the device's newer connections void the older ones.
    assert_eq!(
        it.send(Message { order: SenderOrder { n: 0, ..late }, ..nowhere("m4") }),
        refused(Code::NotFound)
    );
    let delta = it.ledger.take_delta(it.end()).unwrap();
    assert_eq!((delta.devices.len(), delta.keys.len()), (1, 1));
    let newer = SenderOrder { epoch: 6, n: 0, chained: false };
    assert_eq!(it.send(Message { order: newer, ..nowhere("m5") }), refused(Code::NotFound));
    assert_eq!(it.send(nowhere("m6")), Outcome::Void { newest: 6 });
}

#[test]
fn permanent_refusal_of_a_chained_message_survives_a_join() {
    let mut it = group();
    let by_dan = |to: &str, id: &str, epoch, n, chained| Message {
        order: SenderOrder { epoch, n, chained },
        ..message(to, "dan", id)
    };
    assert_eq!(it.send(by_dan("g:a", "m1", 1, 0, true)), refused(Code::NotAMember));
    assert_eq!(it.send(by_dan("g:b", "m2", 1, 0, true)), refused(Code::NotFound));
    assert_eq!(it.send(by_dan("g:a", "loose", 1, 0, false)), refused(Code::NotAMember));
    assert_eq!(it.send(by_dan("g:a", "early", 1, 7, true)), refused(Code::OrderBroken));
    let join = change(MemberAction::Join, &["dan"], "ann", "q2");
    assert_eq!(seq(it.member(join)), 2);
    assert_eq!(seq(it.send(by_dan("g:a", "m3", 1, 1, true))), 3, "the chain continues");
    let before = |code| Outcome::RefusedBefore { code };
    let again = Message { attempt: 1, ..by_dan("g:a", "m1", 2, 0, true) };
    assert_eq!(it.send(again.clone()), before(Code::NotAMember));
    assert_eq!(
        it.send(Message { order: SenderOrder { chained: false, ..again.order }, ..again }),
        before(Code::NotAMember)
    );
    assert_eq!(it.send(by_dan("g:b", "m2", 2, 0, true)), before(Code::NotFound));
    let other = Message { body_hash: body_hash(b"other"), ..by_dan("g:a", "m1", 2, 1, true) };
    assert_eq!(it.send(other), refused(Code::Conflict));
    // Under version 1, the unchained message and the early one are decided again.
    assert_eq!(seq(it.send(by_dan("g:a", "loose", 2, 0, false))), 4);
    assert_eq!(seq(it.send(by_dan("g:a", "early", 2, 2, true))), 5);
}

/// Creates a group that bob has left, under the newest rules.
fn without_bob() -> Partition {
    let mut it = group();
    it.put(Body::Rules(RuleChange { ledger_version: 3, ..RuleChange::default() }));
    it.member(change(MemberAction::Kick, &["bob"], "ann", "q2"));
    it
}

/// Regression test from a chaos run: several copies of a resent message were queued behind a hung broker. The first
/// copy was refused and answered, and a join came between it and the others.
#[test]
fn s21_copies_of_a_refused_message_stay_refused_after_a_join() {
    let mut it = without_bob();
    let copy = |attempt| Message { attempt, ..message("g:a", "bob", "m1") };
    assert_eq!(it.send(copy(3)), refused(Code::NotAMember));
    it.member(change(MemberAction::Join, &["bob"], "ann", "q3"));
    let before = Outcome::RefusedBefore { code: Code::NotAMember };
    for attempt in [4, 5, 0] {
        assert_eq!(it.send(copy(attempt)), before);
    }
    let other = Message { body_hash: body_hash(b"other"), ..copy(6) };
    assert_eq!(it.send(other), refused(Code::Conflict));
    seq(it.send(message("g:a", "bob", "m2")));
    let delta = it.ledger.take_delta(it.end()).unwrap();
    assert_eq!(delta.keys.iter().filter(|(_, key)| key.refused.is_some()).count(), 1);
}

#[test]
fn refusal_for_a_mute_or_a_missing_group_is_permanent() {
    let mut it = group();
    it.put(Body::Rules(RuleChange { ledger_version: 3, ..RuleChange::default() }));
    it.member(change(MemberAction::Mute, &["bob"], "ann", "q2"));
    let muted = message("g:a", "bob", "m1");
    let nowhere = message("g:b", "bob", "m2");
    assert_eq!(it.send(muted.clone()), refused(Code::Muted));
    assert_eq!(it.send(nowhere.clone()), refused(Code::NotFound));
    it.member(change(MemberAction::Unmute, &["bob"], "ann", "q3"));
    it.member(MemberChange {
        conversation: ConversationId::parse("g:b").unwrap(),
        ..change(MemberAction::Create, &["bob"], "bob", "q4")
    });
    assert_eq!(it.send(muted), Outcome::RefusedBefore { code: Code::Muted });
    assert_eq!(it.send(nowhere), Outcome::RefusedBefore { code: Code::NotFound });
    // The refusals create no row for a new device.
    let delta = it.ledger.take_delta(it.end()).unwrap();
    assert!(delta.devices.is_empty(), "{delta:?}");
}

/// A request that was sent through two nodes: the second copy arrives after a join that came later.
#[test]
fn k5_refused_kick_is_remembered() {
    let mut it = group();
    it.put(Body::Rules(RuleChange { ledger_version: 4, ..RuleChange::default() }));
    let kick = || change(MemberAction::Kick, &["dan"], "ann", "r1");
    assert_eq!(it.member(kick()), refused(Code::NotAMember));
    assert_eq!(seq(it.member(change(MemberAction::Join, &["dan"], "ann", "r2"))), 2);
    assert_eq!(it.member(kick()), Outcome::RefusedBefore { code: Code::NotAMember });
    assert_eq!(it.member(MemberChange { users: vec![user("bob")], ..kick() }), refused(Code::Conflict));
    assert_eq!(seq(it.member(change(MemberAction::Kick, &["dan"], "ann", "r3"))), 3, "a new id");
    // The next owner finds the refusal in the store.
    let (end, delta) = (it.end(), it.ledger.take_delta(it.end()).unwrap());
    it.store.commit(0, &delta).unwrap();
    it.ledger = Ledger::resume(end, it.store.now.rules, 2);
    assert_eq!(it.member(kick()), Outcome::RefusedBefore { code: Code::NotAMember });
}

#[test]
fn k5_every_lasting_refusal_of_a_request_is_remembered() {
    let mut it = group();
    it.put(Body::Rules(RuleChange { ledger_version: 4, ..RuleChange::default() }));
    let named = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
    let in_b = |change: MemberChange| MemberChange { conversation: conversation("g:b"), ..change };
    let refusals = [
        (in_b(change(MemberAction::Join, &["dan"], "", "r1")), Code::NotFound),
        (in_b(change(MemberAction::Join, &["dan"], "bob", "r1")), Code::NotAMember),
        (change(MemberAction::Create, &["dan"], "ann", "r1"), Code::AlreadyExists),
        (change(MemberAction::Mute, &["cy"], "bob", "r2"), Code::Forbidden),
        (
            MemberChange { role: Some(Role::Admin), ..change(MemberAction::Role, &["cy"], "bob", "r3") },
            Code::Forbidden,
        ),
        (
            MemberChange { settings: named("name", "x"), ..change(MemberAction::Settings, &[], "bob", "r4") },
            Code::Forbidden,
        ),
        (
            MemberChange { settings: named("post", "x"), ..change(MemberAction::Settings, &[], "ann", "r5") },
            Code::BadSetting,
        ),
        (change(MemberAction::Delete, &[], "bob", "r6"), Code::Forbidden),
    ];
    for (change, code) in &refusals {
        assert_eq!(it.member(change.clone()), refused(*code), "{change:?}");
    }
    it.member(in_b(change(MemberAction::Create, &["bob"], "", "r7")));
    it.member(MemberChange { role: Some(Role::Owner), ..change(MemberAction::Role, &["bob"], "ann", "r8") });
    for (change, code) in refusals {
        assert_eq!(it.member(change.clone()), Outcome::RefusedBefore { code }, "{change:?}");
    }
}
