//! Edits since version 5: who may edit what, and what a repeated edit gets.

use tidegate_protocol::record::mode::TRANSIENT;

use super::{
    modes::{moded, newest},
    *,
};

pub(super) fn edit(of: &str, seq: u64, by: &str, id: &str) -> Edit {
    Edit {
        conversation: conversation(of),
        seq,
        by: (!by.is_empty()).then(|| user(by)),
        device: DeviceId::new("phone").unwrap(),
        msg_id: MsgId::new(id).unwrap(),
        content: Bytes::from_static(b"better"),
        body_hash: body_hash(b"better"),
        denied: None,
    }
}

fn put(it: &mut Partition, edit: Edit) -> Outcome {
    it.put(Body::Edit(edit))
}

#[test]
fn edit_takes_a_seq_and_no_ordinal_and_its_row_has_no_content() {
    let mut it = newest();
    it.send(message("g:a", "bob", "m1"));
    assert_eq!(
        put(&mut it, edit("g:a", 2, "bob", "e1")),
        Outcome::Accepted { seq: 3, ordinal: 1, time: 1_000 }
    );
    assert_eq!(
        put(&mut it, edit("g:a", 2, "ann", "e1")),
        Outcome::Accepted { seq: 4, ordinal: 1, time: 1_000 }
    );
    let end = it.end();
    let delta = it.ledger.take_delta(end).unwrap();
    let edited: Vec<_> = delta.edited.iter().map(|it| (it.seq, it.at, &it.content[..])).collect();
    assert_eq!(edited, [(2, (3, 1_000), &b"better"[..]), (2, (4, 1_000), &b"better"[..])]);
    let Body::Edit(row) = &delta.rows[2].body else { panic!("{:?}", delta.rows) };
    assert_eq!((row.seq, row.content.len(), delta.rows[2].own), (2, 0, 0));
}

#[test]
fn sender_admins_and_the_operator_may_edit_and_no_other_user() {
    let mut it = newest();
    it.member(change(MemberAction::Join, &["cy"], "ann", "q2"));
    it.send(message("g:a", "bob", "m1"));
    it.send(message("d:bob:cy", "bob", "m1"));
    let mut of = |by: &str, id: &str| put(&mut it, edit("g:a", 3, by, id));
    assert_eq!((seq(of("bob", "e1")), seq(of("ann", "e2")), seq(of("", "e3"))), (4, 5, 6));
    assert_eq!((of("cy", "e4"), of("dan", "e5")), (refused(Code::Forbidden), refused(Code::NotAMember)));
    let mut of = |by: &str, id: &str| put(&mut it, edit("d:bob:cy", 1, by, id));
    assert_eq!((of("cy", "e1"), of("dan", "e1")), (refused(Code::Forbidden), refused(Code::NotAMember)));
    assert_eq!(seq(of("bob", "e1")), 2);
    it.member(change(MemberAction::Mute, &["bob"], "ann", "q3"));
    assert_eq!(
        put(&mut it, edit("g:a", 3, "bob", "e6")),
        refused(Code::Muted),
        "an edit is read as a message is"
    );
    it.member(change(MemberAction::Unmute, &["bob"], "ann", "q4"));
    let mut admins = change(MemberAction::Settings, &[], "ann", "q5");
    admins.settings = BTreeMap::from([("post".to_owned(), "admins".to_owned())]);
    it.member(admins);
    assert_eq!(put(&mut it, edit("g:a", 3, "bob", "e7")), refused(Code::Forbidden));
    assert_eq!(put(&mut it, edit("g:a", 3, "bob", "e6")), Outcome::RefusedBefore { code: Code::Muted });
}

#[test]
fn only_messages_with_a_stored_content_can_be_edited() {
    let mut it = newest();
    it.send(moded("g:a", "bob", "m1", MessageMode::of_flags(TRANSIENT)));
    it.send(message("g:a", "bob", "m2"));
    it.send(message("g:a", "bob", "m3"));
    it.put(Body::Recall(Recall { conversation: conversation("g:a"), seq: 3, by: None }));
    for (seq, what) in [
        (1, "a change"),
        (2, "transient"),
        (3, "recalled"),
        (5, "a recall"),
        (9, "above the end"),
        (0, "none"),
    ] {
        assert_eq!(put(&mut it, edit("g:a", seq, "", &format!("e{seq}"))), refused(Code::NotFound), "{what}");
    }
    assert_eq!(put(&mut it, edit("g:none", 1, "", "e1")), refused(Code::NotFound));
    assert_eq!(put(&mut it, edit("g:none", 1, "bob", "e1")), refused(Code::NotAMember));
    assert_eq!(seq(put(&mut it, edit("g:a", 4, "bob", "e4"))), 6);
    it.put(Body::Prune(Prune { conversation: conversation("g:a"), up_to: 4 }));
    assert_eq!(put(&mut it, edit("g:a", 4, "bob", "e5")), refused(Code::NotFound), "pruned, though cached");
}

#[test]
fn repeated_edit_gets_its_seq_whatever_happened_since() {
    let mut it = newest();
    it.send(message("g:a", "bob", "m1"));
    assert_eq!(seq(put(&mut it, edit("g:a", 2, "bob", "e1"))), 3);
    it.put(Body::Recall(Recall { conversation: conversation("g:a"), seq: 2, by: None }));
    it.member(change(MemberAction::Kick, &["bob"], "ann", "q2"));
    assert_eq!(put(&mut it, edit("g:a", 2, "bob", "e1")), Outcome::Duplicate { seq: 3, time: 1_000 });
    let other = Edit { body_hash: body_hash(b"other"), ..edit("g:a", 2, "bob", "e1") };
    assert_eq!(put(&mut it, other), refused(Code::Conflict), "another content");
    assert_eq!(put(&mut it, edit("g:a", 1, "bob", "e1")), refused(Code::Conflict), "another message");
    let tablet = Edit { device: DeviceId::new("tablet").unwrap(), ..edit("g:a", 2, "bob", "e1") };
    assert_eq!(put(&mut it, tablet), refused(Code::NotAMember), "devices choose their ids alone");
    assert_eq!(seq(it.send(message("g:a", "ann", "e1"))), 6, "ids of edits and messages are apart");
}

#[test]
fn denied_edit_is_remembered_after_its_rights_were_checked() {
    let mut it = newest();
    it.send(message("g:a", "bob", "m1"));
    let denied = |by: &str| Edit { denied: Some(Code::TooLate), ..edit("g:a", 2, by, "e1") };
    assert_eq!(put(&mut it, denied("cy")), refused(Code::NotAMember));
    assert_eq!(put(&mut it, denied("bob")), refused(Code::TooLate));
    assert_eq!(put(&mut it, edit("g:a", 2, "bob", "e1")), Outcome::RefusedBefore { code: Code::TooLate });
}
