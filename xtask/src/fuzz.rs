//! Fuzzing on a machine that has the tools; the short stable replay of the same inputs is part of `cargo test`.

use anyhow::bail;

use crate::shell::{self, Shell};

pub(crate) fn run(shell: &Shell, seconds: u64, only: Option<&str>) -> anyhow::Result<()> {
    if !shell::have("cargo-fuzz") {
        bail!("cargo-fuzz is not installed: `cargo install --locked cargo-fuzz`");
    }
    let nightly = shell::output(shell.command("cargo").args(["+nightly", "--version"]));
    if nightly.is_err() {
        bail!("fuzzing needs a nightly toolchain: `rustup toolchain install nightly --profile minimal`");
    }
    let fuzz = shell.root.join("fuzz");
    if !fuzz.join("Cargo.toml").exists() {
        bail!("there are no fuzz targets yet: {} is missing", fuzz.join("Cargo.toml").display());
    }
    let (list, _) = shell::output(shell.command("cargo").args(["+nightly", "fuzz", "list"]))?;
    let targets: Vec<&str> = list.lines().filter(|target| only.is_none_or(|only| only == *target)).collect();
    if targets.is_empty() {
        bail!("no such fuzz target; there are: {}", list.lines().collect::<Vec<_>>().join(", "));
    }
    let limit = format!("-max_total_time={seconds}");
    for target in targets {
        shell::run(shell.command("cargo").args(["+nightly", "fuzz", "run", target, "--", &limit]))?;
    }
    Ok(())
}
