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
    conns_max: AtomicUsize,
    per_address_max: AtomicUsize,
    conns: AtomicUsize,
    per_network: DashMap<Network, usize, RandomState>,
    pressure: AtomicU8,
    closed: AtomicBool,
}

/// Network by its first address and the length of its prefix.
type Network = (IpAddr, u8);

/// Networks of an IPv6 address that are counted, with how many times as many connections each may have as one address:
/// a subscriber has a /64, often a /56, and a site a /48.
const IPV6_NETWORKS: [(u8, usize); 3] = [(64, 1), (56, 4), (48, 16)];

/// Connection permit, released on drop.
pub struct ConnectionPermit {
    admission: Arc<Admission>,
    /// Address under which the connection is counted; `None` for that of a proxy, until it names its client.
    address: Option<IpAddr>,
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
        Arc::new(Self {
            conns_max: AtomicUsize::new(within_open_files(conns_max)),
            per_address_max: AtomicUsize::new(per_address_max),
            conns: AtomicUsize::new(0),
            per_network: DashMap::default(),
            pressure: AtomicU8::new(0),
            closed: AtomicBool::new(false),
        })
    }

    /// Replaces the limits of [`Self::new`]. Connections that are open stay.
    pub fn set_limits(&self, conns_max: usize, per_address_max: usize) {
        self.conns_max.store(within_open_files(conns_max), Ordering::Relaxed);
        self.per_address_max.store(per_address_max, Ordering::Relaxed);
    }

    /// Returns a permit for a connection from `address`, or the code to refuse it with.
    pub fn admit(self: &Arc<Self>, address: IpAddr) -> Result<ConnectionPermit, Code> {
        let mut permit = self.admit_from_proxy()?;
        permit.move_to(address)?;
        Ok(permit)
    }

    /// Returns a permit for a connection of a proxy, which counts for no address until [`ConnectionPermit::move_to`].
    pub fn admit_from_proxy(self: &Arc<Self>) -> Result<ConnectionPermit, Code> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(Code::Draining);
        }
        if self.pressure() != Pressure::Fine {
            return Err(Code::Overloaded);
        }
        if self.conns.fetch_add(1, Ordering::Relaxed) >= self.conns_max() {
            self.conns.fetch_sub(1, Ordering::Relaxed);
            return Err(Code::Overloaded);
        }
        Ok(ConnectionPermit { admission: Arc::clone(self), address: None })
    }

    fn count(&self, address: IpAddr) -> Result<(), Code> {
        let mut is_over = false;
        let per_address_max = self.per_address_max.load(Ordering::Relaxed);
        for (network, share) in networks_of(address) {
            let mut count = self.per_network.entry(network).or_default();
            *count += 1;
            is_over |= per_address_max > 0 && *count > per_address_max.saturating_mul(share);
        }
        if is_over { Err(Code::TooManyFromAddress) } else { Ok(()) }
    }

    fn uncount(&self, address: IpAddr) {
        for (network, _) in networks_of(address) {
            self.per_network.remove_if_mut(&network, |_, count| {
                *count = count.saturating_sub(1);
                *count == 0
            });
        }
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
        self.conns_max.load(Ordering::Relaxed)
    }

    /// Returns the number of connections and the capacity. While memory is short, the capacity does not exceed the
    /// current number.
    pub fn load(&self) -> (usize, usize) {
        let conns = self.conns();
        let (short, conns_max) = (self.pressure() != Pressure::Fine, self.conns_max());
        (conns, if short { conns.min(conns_max) } else { conns_max })
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

impl ConnectionPermit {
    /// Counts the connection for this address from now on, the one that its proxy names.
    ///
    /// # Errors
    /// Too many connections from there; the connection has to be closed.
    pub fn move_to(&mut self, address: IpAddr) -> Result<(), Code> {
        if let Some(former) = self.address.replace(address) {
            self.admission.uncount(former);
        }
        self.admission.count(address)
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.admission.conns.fetch_sub(1, Ordering::Relaxed);
        if let Some(address) = self.address {
            self.admission.uncount(address);
        }
    }
}

/// Returns the limit on connections that the limit of open files allows.
fn within_open_files(conns_max: usize) -> usize {
    let files = getrlimit(Resource::Nofile).current;
    let by_files = files.map_or(usize::MAX, |files| files as usize).saturating_sub(DESCRIPTORS_RESERVED);
    if conns_max == 0 { by_files } else { conns_max.min(by_files) }
}

/// Returns the networks in which an address is counted, each with its share of the limit.
fn networks_of(address: IpAddr) -> impl Iterator<Item = (Network, usize)> {
    let address = address.to_canonical();
    let levels: &[(u8, usize)] = if address.is_ipv4() { &[(32, 1)] } else { &IPV6_NETWORKS };
    levels.iter().map(move |(prefix, share)| ((prefix_of(address, *prefix), *prefix), *share))
}

/// Returns the first address of the network of an IPv6 address with this prefix; an IPv4 address as it is.
pub(crate) fn prefix_of(address: IpAddr, prefix: u8) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => {
            let kept = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
            IpAddr::from((v6.to_bits() & kept).to_be_bytes())
        }
    }
}

/// Returns the network counted as one address: an IPv4 address, or an IPv6 /64, which one subscriber gets.
pub(crate) fn network_of(address: IpAddr) -> IpAddr {
    prefix_of(address.to_canonical(), 64)
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
        assert_eq!(admission.per_network.len(), 4, "one IPv4 address, and a /64, a /56 and a /48");
        assert_eq!(admission.conns(), 3);
    }

    #[test]
    fn wider_ipv6_networks_have_higher_limits() {
        let admission = Admission::new(1_000, 2);
        let in_64 = |network: u16, host: u16| IpAddr::from([0x2001, 0xdb8, 1, network, 0, 0, 0, host]);
        // Four /64 of one /56 fill it; other /56 of the /48 are open until there are sixteen times as many.
        let mut permits = Vec::new();
        for network in 0..4 {
            permits.extend((0..2).map(|host| admission.admit(in_64(network, host)).unwrap()));
        }
        assert_eq!(admission.admit(in_64(4, 0)).err(), Some(Code::TooManyFromAddress), "the /56 is full");
        for network in (0x100..0xd00).step_by(0x100) {
            permits.extend((0..2).map(|host| admission.admit(in_64(network, host)).unwrap()));
        }
        assert_eq!(permits.len(), 32);
        assert_eq!(
            admission.admit(in_64(0xff00, 0)).err(),
            Some(Code::TooManyFromAddress),
            "the /48 is full"
        );
        permits.clear();
        assert!(admission.per_network.is_empty(), "refused connections leave no count");
    }

    #[test]
    fn a_connection_of_a_proxy_counts_for_the_client_that_it_names() {
        let admission = Admission::new(10, 1);
        let client = IpAddr::from([192, 0, 2, 1]);
        let mut first = admission.admit_from_proxy().unwrap();
        let mut second = admission.admit_from_proxy().unwrap();
        assert_eq!(admission.per_network.len(), 0);
        first.move_to(client).unwrap();
        assert_eq!(second.move_to(client), Err(Code::TooManyFromAddress));
        drop(second);
        assert_eq!(admission.admit(client).err(), Some(Code::TooManyFromAddress));
        drop(first);
        assert!(admission.admit(client).is_ok());
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
