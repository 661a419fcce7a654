//! Rules of the ledger by example, one promise per test.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use tidegate_protocol::{
    Code,
    id::{ConversationId, DeviceId, MsgId, NodeId, UserId},
    machine::ledger::{Device, Ledger, Loaded, Need, Outcome, Stop},
    record::{
        Body, Edit, MemberAction, MemberChange, Message, MessageMode, Origin, Position, Prune, Recall,
        Record, RecordError, Role, RuleChange, Rules, SenderOrder, body_hash,
    },
};

use super::store;

mod edits;
mod hidden_groups;
mod modes;
mod refusals;
mod switch;
mod versions;

fn user(name: &str) -> UserId {
    UserId::new(name).unwrap()
}

fn conversation(text: &str) -> ConversationId {
    ConversationId::parse(text).unwrap()
}

fn record(body: Body) -> Record {
    let origin = Origin { node: NodeId::new("n1").unwrap(), boot: 7, conn: 8, request: 9 };
    Record { origin, received_at: 1_000, body, trace: None }
}

fn message(to: &str, sender: &str, id: &str) -> Message {
    Message {
        conversation: conversation(to),
        sender: user(sender),
        device: DeviceId::new("phone").unwrap(),
        msg_id: MsgId::new(id).unwrap(),
        attempt: 0,
        content: Bytes::from_static(b"hi"),
        order: SenderOrder { epoch: 5, n: 0, chained: false },
        flags: 0,
        mode: Default::default(),
        body_hash: body_hash(b"hi"),
    }
}

fn chained(id: &str, epoch: u64, n: u64) -> Message {
    Message { order: SenderOrder { epoch, n, chained: true }, ..message("d:ann:bob", "ann", id) }
}

fn change(action: MemberAction, users: &[&str], by: &str, request: &str) -> MemberChange {
    MemberChange {
        conversation: conversation("g:a"),
        action,
        users: users.iter().map(|name| user(name)).collect(),
        role: None,
        by: (!by.is_empty()).then(|| user(by)),
        settings: BTreeMap::new(),
        request_id: MsgId::new(request).unwrap(),
    }
}

/// Ledger with a store that contains only what the ledger has archived.
struct Partition {
    ledger: Ledger,
    store: store::Store,
}

impl Partition {
    fn new() -> Self {
        let ledger = Ledger::resume(Position::START, Rules::default(), 1);
        Self { ledger, store: store::Store::new(true, true) }
    }

    fn put(&mut self, body: Body) -> Outcome {
        let record = record(body);
        let mut needs = BTreeSet::new();
        self.ledger.needs(&record, &mut needs);
        self.ledger.load(self.store.now.position, self.store.now.read(&needs)).unwrap();
        self.ledger.apply(self.ledger.next_offset(), &record).unwrap()
    }

    fn send(&mut self, message: Message) -> Outcome {
        self.put(Body::Message(message))
    }

    fn member(&mut self, change: MemberChange) -> Outcome {
        self.put(Body::Member(change))
    }

    fn end(&self) -> Position {
        Position::behind(self.ledger.next_offset() - 1, b"any")
    }
}

fn seq(outcome: Outcome) -> u64 {
    match outcome {
        Outcome::Accepted { seq, .. } => seq,
        other => panic!("{other:?}"),
    }
}

const fn refused(code: Code) -> Outcome {
    Outcome::Refused { code }
}

fn group() -> Partition {
    let mut it = Partition::new();
    assert_eq!(seq(it.member(change(MemberAction::Create, &["bob", "cy"], "ann", "q1"))), 1);
    it
}

#[test]
fn retry_gets_the_same_seq_and_time_whatever_the_clock() {
    let mut it = Partition::new();
    assert_eq!(seq(it.send(message("d:ann:bob", "ann", "m1"))), 1);
    let mut again = record(Body::Message(Message { attempt: 1, ..message("d:ann:bob", "ann", "m1") }));
    again.received_at = 9_999_999;
    assert_eq!(it.ledger.apply(5, &again), Ok(Outcome::Duplicate { seq: 1, time: 1_000 }));
}

