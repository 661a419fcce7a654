//! `cargo xtask test --quick`: the checks that an author runs before each commit; no server, no node as a process.

use std::time::Instant;

use anyhow::bail;

use crate::{
    interrupt,
    shell::Shell,
    steps::{compile, lint, nextest},
};

/// The programs that are built for it; the protocol crate comes whole.
const PROGRAMS: &[&str] =
    &["--lib", "--bins", "--test", "stories", "--test", "sim", "--test", "tidy", "--test", "docs"];

/// Seconds that it may take where only changes are built.
const WARM_MAX: u32 = 150;

/// Runs all of them and lists those that failed.
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
    timed("clippy", &|| lint::clippy(shell));
    // Without a build the tests would run older programs.
    if timed("build", &|| compile::chosen(shell, PROGRAMS)) {
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
