//! Instruction counts of hot paths, by callgrind, against the limits in `benches/counts.toml`.
//!
//! `examples/counts` runs a named function n times. The difference between n and 2n runs is the cost of the function alone,
//! and is equal in all runs of one compiler, so limits can be tighter than limits on time.

use std::{fs, path::Path};

use anyhow::{Context as _, bail};

use crate::{
    shell::{self, Shell},
    tools,
};

const ITERATIONS: u64 = 1_000;

/// Share of its limit below which a count makes the limit useless, so that the limit must be lowered.
const SLACK: f64 = 0.8;

/// Counts the instructions, and returns the number of limits that held.
pub(crate) fn run(shell: &Shell) -> anyhow::Result<usize> {
    tools::ensure_program(shell, "valgrind", "valgrind")?;
    let limits = read_limits(&fs::read_to_string(shell.root.join("benches/counts.toml"))?, shell.profile)?;
    let program = shell.built("examples").join("counts");
    let (names, _) = shell::output(&mut shell.command(&program))
        .context("examples/counts is built by `cargo xtask test build`")?;
    for name in names.lines() {
        if !limits.iter().any(|limit| limit.name == name) {
            bail!("`{name}` has no limit in benches/counts.toml");
        }
    }
    let mut broken = Vec::new();
    println!("{:<28} {:>12} {:>12}", "function", "instructions", "limit");
    for Limit { name, limit, within } in &limits {
        let once = measure(shell, &program, name, ITERATIONS, *within)?;
        let twice = measure(shell, &program, name, 2 * ITERATIONS, *within)?;
        let each = twice.saturating_sub(once) as f64 / ITERATIONS as f64;
        let verdict = match each {
            each if each > *limit as f64 => "OVER",
            each if each < *limit as f64 * SLACK => "lower the limit",
            _ => "",
        };
        println!("{name:<28} {each:>12.1} {limit:>12} {verdict}");
        if verdict == "OVER" || each < 1.0 {
            broken.push(format!("{name}: {each:.1} (limit {limit})"));
        }
    }
    if !broken.is_empty() {
        bail!(
            "over the limit, or nothing measured: {}. Win it back, or raise the limit in benches/counts.toml and say \
             why in the commit",
            broken.join("; ")
        );
    }
    Ok(limits.len())
}

struct Limit {
    name: String,
    limit: u64,
    /// Function inside which instructions are counted; `None` counts all.
    within: Option<&'static str>,
}

/// The tables of a profile in `benches/counts.toml`, and the function inside which instructions count for each.
const TABLES: &[(&str, Option<&str>)] = &[
    ("instructions", None),
    ("shard", Some("counts::counted")),
    ("rules", Some("counts::counted_admission")),
];

fn read_limits(text: &str, profile: &str) -> anyhow::Result<Vec<Limit>> {
    let file: toml::Table = text.parse()?;
    let mut limits = Vec::new();
    for (table, within) in TABLES {
        let entries = file.get(profile).and_then(|tables| tables.get(*table)?.as_table());
        for (name, value) in
            entries.with_context(|| format!("benches/counts.toml has no table [{profile}.{table}]"))?
        {
            let limit = value.as_integer().and_then(|limit| u64::try_from(limit).ok());
            let limit = limit.with_context(|| format!("the limit of `{name}` is a whole number"))?;
            limits.push(Limit { name: name.clone(), limit, within: *within });
        }
    }
    Ok(limits)
}

fn measure(
    shell: &Shell,
    program: &Path,
    name: &str,
    iterations: u64,
    within: Option<&str>,
) -> anyhow::Result<u64> {
    let mut command = shell.command("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    if let Some(within) = within {
        command.args(["--collect-atstart=no".to_owned(), format!("--toggle-collect={within}")]);
    }
    let (_, told) = shell::output(command.arg(program).args([name, &iterations.to_string()]))?;
    collected(&told).with_context(|| format!("callgrind said nothing of what it collected:\n{told}"))
}

/// The number in `==123== Collected : 4567`.
fn collected(told: &str) -> Option<u64> {
    told.lines().find_map(|line| line.split_once("Collected :"))?.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_and_counts_are_read() {
        let limits =
            read_limits("# why\n[ci.instructions]\nencode = 400\n[ci.shard]\nfan = 7\n[ci.rules]\n", "ci")
                .expect("all tables");
        assert_eq!(
            limits.iter().map(|it| (it.name.as_str(), it.limit)).collect::<Vec<_>>(),
            [("encode", 400), ("fan", 7)]
        );
        assert!(limits[0].within.is_none() && limits[1].within.is_some());
        assert!(read_limits("[ci.instructions]\nencode = 400", "ci").is_err());
        assert!(read_limits("[ci.instructions]\nencode = 400\n[ci.shard]\n[ci.rules]", "dist").is_err());
        assert!(read_limits("[ci.shard]\n[ci.rules]\n[ci.instructions]\nencode = -1", "ci").is_err());
        assert_eq!(collected("==7== Events    : Ir\n==7== Collected : 215377\n"), Some(215_377));
        assert_eq!(collected("==7== nothing"), None);
    }
}
