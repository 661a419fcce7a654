//! The feed: its numbers, its pages, what is missing, and the cursors of consumers.

use std::sync::Arc;

use bytes::Bytes;
use tidegate::store::{
    CURSOR_BYTES_MAX, ConsumerName, CursorOutcome, FEED_CONSUMERS_MAX, FeedBounds, FeedCursor, FeedEntry,
    FeedKind, FeedLimits, FeedPage, FeedPosition, FeedRead, Fence, InvalidCursor, MemoryStore, Store,
    StoreError,
};
use tidegate_protocol::{
    id::ConversationId,
    record::{Body, MemberAction, Prune, Recall},
};

use super::{Owner, change, direct, group, say, user};

const ALL: FeedLimits = FeedLimits { entries: usize::MAX, bytes: usize::MAX };

/// Bounds that no entry is outside of.
const KEPT: FeedBounds = FeedBounds { before_ms: 0, bytes_max: u64::MAX };

async fn page(store: &Arc<dyn Store>, partition: u32, after: u64) -> FeedPage {
    match store.read_feed(partition, after, ALL).await.unwrap() {
        FeedRead::Page(page) => page,
        other => panic!("{other:?}"),
    }
}

type Seen = (u64, String, u64, FeedKind);

fn seen(entries: &[FeedEntry]) -> Vec<Seen> {
    entries.iter().map(|it| (it.number, it.conversation.to_string(), it.seq, it.kind)).collect()
}

fn said(numbers: std::ops::RangeInclusive<u64>) -> Vec<Seen> {
    numbers.map(|it| (it, direct().to_string(), it, FeedKind::Message)).collect()
}

fn recall(seq: u64) -> Body {
    Body::Recall(Recall { conversation: direct(), seq, by: Some(user("ann")) })
}

fn prune(conversation: ConversationId, up_to: u64) -> Body {
    Body::Prune(Prune { conversation, up_to })
}

async fn position(store: &Arc<dyn Store>, partition: u32) -> FeedPosition {
    let all = store.feed_positions().await.unwrap();
    all.into_iter().find(|it| it.partition == partition).unwrap()
}

/// What each record of [`log`] is in the feed.
fn expected() -> Vec<Seen> {
    let (direct, team) = (direct().to_string(), group("team").to_string());
    vec![
        (1, direct.clone(), 1, FeedKind::Message),
        (2, team, 1, FeedKind::Change),
        (3, direct.clone(), 2, FeedKind::Message),
        (4, direct.clone(), 3, FeedKind::Recall),
        (5, direct.clone(), 1, FeedKind::Prune),
        (6, direct.clone(), 4, FeedKind::Message),
        (7, direct, 2, FeedKind::Prune),
    ]
}

/// Records of which some have no entry: a duplicate, a refused recall, and a pruning that removes nothing.
fn log() -> Vec<Body> {
    vec![
        say("m1"),
        change("team", MemberAction::Create, &["ann"], "r1"),
        say("m1"),
        say("m2"),
        recall(9),
        recall(2),
        prune(direct(), 1),
        prune(direct(), 1),
        say("m3"),
        prune(direct(), 2),
    ]
}

/// Archives the log in batches of this many records, each by another owner, and returns the entries.
async fn in_batches(store: &Arc<dyn Store>, partition: u32, records: usize) -> Vec<FeedEntry> {
    for (fence, batch) in (1..).zip(log().chunks(records)) {
        let mut owner = Owner::take_over(store, partition, fence).await;
        owner.time = 5_000;
        let (_, delta) = owner.apply(batch).await;
        store.archive(partition, Fence(fence), &delta).await.unwrap();
        // The reply was lost.
        store.archive(partition, Fence(fence), &delta).await.unwrap();
    }
    page(store, partition, 0).await.entries
}

