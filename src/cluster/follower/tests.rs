//! Tests of followers, over bans in a store in memory.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use parking_lot::Mutex;

use super::*;
use crate::store::{
    GuardBatch, GuardEntry, GuardKey, GuardKind, GuardOutcome, GuardPut, GuardStore as _, MemoryStore,
};

/// Follower's view of the bans in a store, read in pages of two.
#[derive(Default)]
struct Bans {
    store: Arc<MemoryStore>,
    known: Mutex<BTreeMap<String, u64>>,
    restarts: AtomicUsize,
    complete: AtomicUsize,
    longest: AtomicUsize,
    fails: AtomicBool,
}

#[async_trait]
impl Followed for Bans {
    type Row = GuardRow;

    async fn read(&self, after: u64) -> Result<FollowedPage<GuardRow>, StoreError> {
        if self.fails.load(Ordering::Relaxed) && after > 0 {
            return Err(StoreError::Unavailable("planned".to_owned()));
        }
        let page = self.store.guard_since(after, 2).await?;
        let (newest, read_to, now_ms) = (page.newest, page.read_to, Some(page.now_ms));
        Ok(FollowedPage { newest, read_to, now_ms, rows: page.rows })
    }

    async fn restarted(&self) {
        self.known.lock().clear();
        self.restarts.fetch_add(1, Ordering::Relaxed);
    }

    async fn changed(&self, rows: Vec<GuardRow>, _: Option<u64>) {
        self.longest.fetch_max(rows.len(), Ordering::Relaxed);
        for row in rows {
            match row.value {
                Some(_) => self.known.lock().insert(row.key.name().to_owned(), row.version),
                None => self.known.lock().remove(row.key.name()),
            };
        }
    }

    async fn caught_up(&self, _: Option<u64>) {
        self.complete.fetch_add(1, Ordering::Relaxed);
    }
}

impl Bans {
    fn names(&self) -> String {
        self.known.lock().keys().map(String::as_str).collect()
    }

    fn restarts(&self) -> usize {
        self.restarts.load(Ordering::Relaxed)
    }

    async fn ban(&self, name: &str) {
        let entry = GuardEntry::new(key(name), Bytes::new(), None).unwrap();
        let batch = GuardBatch::new(vec![GuardPut { entry, expected: None }]).unwrap();
        assert!(matches!(self.store.put_guard(&batch).await, Ok(GuardOutcome::Stored(_))));
    }
}

fn key(name: &str) -> GuardKey {
    GuardKey::new(GuardKind::Ban, name).unwrap()
}

#[tokio::test]
async fn changes_are_followed_in_pages_and_all_is_read_again_after_a_fall_back() {
    let (bans, follower) = (Bans::default(), Follower::new(None));
    for name in ["a", "b", "c", "d", "e"] {
        bans.ban(name).await;
    }
    follower.catch_up(&bans).await.unwrap();
    assert_eq!(
        (bans.names().as_str(), bans.longest.load(Ordering::Relaxed), bans.restarts()),
        ("abcde", 2, 1)
    );
    let saved = bans.store.save();
    bans.store.remove_guard(&key("b"), None).await.unwrap();
    bans.ban("f").await;
    follower.catch_up(&bans).await.unwrap();
    assert_eq!((bans.names().as_str(), bans.restarts()), ("acdef", 1));
    bans.store.restore(saved);
    bans.ban("g").await;
    follower.catch_up(&bans).await.unwrap();
    assert_eq!((bans.names().as_str(), bans.restarts()), ("abcdeg", 2));
}

#[tokio::test]
async fn failed_read_goes_on_from_the_last_page() {
    let (bans, follower) = (Bans::default(), Follower::new(None));
    for name in ["a", "b", "c"] {
        bans.ban(name).await;
    }
    bans.fails.store(true, Ordering::Relaxed);
    assert!(follower.catch_up(&bans).await.is_err());
    assert_eq!((bans.names().as_str(), bans.complete.load(Ordering::Relaxed)), ("ab", 0));
    bans.fails.store(false, Ordering::Relaxed);
    follower.catch_up(&bans).await.unwrap();
    assert_eq!(
        (bans.names().as_str(), bans.complete.load(Ordering::Relaxed), bans.restarts()),
        ("abc", 1, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn bell_is_answered_at_once_and_a_stale_follower_reads_all() {
    let bans = Bans::default();
    let follower = Follower::new(Some(Duration::from_secs(60)));
    let begin = Instant::now();
    let ringing = async {
        follower.due().await;
        assert_eq!(begin.elapsed(), FOLLOW_INTERVAL, "nobody rang");
        follower.ring();
        follower.due().await;
        assert_eq!(begin.elapsed(), FOLLOW_INTERVAL);
    };
    ringing.await;
    follower.catch_up(&bans).await.unwrap();
    tokio::time::advance(Duration::from_secs(60)).await;
    follower.catch_up(&bans).await.unwrap();
    assert_eq!(bans.restarts(), 1);
    tokio::time::advance(Duration::from_secs(61)).await;
    follower.catch_up(&bans).await.unwrap();
    assert_eq!(bans.restarts(), 2);
}

#[tokio::test]
async fn fall_back_between_two_pages_is_noticed() {
    let (bans, follower) = (Bans::default(), Follower::new(None));
    for name in ["a", "b", "c", "d"] {
        bans.ban(name).await;
    }
    let saved = bans.store.save();
    // The first pages lack an entry that the state of before has.
    bans.ban("a").await;
    bans.fails.store(true, Ordering::Relaxed);
    assert!(follower.catch_up(&bans).await.is_err());
    assert_eq!(bans.names(), "bc");
    bans.store.restore(saved);
    bans.fails.store(false, Ordering::Relaxed);
    follower.catch_up(&bans).await.unwrap();
    assert_eq!((bans.names().as_str(), bans.restarts()), ("abcd", 2));
}