#[test]
fn same_id_with_other_content_is_a_conflict_without_a_seq() {
    let mut it = Partition::new();
    it.send(message("d:ann:bob", "ann", "m1"));
    let other = Message { body_hash: body_hash(b"ho"), ..message("d:ann:bob", "ann", "m1") };
    assert_eq!(it.send(other), refused(Code::Conflict));
    assert_eq!(seq(it.send(message("d:ann:bob", "bob", "m1"))), 2, "ids are scoped to their sender");
}

#[test]
fn record_of_a_replaced_conn_is_void_unless_a_duplicate() {
    let mut it = Partition::new();
    it.send(message("d:ann:bob", "ann", "m1"));
    let newer = Message {
        order: SenderOrder { epoch: 6, n: 0, chained: false },
        ..message("d:ann:bob", "ann", "m2")
    };
    it.send(newer);
    assert_eq!(it.send(message("d:ann:bob", "ann", "m3")), Outcome::Void { newest: 6 });
    assert_eq!(it.send(message("d:ann:bob", "ann", "m1")), Outcome::Duplicate { seq: 1, time: 1_000 });
}

#[test]
fn s37_lost_append_stops_the_chain_until_a_new_epoch() {
    let mut it = Partition::new();
    assert_eq!(seq(it.send(chained("m0", 1, 0))), 1);
    assert_eq!(it.send(chained("m2", 1, 2)), refused(Code::OrderBroken));
    assert_eq!(it.send(chained("m3", 1, 3)), refused(Code::OrderBroken));
    assert_eq!(seq(it.send(chained("m1", 2, 0))), 2);
    assert_eq!(seq(it.send(chained("m2", 2, 1))), 3);
}

#[test]
fn retry_in_a_new_epoch_takes_its_chain_number() {
    let mut it = Partition::new();
    it.send(chained("m0", 1, 0));
    let again = Message { attempt: 1, ..chained("m0", 2, 0) };
    assert_eq!(it.send(again), Outcome::Duplicate { seq: 1, time: 1_000 });
    assert_eq!(seq(it.send(chained("m1", 2, 1))), 2);
}

#[test]
fn message_without_a_session_is_never_void() {
    let mut it = Partition::new();
    // A client had the device before its name was reserved.
    assert_eq!(seq(it.send(chained("m0", u64::from(u32::MAX), 0))), 1);
    let without =
        |id: &str| Message { order: SenderOrder::WITHOUT_SESSION, ..message("d:ann:bob", "ann", id) };
    assert_eq!(seq(it.send(without("a1"))), 2);
    assert_eq!(seq(it.send(without("a2"))), 3);
    assert_eq!(it.send(Message { attempt: 1, ..without("a1") }), Outcome::Duplicate { seq: 2, time: 1_000 });
}

#[test]
fn first_attempt_compares_with_the_window_retry_with_all_keys() {
    let mut it = Partition::new();
    it.put(Body::Rules(RuleChange { dedup_window: Some(2), ..RuleChange::default() }));
    it.send(message("d:ann:bob", "ann", "m1"));
    it.send(message("d:ann:bob", "ann", "m2"));
    assert!(matches!(it.send(message("d:ann:bob", "ann", "m1")), Outcome::Duplicate { seq: 1, .. }));
    let retry = Message { attempt: 1, ..message("d:ann:bob", "ann", "m1") };
    assert!(matches!(it.send(retry.clone()), Outcome::Duplicate { seq: 1, .. }));
    assert_eq!(seq(it.send(message("d:ann:bob", "ann", "m1"))), 3, "past the window it is a new message");
    assert!(matches!(it.send(retry), Outcome::Duplicate { seq: 3, .. }), "which has the id from now on");
}

#[test]
fn only_a_rules_record_drops_keys() {
    let mut it = Partition::new();
    it.send(message("d:ann:bob", "ann", "m1"));
    it.send(message("d:ann:bob", "ann", "m2"));
    it.put(Body::Rules(RuleChange { keys_from: 1, ..RuleChange::default() }));
    let retry = |id: &str| Message { attempt: 1, ..message("d:ann:bob", "ann", id) };
    assert!(matches!(it.send(retry("m2")), Outcome::Duplicate { seq: 2, .. }));
    assert_eq!(seq(it.send(retry("m1"))), 3);
    it.put(Body::Rules(RuleChange::default()));
    assert_eq!(it.ledger.rules().keys_from, 1, "dropped keys stay dropped");
}

