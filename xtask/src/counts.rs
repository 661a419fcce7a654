//! Instruction counts of hot paths, by callgrind, against the limits in `benches/counts.toml`.
//!
//! `examples/counts` runs one named function n times. The difference between n and 2n leaves out everything but the
//! function, and is the same on every run of one compiler, so a limit can be tight where a clock would need slack.

use std::{fs, path::Path};

use anyhow::{Context as _, bail};

use crate::{
    shell::{self, Shell},
    tools,
};

const ITERATIONS: u64 = 1_000;

/// Below this share of its limit a count has become so good that the limit no longer holds it.
const SLACK: f64 = 0.8;

pub(crate) fn run(shell: &Shell) -> anyhow::Result<()> {
    tools::ensure_program(shell, "valgrind", "valgrind")?;
    let limits = read_limits(&fs::read_to_string(shell.root.join("benches/counts.toml"))?)?;
    let program = shell.release("examples").join("counts");
    let (names, _) = shell::output(&mut shell.command(&program))
        .context("examples/counts is built by `cargo xtask test build`")?;
    for name in names.lines() {
        if !limits.iter().any(|(limited, _)| limited == name) {
            bail!("`{name}` has no limit in benches/counts.toml");
        }
    }
    let mut broken = Vec::new();
    println!("{:<28} {:>12} {:>12}", "function", "instructions", "limit");
    for (name, limit) in &limits {
        let once = measure(shell, &program, name, ITERATIONS)?;
        let twice = measure(shell, &program, name, 2 * ITERATIONS)?;
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
    Ok(())
}

/// `name = limit` lines of the table `[instructions]`.
fn read_limits(text: &str) -> anyhow::Result<Vec<(String, u64)>> {
    let table: toml::Table = text.parse()?;
    let limits = table.get("instructions").and_then(|value| value.as_table());
    let limits = limits.context("benches/counts.toml has a table [instructions]")?;
    let limit = |(name, value): (&String, &toml::Value)| {
        let limit = value.as_integer().and_then(|limit| u64::try_from(limit).ok());
        Ok((name.clone(), limit.with_context(|| format!("the limit of `{name}` is a whole number"))?))
    };
    limits.iter().map(limit).collect()
}

fn measure(shell: &Shell, program: &Path, name: &str, iterations: u64) -> anyhow::Result<u64> {
    let mut command = shell.command("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    let (_, told) = shell::output(command.arg(program).args([name, &iterations.to_string()]))?;
    collected(&told).with_context(|| format!("callgrind said nothing of what it collected:\n{told}"))
}

/// From `==123== Collected : 4567`.
fn collected(told: &str) -> Option<u64> {
    told.lines().find_map(|line| line.split_once("Collected :"))?.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_and_counts_are_read() {
        let limits = read_limits("# why\n[instructions]\nencode = 400\n").expect("a table");
        assert_eq!(limits, [("encode".to_owned(), 400)]);
        assert!(read_limits("encode = 400").is_err());
        assert!(read_limits("[instructions]\nencode = -1").is_err());
        assert_eq!(collected("==7== Events    : Ir\n==7== Collected : 215377\n"), Some(215_377));
        assert_eq!(collected("==7== nothing"), None);
    }
}
