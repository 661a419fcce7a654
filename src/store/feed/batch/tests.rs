//! Tests of the encoding of batches and of pages.

use bytes::Bytes;
use proptest::prelude::*;
use tidegate_protocol::{
    id::{GroupId, MsgId, UserId},
    machine::ledger::{Pruned, Row},
    record::{Body, Edit, MemberAction, MemberChange, Message, Position, Recall, SenderOrder},
};

use super::*;

fn group(name: &str) -> ConversationId {
    ConversationId::group(&GroupId::new(name).unwrap())
}

fn user(name: &str) -> UserId {
    UserId::new(name).unwrap()
}

fn body(id: &ConversationId, kind: FeedKind) -> Body {
    let msg_id = MsgId::new("m").unwrap();
    match kind {
        FeedKind::Message => Body::Message(Message {
            conversation: id.clone(),
            sender: user("ann"),
            device: tidegate_protocol::id::DeviceId::new("phone").unwrap(),
            msg_id,
            attempt: 0,
            content: Bytes::from_static(b"secret"),
            order: SenderOrder { epoch: 1, n: 0, chained: false },
            flags: 0,
            body_hash: [0; 16],
            mode: Default::default(),
        }),
        FeedKind::Change => Body::Member(MemberChange {
            conversation: id.clone(),
            action: MemberAction::Join,
            users: vec![user("bob")],
            role: None,
            by: None,
            settings: Default::default(),
            request_id: msg_id,
        }),
        FeedKind::Edit => Body::Edit(Edit {
            conversation: id.clone(),
            seq: 1,
            by: None,
            device: tidegate_protocol::id::DeviceId::new("phone").unwrap(),
            msg_id,
            content: Bytes::from_static(b"secret"),
            body_hash: [0; 16],
            denied: None,
        }),
        _ => Body::Recall(Recall { conversation: id.clone(), seq: 1, by: None }),
    }
}

/// Record of a log: what the feed must have of it.
type Logged = (u8, FeedKind, u64, u64);

fn delta(from: u64, log: &[Logged]) -> Delta {
    let at = |offset| Position { offset, hash: [0; 16] };
    let mut delta = Delta::new(at(from), at(from + log.len() as u64));
    for (offset, (name, kind, seq, time)) in (from..).zip(log) {
        let (conversation, time) = (group(&format!("g{name}")), *time);
        if *kind == FeedKind::Prune {
            delta.pruned.push(Pruned { conversation, up_to: *seq, offset, time });
        } else {
            let body = body(&conversation, *kind);
            delta.rows.push(Row { seq: *seq, ordinal: 1, own: 1, time, offset, body });
        }
    }
    delta
}

fn entries(log: &[Logged]) -> Vec<FeedEntry> {
    let entry = |(number, (name, kind, seq, time)): (u64, &Logged)| FeedEntry {
        number,
        conversation: group(&format!("g{name}")),
        seq: *seq,
        kind: *kind,
        time: *time,
    };
    (1..).zip(log).map(entry).collect()
}

fn logged() -> impl Strategy<Value = Logged> {
    let kinds = vec![FeedKind::Message, FeedKind::Change, FeedKind::Recall, FeedKind::Edit, FeedKind::Prune];
    let numbers = prop_oneof![0..100_u64, any::<u64>()];
    (0..4_u8, proptest::sample::select(kinds), numbers.clone(), numbers)
}

const ALL: FeedLimits = FeedLimits { entries: usize::MAX, bytes: usize::MAX };

/// Archives the log in batches that end at the cuts.
fn archive(log: &[Logged], cuts: &[usize]) -> (FeedState, Vec<FeedRow<Vec<u8>>>) {
    let (mut state, mut rows, mut from) = (FeedState::default(), Vec::new(), 0);
    for to in cuts.iter().map(|cut| cut % (log.len() + 1)).chain([log.len()]) {
        if to < from {
            continue;
        }
        let delta = delta(from as u64, &log[from..to]);
        let batch = EncodedBatch::of(&delta);
        let (count, bytes) = batch.as_ref().map_or((0, 0), |it| (it.count, it.bytes.len() as u64));
        assert_eq!(count, EncodedBatch::count(&delta));
        state = state.after(&delta, count, bytes);
        rows.extend(batch.map(|it| FeedRow { last: state.newest, entries: it.bytes }));
        from = to;
    }
    (state, rows)
}

fn read(
    after: u64,
    state: FeedState,
    limits: FeedLimits,
    rows: &[FeedRow<Vec<u8>>],
) -> Result<FeedRead, StoreError> {
    let rows = rows.iter().filter(|it| it.last > after).cloned().map(Ok);
    page(after, state.oldest..=state.newest, limits, rows)
}

