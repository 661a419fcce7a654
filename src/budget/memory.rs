//! Memory limit and use, as reported by the kernel: machine, cgroups v1 and v2, TCP sockets.

use std::{
    fs,
    path::{Component, Path, PathBuf},
    sync::OnceLock,
};

/// A cgroup limit from this value on means "no limit".
const UNLIMITED_BYTES: u64 = 1 << 60;

/// Returns the memory that this process may use, in bytes: `configured`, or if that is 0 the smallest of its cgroup
/// limits and the machine's memory.
pub fn memory_limit(configured: u64) -> u64 {
    if configured > 0 { configured } else { System::real().limit() }
}

/// Returns the resident memory of this process in bytes, plus the kernel's memory for TCP sockets if `with_sockets`.
/// Socket memory is that of the process's cgroup if the kernel counts it (v2), or else of the network namespace.
pub fn memory_used(with_sockets: bool) -> u64 {
    let system = System::real();
    system.resident() + if with_sockets { system.sockets() } else { 0 }
}

/// Kernel files below a root directory.
struct System {
    root: PathBuf,
}

/// Mount point of a cgroup version, and the name of its limit file.
struct Hierarchy {
    mount: &'static str,
    limit: &'static str,
}

const CGROUP_V1: Hierarchy = Hierarchy { mount: "sys/fs/cgroup/memory", limit: "memory.limit_in_bytes" };
const CGROUP_V2: Hierarchy = Hierarchy { mount: "sys/fs/cgroup", limit: "memory.max" };

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

    /// Returns the smallest limit of the process's cgroups and of those above them.
    fn cgroup_limit(&self) -> Option<u64> {
        let limits = self.cgroups().into_iter().flat_map(|(hierarchy, folder)| {
            let mount = self.root.join(hierarchy.mount);
            let up: Vec<PathBuf> =
                folder.ancestors().take_while(|it| it.starts_with(&mount)).map(Path::to_owned).collect();
            up.into_iter().filter_map(move |folder| number(&folder.join(hierarchy.limit)))
        });
        limits.filter(|limit| *limit < UNLIMITED_BYTES).min()
    }

    /// Returns the folders of the process's memory cgroups. In a container the path may lie outside the mount; its own
    /// cgroup is then the top of the mount, which is read anyway.
    fn cgroups(&self) -> Vec<(Hierarchy, PathBuf)> {
        let text = self.read("proc/self/cgroup");
        let of = |line: &str| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            let hierarchy = match controllers {
                "" => CGROUP_V2,
                list if list.split(',').any(|name| name == "memory") => CGROUP_V1,
                _ => return None,
            };
            let names = Path::new(path).components().filter(|part| matches!(part, Component::Normal(_)));
            let folder = self.root.join(hierarchy.mount).join(names.collect::<PathBuf>());
            Some((hierarchy, folder))
        };
        text.lines().filter_map(of).collect()
    }

    fn sockets(&self) -> u64 {
        self.cgroup_sockets().unwrap_or_else(|| {
            let text = self.read("proc/net/sockstat");
            let pages = text.lines().find_map(|line| line.strip_prefix("TCP:")).and_then(|line| {
                line.split_whitespace().skip_while(|word| *word != "mem").nth(1)?.parse::<u64>().ok()
            });
            pages.unwrap_or(0) * page_bytes()
        })
    }

    /// Returns the socket memory of the process's cgroup, if it is counted. Only cgroups below the root count sockets
    /// (they have a `memory.max`), and 0 may mean that the kernel must not count (`cgroup.memory=nosocket`).
    fn cgroup_sockets(&self) -> Option<u64> {
        let (hierarchy, folder) = self.cgroups().into_iter().find(|(it, _)| it.mount == CGROUP_V2.mount)?;
        let folder = if folder.is_dir() { folder } else { self.root.join(hierarchy.mount) };
        if !folder.join(hierarchy.limit).exists() {
            return None;
        }
        let text = fs::read_to_string(folder.join("memory.stat")).ok()?;
        field(&text, "sock ").filter(|bytes| *bytes > 0)
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.root.join(path)).unwrap_or_default()
    }
}

/// Returns the kernel's page size, the unit of its socket memory.
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
