//! Limit on the refused keys of an address. A valid key passes in any case, so strangers behind the address of a proxy
//! lock nobody out; 256 random bits are not found by trying.

use std::{
    hash::{BuildHasher as _, RandomState},
    net::IpAddr,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tidegate_protocol::{
    Time,
    machine::rate::{RateLimit, RateTable},
};

use crate::budget::network_of;

/// Refused keys of one IPv4 address or IPv6 /64 in any minute.
const FAILURES_MAX: u32 = 10;
const WINDOW: Duration = Duration::from_secs(60);

/// Most addresses that are counted separately; further ones share windows.
const ADDRESSES_MAX: usize = 4_096;
const SHARED: usize = 64;

/// Counts of refused keys by address.
pub(super) struct FailureLimit {
    start: Instant,
    hasher: RandomState,
    table: Mutex<RateTable>,
}

impl FailureLimit {
    /// Creates a limit without failures.
    pub(super) fn new() -> Self {
        let hasher = RandomState::new();
        let limit = RateLimit::new(FAILURES_MAX, WINDOW);
        let table = RateTable::new(limit, ADDRESSES_MAX, SHARED, hasher.hash_one(0));
        Self { start: Instant::now(), hasher, table: Mutex::new(table) }
    }

    /// Counts a refused key.
    ///
    /// # Errors
    /// The address has had its share; the error is the time until the next try counts as one.
    pub(super) fn count(&self, address: IpAddr) -> Result<(), Duration> {
        let now = Time::from_millis(u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX));
        let key = self.hasher.hash_one(network_of(address));
        self.table.lock().hit(key, now).map_err(|free_at| free_at.since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eleventh_refused_key_of_an_address_has_to_wait() {
        let limit = FailureLimit::new();
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        for _ in 0..10 {
            assert_eq!(limit.count(address("192.0.2.1")), Ok(()));
        }
        let wait = limit.count(address("::ffff:192.0.2.1")).unwrap_err();
        assert!(wait > Duration::from_secs(50) && wait <= Duration::from_secs(65), "{wait:?}");
        assert_eq!(limit.count(address("192.0.2.2")), Ok(()));
    }

    #[test]
    fn table_is_bounded_and_refuses_more_when_it_is_full() {
        let limit = FailureLimit::new();
        let mut admitted = 0;
        for n in 0..3 * ADDRESSES_MAX as u32 {
            for _ in 0..6 {
                admitted += usize::from(limit.count(IpAddr::from(n.to_be_bytes())).is_ok());
            }
        }
        assert!((6 * ADDRESSES_MAX..=6 * ADDRESSES_MAX + 10 * SHARED).contains(&admitted), "{admitted}");
    }
}
