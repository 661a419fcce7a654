//! What memory there is and how much of it is taken, as the kernel tells it: machine, cgroups v1 and v2, TCP sockets.

use std::{
    fs,
    path::{Component, Path, PathBuf},
    sync::OnceLock,
};

/// From here on a limit of a cgroup means "none".
const UNLIMITED: u64 = 1 << 60;

/// The memory this process may use, in bytes: the configured budget, or the smallest of all cgroup limits that hold for
/// it and the machine's memory.
pub fn memory_limit(configured: u64) -> u64 {
    if configured > 0 { configured } else { System::real().limit() }
}

/// Resident memory of this process, in bytes, plus the kernel's memory for TCP sockets: that of the process's cgroup
/// where the kernel counts it (v2), else that of the network namespace.
pub fn memory_used(with_sockets: bool) -> u64 {
    let system = System::real();
    system.resident() + if with_sockets { system.sockets() } else { 0 }
}

/// The kernel's files below a root.
struct System {
    root: PathBuf,
}

/// A version of cgroups: where it is mounted, and how it calls a limit.
struct Hierarchy {
    mount: &'static str,
    limit: &'static str,
}

const V1: Hierarchy = Hierarchy { mount: "sys/fs/cgroup/memory", limit: "memory.limit_in_bytes" };
const V2: Hierarchy = Hierarchy { mount: "sys/fs/cgroup", limit: "memory.max" };

impl System {
    fn real() -> Self {
        Self { root: "/".into() }
    }

    fn limit(&self) -> u64 {
        let machine = field(&self.read("proc/meminfo"), "MemTotal:").map_or(u64::MAX, |kib| kib * 1024);
        self.cgroup_limit().unwrap_or(u64::MAX).min(machine)
    }

    fn resident(&self) -> u64 {
        field(&self.read("proc/self/status"), "VmRSS:").unwrap_or(0) * 1024
    }

    /// A limit of any cgroup above ours holds for us too.
    fn cgroup_limit(&self) -> Option<u64> {
        let limits = self.cgroups().into_iter().flat_map(|(hierarchy, folder)| {
            let mount = self.root.join(hierarchy.mount);
            let up: Vec<PathBuf> =
                folder.ancestors().take_while(|it| it.starts_with(&mount)).map(Path::to_owned).collect();
            up.into_iter().filter_map(move |folder| number(&folder.join(hierarchy.limit)))
        });
        limits.filter(|limit| *limit < UNLIMITED).min()
    }

    /// The folders of our own cgroups that have to do with memory. In a container the path may name a place outside
    /// of what is mounted; the top of the mount is ours then, and is looked at anyway.
    fn cgroups(&self) -> Vec<(Hierarchy, PathBuf)> {
        let told = self.read("proc/self/cgroup");
        let of = |line: &str| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            let hierarchy = match controllers {
                "" => V2,
                list if list.split(',').any(|name| name == "memory") => V1,
                _ => return None,
            };
            let names = Path::new(path).components().filter(|part| matches!(part, Component::Normal(_)));
            let folder = self.root.join(hierarchy.mount).join(names.collect::<PathBuf>());
            Some((hierarchy, folder))
        };
        told.lines().filter_map(of).collect()
    }

    fn sockets(&self) -> u64 {
        self.cgroup_sockets().unwrap_or_else(|| {
            let told = self.read("proc/net/sockstat");
            let pages = told.lines().find_map(|line| line.strip_prefix("TCP:")).and_then(|line| {
                line.split_whitespace().skip_while(|word| *word != "mem").nth(1)?.parse::<u64>().ok()
            });
            pages.unwrap_or(0) * page_bytes()
        })
    }

    /// Only cgroups below the root of all count their sockets, those that have a `memory.max`; a 0 may also mean that the
    /// kernel was told not to count (`cgroup.memory=nosocket`).
    fn cgroup_sockets(&self) -> Option<u64> {
        let (hierarchy, folder) = self.cgroups().into_iter().find(|(it, _)| it.mount == V2.mount)?;
        let folder = if folder.is_dir() { folder } else { self.root.join(hierarchy.mount) };
        if !folder.join(hierarchy.limit).exists() {
            return None;
        }
        let told = fs::read_to_string(folder.join("memory.stat")).ok()?;
        field(&told, "sock ").filter(|bytes| *bytes > 0)
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.root.join(path)).unwrap_or_default()
    }
}

/// The kernel's page, in which it counts socket memory.
fn page_bytes() -> u64 {
    static BYTES: OnceLock<u64> = OnceLock::new();
    *BYTES.get_or_init(|| {
        field(&System::real().read("proc/self/smaps"), "KernelPageSize:").map_or(4_096, |kib| kib * 1024)
    })
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
}

#[cfg(test)]
mod tests;
