//! Tests of the import: all entries reach their partition, and no owner continues from a partial import.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use tidegate_protocol::{
    Code,
    id::{DeviceId, GroupId, MsgId},
    machine::ledger::{Key, Loaded, Need},
    record::{Message, Role, Rules, SenderOrder},
    settings::Push,
};

use super::*;
use crate::{
    bus::TopicId,
    store::{
        Direction, GuardStore as _, Hidden, Mark, MemoryStore, PageQuery, UserState,
        dump::{ConversationLine, GuardLine, MemberLine, UserSettingsLine},
    },
};

const LOG: [Bounds; 4] = [Bounds { topic: TopicId(7), first: 0, next: 0 }; 4];

/// Returns the partition by the last digit of the id.
fn partition_of(id: &ConversationId, count: u32) -> u32 {
    u32::from(id.as_str().bytes().last().unwrap_or(0)) % count
}

fn group(name: &str) -> ConversationId {
    ConversationId::group(&GroupId::new(name).unwrap())
}

fn user(name: &str) -> UserId {
    UserId::new(name).unwrap()
}

fn message(id: &ConversationId, seq: u64) -> Message {
    Message {
        conversation: id.clone(),
        sender: user("ann"),
        device: DeviceId::new("phone").unwrap(),
        msg_id: MsgId::new(&format!("m{seq}")).unwrap(),
        attempt: 0,
        content: bytes::Bytes::from_static(b"text"),
        order: SenderOrder { epoch: 5, n: seq, chained: false },
        flags: 0,
        mode: Default::default(),
        body_hash: [1; 16],
    }
}

fn row(id: &ConversationId, seq: u64) -> Entry {
    let row = tidegate_protocol::machine::ledger::Row {
        seq,
        ordinal: seq,
        own: seq,
        time: seq,
        offset: 100 + seq,
        body: Body::Message(message(id, seq)),
    };
    let recalled = (seq == 2).then_some((9, 99));
    Entry::Row(RowLine::new(&crate::store::StoredRow { row, recalled, edited: None }).unwrap())
}

fn conversation(id: &ConversationId, last_seq: u64, members: u64) -> Entry {
    Entry::Conversation(ConversationLine {
        id: id.clone(),
        last_seq,
        messages: last_seq,
        pruned_to: 0,
        deleted_seq: 0,
        members,
        settings: BTreeMap::from([("history".to_owned(), "all".to_owned())]),
    })
}

fn member(name: &str) -> Entry {
    Entry::Member(MemberLine {
        user: user(name),
        role: Role::Member,
        joined_seq: 1,
        left_seq: 0,
        sent: 0,
        joined_messages: 0,
        left_messages: 0,
        muted: false,
        stays: Vec::new(),
    })
}

fn partition(offset: u64, keys_from: u64) -> Entry {
    let rules = Rules { keys_from, ..Rules::default() };
    Entry::Partition(PartitionLine::new(0, Position { offset, hash: [3; 16] }, rules))
}

fn key(hash: Hash16, seq: u64, offset: u64) -> Entry {
    let refused = (seq == 0).then_some(Code::NotAMember);
    Entry::Key(KeyLine::new(0, hash, Key { seq, time: seq, body_hash: [1; 16], offset, refused }))
}

async fn take(filling: &mut Filling<'_>, entries: impl IntoIterator<Item = Entry>) {
    for entry in entries {
        if filling.stage(entry).unwrap() {
            filling.write().await.unwrap();
        }
    }
}

/// Returns the position of the partition, and the offsets of these keys in it.
async fn keys(store: &MemoryStore, partition: u32, keys: &[Hash16]) -> (Position, Vec<Option<u64>>) {
    let taken = store.take_over(partition, Fence(1), TopicId(7)).await.unwrap();
    let needs: Vec<Need> = keys.iter().map(|key| Need::Key(*key)).collect();
    let found = store.load(partition, Fence(1), &needs).await.unwrap();
    let offsets = found.rows.into_iter().map(|row| match row {
        Loaded::Key(_, key) => key.map(|key| key.offset),
        other => panic!("{other:?}"),
    });
    (taken.position, offsets.collect())
}

