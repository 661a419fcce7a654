//! Queue of what is due at some time, the oldest first.

use std::{collections::BTreeSet, time::Duration};

use crate::Time;

/// Keys with the times at which they are due; each key is in it at most once, at a time that its holder knows.
#[derive(Debug)]
pub(super) struct DueQueue<K>(BTreeSet<(Time, K)>);

impl<K> Default for DueQueue<K> {
    fn default() -> Self {
        Self(BTreeSet::new())
    }
}

impl<K: Clone + Ord> DueQueue<K> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn insert(&mut self, due: Time, key: K) {
        self.0.insert((due, key));
    }

    pub(super) fn remove(&mut self, due: Time, key: K) {
        self.0.remove(&(due, key));
    }

    /// Moves a key from the time at which it is due to a later one.
    pub(super) fn postpone(&mut self, due: &mut Time, later: Time, key: K) {
        self.remove(*due, key.clone());
        *due = later;
        self.insert(later, key);
    }

    /// Returns at most `most` keys that are due at `now`, those first that have been due for longest. They are due again after
    /// `interval`: `take` gets that time for each key, and returns its cost. A key that costs more than is `left` is the last.
    pub(super) fn poll(
        &mut self,
        now: Time,
        interval: Duration,
        most: usize,
        left: &mut usize,
        mut take: impl FnMut(&K, Time) -> Option<usize>,
    ) -> Vec<K> {
        let (mut found, again) = (Vec::new(), now + interval);
        while *left > 0
            && found.len() < most
            && let Some(key) = self.pop(now)
        {
            // A key without a holder is dropped.
            let Some(cost) = take(&key, again) else { continue };
            *left = left.saturating_sub(cost);
            self.insert(again, key.clone());
            found.push(key);
        }
        found
    }

    /// Takes the key that has been due for longest, if one is due at `now`.
    fn pop(&mut self, now: Time) -> Option<K> {
        if self.0.first().is_none_or(|(due, _)| *due > now) {
            return None;
        }
        self.0.pop_first().map(|(_, key)| key)
    }
}
