//! Entries of the guard.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use futures_util::future::join_all;
use tidegate::store::{
    GUARD_BATCH_MAX, GUARD_PAGE_MAX, GuardBatch, GuardEntry, GuardKey, GuardKind, GuardOutcome, GuardPage,
    GuardPut, GuardRow, Store, TOMBSTONE_MS,
};

use super::super::time::{WAIT_MAX, eventually_async};

fn key(kind: GuardKind, name: &str) -> GuardKey {
    GuardKey::new(kind, name).unwrap()
}

fn ban(name: &str) -> GuardKey {
    key(GuardKind::Ban, name)
}

fn put(key: GuardKey, value: &'static str, until_ms: Option<u64>) -> GuardPut {
    let entry = GuardEntry::new(key, Bytes::from_static(value.as_bytes()), until_ms).unwrap();
    GuardPut { entry, expected: None }
}

fn expecting(version: u64, it: GuardPut) -> GuardPut {
    GuardPut { expected: Some(version), ..it }
}

async fn store_all(store: &Arc<dyn Store>, puts: Vec<GuardPut>) -> GuardOutcome {
    store.put_guard(&GuardBatch::new(puts).unwrap()).await.unwrap()
}

/// Stores the entries, and returns the version of the last one.
async fn stored(store: &Arc<dyn Store>, puts: Vec<GuardPut>) -> u64 {
    match store_all(store, puts).await {
        GuardOutcome::Stored(version) => version,
        other => panic!("{other:?}"),
    }
}

async fn all(store: &Arc<dyn Store>) -> GuardPage {
    store.guard_since(0, usize::MAX).await.unwrap()
}

fn names(rows: &[GuardRow]) -> Vec<String> {
    rows.iter().map(|row| row.key.name().to_owned()).collect()
}

pub(super) async fn guard_entries_are_versioned_in_the_order_of_their_storage(store: &Arc<dyn Store>) {
    let none = all(store).await;
    assert_eq!((none.newest, none.read_to, none.rows.len()), (0, 0, 0));
    assert!(none.now_ms > 1_700_000_000_000, "the clock of the store");
    assert_eq!(store_all(store, Vec::new()).await, GuardOutcome::Unchanged);
    let wide = "n".repeat(256);
    let value = Bytes::from(vec![0xff; 4_096]);
    let large = GuardEntry::new(key(GuardKind::Profile, &wide), value.clone(), None).unwrap();
    let until = none.now_ms + 3_600_000;
    let batch = vec![
        put(ban("10.0.0.0/8"), "", Some(until)),
        GuardPut { entry: large, expected: None },
        put(key(GuardKind::Rule, "user-1s"), "{}", None),
    ];
    let last = stored(store, batch).await;
    let page = all(store).await;
    assert_eq!((page.newest, page.read_to), (last, last));
    let versions: Vec<u64> = page.rows.iter().map(|row| row.version).collect();
    assert!(versions.is_sorted_by(|a, b| a < b) && versions.last() == Some(&last), "{versions:?}");
    assert_eq!(names(&page.rows), ["10.0.0.0/8", wide.as_str(), "user-1s"]);
    assert_eq!((page.rows[0].until_ms, page.rows[0].value.as_deref()), (Some(until), Some(&b""[..])));
    assert_eq!((page.rows[1].until_ms, page.rows[1].value.as_ref()), (None, Some(&value)));
    // Pages go on from where the last one ended.
    let first = store.guard_since(0, 2).await.unwrap();
    assert_eq!((first.newest, first.read_to, first.rows.len()), (last, versions[1], 2));
    let rest = store.guard_since(first.read_to, 2).await.unwrap();
    assert_eq!((rest.read_to, names(&rest.rows)), (last, vec!["user-1s".to_owned()]));
    // Another value takes the place of the former one, with a version of its own.
    let again = stored(store, vec![put(ban("10.0.0.0/8"), "again", None)]).await;
    assert!(again > last);
    let page = store.guard_since(last, 10).await.unwrap();
    assert_eq!(names(&page.rows), ["10.0.0.0/8"]);
    assert_eq!(all(store).await.rows.len(), 3);
    assert_eq!(store.guard_get(&ban("10.0.0.0/8")).await, Ok(Some(page.rows[0].clone())));
    assert_eq!(store.guard_get(&key(GuardKind::Allow, "10.0.0.0/8")).await, Ok(None), "another kind");
}

