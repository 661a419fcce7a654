//! The report of a run: a table for people, JSON for programs, and the verdict.

use std::{collections::BTreeMap, fmt::Write as _};

use serde::Serialize;
use serde_json::json;
use time::OffsetDateTime;

use super::{pair::PairCost, swarm::AttackLog};
use crate::bench::host::Environment;

/// Largest ratio of the pair's p99 to that next to the raw loop.
const RATIO_MAX: f64 = 2.0;
/// Latency below which the ratio says nothing: delays of the scheduler are of that size.
const P99_FLOOR_US: u64 = 5_000;
/// Bytes by which the memory of a node may grow during an attack.
pub(super) const MEMORY_GROWTH_MAX: u64 = 64 << 20;

/// Anonymous resident memory of a node in bytes.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Memory {
    pub(super) before: u64,
    pub(super) peak: u64,
    pub(super) after: u64,
}

impl Memory {
    const fn growth(self) -> u64 {
        self.peak.saturating_sub(self.before)
    }
}

/// Figures of one node under one attack.
#[derive(Clone, Debug, Serialize)]
pub(super) struct NodeCost {
    pub(super) calm: PairCost,
    pub(super) attacked: PairCost,
    pub(super) memory: Memory,
    pub(super) attack: AttackLog,
}

/// Figures of the raw loop.
#[derive(Clone, Debug, Serialize)]
pub(super) struct RawCost {
    pub(super) calm: PairCost,
    pub(super) attacked: PairCost,
    /// Bytes of the attack that were written again.
    pub(super) bytes: u64,
}

/// Outcome of one attack.
#[derive(Clone, Debug, Serialize)]
pub(super) struct AttackReport {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    pub(super) conns: usize,
    pub(super) seconds: f64,
    /// Figures of the former version, if one was named.
    pub(super) before: Option<NodeCost>,
    pub(super) node: NodeCost,
    pub(super) raw: RawCost,
    /// Ratio of the pair's p99 next to the attack to that next to the raw loop.
    pub(super) ratio: f64,
    /// Broken limits; none: passed.
    pub(super) problems: Vec<String>,
}

impl AttackReport {
    /// Judges the figures of a node by those of the raw loop and by the limits.
    pub(super) fn judge(mut self) -> Self {
        let (p99, raw) = (self.node.attacked.p99_us, self.raw.attacked.p99_us.max(1));
        self.ratio = p99 as f64 / raw as f64;
        if self.ratio > RATIO_MAX && p99 > P99_FLOOR_US {
            let limits = format!("limits {RATIO_MAX} and {} ms", P99_FLOOR_US / 1_000);
            self.problems.push(format!(
                "p99 of {}, {:.1} times that next to the raw loop ({limits})",
                time(p99),
                self.ratio
            ));
        }
        if self.node.attacked.lost > 0 {
            self.problems.push(format!("{} exchanges of the honest pair lost", self.node.attacked.lost));
        }
        if self.node.memory.growth() > MEMORY_GROWTH_MAX {
            self.problems.push(format!(
                "memory grew by {} ({} allowed)",
                mib(self.node.memory.growth()),
                mib(MEMORY_GROWTH_MAX)
            ));
        }
        self
    }
}

/// Report of a run.
#[derive(Clone, Debug, Serialize)]
pub(super) struct HostileReport {
    pub(super) environment: Environment,
    pub(super) attacks: Vec<AttackReport>,
}

/// Columns of the table.
pub(super) const HEAD: &str = "\
| attack | node | bytes/s | p50 calm | p99 calm | p99 attacked | p99 raw | ratio | refused, lost | memory | what the node did |
|---|---|---|---|---|---|---|---|---|---|---|";

impl AttackReport {
    /// Returns the rows of the table: the former version's, if any, then the present one's.
    pub(super) fn rows(&self) -> String {
        let mut out = String::new();
        let named = self.before.iter().map(|cost| ("before", cost)).chain([("now", &self.node)]);
        for (which, cost) in named {
            let PairCost { refused, lost, .. } = cost.attacked;
            let ratio = cost.attacked.p99_us as f64 / self.raw.attacked.p99_us.max(1) as f64;
            let cells = [
                self.name.to_owned(),
                which.to_owned(),
                thousands(cost.attack.bytes as f64 / self.seconds),
                time(cost.calm.p50_us),
                time(cost.calm.p99_us),
                time(cost.attacked.p99_us),
                time(self.raw.attacked.p99_us),
                format!("{ratio:.2}"),
                format!("{refused}, {lost}"),
                format!("{} + {}", mib(cost.memory.before), mib(cost.memory.growth())),
                deeds(&cost.attack),
            ];
            writeln!(out, "| {} |", cells.join(" | ")).ok();
        }
        for problem in &self.problems {
            writeln!(out, "FAILED {}: {problem}", self.name).ok();
        }
        out.trim_end().to_owned()
    }
}