pub(super) async fn feed_numbers_follow_the_log_over_batches_owners_and_repeats(store: &Arc<dyn Store>) {
    let nobody = store.read_feed(0, 0, ALL).await.unwrap();
    assert_eq!(nobody, FeedRead::Page(FeedPage { entries: Vec::new(), oldest: 1, newest: 0 }));
    assert_eq!((store.feed_position(0).await, store.has_feed()), (Ok(0), true));
    let entries = in_batches(store, 0, 1).await;
    assert_eq!(seen(&entries), expected());
    assert!(entries.iter().all(|it| it.time == 5_000), "{entries:?}");
    assert_eq!(store.feed_position(0).await, Ok(7));
    // A batch without entries moves the position only.
    let mut owner = Owner::take_over(store, 0, 99).await;
    owner.run(&[say("m1")]).await;
    owner.run(&[say("m4")]).await;
    let page = page(store, 0, 7).await;
    assert_eq!((page.oldest, page.newest, seen(&page.entries).len()), (1, 8, 1));
}

pub(super) async fn feed_does_not_depend_on_the_size_of_batches(store: &Arc<dyn Store>) {
    assert_eq!(seen(&in_batches(store, 0, 3).await), expected());
    // The rows of the other partition are those of other conversations.
    let mut owner = Owner::take_over(store, 1, 1).await;
    owner.run(&[change("other", MemberAction::Create, &["ann"], "r1")]).await;
    assert_eq!(seen(&page(store, 1, 0).await.entries).len(), 1);
    assert_eq!((store.feed_position(0).await, store.feed_position(1).await), (Ok(7), Ok(1)));
}

pub(super) async fn feed_is_read_in_pages(store: &Arc<dyn Store>) {
    let mut owner = Owner::take_over(store, 0, 1).await;
    let ids: Vec<String> = (1..=9).map(|it| format!("m{it}")).collect();
    let bodies: Vec<Body> = ids.iter().map(|id| say(id)).collect();
    for batch in bodies.chunks(4) {
        let (_, delta) = owner.apply(batch).await;
        store.archive(0, Fence(1), &delta).await.unwrap();
        owner.ledger.archived(delta.to).unwrap();
    }
    for limits in [
        FeedLimits { entries: 3, ..ALL },
        FeedLimits { bytes: 250, ..ALL },
        FeedLimits { entries: 0, bytes: 0 },
    ] {
        let mut all = Vec::new();
        loop {
            let after = all.last().map_or(0, |it: &FeedEntry| it.number);
            let FeedRead::Page(page) = store.read_feed(0, after, limits).await.unwrap() else { panic!() };
            assert!(page.entries.len() <= 3, "{limits:?}: {}", page.entries.len());
            if page.entries.is_empty() {
                break;
            }
            all.extend(page.entries);
        }
        assert_eq!(seen(&all), said(1..=9), "{limits:?}");
    }
    for after in [10, u64::MAX] {
        assert_eq!(store.read_feed(0, after, ALL).await, Ok(FeedRead::Ahead(9)));
    }
}

pub(super) async fn feed_is_trimmed_from_its_oldest_end(store: &Arc<dyn Store>) {
    let mut owner = Owner::take_over(store, 0, 1).await;
    for number in 1..=6_u64 {
        owner.time = number * 100;
        owner.run(&[say(&format!("m{number}"))]).await;
    }
    let whole = position(store, 0).await;
    assert_eq!((whole.oldest, whole.newest), (1, 6));
    assert_eq!(store.trim_feed(0, Fence(1), KEPT).await, Ok(0));
    let before = FeedBounds { before_ms: 300, ..KEPT };
    assert_eq!(store.trim_feed(0, Fence(7), before).await, Err(StoreError::Fenced));
    assert_eq!(store.trim_feed(0, Fence(1), before).await, Ok(2));
    assert_eq!(store.trim_feed(0, Fence(1), before).await, Ok(0));
    assert_eq!(store.read_feed(0, 0, ALL).await, Ok(FeedRead::Missing(1..=2)));
    assert_eq!(store.read_feed(0, 1, ALL).await, Ok(FeedRead::Missing(2..=2)));
    let rest = page(store, 0, 2).await;
    assert_eq!((rest.oldest, seen(&rest.entries)), (3, said(3..=6)));
    // By size: the batches are of about the same one.
    let left = position(store, 0).await.bytes;
    assert!(left < whole.bytes && left >= whole.bytes / 2, "{left} of {}", whole.bytes);
    let half = FeedBounds { bytes_max: left / 2, ..KEPT };
    assert_eq!(store.trim_feed(0, Fence(1), half).await, Ok(2));
    assert_eq!(
        position(store, 0).await,
        FeedPosition { partition: 0, oldest: 5, newest: 6, bytes: left / 2 }
    );
    // Without any entry, the numbers go on.
    assert_eq!(store.trim_feed(0, Fence(1), FeedBounds { bytes_max: 0, ..KEPT }).await, Ok(2));
    assert_eq!(store.read_feed(0, 4, ALL).await, Ok(FeedRead::Missing(5..=6)));
    assert_eq!(page(store, 0, 6).await, FeedPage { entries: Vec::new(), oldest: 7, newest: 6 });
    let mut owner = Owner::take_over(store, 0, 2).await;
    owner.run(&[say("m7")]).await;
    assert_eq!(seen(&page(store, 0, 6).await.entries), said(7..=7));
    assert_eq!(owner.run(&[say("m8")]).await.len(), 1);
}