pub(super) async fn guard_batch_is_stored_only_if_all_versions_are_as_expected(store: &Arc<dyn Store>) {
    let first = stored(store, vec![expecting(0, put(ban("a"), "1", None))]).await;
    let both = |version| vec![put(ban("b"), "1", None), expecting(version, put(ban("a"), "2", None))];
    for version in [0, first + 1] {
        assert_eq!(store_all(store, both(version)).await, GuardOutcome::Conflict(ban("a"), first));
    }
    assert_eq!(store.guard_get(&ban("b")).await, Ok(None), "all or nothing");
    assert_eq!(all(store).await.newest, first);
    let second = stored(store, both(first)).await;
    assert_eq!(names(&all(store).await.rows), ["b", "a"]);
    // Of concurrent changes of one version, one is stored.
    let tries = (0..8).map(|_| store_all(store, vec![expecting(second, put(ban("a"), "3", None))]));
    let outcomes = join_all(tries).await;
    let won = outcomes.iter().filter(|it| matches!(it, GuardOutcome::Stored(_))).count();
    assert_eq!(won, 1, "{outcomes:?}");
    let newest = all(store).await.newest;
    let refused = store.remove_guard(&ban("a"), Some(second)).await;
    assert_eq!(refused, Ok(GuardOutcome::Conflict(ban("a"), newest)));
    assert_eq!(store.remove_guard(&ban("a"), Some(newest)).await, Ok(GuardOutcome::Stored(newest + 1)));
    stored(store, vec![expecting(0, put(ban("a"), "4", None))]).await;
}

pub(super) async fn removed_guard_entries_stay_as_tombstones(store: &Arc<dyn Store>) {
    let last = stored(store, vec![put(ban("a"), "1", None), put(ban("b"), "1", None)]).await;
    assert_eq!(store.remove_guard(&ban("none"), None).await, Ok(GuardOutcome::Unchanged));
    assert_eq!(store.remove_guard(&ban("a"), None).await, Ok(GuardOutcome::Stored(last + 1)));
    assert_eq!(store.remove_guard(&ban("a"), None).await, Ok(GuardOutcome::Unchanged));
    assert_eq!(store.guard_get(&ban("a")).await, Ok(None));
    // A reader that knew the entry learns that it is gone, and so does one that reads all.
    let page = store.guard_since(last, 10).await.unwrap();
    assert_eq!(page.newest, last + 1);
    let [row] = &page.rows[..] else { panic!("{page:?}") };
    assert_eq!((&row.key, &row.value), (&ban("a"), &None));
    let until = row.until_ms.unwrap();
    assert!(until > page.now_ms + TOMBSTONE_MS / 2 && until <= page.now_ms + TOMBSTONE_MS);
    assert_eq!(names(&all(store).await.rows), ["b", "a"]);
    stored(store, vec![put(ban("a"), "2", None)]).await;
    let rows = all(store).await.rows;
    assert_eq!(rows.iter().map(|row| row.value.is_some()).collect::<Vec<_>>(), [true, true]);
}

pub(super) async fn ended_guard_entries_are_not_returned_and_removed_by_later_puts(store: &Arc<dyn Store>) {
    let now_ms = all(store).await.now_ms;
    let soon = Some(now_ms + 100);
    let last = stored(store, vec![put(ban("a"), "1", soon), put(ban("b"), "1", None)]).await;
    let has_ended = async || (names(&all(store).await.rows) == ["b"]).then_some(());
    eventually_async(WAIT_MAX, "the end of the entry", has_ended).await;
    assert_eq!(store.guard_get(&ban("a")).await, Ok(None));
    assert_eq!(store.remove_guard(&ban("a"), None).await, Ok(GuardOutcome::Unchanged));
    // A page with ended rows only is not the end.
    let page = store.guard_since(0, 1).await.unwrap();
    assert!(page.rows.len() <= 1 && page.newest == last);
    stored(store, vec![expecting(0, put(ban("a"), "2", None))]).await;
    // Entries that have ended already take no space from others.
    let ended = |n: u64| put(key(GuardKind::Allow, &n.to_string()), "", Some(now_ms - 1));
    let max = GuardKind::Allow.entries_max();
    fill(store, max, ended).await;
    assert_eq!(all(store).await.rows.len(), 2);
    let more = (0..GUARD_BATCH_MAX).map(|n| put(key(GuardKind::Allow, &format!("new {n}")), "", None));
    stored(store, more.collect()).await;
}

