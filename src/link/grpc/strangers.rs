//! Strangers: the connections of the link listener that are not authenticated yet, apart from those of peers.
//!
//! They are few, and few of each network. With all places taken, one of them is closed for a new one: the oldest of the
//! networks that hold the most. So callers of many networks can't keep a peer out, and a peer that is about to
//! authenticate loses its place only if no network holds more than its own.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::budget::network_of;

/// Limit on concurrent strangers.
pub(super) const STRANGERS_MAX: usize = 128;

/// Limit on concurrent strangers of one address, or IPv6 /64. A peer needs milliseconds to authenticate, and reconnects
/// soon if it is refused.
pub(super) const PER_NETWORK_MAX: usize = 8;

/// Strangers of one listener.
#[derive(Clone, Default)]
pub(super) struct Strangers(Arc<Mutex<Places>>);

#[derive(Default)]
struct Places {
    /// Strangers by number, the oldest first.
    taken: BTreeMap<u64, Stranger>,
    next: u64,
}

struct Stranger {
    network: IpAddr,
    close: oneshot::Sender<()>,
}

/// Place of a stranger, released on drop.
pub(super) struct Place {
    strangers: Strangers,
    number: u64,
}

impl Strangers {
    /// Takes a place for a connection from `address`. The receiver gets a value when the connection has to be closed for
    /// another one, and an error when the place is left. Returns `None` if all places of the network are taken.
    pub(super) fn enter(&self, address: IpAddr) -> Option<(Place, oneshot::Receiver<()>)> {
        let network = network_of(address);
        let mut places = self.0.lock();
        if places.taken.values().filter(|it| it.network == network).count() >= PER_NETWORK_MAX {
            return None;
        }
        if places.taken.len() >= STRANGERS_MAX {
            places.close_one();
        }
        let number = places.next;
        places.next += 1;
        let (close, closed) = oneshot::channel();
        places.taken.insert(number, Stranger { network, close });
        Some((Place { strangers: self.clone(), number }, closed))
    }

    /// Returns the number of strangers.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.0.lock().taken.len()
    }
}

impl Places {
    /// Closes the oldest stranger of the networks that hold the most places.
    fn close_one(&mut self) {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for stranger in self.taken.values() {
            *counts.entry(stranger.network).or_default() += 1;
        }
        let most = counts.values().max().copied().unwrap_or_default();
        let found = self.taken.iter().find(|(_, it)| counts.get(&it.network) == Some(&most));
        let Some(number) = found.map(|(number, _)| *number) else { return };
        if let Some(stranger) = self.taken.remove(&number) {
            // An error means that the connection has ended meanwhile.
            stranger.close.send(()).ok();
        }
    }
}

impl Place {
    /// Leaves the place. Returns false if it was taken away for another stranger.
    pub(super) fn leave(&self) -> bool {
        self.strangers.0.lock().taken.remove(&self.number).is_some()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(network: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, network])
    }

    #[test]
    fn s73_oldest_of_the_fullest_networks_is_closed_for_a_new_stranger() {
        let strangers = Strangers::default();
        let (peer, mut peer_closed) = strangers.enter(address(200)).unwrap();
        let mut others = Vec::new();
        for n in 0..STRANGERS_MAX {
            let network = u8::try_from(n / PER_NETWORK_MAX).unwrap();
            others.push(strangers.enter(address(network)).unwrap());
        }
        assert_eq!(strangers.count(), STRANGERS_MAX);
        let closed = |others: &mut Vec<(Place, oneshot::Receiver<()>)>| -> Vec<usize> {
            (0..others.len()).filter(|&n| others[n].1.try_recv().is_ok()).collect()
        };
        assert_eq!(closed(&mut others), [0], "one was closed for the last");
        assert!(!others[0].0.leave(), "its place was taken away");
        assert!(strangers.enter(address(15)).is_none(), "all places of that network are taken");
        others.push(strangers.enter(address(100)).unwrap());
        // The first network holds one less than the others now.
        assert_eq!(closed(&mut others), [PER_NETWORK_MAX]);
        assert!(peer_closed.try_recv().is_err() && peer.leave(), "a network with one place keeps it");
        drop(others);
        assert_eq!(strangers.count(), 0);
    }
}