fn consumer(name: &str) -> ConsumerName {
    ConsumerName::new(name).unwrap()
}

fn cursor(name: &str, partition: u32, bytes: &'static [u8]) -> FeedCursor {
    FeedCursor::new(consumer(name), partition, Bytes::from_static(bytes)).unwrap()
}

pub(super) async fn cursor_is_saved_by_the_owner_of_its_partition_only(store: &Arc<dyn Store>) {
    for name in ["", "a b", "a:b", &"n".repeat(65)] {
        assert_eq!(ConsumerName::new(name), Err(InvalidCursor::Consumer), "{name:?}");
    }
    let large = Bytes::from(vec![0; CURSOR_BYTES_MAX]);
    let larger = Bytes::from(vec![0; CURSOR_BYTES_MAX + 1]);
    assert_eq!(FeedCursor::new(consumer("a"), 0, larger), Err(InvalidCursor::Bytes));
    let large = FeedCursor::new(consumer("crm"), 1, large).unwrap();
    assert_eq!(store.save_cursor(Fence(1), &cursor("crm", 0, b"x")).await, Err(StoreError::Fenced));
    Owner::take_over(store, 0, 1).await;
    Owner::take_over(store, 1, 2).await;
    for it in [&large, &cursor("crm-2", 1, b"")] {
        assert_eq!(store.save_cursor(Fence(2), it).await, Ok(CursorOutcome::Saved));
    }
    assert_eq!(store.save_cursor(Fence(1), &cursor("crm", 0, b"1")).await, Ok(CursorOutcome::Saved));
    assert_eq!(store.cursors(&consumer("crm")).await.unwrap(), [cursor("crm", 0, b"1"), large.clone()]);
    // A former owner changes nothing.
    Owner::take_over(store, 0, 3).await;
    assert_eq!(store.save_cursor(Fence(1), &cursor("crm", 0, b"2")).await, Err(StoreError::Fenced));
    assert_eq!(store.save_cursor_durably(Fence(1), &cursor("crm", 0, b"2")).await, Err(StoreError::Fenced));
    assert_eq!(store.save_cursor_durably(Fence(3), &cursor("crm", 0, b"3")).await, Ok(CursorOutcome::Saved));
    assert_eq!(store.cursors(&consumer("crm")).await.unwrap(), [cursor("crm", 0, b"3"), large]);
    assert_eq!(store.consumers().await.unwrap(), [consumer("crm"), consumer("crm-2")]);
    store.forget_consumer(&consumer("crm")).await.unwrap();
    assert_eq!(store.cursors(&consumer("crm")).await.unwrap(), []);
    assert_eq!(store.cursors(&consumer("crm-2")).await.unwrap(), [cursor("crm-2", 1, b"")]);
    assert_eq!(store.consumers().await.unwrap(), [consumer("crm-2")]);
}

