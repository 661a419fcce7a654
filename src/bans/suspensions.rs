//! Suspensions: users and devices that may stay connected and not send for a time.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Bound,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use foldhash::quality::RandomState;
use parking_lot::RwLock;
use tidegate_protocol::id::{DeviceId, UserId};

use super::{Ban, BanSubject};

/// Suspensions in force on a node. A check costs one load while there are none.
#[derive(Default)]
pub struct SuspensionBoard {
    state: RwLock<SuspensionState>,
    has_any: AtomicBool,
}

#[derive(Default)]
struct SuspensionState {
    /// Entries with the read in which they were found last.
    entries: BTreeMap<BanSubject, (Ban, u64)>,
    /// Ends of the same entries by user, of all devices if none is named.
    ends: HashMap<UserId, Vec<(Option<DeviceId>, u64)>, RandomState>,
    reads: u64,
    is_reading: bool,
}

impl SuspensionBoard {
    /// Returns whether there may be a suspension.
    pub fn has_any(&self) -> bool {
        self.has_any.load(Ordering::Acquire)
    }

    /// Returns the time for which a device may not send, because of its own suspension or of one of its user; `None` if it
    /// may. `now_ms` is the store's clock, which is read only if the user has an entry.
    pub fn left(&self, user: &UserId, device: &DeviceId, now_ms: impl FnOnce() -> u64) -> Option<Duration> {
        if !self.has_any() {
            return None;
        }
        let state = self.state.read();
        let ends = state.ends.get(user)?;
        let of_device = ends.iter().filter(|(of, _)| of.as_ref().is_none_or(|of| of == device));
        let end = of_device.map(|(_, end)| *end).max()?;
        let now_ms = now_ms();
        (end > now_ms).then(|| Duration::from_millis(end - now_ms))
    }

    /// Returns entries in force after a subject, by order of the subjects.
    pub fn list(&self, after: Option<&BanSubject>, limit: usize, now_ms: u64) -> Vec<(BanSubject, Ban)> {
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        let state = self.state.read();
        let rows = state.entries.range::<BanSubject, _>((after, Bound::Unbounded));
        let live = rows.filter(|(_, (ban, _))| !ban.has_ended(now_ms)).take(limit);
        live.map(|(subject, (ban, _))| (subject.clone(), ban.clone())).collect()
    }

    /// Returns the suspensions in force that concern a user or a device.
    pub fn of(&self, subject: &BanSubject, now_ms: u64) -> Vec<(BanSubject, Ban)> {
        let keys = match subject {
            BanSubject::Network(_) => Vec::new(),
            BanSubject::User(_) => vec![subject.clone()],
            BanSubject::Device(user, _) => vec![BanSubject::User(user.clone()), subject.clone()],
        };
        let state = self.state.read();
        let found =
            keys.into_iter().filter_map(|key| Some((key.clone(), state.entries.get(&key)?.0.clone())));
        found.filter(|(_, ban)| !ban.has_ended(now_ms)).collect()
    }

    /// Returns the number of entries, including those that have ended and are not removed yet.
    pub fn count(&self) -> usize {
        self.state.read().entries.len()
    }

    /// Notes that all entries follow again, and that those which do not until [`Self::caught_up`] no longer exist.
    pub fn restart(&self) {
        let mut state = self.state.write();
        state.reads += 1;
        state.is_reading = true;
    }

    /// Puts an entry in force, or removes it if it is `None`.
    pub fn note(&self, subject: BanSubject, entry: Option<Ban>) {
        let mut state = self.state.write();
        let read = state.reads;
        state.set_end(&subject, entry.as_ref().map(Ban::end));
        match entry {
            Some(entry) => drop(state.entries.insert(subject, (entry, read))),
            None => drop(state.entries.remove(&subject)),
        }
        self.has_any.store(!state.entries.is_empty(), Ordering::Release);
    }

    /// Removes the entries that have ended, and those that a complete read did not find.
    pub fn caught_up(&self, now_ms: u64) {
        if !self.has_any() {
            self.state.write().is_reading = false;
            return;
        }
        let mut state = self.state.write();
        let (read, was_reading) = (state.reads, std::mem::take(&mut state.is_reading));
        let is_old = |entry: &Ban, found: u64| entry.has_ended(now_ms) || (was_reading && found != read);
        let old = state.entries.iter().filter(|(_, (entry, found))| is_old(entry, *found));
        let old: Vec<BanSubject> = old.map(|(subject, _)| subject.clone()).collect();
        for subject in old {
            state.set_end(&subject, None);
            state.entries.remove(&subject);
        }
        self.has_any.store(!state.entries.is_empty(), Ordering::Release);
    }
}

impl SuspensionState {
    /// Sets the end of a subject; `None` if it is not suspended.
    fn set_end(&mut self, subject: &BanSubject, end: Option<u64>) {
        let (user, device) = match subject {
            BanSubject::Network(_) => return,
            BanSubject::User(user) => (user, None),
            BanSubject::Device(user, device) => (user, Some(device.clone())),
        };
        let ends = self.ends.entry(user.clone()).or_default();
        ends.retain(|(of, _)| *of != device);
        ends.extend(end.map(|end| (device, end)));
        if ends.is_empty() {
            self.ends.remove(user);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::BanRecord, *};

    fn until(until_ms: u64) -> Option<Ban> {
        Some(Ban { record: BanRecord::default(), until_ms: Some(until_ms) })
    }

    #[test]
    fn longest_suspension_of_a_device_counts_until_it_ends() {
        let board = SuspensionBoard::default();
        let (ann, phone): (UserId, DeviceId) = ("ann".parse().unwrap(), "phone".parse().unwrap());
        let left = |device: &DeviceId, now_ms| board.left(&ann, device, || now_ms).map(|it| it.as_millis());
        assert!(!board.has_any());
        board.note("device:ann/phone".parse().unwrap(), until(1_000));
        assert!(board.has_any());
        assert_eq!(left(&phone, 400), Some(600));
        assert_eq!(left(&"web".parse().unwrap(), 400), None, "another device");
        board.note("user:ann".parse().unwrap(), until(2_000));
        assert_eq!(left(&phone, 400), Some(1_600));
        assert_eq!(board.list(None, 9, 1_500).len(), 1);
        assert_eq!(left(&phone, 2_000), None);
        board.caught_up(1_500);
        assert_eq!(board.count(), 1, "the ended one is removed");
        board.restart();
        board.note("user:bob".parse().unwrap(), until(9_000));
        board.caught_up(1_500);
        assert_eq!(left(&phone, 1_500), None, "not found by the read");
        board.note("user:bob".parse().unwrap(), None);
        assert!(!board.has_any() && board.state.read().ends.is_empty());
    }

    #[test]
    fn clock_is_read_only_for_users_with_an_entry() {
        let board = SuspensionBoard::default();
        board.note("device:ann/phone".parse().unwrap(), until(1_000));
        let phone = "phone".parse().unwrap();
        let unread = || unreachable!("no entry of the user");
        assert_eq!(board.left(&"bob".parse().unwrap(), &phone, unread), None);
        assert_eq!(board.left(&"ann".parse().unwrap(), &"web".parse().unwrap(), unread), None);
        assert!(board.left(&"ann".parse().unwrap(), &phone, || 10).is_some());
    }
}
