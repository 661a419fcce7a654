//! Table of rate logs by key, bounded in its number of keys.

use super::{RateLimit, RateLog};
use crate::Time;
use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

/// Entries that are compared to find one to evict.
const SAMPLED: usize = 16;

/// Entries that are examined for expiry with each new key.
const SWEPT: usize = 2;

/// Logs of the keys of one rule, at most `keys_max`.
///
/// Keys are hashes under a secret key, so that nobody can choose colliding ones. When the table is full, a new key takes
/// the entry that has used least among 16 random ones, but never one that has used half of its limit. If all of them
/// have, the new key shares one of a few windows with others: a full table refuses more, and never admits more.
///
/// A key that got an entry after it shared a window inherits the hits of that window. Hits of evicted entries are
/// forgotten, and [`Self::forgotten`] counts them: they bound what any key can gain.
#[derive(Debug)]
pub struct RateTable {
    limit: RateLimit,
    keys_max: usize,
    /// Positions in `entries`.
    index: HashMap<u64, u32, BuildHasherDefault<KeyHasher>>,
    entries: Vec<Entry>,
    /// Windows of keys without an entry; empty until one is needed.
    shared: Vec<RateLog>,
    shared_max: usize,
    /// Next entry to examine for expiry.
    swept: usize,
    /// State of the random choices.
    random: u64,
    forgotten: u64,
}

#[derive(Debug)]
struct Entry {
    key: u64,
    log: RateLog,
}

/// Hasher of keys, which are hashes already.
#[derive(Debug, Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write(&mut self, _: &[u8]) {
        debug_assert!(false, "keys are written as one number");
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Position of the log in which a key's hits count, as [`RateTable::find`] found it; valid until the table is changed.
#[derive(Clone, Copy, Debug)]
pub struct RateSlot {
    key: u64,
    /// Position in `entries`; `None` if the key has no entry.
    at: Option<u32>,
}

impl RateSlot {
    /// Returns the key.
    pub const fn key(&self) -> u64 {
        self.key
    }

    /// Returns whether the key has an entry of its own.
    pub const fn has_entry(&self) -> bool {
        self.at.is_some()
    }
}

/// One cache line for each key whose hits are in few runs.
const _: () = assert!(size_of::<Entry>() <= 64);

impl RateTable {
    /// Creates a table of at most `keys_max` keys, at least 1, and `shared_max` windows, at least 1, for further ones.
    pub fn new(limit: RateLimit, keys_max: usize, shared_max: usize, seed: u64) -> Self {
        Self {
            limit,
            keys_max: keys_max.clamp(1, u32::MAX as usize),
            index: HashMap::default(),
            entries: Vec::new(),
            shared: Vec::new(),
            shared_max: shared_max.max(1),
            swept: 0,
            random: seed,
            forgotten: 0,
        }
    }

    /// Returns whether a hit of the key is admitted now; counts nothing, and makes no entry.
    ///
    /// # Errors
    /// The limit is reached; the error is the earliest time at which a hit is admitted if no other one is before.
    pub fn check(&mut self, key: u64, now: Time) -> Result<(), Time> {
        self.check_at(self.find(key), now)
    }

    /// Finds the log of a key, for [`Self::check_at`] and [`Self::commit_at`].
    pub fn find(&self, key: u64) -> RateSlot {
        RateSlot { key, at: self.index.get(&key).copied() }
    }

