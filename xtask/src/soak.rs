//! `cargo xtask soak --minutes N`: what is too long for every commit, with fresh seeds; results are data below `docs/results/`.

mod slope;

use std::{
    fs::{self, OpenOptions},
    io::Write as _,
    path::PathBuf,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, bail};
use serde_json::{Map, Value, json};

use crate::{
    chaos, compile, counts, fuzz, interrupt, rehearse, report,
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
    Item { name: "fuzz", share: 25, run: fuzz_all },
    Item { name: "node", share: 25, run: |shell, time, seed| break_things(shell, time, seed, false) },
    Item { name: "cluster-long", share: 50, run: |shell, time, seed| break_things(shell, time, seed, true) },
];

/// Runs beside all of them, at least as long as the minutes.
const SLOPE: &str = "slope";

/// Runs every item, also after one that failed, and writes down what each found.
pub(crate) fn run(shell: &Shell, minutes: u64, only: &[String]) -> anyhow::Result<()> {
    let known: Vec<&str> = ITEMS.iter().map(|item| item.name).chain([SLOPE]).collect();
    if let Some(unknown) = only.iter().find(|name| !known.contains(&name.as_str())) {
        bail!("there is no item `{unknown}`; the items are {}", known.join(", "));
    }
    let is_chosen = |name: &str| only.is_empty() || only.iter().any(|it| it == name);
    let seed = fresh_seed()?;
    println!("seed {seed}");
    let (commit, is_clean) = report::commit(shell)?;
    let commit = format!("{}{}", &commit[..7.min(commit.len())], if is_clean { "" } else { "-dirty" });
    let shell = shell.with_profile("dist");
    compile::programs(&shell)?;
    let book = Book { shell: &shell, commit, seed, failed: Mutex::new(Vec::new()) };
    let time = Duration::from_secs(minutes * 60);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        if is_chosen(SLOPE) {
            scope.spawn(|| book.keep(SLOPE, || slope::run(&shell, time, &is_over)));
        }
        // Dropped also where an item panics: the slope waits for it.
        let _others = Others(&is_over);
        for item in ITEMS.iter().filter(|item| is_chosen(item.name) && !interrupt::came()) {
            println!("\n== {}", item.name);
            book.keep(item.name, || (item.run)(&shell, time * item.share / 100, seed));
        }
    });
    println!("\n`cargo xtask docs` adds them to the sums in docs/testing.md");
    let failed = book.failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    if failed.is_empty() { Ok(()) } else { bail!("{} failed", failed.join(", ")) }
}

/// The items other than the slope, as long as they run.
struct Others<'a>(&'a AtomicBool);

impl Drop for Others<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Where the rows of a run go.
struct Book<'a> {
    shell: &'a Shell,
    commit: String,
    seed: u64,
    failed: Mutex<Vec<&'static str>>,
}

impl Book<'_> {
    /// Runs an item and appends its row.
    fn keep(&self, name: &'static str, work: impl FnOnce() -> anyhow::Result<Figures>) {
        let began = Instant::now();
        let outcome = work();
        if interrupt::came() {
            self.fail(name);
            return;
        }
        let seconds = began.elapsed().as_secs();
        let mut row = json!({"commit": self.commit, "kind": name, "seed": self.seed, "seconds": seconds});
        row["verdict"] = json!("clean");
        let outcome = outcome.and_then(|figures| {
            row["date"] = json!(date()?);
            figures.into_iter().for_each(|(name, figure)| row[name] = figure);
            append(self.shell, &row)
        });
        if let Err(error) = outcome {
            eprintln!("{name}: {error:#}");
            let why = format!("{error:#}").lines().next().unwrap_or_default().to_owned();
            row["verdict"] = json!(format!("BROKEN {why}"));
            row["date"] = date().map_or(Value::Null, |date| json!(date));
            if let Err(error) = append(self.shell, &row) {
                eprintln!("{name}: {error:#}");
            }
            self.fail(name);
        }
        println!("{row}");
    }

    fn fail(&self, name: &'static str) {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).push(name);
    }
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
