//! Modes of messages since version 5: silent, transient, by the operator, denied.

use tidegate_protocol::{
    machine::ledger::LEDGER_NEWEST,
    record::mode::{NO_PUSH, SILENT, TRANSIENT, UNCHECKED},
};

use super::*;

/// Message of a back end.
pub(super) fn moded(to: &str, sender: &str, id: &str, mode: MessageMode) -> Message {
    let (device, order) = (DeviceId::new(".api").unwrap(), SenderOrder::WITHOUT_SESSION);
    Message { mode, device, order, ..message(to, sender, id) }
}

/// Returns a partition with the newest rules and the group `g:a` of ann, its owner, and bob.
pub(super) fn newest() -> Partition {
    let mut it = Partition::new();
    it.put(Body::Rules(RuleChange { ledger_version: LEDGER_NEWEST, ..RuleChange::default() }));
    it.member(change(MemberAction::Create, &["bob"], "ann", "q1"));
    it
}

const OPERATOR: MessageMode =
    MessageMode { is_operator: true, is_silent: false, is_transient: false, denied: None };

fn denied(code: Code) -> MessageMode {
    MessageMode { denied: Some(code), ..MessageMode::default() }
}

fn ordinal(outcome: Outcome) -> u64 {
    match outcome {
        Outcome::Accepted { ordinal, .. } => ordinal,
        other => panic!("{other:?}"),
    }
}

#[test]
fn silent_message_takes_a_seq_and_no_ordinal() {
    let mut it = newest();
    assert_eq!(ordinal(it.send(message("g:a", "ann", "m1"))), 1);
    let silent = it.send(moded("g:a", "ann", "m2", MessageMode::of_flags(SILENT)));
    assert_eq!((seq(silent), ordinal(silent)), (3, 1));
    assert_eq!(ordinal(it.send(message("g:a", "bob", "m3"))), 2);
    let member = it.ledger.member(&conversation("g:a"), &user("ann")).unwrap().copied().unwrap();
    assert_eq!(member.sent, 1, "it is none of the sender's messages that unread counts subtract");
    let end = it.end();
    let rows = it.ledger.take_delta(end).unwrap().rows;
    assert_eq!(rows.iter().map(|row| row.own).collect::<Vec<_>>(), [0, 1, 1, 1]);
}

#[test]
fn row_of_a_transient_message_has_no_content_and_counts() {
    let mut it = newest();
    assert_eq!(ordinal(it.send(moded("g:a", "ann", "m1", MessageMode::of_flags(TRANSIENT)))), 1);
    let end = it.end();
    let delta = it.ledger.take_delta(end).unwrap();
    let Body::Message(stored) = &delta.rows[1].body else { panic!("{:?}", delta.rows) };
    assert_eq!((stored.content.len(), stored.mode.is_transient), (0, true));
    let again = Message { attempt: 1, ..moded("g:a", "ann", "m1", MessageMode::of_flags(TRANSIENT)) };
    assert_eq!(it.send(again), Outcome::Duplicate { seq: 2, time: 1_000 }, "its id and hash are kept");
}

#[test]
fn operator_speaks_without_a_membership_and_gets_none() {
    let mut it = newest();
    let say = |to: &str, id: &str| moded(to, "system", id, OPERATOR);
    assert_eq!(
        it.send(moded("g:a", "system", "m0", MessageMode::of_flags(SILENT))),
        refused(Code::NotAMember)
    );
    assert_eq!(ordinal(it.send(say("g:a", "m1"))), 1);
    assert_eq!(it.send(say("g:none", "m1")), refused(Code::NotFound));
    assert_eq!(seq(it.send(say("d:ann:bob", "m1"))), 1, "it may begin a conversation of others");
    for it in [
        it.ledger.member(&conversation("g:a"), &user("system")),
        it.ledger.member(&conversation("d:ann:bob"), &user("system")),
    ] {
        assert!(!matches!(it, Ok(Some(_))));
    }
    let ann = it.ledger.member(&conversation("d:ann:bob"), &user("ann")).unwrap().copied().unwrap();
    assert_eq!((ann.sent, ann.is_in()), (0, true));
    assert_eq!(seq(it.send(say("d:bob:system", "m1"))), 1);
    let own = it.ledger.member(&conversation("d:bob:system"), &user("system")).unwrap().copied().unwrap();
    assert_eq!(own.sent, 1, "a conversation of its own has it as a member");
}

