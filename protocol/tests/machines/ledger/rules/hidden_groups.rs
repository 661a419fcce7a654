//! Groups that a user is not in: whatever the user tries, the answers do not tell whether they exist.

use super::*;

/// Creates the groups `g:a`, which exists, and `g:gone`, which bob and cy were in until it was deleted.
fn groups(ledger_version: u32) -> Partition {
    let mut it = group();
    let gone = |action, users: &[&str], by: &str, request| MemberChange {
        conversation: conversation("g:gone"),
        ..change(action, users, by, request)
    };
    it.member(gone(MemberAction::Create, &["bob", "cy"], "ann", "q2"));
    it.member(gone(MemberAction::Kick, &["cy"], "ann", "q3"));
    it.member(gone(MemberAction::Delete, &[], "ann", "q4"));
    it.put(Body::Rules(RuleChange { ledger_version, ..RuleChange::default() }));
    it
}

const GROUPS: [&str; 3] = ["g:a", "g:gone", "g:never"];

/// Returns a record of every kind that a user can cause in a group, except its creation.
fn attempts(to: &str, by: &str) -> Vec<Body> {
    let request = |action, users: &[&str]| {
        let id = format!("{action:?}-{by}");
        Body::Member(MemberChange { conversation: conversation(to), ..change(action, users, by, &id) })
    };
    let chained = SenderOrder { epoch: 5, n: 0, chained: true };
    vec![
        Body::Message(message(to, by, "m1")),
        Body::Message(Message { order: chained, ..message(to, by, "m2") }),
        Body::Recall(Recall { conversation: conversation(to), seq: 1, by: Some(user(by)) }),
        request(MemberAction::Join, &[by]),
        request(MemberAction::Leave, &[by]),
        request(MemberAction::Kick, &["bob"]),
        request(MemberAction::Role, &[by]),
        request(MemberAction::Mute, &["bob"]),
        request(MemberAction::Unmute, &["bob"]),
        request(MemberAction::Settings, &[]),
        request(MemberAction::Delete, &[]),
    ]
}

#[test]
fn x18_a_stranger_gets_the_same_answers_whether_a_group_exists_or_not() {
    for by in ["eve", "dan"] {
        for to in GROUPS {
            let mut it = groups(4);
            for body in attempts(to, by) {
                assert_eq!(it.put(body.clone()), refused(Code::NotAMember), "{to}: {body:?}");
            }
        }
    }
    let mut it = groups(4);
    let former = |it: &mut Partition, to: &str| it.send(message(to, "cy", "m1"));
    assert_eq!(former(&mut it, "g:gone"), refused(Code::NotAMember), "left before the group was deleted");
    it.member(change(MemberAction::Kick, &["cy"], "ann", "q5"));
    assert_eq!(former(&mut it, "g:a"), refused(Code::NotAMember));
}

#[test]
fn x18_members_of_a_deleted_group_learn_that_it_is_gone() {
    let mut it = groups(4);
    for body in attempts("g:gone", "bob") {
        assert_eq!(it.put(body.clone()), refused(Code::NotFound), "{body:?}");
    }
    // Requests of the admin API, which may know everything.
    let leave = |to| MemberChange {
        conversation: conversation(to),
        ..change(MemberAction::Kick, &["bob"], "", "q9")
    };
    assert_eq!(it.member(leave("g:gone")), refused(Code::NotFound));
    assert_eq!(it.member(leave("g:never")), refused(Code::NotFound));
}

#[test]
fn x18_a_third_user_does_not_learn_of_a_direct_conversation() {
    let mut it = groups(4);
    it.send(message("d:ann:bob", "ann", "m1"));
    let recall = |by: &str, to: &str| {
        Body::Recall(Recall { conversation: conversation(to), seq: 1, by: Some(user(by)) })
    };
    for to in ["d:ann:bob", "d:ann:cy"] {
        assert_eq!(it.put(recall("eve", to)), refused(Code::NotAMember), "{to}");
    }
    assert_eq!(it.put(recall("cy", "d:ann:cy")), refused(Code::NotFound), "a conversation of its own");
}