#[tokio::test]
async fn entries_keep_seqs_and_reach_their_partition() {
    let store = MemoryStore::default();
    let mut filling = Filling::new(&store, &LOG, partition_of);
    filling.take_over(&LOG).await.unwrap();
    let (large, small) = (group("g1"), group("g2"));
    let rows = 2 * PARTITION_LINES_MAX as u64 + 7;
    take(&mut filling, [partition(90_000, 105), conversation(&large, rows, 3)]).await;
    take(&mut filling, ["ann", "bob", "cat"].map(member)).await;
    take(&mut filling, (1..=rows).map(|seq| row(&large, seq))).await;
    take(&mut filling, [conversation(&small, 1, 1), member("ann"), row(&small, 1)]).await;
    let state = UserState {
        mark: Mark { seq: 5, messages: 5, own: 0 },
        cleared: Mark { seq: 3, messages: 3, own: 0 },
        hidden: vec![Hidden { seq: 4, counts: true }],
        push: Some(Push::Mentions),
        bound: Some(Mark { seq: 5, messages: 5, own: 1 }),
    };
    take(&mut filling, [Entry::Mark(MarkLine::new(user("bob"), large.clone(), &state))]).await;
    let settings = UserSettings { heartbeat_ms: 9_000, push: Some(Push::None), ..UserSettings::default() };
    take(&mut filling, [Entry::Settings(UserSettingsLine::new(user("bob"), &settings))]).await;
    let ban = |n: u32| GuardLine { kind: 2, name: format!("{n:03}"), value: vec![1], until_ms: None };
    take(&mut filling, (0..300).map(|n| Entry::Guard(ban(n)))).await;
    let (with_row, without_row) = (message_key(&message(&large, 7)), [8; 16]);
    let expired = message_key(&message(&large, 3));
    take(&mut filling, [key(with_row, 7, 107), key(without_row, 0, 500), key(expired, 3, 103)]).await;
    filling.finish(&[]).await.unwrap();

    for partition in 0..4 {
        let (position, found) = keys(&store, partition, &[with_row, without_row, expired]).await;
        let own = (partition == partition_of(&large, 4)).then_some(0);
        assert_eq!((position, found), (Position::START, vec![own, Some(0), None]), "partition {partition}");
    }
    let query = PageQuery { cursor: 0, direction: Direction::Forward, limit: 5_000, max_bytes: 1 << 30 };
    let page = store.page(&large, query).await.unwrap();
    assert_eq!(page.rows.iter().map(|row| row.row.seq).collect::<Vec<_>>(), (1..=rows).collect::<Vec<_>>());
    assert_eq!(page.rows[1].recalled, Some((9, 99)));
    let summary = store.summary(&large, Some(&user("bob"))).await.unwrap().unwrap();
    assert_eq!((summary.head.last_seq, summary.head.messages, summary.members), (rows, rows, 3));
    assert_eq!(summary.head.settings["history"], "all");
    assert_eq!(summary.member_view.unwrap().level, state);
    assert_eq!(store.summary(&small, None).await.unwrap().unwrap().members, 1);
    assert_eq!(store.merge_settings(&user("bob"), UserSettings::default()).await.unwrap(), settings);
    let guard = store.guard_since(0, 999).await.unwrap();
    assert_eq!((guard.newest, guard.rows.len(), guard.rows[299].key.name()), (300, 300, "299"));
}

#[tokio::test]
async fn partial_import_looks_like_another_log_to_an_owner() {
    let store = MemoryStore::default();
    let mut filling = Filling::new(&store, &LOG, partition_of);
    filling.take_over(&LOG).await.unwrap();
    take(&mut filling, [partition(90_000, 0), conversation(&group("g1"), 3, 0)]).await;
    drop(filling);
    for partition in 0..4 {
        let (position, _) = keys(&store, partition, &[]).await;
        assert!(!position.matches(None), "partition {partition} looks untouched");
    }
    let mut again = Filling::new(&store, &LOG, partition_of);
    assert!(matches!(again.take_over(&LOG).await, Err(FillError::NotEmpty(0, _))));
}

#[tokio::test]
async fn take_over_during_the_import_ends_it() {
    let store = MemoryStore::default();
    let mut filling = Filling::new(&store, &LOG, partition_of);
    filling.take_over(&LOG).await.unwrap();
    store.take_over(3, Fence(1), TopicId(7)).await.unwrap();
    take(&mut filling, [partition(90_000, 0), conversation(&group("g3"), 3, 0)]).await;
    assert!(matches!(filling.finish(&[]).await, Err(FillError::Disturbed)));
}

#[test]
fn undecided_records_and_newer_rules_are_refused_with_a_cure() {
    let store = MemoryStore::default();
    let mut filling = Filling::new(&store, &LOG, partition_of);
    filling.stage(partition(10, 0)).unwrap();
    let log = |offset| Entry::Log(LogLine { partition: 0, offset, record: Vec::new() });
    assert!(filling.stage(log(9)).is_ok());
    let why = filling.stage(log(10)).unwrap_err().to_string();
    assert!(why.contains("start the node on its data once more"), "{why}");
    let rules = Rules { ledger_version: LEDGER_NEWEST + 1, ..Rules::default() };
    let newer = Entry::Partition(PartitionLine::new(0, Position::START, rules));
    let why = filling.stage(newer).unwrap_err().to_string();
    assert!(why.contains("import it with the tidegate that wrote it"), "{why}");
}

#[test]
fn k8_only_the_marker_of_an_import_is_one() {
    let marker = marker(1).unwrap();
    assert!(is_marker(&marker));
    let mut record = Record::decode(marker).unwrap();
    record.body = Body::Rules(RuleChange { keys_from: 7, ..RuleChange::default() });
    assert!(!is_marker(&record.encode()));
    record.body = Body::Rules(RuleChange { ledger_version: 2, ..RuleChange::default() });
    assert!(!is_marker(&record.encode()));
    assert!(!is_marker(&Bytes::from_static(b"no record")));
}