#[test]
fn operator_speaks_in_spite_of_mutes_and_settings_and_not_in_a_deleted_group() {
    let mut it = newest();
    it.member(change(MemberAction::Join, &["system"], "ann", "q2"));
    it.member(change(MemberAction::Mute, &["system"], "ann", "q3"));
    let mut admins = change(MemberAction::Settings, &[], "ann", "q4");
    admins.settings = BTreeMap::from([("post".to_owned(), "admins".to_owned())]);
    it.member(admins);
    assert_eq!(it.send(message("g:a", "system", "m1")), refused(Code::Muted));
    assert_eq!(ordinal(it.send(moded("g:a", "system", "m2", OPERATOR))), 1);
    let member = it.ledger.member(&conversation("g:a"), &user("system")).unwrap().copied().unwrap();
    assert_eq!(member.sent, 0, "unread counts subtract messages of members only");
    it.member(change(MemberAction::Delete, &[], "ann", "q6"));
    assert_eq!(it.send(moded("g:a", "system", "m4", OPERATOR)), refused(Code::NotFound));
}

#[test]
fn denial_is_remembered_takes_its_number_and_never_undoes_an_acceptance() {
    let mut it = newest();
    let deny = |message: Message| Message { mode: denied(Code::Forbidden), content: Bytes::new(), ..message };
    assert_eq!(seq(it.send(chained("m0", 5, 0))), 1);
    let retry = Message { attempt: 1, ..chained("m0", 5, 0) };
    assert_eq!(it.send(deny(retry)), Outcome::Duplicate { seq: 1, time: 1_000 }, "accepted before");
    assert_eq!(it.send(deny(chained("m1", 5, 1))), refused(Code::Forbidden));
    assert_eq!(seq(it.send(chained("m2", 5, 2))), 2, "the chain goes on");
    let retry = Message { attempt: 1, ..chained("m1", 5, 1) };
    assert_eq!(it.send(retry.clone()), Outcome::RefusedBefore { code: Code::Forbidden }, "allowed now");
    let other = Message { body_hash: body_hash(b"other"), ..retry };
    assert_eq!(it.send(other), refused(Code::Conflict));
    let stranger = Message { mode: denied(Code::Muted), ..message("g:a", "cy", "m1") };
    assert_eq!(it.send(stranger), refused(Code::NotAMember), "a stranger learns nothing about the denial");
}

#[test]
fn records_with_a_mode_have_a_form_that_former_versions_skip() {
    let bytes = |message: Message| record(Body::Message(message)).encode();
    let ordinary = Message { flags: u32::MAX, ..message("g:a", "ann", "m1") };
    let decoded = Record::decode(bytes(ordinary.clone())).unwrap().body;
    assert_eq!(decoded, Body::Message(ordinary.clone()), "a client of a former version may set any bit");
    assert_eq!(ordinary.shown_flags(), NO_PUSH | UNCHECKED);
    let flags = SILENT | TRANSIENT | NO_PUSH;
    let mode = MessageMode { is_operator: true, denied: Some(Code::Banned), ..MessageMode::of_flags(flags) };
    let moded = Message { flags, ..moded("g:a", "ann", "m1", mode) };
    assert_eq!(Record::decode(bytes(moded.clone())).unwrap().body, Body::Message(moded.clone()));
    let denial = Message { mode: denied(Code::Busy), ..message("g:a", "ann", "m1") };
    let wrong = RecordError::Range { field: "denied", got: Code::Busy.number().into() };
    assert_eq!(Record::decode(bytes(denial)), Err(wrong), "a temporary refusal is none of a message");
}
