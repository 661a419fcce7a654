//! Priorities: classes of users in live rooms, as administrators set them on all nodes.
//!
//! The store keeps them (`store/guard.rs`); each node has all in memory, because each login asks for one. They end by the
//! clock of the store.

use std::{
    collections::{HashMap, VecDeque},
    hash::RandomState,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use parking_lot::{Mutex, RwLock};
use tidegate_protocol::id::UserId;

/// Highest class of a connection in live rooms; the lowest is 0.
pub const CLASS_MAX: u8 = 3;

/// Part of a queue's bytes, in sixteenths, that only higher classes may use, for each class below the highest.
const RESERVED_SIXTEENTHS: usize = 1;

/// Changed users that are remembered by name; with more at once, all connections are looked through.
const RECENT_MAX: usize = 256;

/// Returns the bytes of a queue that messages of a class may fill: all of them for the highest one, and a sixteenth less for
/// each class below it, so that the lowest class finds the queue full first.
pub const fn class_share(bytes_max: usize, class: u8) -> usize {
    let below = CLASS_MAX.saturating_sub(class) as usize;
    bytes_max - bytes_max / 16 * RESERVED_SIXTEENTHS * below
}

/// Class of a user that an administrator has set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserPriority {
    /// Class, at most [`CLASS_MAX`].
    pub class: u8,
    /// End by the store's clock, in ms since 1970; `None` if it lasts until it is removed.
    pub until_ms: Option<u64>,
}

/// Classes that administrators have set, as this node knows them.
#[derive(Default)]
pub struct Priorities {
    users: RwLock<HashMap<UserId, Kept, RandomState>>,
    is_used: AtomicBool,
    /// Number of changes.
    version: AtomicU64,
    /// Number of times that all rows were read from the first on, and whether that is under way.
    reads: Mutex<Reads>,
    recent: Mutex<VecDeque<UserId>>,
}

#[derive(Clone, Copy)]
struct Kept {
    priority: UserPriority,
    /// Read in which the row was found last.
    read: u64,
}

#[derive(Clone, Copy, Default)]
struct Reads {
    count: u64,
    is_reading: bool,
}

/// Users whose class has changed since an earlier version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangedPriorities {
    /// Users that have changed.
    Users(Vec<UserId>),
    /// Number of changed users that is above what is remembered.
    Many,
}

impl Priorities {
    /// Returns what an administrator has set for a user.
    pub fn of(&self, user: &UserId) -> Option<UserPriority> {
        if !self.is_used.load(Ordering::Acquire) {
            return None;
        }
        self.users.read().get(user).map(|kept| kept.priority)
    }

    /// Returns the class of a connection: the one that is set for its user, else the one of its token.
    pub fn class(&self, user: &UserId, claimed: Option<u8>) -> u8 {
        let set = self.of(user).map(|priority| priority.class);
        set.or(claimed).unwrap_or_default().min(CLASS_MAX)
    }

    /// Returns the number of changes so far.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Returns the users that have changed since an earlier version, and the version that they lead to.
    pub fn changed_since(&self, version: u64) -> (ChangedPriorities, u64) {
        let recent = self.recent.lock();
        let now = self.version.load(Ordering::Acquire);
        let count = usize::try_from(now.saturating_sub(version)).unwrap_or(usize::MAX);
        if count > recent.len() {
            return (ChangedPriorities::Many, now);
        }
        (ChangedPriorities::Users(recent.iter().skip(recent.len() - count).cloned().collect()), now)
    }

    /// Notes that all rows follow again, and that those which do not until [`Self::finish`] no longer exist.
    pub fn restart(&self) {
        let mut reads = self.reads.lock();
        *reads = Reads { count: reads.count + 1, is_reading: true };
    }

    /// Sets or removes the class of a user.
    pub fn set(&self, user: &UserId, priority: Option<UserPriority>) {
        let read = self.reads.lock().count;
        let is_new = {
            let mut users = self.users.write();
            let before = match priority {
                Some(priority) => users.insert(user.clone(), Kept { priority, read }),
                None => users.remove(user),
            };
            self.is_used.store(!users.is_empty(), Ordering::Release);
            before.map(|kept| kept.priority.class) != priority.map(|priority| priority.class)
        };
        if is_new {
            self.note([user.clone()]);
        }
    }

