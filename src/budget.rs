//! Admission: limits on the connections and the memory of a node. New clients are refused before memory runs out, so
//! that the kernel does not kill the process.

use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering},
    },
};

use dashmap::DashMap;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::hash::RandomState;
use tidegate_protocol::Code;

mod cache;
mod memory;
mod sends;
pub(crate) mod shed;

pub use cache::{CacheBudget, CacheShare};
pub use memory::{memory_limit, memory_used};
pub use sends::{SendShare, UserSends};

/// File descriptors reserved for other uses than client connections: 64 table files that the store keeps open
/// (`embedded/database.rs`) and 32 that it writes and merges, 128 for the API ports, 384 for the link, and 32 for services,
/// polls and standard streams.
pub const DESCRIPTORS_RESERVED: usize = 640;

/// Share of the memory budget from which new clients are refused.
const MEMORY_REFUSE_PERCENT: u64 = 80;

/// Share of the memory budget from which the fullest connections are closed.
const MEMORY_SHED_PERCENT: u64 = 90;

/// Share of the memory budget from which messages are refused.
const MEMORY_FULL_PERCENT: u64 = 95;

/// Memory pressure of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    /// Below 80 % of the budget.
    Fine,
    /// New clients are refused.
    Refuse,
    /// The fullest connections are closed as well.
    Shed,
    /// Messages are refused as well.
    Full,
}

/// Counts connections, in total and per address, and decides whether to admit another one.
pub struct Admission {
    conns_max: usize,
    per_address_max: usize,
    conns: AtomicUsize,
    per_address: DashMap<IpAddr, usize, RandomState>,
    pressure: AtomicU8,
    closed: AtomicBool,
}

/// Connection permit, released on drop.
pub struct ConnectionPermit {
    admission: Arc<Admission>,
    address: IpAddr,
}

impl Pressure {
    /// Returns the level as a word, for display.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fine => "fine",
            Self::Refuse => "refuse",
            Self::Shed => "shed",
            Self::Full => "full",
        }
    }
}

/// Raises the limit of open files to the maximum for this process. Many systems start processes with 1,024, for
/// programs that can't use more.
pub fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, "raising the open-file limit failed");
    }
}

impl Admission {
    /// Creates limits of `conns_max` connections (0: as many as open files allow) and `per_address_max` per address
    /// (0: no limit).
    pub fn new(conns_max: usize, per_address_max: usize) -> Arc<Self> {
        let files = getrlimit(Resource::Nofile).current;
        let by_files = files.map_or(usize::MAX, |files| files as usize).saturating_sub(DESCRIPTORS_RESERVED);
        Arc::new(Self {
            conns_max: if conns_max == 0 { by_files } else { conns_max.min(by_files) },
            per_address_max,
            conns: AtomicUsize::new(0),
            per_address: DashMap::default(),
            pressure: AtomicU8::new(0),
            closed: AtomicBool::new(false),
        })
    }

    /// Returns a permit for a connection from `address`, or the code to refuse it with.
    pub fn admit(self: &Arc<Self>, address: IpAddr) -> Result<ConnectionPermit, Code> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(Code::Draining);
        }
        if self.pressure() != Pressure::Fine {
            return Err(Code::Overloaded);
        }
        let address = network_of(address);
        if self.conns.fetch_add(1, Ordering::Relaxed) >= self.conns_max {
            self.conns.fetch_sub(1, Ordering::Relaxed);
            return Err(Code::Overloaded);
        }
        let permit = ConnectionPermit { admission: Arc::clone(self), address };
        let count = {
            let mut count = self.per_address.entry(address).or_default();
            *count += 1;
            *count
        };
        if self.per_address_max > 0 && count > self.per_address_max {
            return Err(Code::TooManyFromAddress);
        }
        Ok(permit)
    }

    /// Sets whether all new clients are refused `DRAINING`.
    pub fn set_closed(&self, closed: bool) {
        self.closed.store(closed, Ordering::Relaxed);
    }

    /// Returns the number of admitted connections.
    pub fn conns(&self) -> usize {
        self.conns.load(Ordering::Relaxed)
    }

    /// Returns the limit on connections.
    pub fn conns_max(&self) -> usize {
        self.conns_max
    }

    /// Returns the number of connections and the capacity. While memory is short, the capacity does not exceed the
    /// current number.
    pub fn load(&self) -> (usize, usize) {
        let conns = self.conns();
        let short = self.pressure() != Pressure::Fine;
        (conns, if short { conns.min(self.conns_max) } else { self.conns_max })
    }

    /// Returns whether a new client would be admitted, apart from the limit per address.
    pub fn has_room(&self) -> bool {
        let (conns, capacity) = self.load();
        conns < capacity
    }

    /// Returns the memory pressure as last measured.
    pub fn pressure(&self) -> Pressure {
        match self.pressure.load(Ordering::Relaxed) {
            0 => Pressure::Fine,
            1 => Pressure::Refuse,
            2 => Pressure::Shed,
            _ => Pressure::Full,
        }
    }

    /// Records that `used` of `limit` bytes are in use, and returns the resulting pressure.
    pub fn note_memory(&self, used: u64, limit: u64) -> Pressure {
        let percent = used.saturating_mul(100) / limit.max(1);
        let level = u8::from(percent >= MEMORY_REFUSE_PERCENT)
            + u8::from(percent >= MEMORY_SHED_PERCENT)
            + u8::from(percent >= MEMORY_FULL_PERCENT);
        self.pressure.store(level, Ordering::Relaxed);
        self.pressure()
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.admission.conns.fetch_sub(1, Ordering::Relaxed);
        self.admission.per_address.remove_if_mut(&self.address, |_, count| {
            *count = count.saturating_sub(1);
            *count == 0
        });
    }
}

/// Returns the network counted as one address: an IPv4 address, or an IPv6 /64, which one subscriber gets.
pub(crate) fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(v4) => v4.into(),
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            IpAddr::from([a, b, c, d, 0, 0, 0, 0])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_are_released_and_counted_per_network() {
        let admission = Admission::new(3, 2);
        let (a, b): (IpAddr, IpAddr) = ("192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap());
        let same_network: IpAddr = "2001:db8::2".parse().unwrap();
        let first = admission.admit(a).unwrap();
        let _second = admission.admit(a).unwrap();
        assert_eq!(admission.admit(a).err(), Some(Code::TooManyFromAddress));
        let _third = admission.admit(b).unwrap();
        assert_eq!(admission.admit(same_network).err(), Some(Code::Overloaded));
        drop(first);
        let _fourth = admission.admit(same_network).unwrap();
        assert_eq!(admission.per_address.len(), 2, "one IPv4 address and one /64");
        assert_eq!(admission.conns(), 3);
    }

    #[test]
    fn memory_pressure_refuses_before_it_sheds() {
        let admission = Admission::new(10, 0);
        assert_eq!(admission.note_memory(79, 100), Pressure::Fine);
        assert_eq!(admission.note_memory(80, 100), Pressure::Refuse);
        assert_eq!(admission.admit([127, 0, 0, 1].into()).err(), Some(Code::Overloaded));
        assert_eq!((admission.load(), admission.has_room()), ((0, 0), false), "peers see no capacity");
        assert_eq!(admission.note_memory(90, 100), Pressure::Shed);
        assert_eq!(admission.note_memory(95, 100), Pressure::Full);
        assert_eq!(admission.note_memory(10, 100), Pressure::Fine);
        assert_eq!((admission.load(), admission.has_room()), ((0, 10), true));
        assert!(admission.admit([127, 0, 0, 1].into()).is_ok());
    }
}