#[test]
fn kick_is_exact_and_an_earlier_message_is_still_acked() {
    let mut it = group();
    assert_eq!(seq(it.send(message("g:a", "bob", "m1"))), 2);
    assert_eq!(seq(it.member(change(MemberAction::Kick, &["bob"], "ann", "q2"))), 3);
    assert_eq!(it.send(message("g:a", "bob", "m2")), refused(Code::NotAMember));
    assert!(matches!(it.send(message("g:a", "bob", "m1")), Outcome::Duplicate { seq: 2, .. }));
    let row = it.ledger.member(&conversation("g:a"), &user("bob")).unwrap().unwrap();
    assert_eq!((row.joined_seq, row.left_seq, row.sent), (1, 3, 1));
}

#[test]
fn a_group_is_created_once_and_its_request_may_be_repeated() {
    let mut it = group();
    let create = |users: &[&str], request: &str| change(MemberAction::Create, users, "ann", request);
    assert!(matches!(it.member(create(&["bob", "cy"], "q1")), Outcome::Duplicate { seq: 1, .. }));
    assert_eq!(it.member(create(&["bob"], "q1")), refused(Code::Conflict));
    assert_eq!(it.member(create(&["bob", "cy"], "q2")), refused(Code::AlreadyExists));
}

#[test]
fn id_of_a_deleted_group_stays_taken() {
    let mut it = group();
    assert_eq!(it.member(change(MemberAction::Delete, &[], "bob", "q2")), refused(Code::Forbidden));
    assert_eq!(seq(it.member(change(MemberAction::Delete, &[], "ann", "q3"))), 2);
    assert_eq!(it.send(message("g:a", "bob", "m1")), refused(Code::NotFound));
    assert_eq!(it.member(change(MemberAction::Create, &["bob"], "ann", "q4")), refused(Code::AlreadyExists));
}

#[test]
fn members_act_on_lower_roles_and_the_admin_api_on_all() {
    let mut it = group();
    assert_eq!(it.member(change(MemberAction::Kick, &["cy"], "bob", "q2")), refused(Code::Forbidden));
    let mut raise = change(MemberAction::Role, &["bob"], "ann", "q3");
    raise.role = Some(Role::Admin);
    seq(it.member(raise));
    assert_eq!(it.member(change(MemberAction::Kick, &["ann"], "bob", "q4")), refused(Code::Forbidden));
    seq(it.member(change(MemberAction::Kick, &["cy"], "bob", "q5")));
    assert_eq!(it.member(change(MemberAction::Leave, &["ann"], "bob", "q6")), refused(Code::Forbidden));
    seq(it.member(change(MemberAction::Kick, &["ann"], "", "q7")));
}

#[test]
fn owners_act_on_owners_and_admins_do_not_act_on_admins() {
    let mut it = group();
    let role = |user: &str, by: &str, role, request: &str| MemberChange {
        role: Some(role),
        ..change(MemberAction::Role, &[user], by, request)
    };
    seq(it.member(role("bob", "ann", Role::Owner, "q2")));
    seq(it.member(role("cy", "ann", Role::Admin, "q3")));
    assert_eq!(it.member(role("bob", "cy", Role::Member, "q4")), refused(Code::Forbidden));
    assert_eq!(it.member(role("cy", "cy", Role::Owner, "q5")), refused(Code::Forbidden));
    seq(it.member(role("ann", "bob", Role::Admin, "q6")));
    assert_eq!(it.member(change(MemberAction::Kick, &["ann"], "cy", "q7")), refused(Code::Forbidden));
    assert_eq!(it.member(change(MemberAction::Delete, &[], "ann", "q8")), refused(Code::Forbidden));
    seq(it.member(change(MemberAction::Delete, &[], "bob", "q9")));
}

