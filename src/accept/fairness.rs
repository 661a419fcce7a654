//! Shares of networks in the handshakes: how many each may have in progress, and how many it may begin in a second.

use std::{
    collections::HashMap,
    hash::{BuildHasher as _, RandomState},
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tidegate_protocol::{
    Code, Time,
    machine::rate::{RateLimit, RateTable},
};

use crate::budget::network_of;

/// Most networks whose rate is counted apart.
const KEYS_MAX: usize = 16 * 1_024;

/// Windows that further networks share.
const SHARED: usize = 64;

/// Handshakes of the client port by network: an IPv4 address, or an IPv6 /64.
pub struct Fairness {
    /// Most handshakes in progress of one network; 0 for no limit.
    per_network_max: usize,
    /// Handshakes in progress. Networks without any are not listed, so connections bound it.
    open: Mutex<HashMap<IpAddr, usize>>,
    rate: Option<Mutex<RateTable>>,
    hasher: RandomState,
    start: Instant,
}

/// Place of a connection among those of its network; free again on drop.
pub(super) struct NetworkPlace {
    fairness: Arc<Fairness>,
    network: IpAddr,
}

impl Fairness {
    /// Creates the shares: `per_network_max` in progress and `per_second` begun; 0 for no limit.
    pub fn new(per_network_max: usize, per_second: u32) -> Self {
        let hasher = RandomState::new();
        let limit = (per_second > 0).then(|| RateLimit::new(per_second, Duration::from_secs(1)));
        let table = |limit| Mutex::new(RateTable::new(limit, KEYS_MAX, SHARED, hasher.hash_one(0)));
        let rate = limit.map(table);
        Self { per_network_max, open: Mutex::default(), rate, hasher, start: Instant::now() }
    }

    /// Takes a place for a connection from `address`.
    ///
    /// # Errors
    /// All places of the network are taken.
    pub(super) fn enter(self: &Arc<Self>, address: IpAddr) -> Result<NetworkPlace, Code> {
        let network = network_of(address);
        let mut open = self.open.lock();
        let count = open.get(&network).copied().unwrap_or(0);
        if self.per_network_max > 0 && count >= self.per_network_max {
            return Err(Code::TooManyFromAddress);
        }
        open.insert(network, count + 1);
        Ok(NetworkPlace { fairness: Arc::clone(self), network })
    }

    /// Counts a handshake that begins. Loopback addresses are exempt: proxies and tools of this machine have them.
    ///
    /// # Errors
    /// The network has begun too many in the last second.
    pub(super) fn begin(&self, address: IpAddr) -> Result<(), Code> {
        let Some(rate) = &self.rate else { return Ok(()) };
        if address.to_canonical().is_loopback() {
            return Ok(());
        }
        let key = self.hasher.hash_one(network_of(address));
        let now = Time::from_millis(u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX));
        rate.lock().hit(key, now).map_err(|_| Code::RateLimited)
    }
}

impl NetworkPlace {
    /// Returns the number of places that the network has taken, this one included.
    pub(super) fn taken(&self) -> usize {
        self.fairness.open.lock().get(&self.network).copied().unwrap_or(0)
    }
}

impl Drop for NetworkPlace {
    fn drop(&mut self) {
        let mut open = self.fairness.open.lock();
        match open.get_mut(&self.network) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(open.remove(&self.network)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_by_network_and_freed() {
        let fairness = Arc::new(Fairness::new(2, 0));
        let in_64 = |host: u16| IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, host]);
        let places = [1, 2].map(|host| fairness.enter(in_64(host)).unwrap());
        assert_eq!(fairness.enter(in_64(3)).err(), Some(Code::TooManyFromAddress));
        let other = fairness.enter([192, 0, 2, 1].into()).unwrap();
        assert_eq!((places[0].taken(), other.taken()), (2, 1));
        drop(places);
        assert!(fairness.enter(in_64(3)).is_ok());
        drop(other);
        assert!(fairness.open.lock().is_empty(), "no state is left");
    }

    #[test]
    fn rate_is_counted_by_network_except_for_loopback() {
        let fairness = Fairness::new(0, 3);
        let outcomes = |address: [u8; 4]| [(); 4].map(|()| fairness.begin(address.into()));
        let refused = [Ok(()), Ok(()), Ok(()), Err(Code::RateLimited)];
        assert_eq!(outcomes([192, 0, 2, 1]), refused);
        assert_eq!(outcomes([192, 0, 2, 2]), refused, "another address has its own");
        assert_eq!(outcomes([127, 0, 0, 1]), [Ok(()); 4]);
    }
}
