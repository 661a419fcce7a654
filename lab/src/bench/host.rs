//! Data of the kernel: clocks, CPU times, memory, affinity, and the environment of a run.

use anyhow::{Context, Result, ensure};
use rustix::{
    process::{Resource, Signal, getrlimit, set_parent_process_death_signal},
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
    time::{ClockId, clock_gettime},
};
use serde::{Deserialize, Serialize};
use std::{fs, time::SystemTime};
use time::OffsetDateTime;

use crate::proc_stat;

/// Returns nanoseconds of the monotonic clock, which all processes of the machine share.
pub(super) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

/// Returns milliseconds since 1970.
pub(super) fn wall_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// CPU times of all threads of a process in ns, as the scheduler counts them: exact, where the split into user and
/// system time is sampled.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cpu {
    /// Time running.
    pub(super) ran: u64,
    /// Time ready to run, while something else had the CPU.
    pub(super) waited: u64,
}

/// Returns the CPU times of a process so far.
pub(super) fn cpu(pid: u32) -> Result<Cpu> {
    let tasks =
        fs::read_dir(format!("/proc/{pid}/task")).with_context(|| format!("process {pid} is gone"))?;
    let mut total = Cpu::default();
    for task in tasks {
        // The time of a thread that ends between the listing and the read is lost, which is little.
        let Ok(stat) = fs::read_to_string(task?.path().join("schedstat")) else { continue };
        let mut numbers = stat.split_whitespace().map(first_number);
        total.ran += numbers.next().unwrap_or(0);
        total.waited += numbers.next().unwrap_or(0);
    }
    Ok(total)
}

/// CPU times of all processes of the machine at one moment, including threads that have ended, which [`cpu`] loses.
pub(super) struct Processes(Vec<(u32, Ticks)>);

impl Processes {
    /// Reads the present CPU times, exact to a tick of 10 ms.
    pub(super) fn read() -> Result<Self> {
        let mut all = Vec::new();
        for entry in fs::read_dir("/proc").context("/proc")? {
            let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            // The time of a process that ends between the listing and the read is counted for its parent.
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            all.extend(Ticks::parse(&stat).map(|ticks| (pid, ticks)));
        }
        Ok(Self(all))
    }

    /// Returns the CPU time in ns of a process and all of its descendants, including children that have ended.
    pub(super) fn tree_cpu_ns(&self, pid: u32) -> Result<u64> {
        ensure!(self.0.iter().any(|(found, _)| *found == pid), "process {pid} is gone");
        Ok(self.ticks(pid) * TICK_NS)
    }

    fn ticks(&self, pid: u32) -> u64 {
        let own = self.0.iter().filter(|(found, _)| *found == pid).map(|(_, stat)| stat.ticks);
        let children = self.0.iter().filter(|(_, stat)| stat.parent == pid);
        own.chain(children.map(|(child, _)| self.ticks(*child))).sum()
    }
}

/// Returns the CPU time in ns of everything on the machine so far, exact to a tick of 10 ms for each CPU.
pub(super) fn busy_ns() -> Result<u64> {
    let stat = fs::read_to_string("/proc/stat").context("/proc/stat")?;
    let times = stat.lines().next().unwrap_or_default().split_whitespace().skip(1);
    // user, nice, system; not idle and what waits for the disk.
    Ok(times.take(3).map(first_number).sum::<u64>() * TICK_NS)
}

/// Unit of the times in `/proc/PID/stat`: Linux counts 100 ticks per second on all present machines.
const TICK_NS: u64 = 10_000_000;

/// Parent of a process, and its CPU time with that of the children that it has collected.
struct Ticks {
    parent: u32,
    ticks: u64,
}

impl Ticks {
    /// Parses fields 4 and 14 to 17 of `/proc/PID/stat`.
    fn parse(stat: &str) -> Option<Self> {
        let fields = proc_stat::fields(stat);
        let ticks = fields.get(11..15)?.iter().map(|ticks| ticks.parse::<u64>().ok()).sum::<Option<u64>>()?;
        Some(Self { parent: fields.get(1)?.parse().ok()?, ticks })
    }
}

fn first_number(line: &str) -> u64 {
    line.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// Returns the anonymous resident memory of a process in bytes: its own memory without mapped files.
pub(crate) fn rss_anon(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))
        .with_context(|| format!("process {pid} is gone"))?;
    Ok(status_kib(&status, "RssAnon:").context("no RssAnon in /proc/PID/status")? * 1024)
}

fn status_kib(status: &str, key: &str) -> Option<u64> {
    status.lines().find_map(|line| line.strip_prefix(key)).map(first_number)
}

/// Returns the CPUs that this thread may use.
pub(crate) fn cpus() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
}

/// Binds this thread, and the children that it starts from now on, to `cpus`.
pub(crate) fn pin(cpus: &[usize]) -> Result<()> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        set.set(cpu);
    }
    sched_setaffinity(None, &set).with_context(|| format!("cannot bind to CPUs {cpus:?}"))
}

/// Asks the kernel to kill this process when its parent ends, for whatever reason.
pub(super) fn end_with_parent() -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("parent death signal")
}

/// Returns the date and the time of day of a number of seconds since 1970.
pub(super) fn date(seconds: u64) -> String {
    let at =
        i64::try_from(seconds).ok().and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok());
    let Some(at) = at else { return format!("{seconds} s after 1970") };
    let minute = format!("{:02}:{:02}", at.hour(), at.minute());
    format!("{} {minute} UTC", at.date())
}