    /// Notes that all rows were read: those that did not follow since [`Self::restart`] are removed.
    pub fn finish(&self) {
        let reads = {
            let mut reads = self.reads.lock();
            let before = *reads;
            reads.is_reading = false;
            before
        };
        if reads.is_reading {
            self.retain(|kept| kept.read == reads.count);
        }
    }

    /// Removes the classes that have ended.
    pub fn expire(&self, now_ms: u64) {
        let has_ended = |kept: &Kept| kept.priority.until_ms.is_some_and(|until| until <= now_ms);
        if self.is_used.load(Ordering::Acquire) && self.users.read().values().any(has_ended) {
            self.retain(|kept| !has_ended(kept));
        }
    }

    fn retain(&self, mut keeps: impl FnMut(&Kept) -> bool) {
        let mut users = self.users.write();
        let removed: Vec<UserId> = users.extract_if(|_, kept| !keeps(kept)).map(|(user, _)| user).collect();
        self.is_used.store(!users.is_empty(), Ordering::Release);
        drop(users);
        self.note(removed);
    }

    /// Counts changes, which are in force already, for the shards.
    fn note(&self, changed: impl IntoIterator<Item = UserId>) {
        let mut recent = self.recent.lock();
        for user in changed {
            if recent.len() == RECENT_MAX {
                recent.pop_front();
            }
            recent.push_back(user);
            self.version.fetch_add(1, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str) -> UserId {
        UserId::new(name).unwrap()
    }

    fn class(class: u8) -> Option<UserPriority> {
        Some(UserPriority { class, until_ms: None })
    }

    #[test]
    fn lower_classes_find_a_queue_full_first() {
        assert_eq!(
            [0, 1, 2, 3, 9].map(|class| class_share(1_600, class)),
            [1_300, 1_400, 1_500, 1_600, 1_600]
        );
        assert_eq!(class_share(10, 0), 10, "too small to reserve anything");
    }

    #[test]
    fn set_class_is_in_force_over_that_of_the_token_until_it_ends() {
        let priorities = Priorities::default();
        let of = |claimed| priorities.class(&user("ann"), claimed);
        assert_eq!((of(None), of(Some(1)), of(Some(9))), (0, 1, CLASS_MAX));
        priorities.set(&user("ann"), Some(UserPriority { class: 2, until_ms: Some(10) }));
        assert_eq!((of(None), of(Some(3))), (2, 2));
        priorities.expire(9);
        assert_eq!(of(Some(3)), 2);
        priorities.expire(10);
        assert_eq!(of(Some(3)), 3);
        assert_eq!(priorities.changed_since(1), (ChangedPriorities::Users(vec![user("ann")]), 2));
    }

    #[test]
    fn changes_are_named_as_far_as_they_are_remembered() {
        let priorities = Priorities::default();
        priorities.set(&user("ann"), class(1));
        priorities.set(&user("ann"), class(1));
        assert_eq!(priorities.version(), 1, "nothing changed the second time");
        (0..=RECENT_MAX).for_each(|nth| priorities.set(&user(&format!("u{nth}")), class(2)));
        let (changed, version) = priorities.changed_since(1);
        assert_eq!((changed, version), (ChangedPriorities::Many, RECENT_MAX as u64 + 2));
        let (changed, _) = priorities.changed_since(version - 2);
        let last = |back: usize| user(&format!("u{}", RECENT_MAX - back));
        assert_eq!(changed, ChangedPriorities::Users(vec![last(1), last(0)]));
    }

    #[test]
    fn rows_that_do_not_follow_again_are_removed() {
        let priorities = Priorities::default();
        priorities.restart();
        priorities.set(&user("ann"), class(1));
        priorities.set(&user("bob"), class(2));
        priorities.finish();
        priorities.restart();
        priorities.set(&user("bob"), class(2));
        priorities.finish();
        priorities.finish();
        assert_eq!((priorities.of(&user("ann")), priorities.of(&user("bob"))), (None, class(2)));
    }
}