/// Stores `count` entries in whole batches.
async fn fill(store: &Arc<dyn Store>, count: u64, entry: impl Fn(u64) -> GuardPut) {
    let mut next = 0..count;
    loop {
        let batch: Vec<GuardPut> = next.by_ref().take(GUARD_BATCH_MAX).map(&entry).collect();
        if batch.is_empty() {
            return;
        }
        stored(store, batch).await;
    }
}

pub(super) async fn guard_kinds_are_bounded_and_pages_too(store: &Arc<dyn Store>) {
    let of = |n: u64| key(GuardKind::Allow, &n.to_string());
    let max = GuardKind::Allow.entries_max();
    fill(store, max - 1, |n| put(of(n), "", None)).await;
    let newest = all(store).await.newest;
    let two = vec![put(of(max), "", None), put(of(max + 1), "", None)];
    assert_eq!(store_all(store, two).await, GuardOutcome::Full(GuardKind::Allow));
    assert_eq!(all(store).await.newest, newest, "nothing was stored");
    stored(store, vec![put(of(max), "", None), put(of(1), "changed", None)]).await;
    let one = || vec![put(of(max + 1), "", None)];
    assert_eq!(store_all(store, one()).await, GuardOutcome::Full(GuardKind::Allow));
    stored(store, vec![put(ban("a"), "", None)]).await;
    // A removed entry keeps its row, which is the space for the same entry.
    assert!(matches!(store.remove_guard(&of(2), None).await, Ok(GuardOutcome::Stored(_))));
    assert_eq!(store_all(store, one()).await, GuardOutcome::Full(GuardKind::Allow));
    stored(store, vec![put(of(2), "", None)]).await;
    let (mut read_to, mut found) = (0, BTreeSet::new());
    loop {
        let page = store.guard_since(read_to, usize::MAX).await.unwrap();
        assert!(page.rows.len() <= GUARD_PAGE_MAX);
        found.extend(page.rows.into_iter().map(|row| row.key));
        read_to = page.read_to;
        if read_to == page.newest {
            break;
        }
    }
    assert_eq!(found.len() as u64, max + 1);
}

pub(super) async fn reader_misses_no_guard_entry_of_concurrent_writers(store: &Arc<dyn Store>) {
    const WRITERS: usize = 8;
    const BATCHES: usize = 12;
    let write = |writer: usize| async move {
        for batch in 0..BATCHES {
            let name = |n| ban(&format!("{writer} {batch} {n}"));
            stored(store, (0..3).map(|n| put(name(n), "", None)).collect()).await;
        }
    };
    let mut seen = Vec::new();
    let reading = async {
        let mut read_to = 0;
        while seen.len() < WRITERS * BATCHES * 3 {
            let page = store.guard_since(read_to, 7).await.unwrap();
            assert!(page.rows.iter().all(|row| row.version > read_to && row.version <= page.read_to));
            read_to = page.read_to;
            seen.extend(page.rows.into_iter().map(|row| (row.version, row.key)));
            tokio::task::yield_now().await;
        }
    };
    // A missed entry would be read for ever.
    let both = futures_util::future::join(join_all((0..WRITERS).map(write)), reading);
    tokio::time::timeout(std::time::Duration::from_secs(30), both).await.expect("no entry was missed");
    assert!(seen.is_sorted_by(|a, b| a.0 < b.0));
    assert_eq!(seen.iter().map(|(_, key)| key).collect::<BTreeSet<_>>().len(), WRITERS * BATCHES * 3);
}
