//! CPU time of processes, as the kernel counts it.

use std::{
    fs,
    sync::atomic::{AtomicU64, Ordering},
};

/// `sysconf(_SC_CLK_TCK)`: 100 on every Linux that Rust supports.
const TICKS_PER_SECOND: f64 = 100.0;

/// CPU time of servers that this process started and another one reaps, in ticks.
static SERVERS: AtomicU64 = AtomicU64::new(0);

/// Counts a server that is about to be stopped, unless it is a child of this process, which is counted anyway.
pub(crate) fn add_server(pid: u32) {
    let is_child = field(pid, PARENT) == u64::from(std::process::id());
    if !is_child {
        SERVERS.fetch_add(ticks(pid), Ordering::Relaxed);
    }
}

/// CPU seconds of this process, of everything that it started and waited for, and of its servers.
pub(crate) fn seconds() -> f64 {
    let own = ticks(std::process::id());
    (own + SERVERS.load(Ordering::Relaxed)) as f64 / TICKS_PER_SECOND
}

/// User and system time of a process and of its children that ended and were waited for; 0 if there is no such process.
fn ticks(pid: u32) -> u64 {
    TIMES.map(|nth| field(pid, nth)).sum()
}

/// Index of the parent among the fields of `/proc/PID/stat` after the name.
const PARENT: usize = 1;
/// utime, stime, cutime, cstime.
const TIMES: std::ops::RangeInclusive<usize> = 11..=14;

/// Returns the nth field after the name, as a number; 0 if there is no such process.
fn field(pid: u32, nth: usize) -> u64 {
    stat(pid).and_then(|fields| fields.get(nth)?.parse().ok()).unwrap_or_default()
}

/// Returns the fields of `/proc/PID/stat` after the name, which may itself contain blanks and brackets.
pub(crate) fn stat(pid: u32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    Some(fields.split_whitespace().map(str::to_owned).collect())
}

/// Returns a process and all its descendants.
pub(crate) fn family(pid: u32) -> Vec<u32> {
    let all: Vec<u32> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    let mut family = vec![pid];
    let mut next = 0;
    while let Some(parent) = family.get(next).copied() {
        family.extend(all.iter().filter(|child| field(**child, PARENT) == u64::from(parent)));
        next += 1;
    }
    family
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_that_ended_count() {
        let before = seconds();
        let burn = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
        let status = std::process::Command::new("sh").args(["-c", burn]).status();
        assert!(status.is_ok_and(|it| it.success()));
        assert!(seconds() > before + 0.05, "{} after {before}", seconds());
    }
}