#[test]
fn a_mute_holds_until_a_record_ends_it_or_the_membership_does() {
    let mut it = group();
    seq(it.send(message("g:a", "bob", "m1")));
    assert_eq!(it.member(change(MemberAction::Mute, &["bob"], "cy", "q2")), refused(Code::Forbidden));
    seq(it.member(change(MemberAction::Mute, &["bob"], "ann", "q3")));
    let mut late = record(Body::Message(message("g:a", "bob", "m2")));
    late.received_at = u64::MAX;
    assert_eq!(it.put(late.body), refused(Code::Muted), "the clock does not matter");
    assert!(matches!(it.send(message("g:a", "bob", "m1")), Outcome::Duplicate { seq: 2, .. }));
    let order = SenderOrder { epoch: 5, n: 0, chained: true };
    let chained = Message { order, ..message("g:a", "bob", "m0") };
    assert_eq!(it.send(chained.clone()), refused(Code::Muted));
    seq(it.member(change(MemberAction::Unmute, &["bob"], "ann", "q4")));
    assert_eq!(it.send(chained), Outcome::RefusedBefore { code: Code::Muted });
    seq(it.send(message("g:a", "bob", "m3")));
    seq(it.member(change(MemberAction::Mute, &["bob"], "", "q5")));
    seq(it.member(change(MemberAction::Leave, &["bob"], "bob", "q6")));
    seq(it.member(change(MemberAction::Join, &["bob"], "ann", "q7")));
    seq(it.send(message("g:a", "bob", "m4")));
}

#[test]
fn admin_cannot_lift_the_own_mute() {
    let mut it = group();
    let admin = MemberChange { role: Some(Role::Admin), ..change(MemberAction::Role, &["bob"], "ann", "q2") };
    seq(it.member(admin));
    seq(it.member(change(MemberAction::Mute, &["bob"], "ann", "q3")));
    assert_eq!(it.member(change(MemberAction::Unmute, &["bob"], "bob", "q4")), refused(Code::Forbidden));
    assert_eq!(it.send(message("g:a", "bob", "m1")), refused(Code::Muted));
}

fn set(pairs: &[(&str, &str)], request: &str) -> MemberChange {
    let settings = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    MemberChange { settings, ..change(MemberAction::Settings, &[], "ann", request) }
}

#[test]
fn history_applies_at_the_join_and_post_at_the_message() {
    let mut it = group();
    seq(it.send(message("g:a", "bob", "m1")));
    seq(it.member(change(MemberAction::Kick, &["bob", "cy"], "ann", "q2")));
    seq(it.member(set(&[("history", "all"), ("post", "admins")], "q3")));
    seq(it.member(change(MemberAction::Join, &["bob"], "ann", "q4")));
    seq(it.member(set(&[("history", "")], "q5")));
    seq(it.member(change(MemberAction::Join, &["cy"], "ann", "q6")));
    let first = |name| {
        let row = it.ledger.member(&conversation("g:a"), &user(name)).unwrap().unwrap();
        (row.joined_seq, row.joined_messages)
    };
    assert_eq!((first("bob"), first("cy")), ((1, 1), (7, 1)));
    assert_eq!(it.send(message("g:a", "bob", "m2")), refused(Code::Forbidden));
    seq(it.send(message("g:a", "ann", "m2")));
    assert_eq!(it.member(set(&[("retention", "2d")], "q7")), refused(Code::BadSetting));
    seq(it.member(set(&[("retention", "7d"), ("title", "Tea")], "q8")));
}

#[test]
fn direct_conversation_begins_with_a_message_of_its_users() {
    let mut it = Partition::new();
    assert_eq!(it.send(message("d:ann:bob", "cy", "m1")), refused(Code::NotAMember));
    assert_eq!(seq(it.send(message("d:ann:bob", "bob", "m1"))), 1);
    let row = it.ledger.member(&conversation("d:ann:bob"), &user("ann")).unwrap().unwrap();
    assert!(row.is_in() && row.sent == 0);
    assert_eq!(seq(it.send(message("d:bob:bob", "bob", "m1"))), 1);
}

#[test]
fn recall_takes_one_seq_and_needs_the_sender_or_an_admin() {
    let mut it = group();
    it.send(message("g:a", "bob", "m1"));
    let recall =
        |by: &str| Body::Recall(Recall { conversation: conversation("g:a"), seq: 2, by: Some(user(by)) });
    assert_eq!(it.put(recall("cy")), refused(Code::Forbidden));
    assert_eq!(seq(it.put(recall("bob"))), 3);
    assert_eq!(it.put(recall("ann")), Outcome::Duplicate { seq: 3, time: 1_000 });
    assert_eq!(it.ledger.head(&conversation("g:a")).unwrap().unwrap().messages, 1);
}