pub(super) async fn consumers_with_cursors_are_bounded(store: &Arc<dyn Store>) {
    Owner::take_over(store, 0, 1).await;
    let save = async |name: String| {
        let cursor = FeedCursor::new(consumer(&name), 0, Bytes::new()).unwrap();
        store.save_cursor(Fence(1), &cursor).await.unwrap()
    };
    for number in 0..FEED_CONSUMERS_MAX {
        assert_eq!(save(format!("c{number}")).await, CursorOutcome::Saved);
    }
    assert_eq!(save("more".to_owned()).await, CursorOutcome::Full);
    let durable = store.save_cursor_durably(Fence(1), &cursor("more", 0, b"")).await;
    assert_eq!(durable, Ok(CursorOutcome::Full));
    assert_eq!(save("c0".to_owned()).await, CursorOutcome::Saved);
    store.forget_consumer(&consumer("c0")).await.unwrap();
    assert_eq!(save("more".to_owned()).await, CursorOutcome::Saved);
}

/// Archives two messages by a new owner.
pub(crate) async fn archive_two(store: &Arc<dyn Store>, fence: u128) {
    let ids = [2 * fence - 1, 2 * fence].map(|it| say(&format!("m{it}")));
    Owner::take_over(store, 0, fence).await.run(&ids).await;
}

/// Checks the feed after [`archive_two`] with it, without it and with it again.
pub(crate) async fn check_hole(store: &Arc<dyn Store>) {
    assert!(store.has_feed());
    assert_eq!(seen(&page(store, 0, 0).await.entries), said(1..=2));
    for after in 2..4 {
        assert_eq!(store.read_feed(0, after, ALL).await, Ok(FeedRead::Missing(after + 1..=4)));
    }
    assert_eq!(seen(&page(store, 0, 4).await.entries), said(5..=6));
}

/// Checks the feed after [`archive_two`] by this version, by one without a feed, and by this one again.
pub(crate) async fn check_former_version(store: &Arc<dyn Store>) {
    assert_eq!(seen(&page(store, 0, 0).await.entries), said(1..=2));
    assert_eq!(store.read_feed(0, 2, ALL).await, Ok(FeedRead::Missing(3..=3)));
    let seqs: Vec<_> = page(store, 0, 3).await.entries.iter().map(|it| (it.number, it.seq)).collect();
    assert_eq!(seqs, [(4, 5), (5, 6)]);
}

/// Checks the feed that begins after [`archive_two`] by a version without one.
pub(crate) async fn check_beginning(store: &Arc<dyn Store>) {
    assert_eq!(store.feed_position(0).await, Ok(0));
    archive_two(store, 2).await;
    let seqs: Vec<_> = page(store, 0, 0).await.entries.iter().map(|it| (it.number, it.seq)).collect();
    assert_eq!(seqs, [(1, 3), (2, 4)]);
}

#[tokio::test]
async fn older_copy_of_the_store_gets_the_same_numbers_from_the_log_again() {
    let memory = Arc::new(MemoryStore::default());
    let store = Arc::clone(&memory) as Arc<dyn Store>;
    let mut owner = Owner::take_over(&store, 0, 1).await;
    owner.time = 5_000;
    let bodies = log();
    let (_, delta) = owner.apply(&bodies[..2]).await;
    store.archive(0, Fence(1), &delta).await.unwrap();
    owner.ledger.archived(delta.to).unwrap();
    let copy = memory.save();
    let (_, delta) = owner.apply(&bodies[2..]).await;
    store.archive(0, Fence(1), &delta).await.unwrap();
    let before = page(&store, 0, 0).await;
    memory.restore(copy);
    assert_eq!(store.read_feed(0, 7, ALL).await, Ok(FeedRead::Ahead(2)));
    let mut owner = Owner::take_over(&store, 0, 2).await;
    owner.time = 5_000;
    for batch in bodies[2..].chunks(3) {
        let (_, delta) = owner.apply(batch).await;
        store.archive(0, Fence(2), &delta).await.unwrap();
        owner.ledger.archived(delta.to).unwrap();
    }
    assert_eq!(page(&store, 0, 0).await, before);
}

#[tokio::test]
async fn memory_without_its_feed_counts_and_writes_nothing() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default().without_feed());
    archive_two(&store, 1).await;
    assert!(!store.has_feed());
    assert_eq!(store.read_feed(0, 0, ALL).await, Ok(FeedRead::Missing(1..=2)));
}