    /// Does what [`Self::check`] does for a key that was found.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn check_at(&mut self, slot: RateSlot, now: Time) -> Result<(), Time> {
        let limit = self.limit;
        self.existing_at(slot).map_or(Ok(()), |log| log.check(&limit, now))
    }

    /// Does what [`Self::commit`] does for a key that was found, at the time at which [`Self::check_at`] has admitted it.
    pub fn commit_at(&mut self, slot: RateSlot, now: Time) {
        let limit = self.limit;
        match slot.at.and_then(|at| self.entries.get_mut(at as usize)) {
            Some(entry) => entry.log.commit_checked(&limit, now),
            None => self.commit(slot.key, now),
        }
    }

    /// Replaces the limit of all keys by one with the same window. Hits that count go on to count.
    pub fn set_limit(&mut self, limit: RateLimit) {
        self.limit = limit;
    }

    /// Does what [`Self::check_at`] does, with a limit of the key's own in the same window.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn check_within(&mut self, slot: RateSlot, limit: &RateLimit, now: Time) -> Result<(), Time> {
        self.existing_at(slot).map_or(Ok(()), |log| log.check(limit, now))
    }

    /// Does what [`Self::commit_at`] does, with a limit of the key's own in the same window. Returns the number of hits of
    /// the key that count now. `count_of` returns the limit of a key, which decides whether it may be evicted.
    pub fn commit_within(
        &mut self,
        slot: RateSlot,
        limit: &RateLimit,
        now: Time,
        count_of: impl Fn(u64) -> u32,
    ) -> u32 {
        let log = match slot.at {
            Some(at) if (at as usize) < self.entries.len() => &mut self.entries[at as usize].log,
            _ => self.log(slot.key, now, count_of),
        };
        log.commit(limit, now);
        log.used(limit, now)
    }

    /// Returns the number of hits of the key that count now; makes no entry.
    pub fn used(&mut self, key: u64, now: Time) -> u32 {
        let limit = self.limit;
        self.existing(key).map_or(0, |log| log.used(&limit, now))
    }

    /// Returns whether the key has an entry.
    pub fn contains(&self, key: u64) -> bool {
        self.index.contains_key(&key)
    }

    /// Counts a hit of the key, which [`Self::check`] has admitted.
    pub fn commit(&mut self, key: u64, now: Time) {
        let limit = self.limit;
        self.log(key, now, |_| limit.count()).commit(&limit, now);
    }

    /// Checks a hit of the key, and counts it if it is admitted.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn hit(&mut self, key: u64, now: Time) -> Result<(), Time> {
        self.check(key, now)?;
        self.commit(key, now);
        Ok(())
    }

    /// Returns the number of keys with an entry.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether no key has an entry.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns how many hits that still counted were forgotten with their entries since the last call.
    pub fn forgotten(&mut self) -> u64 {
        std::mem::take(&mut self.forgotten)
    }

    /// Returns the approximate bytes of memory in use.
    pub fn bytes(&self) -> usize {
        let entries = self.entries.iter().map(|entry| entry.log.heap_bytes()).sum::<usize>();
        let shared = self.shared.iter().map(RateLog::heap_bytes).sum::<usize>();
        entries
            + shared
            + self.entries.capacity() * size_of::<Entry>()
            + self.shared.capacity() * size_of::<RateLog>()
            + self.index.capacity() * (size_of::<(u64, u32)>() + 1)
    }

    /// Returns the log whose hits count for the key; `None` if it has none. A key without an entry would share this log, or
    /// inherit it with a new entry.
    fn existing(&mut self, key: u64) -> Option<&mut RateLog> {
        self.existing_at(self.find(key))
    }

    fn existing_at(&mut self, slot: RateSlot) -> Option<&mut RateLog> {
        match slot.at {
            Some(at) => self.entries.get_mut(at as usize).map(|entry| &mut entry.log),
            // Most tables share no windows.
            None if self.shared.is_empty() => None,
            None => {
                let shared = self.shared_of(slot.key);
                self.shared.get_mut(shared)
            }
        }
    }

    /// Returns the log in which the key's hits count, after making an entry for it if there is space.
    fn log(&mut self, key: u64, now: Time, count_of: impl Fn(u64) -> u32) -> &mut RateLog {
        let at = match self.index.get(&key) {
            Some(at) => Some(*at as usize),
            None => self.add(key, now, count_of),
        };
        match at {
            Some(at) => &mut self.entries[at].log,
            None => {
                self.shared.resize(self.shared_max, RateLog::default());
                let at = self.shared_of(key);
                &mut self.shared[at]
            }
        }
    }

    /// Makes an entry for a new key and returns its position, `None` if the key has to share a window.
    fn add(&mut self, key: u64, now: Time, count_of: impl Fn(u64) -> u32) -> Option<usize> {
        self.sweep(now);
        let at = if self.entries.len() < self.keys_max {
            self.entries.push(Entry { key, log: RateLog::default() });
            self.entries.len() - 1
        } else {
            let at = self.victim(now, count_of)?;
            let entry = &mut self.entries[at];
            self.forgotten += u64::from(entry.log.used(&self.limit, now));
            self.index.remove(&entry.key);
            entry.key = key;
            at
        };
        self.index.insert(key, at as u32);
        let shared = self.shared_of(key);
        self.entries[at].log = self.shared.get(shared).cloned().unwrap_or_default();
        Some(at)
    }

    fn shared_of(&self, key: u64) -> usize {
        (key % self.shared_max as u64) as usize
    }

    /// Removes the next entries if they have expired, so that quiet keys leave as new ones come.
    fn sweep(&mut self, now: Time) {
        for _ in 0..SWEPT {
            if self.swept >= self.entries.len() {
                self.swept = 0;
            }
            let Some(entry) = self.entries.get_mut(self.swept) else { return };
            if entry.log.used(&self.limit, now) > 0 {
                self.swept += 1;
                continue;
            }
            let expired = self.entries.swap_remove(self.swept);
            self.index.remove(&expired.key);
            if let Some(moved) = self.entries.get(self.swept) {
                self.index.insert(moved.key, self.swept as u32);
            }
        }
    }

    /// Returns the entry that has used least among some random ones, `None` if each has used half of its limit.
    fn victim(&mut self, now: Time, count_of: impl Fn(u64) -> u32) -> Option<usize> {
        let mut least = None;
        for _ in 0..SAMPLED {
            let at = (self.draw() % self.entries.len().max(1) as u64) as usize;
            let entry = self.entries.get_mut(at)?;
            let used = entry.log.used(&self.limit, now);
            if least.is_none_or(|(_, fewest)| used < fewest) && used.saturating_mul(2) < count_of(entry.key) {
                least = Some((at, used));
            }
        }
        least.map(|(at, _)| at)
    }

    /// Returns the next number of a splitmix64 sequence.
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
