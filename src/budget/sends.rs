//! Sends of users: how many sends of one user are in flight on a node, over all connections of the user.
//!
//! Each accepted send is pushed to the other connections of its user, so with many of them fewer sends may be in flight:
//! what one user can have queued before the messages of others stays the same. A connection that may send no more waits
//! and is not read, and nothing is refused. While connections of a user wait, they send in turns.
//!
//! Shards count independently and look at each other's counts, so the limit may be exceeded by what they read at the
//! same moment.

use std::{
    collections::HashMap,
    hash::RandomState,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use tidegate_protocol::id::UserId;

/// Connections with which a user may have as many sends in flight as one connection; with more of them, the limit falls.
const FULL_SHARES: usize = 4;

/// Sends that a user may have in flight with any number of connections.
const SENDS_MIN: usize = 16;

/// Counts of the users that are connected.
#[derive(Default)]
pub struct UserSends {
    users: Mutex<HashMap<UserId, Arc<Counts>, RandomState>>,
}

/// Counts of one user.
#[derive(Default)]
struct Counts {
    connections: AtomicUsize,
    in_flight: AtomicUsize,
    /// Connections whose next send waits.
    waiting: AtomicUsize,
}

/// Share of one connection in the counts of its user, until it is dropped.
pub struct SendShare {
    sends: Arc<UserSends>,
    user: UserId,
    counts: Arc<Counts>,
    /// Sends of this connection that are counted.
    counted: usize,
    is_waiting: bool,
}

impl UserSends {
    /// Counts a connection of the user.
    pub fn connect(self: &Arc<Self>, user: &UserId) -> SendShare {
        let mut users = self.users.lock();
        let counts = Arc::clone(users.entry(user.clone()).or_default());
        counts.connections.fetch_add(1, Ordering::Relaxed);
        SendShare { sends: Arc::clone(self), user: user.clone(), counts, counted: 0, is_waiting: false }
    }
}

impl SendShare {
    /// Returns whether the next send of this connection may go: the user may have one more in flight, and none waits.
    pub fn may_send(&self, own: usize, one_max: usize) -> bool {
        self.counts.waiting.load(Ordering::Relaxed) == 0 && self.has_room(own, one_max)
    }

    /// Returns whether the next send of this connection waits.
    pub fn is_waiting(&self) -> bool {
        self.is_waiting
    }

    /// Sets whether the next send of this connection waits.
    pub fn set_waiting(&mut self, is_waiting: bool) {
        match (std::mem::replace(&mut self.is_waiting, is_waiting), is_waiting) {
            (false, true) => self.counts.waiting.fetch_add(1, Ordering::Relaxed),
            (true, false) => self.counts.waiting.fetch_sub(1, Ordering::Relaxed),
            _ => 0,
        };
    }

    /// Returns whether the user may have one more send in flight, now that `own` of them are of this connection;
    /// `one_max` is the limit of one connection.
    pub fn has_room(&self, own: usize, one_max: usize) -> bool {
        let connections = self.counts.connections.load(Ordering::Relaxed).max(1);
        let user_max = (FULL_SHARES * one_max / connections).clamp(SENDS_MIN.min(one_max), one_max);
        let others = self.counts.in_flight.load(Ordering::Relaxed).saturating_sub(self.counted);
        others + own < user_max
    }

    /// Sets the number of this connection's sends in flight.
    pub fn count(&mut self, own: usize) {
        if own > self.counted {
            self.counts.in_flight.fetch_add(own - self.counted, Ordering::Relaxed);
        } else if own < self.counted {
            self.counts.in_flight.fetch_sub(self.counted - own, Ordering::Relaxed);
        }
        self.counted = own;
    }
}

impl Drop for SendShare {
    fn drop(&mut self) {
        self.count(0);
        self.set_waiting(false);
        let mut users = self.sends.users.lock();
        // Under the lock, so that no connection of the user is counted meanwhile.
        if self.counts.connections.fetch_sub(1, Ordering::Relaxed) == 1 {
            users.remove(&self.user);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s71_connections_of_a_user_share_a_limit_that_falls_with_their_number() {
        let (sends, ann) = (Arc::new(UserSends::default()), UserId::new("ann").unwrap());
        let mut first = sends.connect(&ann);
        assert!(first.has_room(255, 256) && !first.has_room(256, 256), "alone, the limit of one connection");
        first.count(200);
        let mut more: Vec<SendShare> = (0..3).map(|_| sends.connect(&ann)).collect();
        assert!(more[0].has_room(55, 256) && !more[0].has_room(56, 256), "200 are of the first");
        assert!(first.has_room(200, 256), "its own do not count twice");
        more.extend((0..4).map(|_| sends.connect(&ann)));
        assert!(!first.has_room(128, 256) && first.has_room(127, 256), "eight connections");
        more.extend((0..992).map(|_| sends.connect(&ann)));
        assert!(first.has_room(15, 256) && !first.has_room(16, 256), "a thousand");
        assert!(first.has_room(3, 4) && !first.has_room(4, 4), "never more than one connection may have");
        assert!(sends.connect(&UserId::new("bob").unwrap()).has_room(255, 256), "another user");
        more[0].set_waiting(true);
        more[0].set_waiting(true);
        assert!(!first.may_send(0, 256) && first.has_room(0, 256), "others wait");
        assert!(more[0].is_waiting() && !first.is_waiting());
        drop(more);
        assert!(first.may_send(0, 256), "a closed connection waits no more");
        first.count(50);
        let second = sends.connect(&ann);
        assert!(second.has_room(205, 256) && !second.has_room(206, 256));
        drop(first);
        assert!(second.has_room(255, 256), "a closed connection has nothing in flight");
        drop(second);
        assert!(sends.users.lock().is_empty());
    }
}
