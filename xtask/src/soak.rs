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
/// Their sums.
const TOTALS: &str = "docs/results/totals.json";

/// Seeds of the simulation in each run.
const SEEDS: u64 = 10_000;

/// What every folder of k8s/ is rendered and rehearsed.
const OVERLAYS: &[&str] = &["base", "overlays/prod", "overlays/dev", "overlays/deployment"];

/// What an item found: figures by name, which are summed over runs where they are counts.
type Figures = Map<String, Value>;

/// An item: its share of the minutes in percent, 0 where it takes what it takes.
struct Item {
    name: &'static str,
    share: u32,
    run: fn(&Shell, Duration, u64) -> anyhow::Result<Figures>,
}

const ITEMS: &[Item] = &[
    Item { name: "dist-counts", share: 0, run: dist_counts },
    Item { name: "simulation", share: 0, run: simulation },
    Item { name: "overlays", share: 0, run: overlays },
    Item { name: "fuzz", share: 20, run: fuzz_all },
    Item { name: "chaos", share: 20, run: |shell, time, seed| break_things(shell, time, seed, false) },
    Item { name: "brokers", share: 35, run: |shell, time, seed| break_things(shell, time, seed, true) },
    Item { name: "slope", share: 25, run: slope::run },
];

/// Runs every item, also behind one that failed, and writes down what each found.
pub(crate) fn run(shell: &Shell, minutes: u64, only: &[String]) -> anyhow::Result<()> {
    let seed = fresh_seed()?;
    println!("seed {seed}");
    let (commit, is_clean) = report::commit(shell)?;
    let shell = shell.with_profile("dist");
    compile::programs(&shell)?;
    let mut failed = Vec::new();
    for item in ITEMS.iter().filter(|item| only.is_empty() || only.iter().any(|name| name == item.name)) {
        let time = Duration::from_secs(minutes * 60) * item.share / 100;
        println!("\n== {}", item.name);
        let began = Instant::now();
        let outcome = (item.run)(&shell, time, seed);
        let mut line = json!({
            "date": date()?,
            "commit": commit,
            "clean": is_clean,
            "item": item.name,
            "seed": seed,
            "seconds": began.elapsed().as_secs(),
            "verdict": if outcome.is_ok() { "passed" } else { "failed" },
        });
        match outcome {
            Ok(figures) => line["figures"] = Value::Object(figures),
            Err(error) => {
                eprintln!("{}: {error:#}", item.name);
                line["why"] = json!(format!("{error:#}").lines().next().unwrap_or_default());
                failed.push(item.name);
            }
        }
        println!("{line}");
        append(&shell, &line)?;
    }
    let totals = totals(&fs::read_to_string(shell.root.join(LINES))?)?;
    fs::write(shell.root.join(TOTALS), format!("{}\n", serde_json::to_string_pretty(&totals)?))?;
    println!("\nall runs so far: {totals}");
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

/// What all lines add up to: minutes, runs, failures, and every figure that is a count.
fn totals(lines: &str) -> anyhow::Result<Value> {
    let (mut seconds, mut runs, mut failures) = (0, 0, 0);
    let mut sums = Map::new();
    for line in lines.lines().filter(|line| !line.trim().is_empty()) {
        let line: Value = serde_json::from_str(line).with_context(|| format!("{LINES}: {line}"))?;
        seconds += line["seconds"].as_u64().unwrap_or(0);
        runs += 1;
        failures += u64::from(line["verdict"] != "passed");
        for (name, figure) in line["figures"].as_object().into_iter().flatten() {
            if let Some(count) = figure.as_u64() {
                let sum = sums.get(name).and_then(Value::as_u64).unwrap_or(0) + count;
                sums.insert(name.clone(), json!(sum));
            }
        }
    }
    Ok(json!({"minutes": seconds / 60, "runs": runs, "failures": failures, "figures": sums}))
}

/// The instructions of the build that is shipped.
fn dist_counts(shell: &Shell, _: Duration, _: u64) -> anyhow::Result<Figures> {
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
    Ok(Map::from_iter([("simulation_seeds".to_owned(), json!(SEEDS))]))
}

/// A rollout by each overlay.
fn overlays(shell: &Shell, _: Duration, _: u64) -> anyhow::Result<Figures> {
    OVERLAYS.iter().try_for_each(|folder| rehearse::run(shell, folder))?;
    Ok(Map::from_iter([("rollouts_rehearsed".to_owned(), json!(OVERLAYS.len()))]))
}

fn fuzz_all(shell: &Shell, time: Duration, _: u64) -> anyhow::Result<Figures> {
    let targets = fuzz::targets(shell)?.len();
    let each = (time.as_secs() / targets.max(1) as u64).max(1);
    fuzz::run(shell, each, None)?;
    Ok(Map::from_iter([("fuzz_seconds".to_owned(), json!(each * targets as u64))]))
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
    fn figures_of_all_runs_add_up() {
        let lines = r#"{"seconds": 60, "verdict": "passed", "figures": {"acked": 3, "rate": 1.5}}
            {"seconds": 61, "verdict": "failed"}

            {"seconds": 60, "verdict": "passed", "figures": {"acked": 4}}"#;
        let totals = totals(lines).expect("JSON");
        assert_eq!(totals, json!({"minutes": 3, "runs": 3, "failures": 1, "figures": {"acked": 7}}));
        assert!(super::totals("nonsense").is_err());
    }

    #[test]
    fn the_shares_are_the_whole_time() {
        assert_eq!(ITEMS.iter().map(|item| item.share).sum::<u32>(), 100);
    }
}
