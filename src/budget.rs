//! The node's bounds on connections and memory, and who is let in (DESIGN 4, "admission by bytes").

use std::{
    fs,
    net::IpAddr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering},
    },
};

use dashmap::DashMap;
use foldhash::quality::RandomState;
use tidegate_protocol::Code;

/// Files, sockets to services and the like that need descriptors besides client connections.
pub const DESCRIPTORS_RESERVED: usize = 200;

/// From this share of the budget on newcomers are refused.
const REFUSE_PERCENT: u64 = 80;

/// From this share of the budget on the fullest connections are ended.
const SHED_PERCENT: u64 = 90;

/// From this share of the budget on nothing is taken in that would have to be kept.
const FULL_PERCENT: u64 = 95;

/// How full memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    /// Below 80 % of the budget.
    Fine,
    /// Newcomers are refused.
    Refuse,
    /// The fullest connections are ended as well.
    Shed,
    /// Messages are refused as well.
    Full,
}

/// Counts connections, per address and in all.
pub struct Admission {
    conns_max: usize,
    per_address_max: usize,
    conns: AtomicUsize,
    per_address: DashMap<IpAddr, usize, RandomState>,
    pressure: AtomicU8,
    closed: AtomicBool,
}

/// A connection's place; dropping it gives the place back.
pub struct Seat {
    admission: Arc<Admission>,
    address: IpAddr,
}

impl Admission {
    /// Bounds of `conns_max` connections (0 = by the limit of open files) and `per_address_max` an address (0 = none).
    pub fn new(conns_max: usize, per_address_max: usize) -> Arc<Self> {
        let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
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

    /// A place for a connection from `address`, or the code to refuse it with.
    pub fn admit(self: &Arc<Self>, address: IpAddr) -> Result<Seat, Code> {
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
        let seat = Seat { admission: Arc::clone(self), address };
        let count = {
            let mut count = self.per_address.entry(address).or_default();
            *count += 1;
            *count
        };
        if self.per_address_max > 0 && count > self.per_address_max {
            return Err(Code::TooManyFromAddress);
        }
        Ok(seat)
    }

    /// From now on everybody is refused `DRAINING`, or nobody is any more.
    pub fn close_door(&self, closed: bool) {
        self.closed.store(closed, Ordering::Relaxed);
    }

    /// Connections that hold a place.
    pub fn conns(&self) -> usize {
        self.conns.load(Ordering::Relaxed)
    }

    /// The most connections that get a place.
    pub fn conns_max(&self) -> usize {
        self.conns_max
    }

    /// How full memory was when last looked at.
    pub fn pressure(&self) -> Pressure {
        match self.pressure.load(Ordering::Relaxed) {
            0 => Pressure::Fine,
            1 => Pressure::Refuse,
            2 => Pressure::Shed,
            _ => Pressure::Full,
        }
    }

    /// Takes note of `used` of `limit` bytes.
    pub fn note_memory(&self, used: u64, limit: u64) -> Pressure {
        let percent = used.saturating_mul(100) / limit.max(1);
        let level = u8::from(percent >= REFUSE_PERCENT)
            + u8::from(percent >= SHED_PERCENT)
            + u8::from(percent >= FULL_PERCENT);
        self.pressure.store(level, Ordering::Relaxed);
        self.pressure()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.admission.conns.fetch_sub(1, Ordering::Relaxed);
        self.admission.per_address.remove_if_mut(&self.address, |_, count| {
            *count = count.saturating_sub(1);
            *count == 0
        });
    }
}

/// One IPv4 address, or an IPv6 /64: what one subscriber gets.
fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(v4) => v4.into(),
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            IpAddr::from([a, b, c, d, 0, 0, 0, 0])
        }
    }
}

/// The memory this process may use, in bytes: the configured budget, or the smaller of cgroup limit and machine.
pub fn memory_limit(configured: u64) -> u64 {
    if configured > 0 {
        return configured;
    }
    let machine = field(&read("/proc/meminfo"), "MemTotal:").map_or(u64::MAX, |kib| kib * 1024);
    cgroup_limit().unwrap_or(u64::MAX).min(machine)
}

/// Resident memory of this process, in bytes, plus the kernel's memory for TCP sockets in this network namespace.
pub fn memory_used(with_sockets: bool) -> u64 {
    let resident = field(&read("/proc/self/status"), "VmRSS:").unwrap_or(0) * 1024;
    if !with_sockets {
        return resident;
    }
    let sockets = read("/proc/net/sockstat");
    let kernel = sockets.lines().find_map(|line| line.strip_prefix("TCP:")).and_then(|line| {
        line.split_whitespace().skip_while(|word| *word != "mem").nth(1)?.parse::<u64>().ok()
    });
    resident + kernel.unwrap_or(0) * page_bytes()
}

/// The kernel's page, in which it counts socket memory.
fn page_bytes() -> u64 {
    static BYTES: OnceLock<u64> = OnceLock::new();
    *BYTES.get_or_init(|| field(&read("/proc/self/smaps"), "KernelPageSize:").map_or(4_096, |kib| kib * 1024))
}

fn cgroup_limit() -> Option<u64> {
    let of = |path: String| read(&path).trim().parse::<u64>().ok().filter(|limit| *limit < 1 << 60);
    let paths = read("/proc/self/cgroup");
    paths
        .lines()
        .flat_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
            let path = path.trim_end_matches('/');
            match controllers {
                "" => {
                    vec![format!("/sys/fs/cgroup{path}/memory.max"), "/sys/fs/cgroup/memory.max".to_owned()]
                }
                "memory" => vec![
                    format!("/sys/fs/cgroup/memory{path}/memory.limit_in_bytes"),
                    "/sys/fs/cgroup/memory/memory.limit_in_bytes".to_owned(),
                ],
                _ => Vec::new(),
            }
        })
        .filter_map(of)
        .min()
}

fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_given_back_and_counted_per_network() {
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
        assert_eq!(admission.note_memory(90, 100), Pressure::Shed);
        assert_eq!(admission.note_memory(95, 100), Pressure::Full);
        assert_eq!(admission.note_memory(10, 100), Pressure::Fine);
        assert!(admission.admit([127, 0, 0, 1].into()).is_ok());
    }

    #[test]
    fn this_machine_has_a_limit_and_uses_less() {
        assert!(memory_used(false) > 0);
        assert!(memory_used(true) < memory_limit(0));
    }
}
