//! Boards of entries: what a node has in force of one kind of the guard's entries, by key, for readers in memory.
//!
//! The store keeps the entries (`store/guard.rs`), and a handler notes them here. A board also remembers the keys whose
//! entries have changed lately, so that shards apply the changes to open connections.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Bound,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use parking_lot::{Mutex, RwLock};

/// Changed keys that are remembered by name.
const RECENT_MAX: usize = 256;

/// Entries of one kind that are in force. A lookup costs one load while there are none.
pub struct EntryBoard<K, V> {
    entries: RwLock<BTreeMap<K, NotedEntry<V>>>,
    is_used: AtomicBool,
    /// Number of changes.
    version: AtomicU64,
    reads: Mutex<EntryReads>,
    recent: Mutex<VecDeque<K>>,
}

#[derive(Clone, Copy)]
struct NotedEntry<V> {
    value: V,
    /// Read in which the entry was found last.
    read: u64,
}

/// Number of times that all entries were read from the first on, and whether that is under way.
#[derive(Clone, Copy, Default)]
struct EntryReads {
    count: u64,
    is_reading: bool,
}

/// Keys whose entries have changed since an earlier version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangedKeys<K> {
    /// Keys in the order of their changes.
    Named(Vec<K>),
    /// More than are remembered.
    Many,
}

impl<K, V> Default for EntryBoard<K, V> {
    fn default() -> Self {
        Self {
            entries: RwLock::default(),
            is_used: AtomicBool::new(false),
            version: AtomicU64::new(0),
            reads: Mutex::default(),
            recent: Mutex::default(),
        }
    }
}

impl<K: Clone + Ord, V: Clone + PartialEq> EntryBoard<K, V> {
    /// Returns the entry of a key.
    pub fn get(&self, key: &K) -> Option<V> {
        if !self.is_used.load(Ordering::Acquire) {
            return None;
        }
        self.entries.read().get(key).map(|noted| noted.value.clone())
    }

    /// Returns whether a key has an entry.
    pub fn contains(&self, key: &K) -> bool {
        self.is_used.load(Ordering::Acquire) && self.entries.read().contains_key(key)
    }

    /// Returns entries after a key, in the order of the keys.
    pub fn list(&self, after: Option<&K>, limit: usize) -> Vec<(K, V)> {
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        let entries = self.entries.read();
        let rows = entries.range::<K, _>((after, Bound::Unbounded)).take(limit);
        rows.map(|(key, noted)| (key.clone(), noted.value.clone())).collect()
    }

    /// Returns the number of entries.
    pub fn count(&self) -> usize {
        self.entries.read().len()
    }

    /// Returns the number of changes so far.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Returns the keys that have changed since an earlier version, and the version that they lead to.
    pub fn changed_since(&self, version: u64) -> (ChangedKeys<K>, u64) {
        let recent = self.recent.lock();
        let now = self.version.load(Ordering::Acquire);
        let count = usize::try_from(now.saturating_sub(version)).unwrap_or(usize::MAX);
        if count > recent.len() {
            return (ChangedKeys::Many, now);
        }
        (ChangedKeys::Named(recent.iter().skip(recent.len() - count).cloned().collect()), now)
    }

    /// Notes that all entries follow again, and that those which do not until [`Self::finish`] no longer exist.
    pub fn restart(&self) {
        let mut reads = self.reads.lock();
        *reads = EntryReads { count: reads.count + 1, is_reading: true };
    }

    /// Puts an entry in force, or removes it if it is `None`.
    pub fn set(&self, key: &K, value: Option<V>) {
        let read = self.reads.lock().count;
        let is_change = {
            let mut entries = self.entries.write();
            let before = match value.clone() {
                Some(value) => entries.insert(key.clone(), NotedEntry { value, read }),
                None => entries.remove(key),
            };
            self.is_used.store(!entries.is_empty(), Ordering::Release);
            before.map(|noted| noted.value) != value
        };
        if is_change {
            self.note([key.clone()]);
        }
    }

    /// Notes that all entries were read: those that did not follow since [`Self::restart`] are removed.
    pub fn finish(&self) {
        let reads = {
            let mut reads = self.reads.lock();
            let before = *reads;
            reads.is_reading = false;
            before
        };
        if reads.is_reading {
            self.retain(|noted| noted.read == reads.count);
        }
    }

    /// Removes the entries that have ended.
    pub fn expire(&self, has_ended: impl Fn(&V) -> bool) {
        let has_any = || self.entries.read().values().any(|noted| has_ended(&noted.value));
        if self.is_used.load(Ordering::Acquire) && has_any() {
            self.retain(|noted| !has_ended(&noted.value));
        }
    }

    fn retain(&self, keeps: impl Fn(&NotedEntry<V>) -> bool) {
        let mut entries = self.entries.write();
        let removed: Vec<K> = entries.extract_if(.., |_, noted| !keeps(noted)).map(|(key, _)| key).collect();
        self.is_used.store(!entries.is_empty(), Ordering::Release);
        drop(entries);
        self.note(removed);
    }

    /// Counts changes, which are in force already, for the shards.
    fn note(&self, changed: impl IntoIterator<Item = K>) {
        let mut recent = self.recent.lock();
        for key in changed {
            if recent.len() == RECENT_MAX {
                recent.pop_front();
            }
            recent.push_back(key);
            self.version.fetch_add(1, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_named_as_far_as_they_are_remembered() {
        let board = EntryBoard::<usize, u8>::default();
        board.set(&0, Some(1));
        board.set(&0, Some(1));
        assert_eq!(board.version(), 1, "nothing changed the second time");
        (0..=RECENT_MAX).for_each(|nth| board.set(&nth, Some(2)));
        let (changed, version) = board.changed_since(1);
        assert_eq!((changed, version), (ChangedKeys::Many, RECENT_MAX as u64 + 2));
        let (changed, _) = board.changed_since(version - 2);
        assert_eq!(changed, ChangedKeys::Named(vec![RECENT_MAX - 1, RECENT_MAX]));
    }

    #[test]
    fn entries_that_do_not_follow_again_are_removed() {
        let board = EntryBoard::default();
        board.restart();
        board.set(&"ann", Some(1));
        board.set(&"bob", Some(2));
        board.finish();
        board.restart();
        board.set(&"bob", Some(2));
        board.finish();
        board.finish();
        assert_eq!((board.get(&"ann"), board.get(&"bob"), board.count()), (None, Some(2), 1));
        assert_eq!(board.changed_since(2), (ChangedKeys::Named(vec!["ann"]), 3));
    }

    #[test]
    fn entries_are_listed_in_pages_until_they_end() {
        let board = EntryBoard::default();
        ["c", "a", "b"].into_iter().zip([3, 1, 2]).for_each(|(key, end)| board.set(&key, Some(end)));
        assert_eq!(board.list(None, 2), [("a", 1), ("b", 2)]);
        assert_eq!(board.list(Some(&"b"), 2), [("c", 3)]);
        board.expire(|end| *end <= 2);
        assert_eq!((board.contains(&"b"), board.contains(&"c")), (false, true));
        board.set(&"c", None);
        assert!(!board.is_used.load(Ordering::Acquire) && board.list(None, 9).is_empty());
    }
}