#[test]
fn s25_a_message_writes_no_row_for_each_member() {
    let mut it = Partition::new();
    let names: Vec<String> = (0..900).map(|n| format!("u{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    it.member(change(MemberAction::Create, &names, "ann", "q1"));
    let made = it.ledger.take_delta(it.end()).unwrap();
    assert_eq!(made.members.len(), 901);
    it.send(message("g:a", "ann", "m1"));
    let delta = it.ledger.take_delta(it.end()).unwrap();
    let counts = (delta.heads.len(), delta.members.len(), delta.keys.len(), delta.rows.len());
    assert_eq!(counts, (1, 1, 1, 1), "only the sender's own row changes");
}

#[test]
fn pruning_takes_no_seq_and_is_never_undone() {
    let mut it = group();
    it.send(message("g:a", "bob", "m1"));
    for (up_to, pruned_to) in [(2, 2), (1, 2), (99, 2)] {
        let prune = Body::Prune(Prune { conversation: conversation("g:a"), up_to });
        assert_eq!(it.put(prune), Outcome::Noted);
        assert_eq!(it.ledger.head(&conversation("g:a")).unwrap().unwrap().pruned_to, pruned_to);
    }
    assert_eq!(seq(it.send(message("g:a", "bob", "m2"))), 3);
}

#[test]
fn k9_recall_of_a_pruned_row_does_not_depend_on_the_cache() {
    let mut it = group();
    it.send(message("g:a", "bob", "m1"));
    let recall = || {
        let recall = Recall { conversation: conversation("g:a"), seq: 2, by: Some(user("bob")) };
        Body::Recall(recall)
    };
    assert_eq!(seq(it.put(recall())), 3);
    assert_eq!(it.put(recall()), Outcome::Duplicate { seq: 3, time: 1_000 });
    it.put(Body::Prune(Prune { conversation: conversation("g:a"), up_to: 2 }));
    assert_eq!(it.put(recall()), refused(Code::NotFound), "the row is still cached");
    let (end, delta) = (it.end(), it.ledger.take_delta(it.end()).unwrap());
    it.store.commit(0, &delta).unwrap();
    it.ledger.archived(end).unwrap();
    it.ledger.evict(u64::MAX, usize::MAX);
    assert_eq!(it.put(recall()), refused(Code::NotFound), "the store has no such row");
}

#[test]
fn uncached_row_is_requested_and_never_taken_as_absent() {
    let mut it = Partition::new();
    it.send(message("d:ann:bob", "ann", "m1"));
    let (end, delta) = (it.end(), it.ledger.take_delta(it.end()).unwrap());
    assert_eq!(it.ledger.evict(u64::MAX, usize::MAX), 0, "nothing is archived yet");
    it.store.commit(0, &delta).unwrap();
    it.ledger.archived(end).unwrap();
    assert_eq!(it.ledger.evict(u64::MAX, usize::MAX), 5, "head, two members, device, key");
    assert_eq!(it.ledger.cached(), (0, 0));
    let next = record(Body::Message(message("d:ann:bob", "ann", "m2")));
    assert_eq!(it.ledger.apply(1, &next), Err(Stop::Missing));
    assert_eq!(seq(it.send(message("d:ann:bob", "ann", "m2"))), 2);
}

#[test]
fn second_delta_may_follow_before_the_first_is_archived() {
    let mut it = Partition::new();
    it.send(message("d:ann:bob", "ann", "m1"));
    let first = it.ledger.take_delta(it.end()).unwrap();
    it.send(message("d:ann:bob", "ann", "m2"));
    let second = it.ledger.take_delta(it.end()).unwrap();
    assert_eq!((first.from, first.to), (Position::START, second.from));
    assert_eq!((first.heads[0].1.last_seq, second.heads[0].1.last_seq), (1, 2));
    it.ledger.archived(first.to).unwrap();
    it.ledger.evict(u64::MAX, usize::MAX);
    assert!(it.ledger.head(&conversation("d:ann:bob")).is_ok(), "the second is not archived");
    it.ledger.archived(second.to).unwrap();
    assert_eq!(it.ledger.archived(first.to), Err(Stop::NotMine));
}

#[test]
fn rows_of_a_store_at_another_position_are_refused() {
    let mut it = Partition::new();
    it.send(message("d:ann:bob", "ann", "m1"));
    let key = [3; 16];
    for position in [Position { offset: 9, hash: key }, Position { offset: 0, hash: key }] {
        assert_eq!(it.ledger.load(position, [Loaded::Key(key, None)]), Err(Stop::NotMine));
    }
    let (id, phone) = (conversation("d:ann:bob"), DeviceId::new("phone").unwrap());
    let stale = Loaded::Device(id.clone(), user("ann"), phone, Some(Device { epoch: 99, next_n: 0 }));
    it.ledger.load(Position::START, [stale, Loaded::Head(id, None)]).unwrap();
    assert_eq!(seq(it.send(message("d:ann:bob", "ann", "m2"))), 2, "cached rows are newer");
}

#[test]
fn first_attempt_needs_no_read_if_the_window_is_cached() {
    let mut it = Partition::new();
    it.put(Body::Rules(RuleChange { dedup_window: Some(3), ..RuleChange::default() }));
    it.send(message("d:ann:bob", "ann", "m1"));
    let mut needs = BTreeSet::new();
    it.ledger.needs(&record(Body::Message(message("d:ann:bob", "ann", "m2"))), &mut needs);
    assert_eq!(needs, BTreeSet::new());
    let retry = Message { attempt: 1, ..message("d:ann:bob", "ann", "m2") };
    it.ledger.needs(&record(Body::Message(retry)), &mut needs);
    assert!(matches!(needs.first(), Some(Need::Key(_))));
}

#[test]
fn position_matches_only_its_own_log() {
    let bytes = record(Body::Message(message("d:ann:bob", "ann", "m1"))).encode();
    let position = Position::behind(4, &bytes);
    assert!(position.matches(Some(&bytes)));
    assert!(!position.matches(Some(b"another")));
    assert!(!position.matches(None));
    assert!(Position::START.matches(None));
}

#[test]
fn offsets_only_rise_and_poison_voids_only_itself() {
    let mut it = Partition::new();
    it.ledger.skip(3).unwrap();
    assert_eq!(it.ledger.skip(3), Err(Stop::OutOfOrder { next: 4, got: 3 }));
    assert_eq!(seq(it.send(message("d:ann:bob", "ann", "m1"))), 1);
}

#[test]
fn invalid_records_do_not_decode() {
    let decoded = |body: Body| Record::decode(record(body).encode());
    let to_room = Message { conversation: conversation("r:a"), ..message("g:a", "ann", "m1") };
    assert!(matches!(decoded(Body::Message(to_room)), Err(RecordError::Kind(_))));
    let direct = MemberChange {
        conversation: conversation("d:ann:bob"),
        ..change(MemberAction::Join, &["bob"], "", "q1")
    };
    assert!(matches!(decoded(Body::Member(direct)), Err(RecordError::Kind(_))));
    let twice = change(MemberAction::Join, &["bob", "bob"], "", "q1");
    assert!(matches!(decoded(Body::Member(twice)), Err(RecordError::Twice(_))));
    let empty = change(MemberAction::Kick, &[], "", "q1");
    assert_eq!(decoded(Body::Member(empty)), Err(RecordError::Missing("users")));
    let names: Vec<_> = (0..1_001).map(|n| format!("u{n}")).collect();
    let many: Vec<_> = names.iter().map(String::as_str).collect();
    let join = |n: usize| decoded(Body::Member(change(MemberAction::Join, &many[..n], "", "q1")));
    assert_eq!(join(1_001), Err(RecordError::TooMany { field: "users", got: 1_001 }));
    assert!(join(1_000).is_ok());
    let leave = decoded(Body::Member(change(MemberAction::Leave, &[], "bob", "q1"))).unwrap();
    assert!(matches!(leave.body, Body::Member(it) if it.users == [user("bob")]));
}
