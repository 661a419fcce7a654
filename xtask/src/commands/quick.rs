//! `cargo xtask test --quick`: the checks to run before each commit. They need no server and no node process.

use std::time::Instant;

use anyhow::bail;

use crate::{
    interrupt,
    shell::Shell,
    steps::{compile, lint, nextest},
};

/// Programs built for these checks, in addition to the whole protocol crate.
const PROGRAMS: &[&str] =
    &["--lib", "--bins", "--test", "stories", "--test", "sim", "--test", "tidy", "--test", "docs"];

/// Limit in seconds, for an incremental build.
const WARM_MAX: u32 = 150;

/// Runs all checks and lists those that failed.
pub(crate) fn run(shell: &Shell) -> anyhow::Result<()> {
    let began = Instant::now();
    let mut failed = Vec::new();
    let mut table = String::new();
    let mut timed = |name: &'static str, work: &dyn Fn() -> anyhow::Result<()>| {
        if interrupt::came() {
            failed.push(name);
            return false;
        }
        let began = Instant::now();
        let outcome = work();
        table.push_str(&format!("{name:<12} {:>8.1}\n", began.elapsed().as_secs_f64()));
        if let Err(error) = &outcome {
            eprintln!("\n{name}: {error:#}");
            failed.push(name);
        }
        outcome.is_ok()
    };
    timed("fmt", &|| lint::format(shell));
    // Without a build the tests would run older programs.
    if timed("build", &|| compile::chosen(shell, PROGRAMS)) {
        timed("clippy", &|| compile::deny_warnings(shell));
        timed("tests", &|| {
            let cases = nextest::quick(shell)?;
            if !cases.failed.is_empty() {
                bail!("{}", cases.failed.join(", "));
            }
            Ok(())
        });
    }
    let seconds = began.elapsed().as_secs_f64();
    println!("\n{table}{:<12} {seconds:>8.1}  at most {WARM_MAX} once everything is built", "total");
    if failed.is_empty() { Ok(()) } else { bail!("{} failed", failed.join(", ")) }
}
