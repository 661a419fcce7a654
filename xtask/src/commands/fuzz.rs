//! `cargo xtask fuzz`: fuzzes every decoder with libFuzzer. `cargo test` replays the kept inputs on the stable toolchain.

use anyhow::bail;

use crate::{
    shell::{self, Shell},
    tools,
};

/// Returns the names of the targets.
pub(crate) fn targets(shell: &Shell) -> anyhow::Result<Vec<String>> {
    let (list, _) = shell::output(tools::cargo_fuzz(shell)?.arg("list"))?;
    Ok(list.lines().map(str::to_owned).collect())
}

/// Runs each target for that long, on one core. New inputs go to a scratch folder; copy those worth keeping to
/// `fuzz/corpus/` by hand.
pub(crate) fn run(shell: &Shell, seconds: u64, only: Option<&str>) -> anyhow::Result<()> {
    let all = targets(shell)?;
    let targets: Vec<&String> = all.iter().filter(|target| only.is_none_or(|only| only == *target)).collect();
    if targets.is_empty() {
        bail!("no such fuzz target; there are: {}", all.join(", "));
    }
    let build = shell.target.join("fuzz");
    let time = format!("-max_total_time={seconds}");
    for target in &targets {
        let found = shell.scratch(&format!("fuzz-{target}"))?;
        let kept = shell.root.join("fuzz/corpus").join(target);
        let mut command = tools::cargo_fuzz(shell)?;
        command.arg("run").arg("--target-dir").arg(&build).arg(target).arg(&found).arg(&kept);
        shell::run(command.args(["--", &time, "-print_final_stats=1", "-verbosity=0"]))?;
    }
    println!("{} targets ran for {seconds} s each without a finding", targets.len());
    Ok(())
}