impl AttackReport {
    /// Returns the line for `docs/results/hostile.jsonl`.
    pub(super) fn result_line(&self, environment: &Environment) -> String {
        let seconds = i64::try_from(environment.started).unwrap_or_default();
        let started = OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(OffsetDateTime::UNIX_EPOCH);
        let verdict = if self.problems.is_empty() {
            "clean".to_owned()
        } else {
            format!("BROKEN {}", self.problems.join("; "))
        };
        let growth = |cost: &NodeCost| rounded_mib(cost.memory.growth());
        let before = self.before.as_ref();
        let row = json!({
            "date": started.date().to_string(),
            "commit": environment.version.split_whitespace().nth(1),
            "kind": "hostile",
            "verdict": verdict,
            "attack": self.name,
            "conns": self.conns,
            "seconds": self.seconds,
            "bytes_per_second": (self.node.attack.bytes as f64 / self.seconds).round(),
            "calm_p99_us": self.node.calm.p99_us,
            "p99_us": self.node.attacked.p99_us,
            "raw_p99_us": self.raw.attacked.p99_us,
            "memory_before_mib": rounded_mib(self.node.memory.before),
            "memory_growth_mib": growth(&self.node),
            "before_p99_us": before.map(|it| it.attacked.p99_us),
            "before_memory_growth_mib": before.map(growth),
            "before_lost": before.map(|it| it.attacked.lost),
        });
        row.to_string()
    }
}

/// Describes how the node treated the attack.
fn deeds(log: &AttackLog) -> String {
    let mut words = vec![format!("{} connections, {} logins", log.opened, log.logins)];
    let mut count = |counts: &BTreeMap<String, u64>, what: &str| {
        words.extend(counts.iter().map(|(name, count)| format!("{what} {name} × {count}")));
    };
    count(&log.closes, "closed");
    count(&log.refusals, "refused");
    words.extend((log.cut > 0).then(|| format!("cut × {}", log.cut)));
    words.extend((log.not_accepted > 0).then(|| format!("not accepted × {}", log.not_accepted)));
    words.join(", ")
}

fn time(us: u64) -> String {
    if us < 1_000 { format!("{us} µs") } else { format!("{:.1} ms", us as f64 / 1_000.0) }
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

fn rounded_mib(bytes: u64) -> f64 {
    (bytes as f64 / f64::from(1 << 20) * 10.0).round() / 10.0
}

/// Formats 1234567 as 1,234,567.
fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let groups = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy);
    groups.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(p99_us: u64, raw_us: u64, growth: u64) -> AttackReport {
        let pair = |p99_us| PairCost { p99_us, ..PairCost::default() };
        let node = NodeCost {
            calm: pair(200),
            attacked: pair(p99_us),
            memory: Memory { before: 1 << 20, peak: (1 << 20) + growth, after: 0 },
            attack: AttackLog { bytes: 4_000_000, ..AttackLog::default() },
        };
        let raw = RawCost { calm: pair(50), attacked: pair(raw_us), bytes: 4_000_000 };
        let (name, what, problems) = ("x0", "nothing", Vec::new());
        AttackReport {
            name,
            what,
            conns: 1,
            seconds: 4.0,
            before: Some(node.clone()),
            node,
            raw,
            ratio: 0.0,
            problems,
        }
        .judge()
    }

    #[test]
    fn slow_pairs_and_grown_memory_are_failures() {
        assert!(report(4_900, 50, 0).problems.is_empty(), "too short to judge");
        assert!(report(9_000, 5_000, MEMORY_GROWTH_MAX).problems.is_empty());
        assert_eq!(report(11_000, 5_000, 0).problems.len(), 1);
        assert_eq!(report(11_000, 5_000, MEMORY_GROWTH_MAX + 1).problems.len(), 2);
    }

    #[test]
    fn rows_have_all_columns_for_both_versions() {
        let rows = report(11_000, 5_000, 0).rows();
        let columns = |line: &str| line.matches('|').count();
        let lines: Vec<&str> = rows.lines().collect();
        assert_eq!(lines.len(), 3, "{rows}");
        assert!(
            lines[..2].iter().all(|line| columns(line) == columns(HEAD.lines().next().unwrap())),
            "{rows}"
        );
        assert!(lines[2].starts_with("FAILED x0: p99 of 11.0 ms, 2.2 times"), "{rows}");
        assert_eq!(thousands(1_234_567.0), "1,234,567");
    }
}