proptest! {
    #[test]
    fn entries_and_numbers_do_not_depend_on_the_batches(
        log in prop::collection::vec(logged(), 0..40),
        cuts in prop::collection::vec(any::<usize>(), 0..10),
        most in 1..20_usize,
        bytes in 0..2_000_usize,
    ) {
        let mut cuts = cuts;
        cuts.sort_by_key(|cut| cut % (log.len() + 1));
        let (state, rows) = archive(&log, &cuts);
        prop_assert_eq!(state.newest, log.len() as u64);
        let mut seen: Vec<FeedEntry> = Vec::new();
        loop {
            let after = seen.last().map_or(0, |it| it.number);
            let read = read(after, state, FeedLimits { entries: most, bytes }, &rows).unwrap();
            let FeedRead::Page(page) = read else { panic!("{read:?}") };
            prop_assert_eq!((page.oldest, page.newest), (1, log.len() as u64));
            prop_assert!(page.entries.len() <= most);
            if page.entries.is_empty() {
                break;
            }
            seen.extend(page.entries);
        }
        prop_assert_eq!(seen, entries(&log));
    }

    #[test]
    fn damaged_batches_are_errors(bytes in prop::collection::vec(any::<u8>(), 0..60), last in any::<u64>()) {
        let state = FeedState { newest: last, ..FeedState::default() };
        let rows = [FeedRow { last, entries: bytes }];
        let after = last.saturating_sub(1);
        drop(read(after, state, ALL, &rows));
    }
}

#[test]
fn stored_form_is_fixed() {
    let log = [
        (1, FeedKind::Message, 7, 1_000),
        (2, FeedKind::Change, 1, 1_001),
        (1, FeedKind::Recall, 8, 900),
        (1, FeedKind::Prune, 3, 900),
    ];
    let batch = EncodedBatch::of(&delta(0, &log)).unwrap();
    assert_eq!((batch.count, batch.time), (4, 1_001));
    let golden = [
        &[1, 2, 4][..],
        b"g:g1\x04g:g2",
        &[4, 0x01, 14, 0xd0, 0x0f, 0x12, 2, 2, 0x03, 2, 0xc9, 0x01, 0x04, 9, 0],
    ];
    assert_eq!(batch.bytes, golden.concat());
    assert!(!batch.bytes.windows(6).any(|it| it == b"secret"));
}

#[test]
fn kinds_of_a_newer_version_are_read_as_unknown() {
    let bytes = [&[1, 1, 4][..], b"g:g1", &[1, 0x09, 2, 2]].concat();
    let state = FeedState { newest: 5, ..FeedState::default() };
    let read = read(4, state, ALL, &[FeedRow { last: 5, entries: bytes }]);
    let Ok(FeedRead::Page(page)) = read else { panic!("{read:?}") };
    assert_eq!((page.entries[0].kind, page.entries[0].seq), (FeedKind::Unknown(9), 1));
    for number in 0..16 {
        assert_eq!(FeedKind::from_number(number).number(), number);
    }
}

#[test]
fn missing_entries_are_reported_with_their_range() {
    let log: Vec<Logged> = (1..=9).map(|seq| (1, FeedKind::Message, seq, seq)).collect();
    let (state, mut rows) = archive(&log, &[3, 6]);
    assert_eq!(read(10, state, ALL, &rows), Ok(FeedRead::Ahead(9)));
    let Ok(FeedRead::Page(page)) = read(9, state, ALL, &rows) else { panic!() };
    assert_eq!(page.entries, []);
    // The batch in the middle was never written.
    rows.remove(1);
    let Ok(FeedRead::Page(page)) = read(0, state, ALL, &rows) else { panic!() };
    assert_eq!(page.entries.last().map(|it| it.number), Some(3));
    for after in 3..6 {
        assert_eq!(read(after, state, ALL, &rows), Ok(FeedRead::Missing(after + 1..=6)));
    }
    // Nor was the last one.
    rows.remove(1);
    assert_eq!(read(3, state, ALL, &rows), Ok(FeedRead::Missing(4..=9)));
    let trimmed = FeedState { oldest: 10, ..state };
    assert_eq!(read(0, trimmed, ALL, &[]), Ok(FeedRead::Missing(1..=9)));
}

#[test]
fn records_without_numbers_leave_one_number_that_no_entry_has() {
    let log = [(1, FeedKind::Message, 1, 1)];
    let first = FeedState::default().after(&delta(0, &log), 1, 0);
    assert_eq!((first.newest, first.offset), (1, Some(1)));
    // Another version archived up to 5.
    let second = first.after(&delta(5, &log), 1, 0);
    assert_eq!((second.newest, second.offset), (3, Some(6)));
    assert_eq!(second.after(&delta(6, &log), 1, 0).newest, 4);
    // Where the feed begins, nothing is missing.
    assert_eq!(FeedState::default().after(&delta(5, &log), 1, 0).newest, 1);
}

#[test]
fn retention_is_by_time_and_by_bytes() {
    let bounds = FeedBounds { before_ms: 100, bytes_max: 1_000 };
    assert!(is_expired(99, 3_000, 10, 3_000, bounds));
    assert!(!is_expired(100, 3_000, 10, 3_000, bounds));
    // Of 3,000 bytes, a batch that ends at 2,010 and has 10 leaves 990 behind it.
    assert!(!is_expired(100, 2_010, 10, 3_000, bounds));
    assert!(is_expired(100, 2_009, 10, 3_000, bounds));
}