/// Ticks of all CPUs that the hypervisor gave to others, and all ticks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Steal {
    stolen: u64,
    total: u64,
}

impl Steal {
    /// Reads the present ticks.
    pub(crate) fn read() -> Self {
        fs::read_to_string("/proc/stat").map(|stat| Self::parse(&stat)).unwrap_or_default()
    }

    fn parse(stat: &str) -> Self {
        let line = stat.lines().next().unwrap_or_default();
        let ticks: Vec<u64> = line.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
        Self { stolen: ticks.get(7).copied().unwrap_or(0), total: ticks.iter().take(8).sum() }
    }

    /// Returns the share of the time since `before` that was stolen, in percent.
    pub(crate) fn percent_since(self, before: Self) -> f64 {
        let total = self.total.saturating_sub(before.total).max(1);
        100.0 * self.stolen.saturating_sub(before.stolen) as f64 / total as f64
    }
}

/// Environment of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Environment {
    /// Seconds since 1970 at the start.
    pub started: u64,
    /// Release of the kernel.
    pub kernel: String,
    /// CPU model as the kernel names it.
    pub cpu: String,
    /// Number of CPUs that this process may use.
    pub cores: usize,
    /// CPUs of servers.
    pub server_cpus: Vec<usize>,
    /// CPUs of the load generator.
    pub client_cpus: Vec<usize>,
    /// File descriptors that one process may hold.
    pub fd_limit: u64,
    /// Memory of the machine in MiB.
    pub memory_mib: u64,
    /// MTU of the loopback device.
    pub loopback_mtu: String,
    /// Version of the program, and its commit if it is known.
    pub version: String,
    /// Kind of build; the figures of a debug build mean nothing.
    pub build: String,
    /// CPU time that the hypervisor took away during the run, in percent.
    pub steal_percent: f64,
}

impl Environment {
    /// Reads the present environment.
    pub(crate) fn capture(server_cpus: &[usize], client_cpus: &[usize]) -> Self {
        let read =
            |path: &str| fs::read_to_string(path).map_or("unknown".into(), |text| text.trim().to_owned());
        let cpu = read("/proc/cpuinfo")
            .lines()
            .find_map(|line| line.strip_prefix("model name"))
            .map_or("unknown".into(), |rest| rest.trim_start_matches([' ', '\t', ':']).to_owned());
        Self {
            started: wall_ms() / 1000,
            kernel: read("/proc/sys/kernel/osrelease"),
            cpu,
            cores: cpus().len(),
            server_cpus: server_cpus.to_vec(),
            client_cpus: client_cpus.to_vec(),
            fd_limit: fd_limit(),
            memory_mib: status_kib(&read("/proc/meminfo"), "MemTotal:").unwrap_or(0) / 1024,
            loopback_mtu: read("/sys/class/net/lo/mtu"),
            version: format!("{} {}", env!("CARGO_PKG_VERSION"), commit().unwrap_or_default())
                .trim()
                .to_owned(),
            build: if cfg!(debug_assertions) { "debug" } else { "release" }.into(),
            steal_percent: 0.0,
        }
    }
}

/// Returns the commit of the working directory, if it is in a work tree.
fn commit() -> Option<String> {
    let output = std::process::Command::new("git").args(["describe", "--always", "--dirty"]).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Returns the number of file descriptors that one process may hold.
pub(super) fn fd_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_files_are_read() {
        assert_eq!(first_number("123456 77 8\n"), 123_456);
        assert_eq!(status_kib("Name:\tx\nRssAnon:\t    5120 kB\n", "RssAnon:"), Some(5120));
        let before = Steal::parse("cpu  10 0 10 70 0 0 0 10 0 0\ncpu0 1");
        let after = Steal::parse("cpu  20 0 20 140 0 0 0 20 0 0\n");
        assert!((after.percent_since(before) - 10.0).abs() < 1e-9);
    }

    #[test]
    fn cpu_of_a_tree_counts_children_that_live_and_that_ended() {
        let stat = |parent: u32, ticks: [u64; 4]| {
            let [user, system, ended_user, ended_system] = ticks;
            let line = format!(
                "7 (a) b) S {parent} 7 7 0 -1 0 9 9 9 9 {user} {system} {ended_user} {ended_system} 20 0"
            );
            Ticks::parse(&line).expect("a line of the kernel")
        };
        let all = Processes(vec![
            (7, stat(1, [1, 20, 300, 4_000])),
            (8, stat(7, [50_000, 0, 0, 0])),
            (9, stat(8, [600_000, 0, 0, 0])),
            (10, stat(1, [7_000_000, 0, 0, 0])),
        ]);
        assert_eq!(all.tree_cpu_ns(7).expect("is there"), 654_321 * TICK_NS);
        assert_eq!(all.tree_cpu_ns(9).expect("is there"), 600_000 * TICK_NS);
        assert!(all.tree_cpu_ns(11).is_err());
        assert!(Processes::read().expect("/proc").tree_cpu_ns(std::process::id()).is_ok());
    }

    #[test]
    fn dates() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(date(1_763_712_060), "2025-11-21 08:01 UTC");
    }

    #[test]
    fn own_process_has_used_cpu_and_memory() {
        let pid = std::process::id();
        assert!(cpu(pid).expect("own process").ran > 0);
        assert!(rss_anon(pid).expect("own process") > 0);
        assert!(now_ns() <= now_ns());
    }
}
