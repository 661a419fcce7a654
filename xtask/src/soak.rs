//! `cargo xtask soak --minutes N`: what is too long for every commit, with fresh seeds; results are data below `docs/results/`.

mod slope;

use std::{
    fs::{self, OpenOptions},
    io::Write as _,
    path::PathBuf,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, bail};
use serde_json::{Map, Value, json};

use crate::{
    chaos, compile, counts, fuzz, rehearse, report,
    shell::{self, Shell},
};

/// One line for each item of each run.
const LINES: &str = "docs/results/soak.jsonl";

/// Seeds of the simulation in each run.
const SEEDS: u64 = 10_000;

/// The folders of k8s/ that are rendered and rehearsed.
const OVERLAYS: &[&str] = &["base", "overlays/prod", "overlays/dev", "overlays/deployment"];

/// What an item found: fields of its row, as docs/results/README.md has them.
type Figures = Map<String, Value>;

/// An item: its share of the minutes in percent, 0 where it takes what it takes.
struct Item {
    name: &'static str,
    share: u32,
    run: fn(&Shell, Duration, u64) -> anyhow::Result<Figures>,
}

const ITEMS: &[Item] = &[
    Item { name: "counts-dist", share: 0, run: counts_dist },
    Item { name: "simulation", share: 0, run: simulation },
    Item { name: "overlays", share: 0, run: overlays },
    Item { name: "fuzz", share: 20, run: fuzz_all },
    Item { name: "node", share: 20, run: |shell, time, seed| break_things(shell, time, seed, false) },
    Item { name: "cluster-long", share: 35, run: |shell, time, seed| break_things(shell, time, seed, true) },
    Item { name: "slope", share: 25, run: slope::run },
];

/// Runs every item, also after one that failed, and writes down what each found.
pub(crate) fn run(shell: &Shell, minutes: u64, only: &[String]) -> anyhow::Result<()> {
    if let Some(unknown) = only.iter().find(|name| !ITEMS.iter().any(|item| item.name == **name)) {
        let known: Vec<&str> = ITEMS.iter().map(|item| item.name).collect();
        bail!("there is no item `{unknown}`; the items are {}", known.join(", "));
    }
    let seed = fresh_seed()?;
    println!("seed {seed}");
    let (commit, is_clean) = report::commit(shell)?;
    let commit = format!("{}{}", &commit[..7.min(commit.len())], if is_clean { "" } else { "-dirty" });
    let shell = shell.with_profile("dist");
    compile::programs(&shell)?;
    let mut failed = Vec::new();
    for item in ITEMS.iter().filter(|item| only.is_empty() || only.iter().any(|name| name == item.name)) {
        let time = Duration::from_secs(minutes * 60) * item.share / 100;
        println!("\n== {}", item.name);
        let began = Instant::now();
        let outcome = (item.run)(&shell, time, seed);
        let mut row = json!({"date": date()?, "commit": commit, "kind": item.name, "seed": seed});
        row["seconds"] = json!(began.elapsed().as_secs());
        row["verdict"] = json!("clean");
        match outcome {
            Ok(figures) => figures.into_iter().for_each(|(name, figure)| row[name] = figure),
            Err(error) => {
                eprintln!("{}: {error:#}", item.name);
                let why = format!("{error:#}").lines().next().unwrap_or_default().to_owned();
                row["verdict"] = json!(format!("BROKEN {why}"));
                failed.push(item.name);
            }
        }
        println!("{row}");
        append(&shell, &row)?;
    }
    println!("\n`cargo xtask docs` adds them to the sums in docs/testing.md");
    if failed.is_empty() { Ok(()) } else { bail!("{} failed", failed.join(", ")) }
}

fn fresh_seed() -> anyhow::Result<u64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis() as u64 % 1_000_000_000)
}

/// The date in UTC, by the program that every system has.
fn date() -> anyhow::Result<String> {
    let (date, _) = shell::output(std::process::Command::new("date").args(["--utc", "+%Y-%m-%d"]))?;
    Ok(date.trim().to_owned())
}

fn append(shell: &Shell, line: &Value) -> anyhow::Result<()> {
    let file = shell.root.join(LINES);
    fs::create_dir_all(file.parent().context("a file lies in a folder")?)?;
    let mut file = OpenOptions::new().create(true).append(true).open(&file)?;
    Ok(writeln!(file, "{line}")?)
}

/// The instructions of the build that is shipped.
fn counts_dist(shell: &Shell, _: Duration, _: u64) -> anyhow::Result<Figures> {
    let limits = counts::run(shell)?;
    Ok(Map::from_iter([("count_limits_held".to_owned(), json!(limits))]))
}

/// Whole nodes in one process, on a clock and a network of the test's own.
fn simulation(shell: &Shell, _: Duration, seed: u64) -> anyhow::Result<Figures> {
    let shell = shell.with_profile("ci");
    compile::chosen(&shell, &["--test", "sim"])?;
    let binaries: Value = serde_json::from_str(&fs::read_to_string(shell.target.join(compile::BINARIES))?)?;
    let program = binaries["rust-binaries"]["tidegate::sim"]["binary-path"].as_str();
    let mut sim = shell.command(PathBuf::from(program.context("the simulation was not built")?));
    sim.env("SIM_SEEDS", SEEDS.to_string()).env("TIDEGATE_SEED", seed.to_string());
    shell::run(sim.env("CARGO_MANIFEST_DIR", &shell.root))?;
    Ok(Map::from_iter([("seeds".to_owned(), json!(SEEDS))]))
}

/// A rollout by each overlay.
fn overlays(shell: &Shell, _: Duration, _: u64) -> anyhow::Result<Figures> {
    OVERLAYS.iter().try_for_each(|folder| rehearse::run(shell, folder))?;
    Ok(Map::from_iter([("rollouts".to_owned(), json!(OVERLAYS.len()))]))
}

fn fuzz_all(shell: &Shell, time: Duration, _: u64) -> anyhow::Result<Figures> {
    let targets = fuzz::targets(shell)?.len();
    let each = (time.as_secs() / targets.max(1) as u64).max(1);
    fuzz::run(shell, each, None)?;
    Ok(Map::from_iter([("targets".to_owned(), json!(targets))]))
}

/// One node, or three over three brokers with faults of up to a minute and clocks that jump.
fn break_things(shell: &Shell, time: Duration, seed: u64, brokers: bool) -> anyhow::Result<Figures> {
    let result = shell.scratch("soak")?.join("result.json");
    let words = ["--result".to_owned(), result.display().to_string()];
    let seconds = time.as_secs().max(60);
    if brokers {
        chaos::cluster_long(shell, seconds, Some(seed), &words)?;
    } else {
        chaos::run(shell, seconds, Some(seed), &words)?;
    }
    serde_json::from_str(&fs::read_to_string(&result)?).context("chaos writes its figures as JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_are_the_whole_time() {
        assert_eq!(ITEMS.iter().map(|item| item.share).sum::<u32>(), 100);
    }
}
