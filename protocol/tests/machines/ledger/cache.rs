//! Size of the row cache: it keeps to its limits whatever comes in, and what is evicted weighs what was added.

use std::collections::BTreeSet;

use bytes::Bytes;
use tidegate_protocol::{
    id::{ConversationId, DeviceId, MsgId, NodeId, UserId},
    machine::ledger::Ledger,
    record::{Body, Message, Origin, Position, Record, Rules, SenderOrder, body_hash},
};

use super::store::absent;

/// Records of one batch, as an owner decides and archives them.
const BATCH: u64 = 4_096;

/// Returns a message of `eve` to the `nth` user, each of whom is a stranger.
fn to_stranger(nth: u64) -> Record {
    let (sender, other) = (UserId::new("eve").unwrap(), UserId::new(&format!("stranger{nth}")).unwrap());
    let content = Bytes::from_static(b"hi");
    let origin = Origin { node: NodeId::new("n1").unwrap(), boot: 1, conn: 2, request: nth };
    let body = Body::Message(Message {
        conversation: ConversationId::direct(&sender, &other),
        sender,
        device: DeviceId::new("phone").unwrap(),
        msg_id: MsgId::new(&format!("m{nth}")).unwrap(),
        attempt: 0,
        body_hash: body_hash(&content),
        content,
        order: SenderOrder::default(),
        flags: 0,
        mode: Default::default(),
    });
    Record { origin, received_at: 1, body, trace: None }
}

/// Decides the records from `next` on as one batch; the rows that they need do not exist.
fn decide(ledger: &mut Ledger, records: &[Record]) {
    let mut needs = BTreeSet::new();
    records.iter().for_each(|record| ledger.needs(record, &mut needs));
    ledger.load(ledger.archived_position(), needs.into_iter().map(absent)).unwrap();
    for record in records {
        ledger.apply(ledger.next_offset(), record).unwrap();
    }
}

fn archive(ledger: &mut Ledger) {
    let to = Position::behind(ledger.next_offset() - 1, b"any");
    drop(ledger.take_delta(to).unwrap());
    ledger.archived(to).unwrap();
}

fn flood(ledger: &mut Ledger, records: u64, mut after_batch: impl FnMut(&mut Ledger)) {
    for first in (0..records).step_by(usize::try_from(BATCH).unwrap()) {
        let batch: Vec<_> = (first..first + BATCH).map(to_stranger).collect();
        decide(ledger, &batch);
        archive(ledger);
        after_batch(ledger);
    }
}

fn empty() -> Ledger {
    Ledger::resume(Position::START, Rules::default(), 1)
}

#[test]
fn x1_eviction_keeps_up_with_conversations_that_are_all_new() {
    const KEPT: u64 = 100_000;
    let mut ledger = empty();
    flood(&mut ledger, 200_000, |ledger| {
        ledger.evict(ledger.next_offset().saturating_sub(KEPT), usize::MAX);
        let (conversations, keys) = ledger.cached();
        let most = usize::try_from(KEPT + KEPT / 20).unwrap();
        assert!(conversations <= most && keys <= most, "{conversations} conversations, {keys} keys");
    });
}

#[test]
fn x1_a_cache_over_its_bytes_evicts_what_was_used_least_recently() {
    const BYTES_MAX: usize = 8 << 20;
    let mut ledger = empty();
    let mut most = 0;
    flood(&mut ledger, 100_000, |ledger| {
        ledger.evict(0, BYTES_MAX);
        most = most.max(ledger.cached_bytes());
    });
    assert!(most > BYTES_MAX / 2 && most <= BYTES_MAX + BYTES_MAX / 20, "{most}");
    let Body::Message(last) = to_stranger(ledger.next_offset() - 1).body else { unreachable!() };
    let Body::Message(first) = to_stranger(0).body else { unreachable!() };
    assert!(ledger.head(&last.conversation).is_ok() && ledger.head(&first.conversation).is_err());
}

#[test]
fn x1_a_conversation_in_use_outlives_a_flood() {
    const BYTES_MAX: usize = 8 << 20;
    let mut ledger = empty();
    let pal = |nth| {
        let mut record = to_stranger(0);
        if let Body::Message(message) = &mut record.body {
            message.msg_id = MsgId::new(&format!("pal{nth}")).unwrap();
        }
        record
    };
    let Body::Message(Message { conversation, .. }) = pal(0).body else { unreachable!() };
    for round in 0..40 {
        let batch: Vec<_> = (0..BATCH / 4).map(|nth| to_stranger(1 + round * BATCH + nth)).collect();
        decide(&mut ledger, &batch);
        decide(&mut ledger, &[pal(round)]);
        archive(&mut ledger);
        ledger.evict(0, BYTES_MAX);
        assert!(ledger.head(&conversation).is_ok(), "round {round}");
    }
}

#[test]
fn x1_a_lower_limit_empties_a_cache_in_bounded_steps_without_new_records() {
    let mut ledger = empty();
    flood(&mut ledger, 20_000, |ledger| {
        ledger.evict(0, usize::MAX);
    });
    let (before, mut steps) = (ledger.cached_bytes(), 0);
    assert!(before > 10 << 20, "{before}");
    while ledger.cached_bytes() > 1 << 20 && steps < 1_000 {
        ledger.evict(0, 1 << 20);
        steps += 1;
    }
    assert!((10..200).contains(&steps), "{steps}");
    for _ in 0..20 {
        ledger.evict(u64::MAX, usize::MAX);
    }
    assert_eq!((ledger.cached(), ledger.cached_bytes()), ((0, 0), 0));
}

#[test]
fn x1_what_is_not_archived_stays_however_small_the_limit() {
    let mut ledger = empty();
    let batch: Vec<_> = (0..100).map(to_stranger).collect();
    decide(&mut ledger, &batch);
    assert_eq!(ledger.evict(u64::MAX, 0), 0);
    assert_eq!(ledger.cached(), (100, 100));
    archive(&mut ledger);
    ledger.evict(0, 0);
    assert_eq!((ledger.cached(), ledger.cached_bytes()), ((0, 0), 0));
}
