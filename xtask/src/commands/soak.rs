//! `cargo xtask soak --minutes N`: checks that are too long for every commit, with fresh seeds; results are data below `docs/results/`.

mod slope;

use std::{
    fs::{self, OpenOptions},
    io::Write as _,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, bail};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use super::fuzz;
use crate::{
    interrupt,
    shell::{self, Shell},
    steps::{
        chaos, compile, counts, rehearse,
        security::{self, Extent},
    },
};

/// File of results, with a line for each item of each run.
const LINES: &str = "docs/results/soak.jsonl";

/// Seeds of the simulation in each run.
const SEEDS: u64 = 10_000;

/// Folders of k8s/ that are rehearsed: those of a cluster with a StatefulSet.
const OVERLAYS: &[&str] = &["base", "overlays/prod"];

/// Figures of an item: fields of its row, as described in docs/results/README.md.
type Figures = Map<String, Value>;

/// Item of a soak.
struct Item {
    name: &'static str,
    /// Share of the minutes in percent; 0 if its duration can't be chosen.
    share: u32,
    /// Runs the item and adds its figures, even if it fails.
    run: fn(&Shell, Duration, u64, &mut Figures) -> anyhow::Result<()>,
}

const ITEMS: &[Item] = &[
    Item { name: "counts-dist", share: 0, run: counts_dist },
    Item { name: "simulation", share: 0, run: simulation },
    Item { name: "world", share: 0, run: world },
    Item { name: "overlays", share: 0, run: overlays },
    Item { name: "security", share: 0, run: attack },
    Item { name: "fuzz", share: 25, run: fuzz_all },
    Item {
        name: "node",
        share: 25,
        run: |shell, time, seed, row| break_things(shell, time, seed, false, row),
    },
    Item {
        name: "cluster-long",
        share: 50,
        run: |shell, time, seed, row| break_things(shell, time, seed, true, row),
    },
];

/// Item that runs in parallel with all others, for at least the given minutes.
const SLOPE: &str = "slope";

/// Runs every item, even after a failed one, and appends a row for each.
pub(crate) fn run(shell: &Shell, minutes: u64, only: &[String]) -> anyhow::Result<()> {
    let known: Vec<&str> = ITEMS.iter().map(|item| item.name).chain([SLOPE]).collect();
    if let Some(unknown) = only.iter().find(|name| !known.contains(&name.as_str())) {
        bail!("there is no item `{unknown}`; the items are {}", known.join(", "));
    }
    let is_chosen = |name: &str| only.is_empty() || only.iter().any(|it| it == name);
    let seed = fresh_seed()?;
    println!("seed {seed}");
    let (commit, date) = (shell.commit_name()?, date()?);
    let shell = shell.with_profile("dist");
    compile::programs(&shell)?;
    let book = Book { shell: &shell, commit, date, seed, failed: Mutex::new(Vec::new()) };
    let time = Duration::from_secs(minutes * 60);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        if is_chosen(SLOPE) {
            scope.spawn(|| book.keep(SLOPE, |row| slope::run(&shell, time, &is_over, row)));
        }
        // Dropped even if an item panics, because the slope waits for it.
        let _others = Others(&is_over);
        for item in ITEMS.iter().filter(|item| is_chosen(item.name) && !interrupt::came()) {
            println!("\n== {}", item.name);
            book.keep(item.name, |row| (item.run)(&shell, time * item.share / 100, seed, row));
        }
    });
    println!("\n`cargo xtask docs` adds them to the sums in docs/internals/testing.md");
    let failed = book.failed.into_inner();
    if failed.is_empty() { Ok(()) } else { bail!("{} failed", failed.join(", ")) }
}

/// Guard that exists while the items other than the slope run.
struct Others<'a>(&'a AtomicBool);

impl Drop for Others<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Data that all rows of a run share, and the failed items.
struct Book<'a> {
    shell: &'a Shell,
    commit: String,
    date: String,
    seed: u64,
    failed: Mutex<Vec<&'static str>>,
}

impl Book<'_> {
    /// Runs an item and appends its row.
    fn keep(&self, name: &'static str, work: impl FnOnce(&mut Figures) -> anyhow::Result<()>) {
        let began = Instant::now();
        let mut row = Figures::new();
        let outcome = work(&mut row);
        if interrupt::came() {
            self.fail(name);
            return;
        }
        let verdict = match &outcome {
            Ok(()) => "clean".to_owned(),
            Err(error) => verdict(error, &row, &self.shell.root),
        };
        // These replace the fields that chaos writes into its own row.
        let own = [
            ("date", json!(self.date)),
            ("commit", json!(self.commit)),
            ("kind", json!(name)),
            ("seed", json!(self.seed)),
            ("seconds", json!(began.elapsed().as_secs())),
            ("verdict", json!(verdict)),
        ];
        row.extend(own.map(|(key, value)| (key.to_owned(), value)));
        let row = Value::Object(row);
        println!("{row}");
        if let Err(error) = outcome.and(append(self.shell, &row)) {
            eprintln!("{name}: {error:#}");
            self.fail(name);
        }
    }

    fn fail(&self, name: &'static str) {
        self.failed.lock().push(name);
    }
}

/// Returns the verdict of a failed item: that of chaos, which names the broken rules, or the first line of the error. Paths
/// below `root` become relative, so that a row does not depend on where the clone is.
fn verdict(error: &anyhow::Error, figures: &Figures, root: &Path) -> String {
    let named = figures.get("verdict").and_then(Value::as_str).filter(|it| it.starts_with("BROKEN"));
    let first = || format!("BROKEN {}", format!("{error:#}").lines().next().unwrap_or_default());
    let verdict = named.map_or_else(first, str::to_owned);
    verdict.replace(&format!("{}/", root.display()), "")
}

fn fresh_seed() -> anyhow::Result<u64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis() as u64 % 1_000_000_000)
}

/// Returns the date in UTC, by the program `date`.
fn date() -> anyhow::Result<String> {
    let (date, _) = shell::output(std::process::Command::new("date").args(["--utc", "+%Y-%m-%d"]))?;
    Ok(date.trim().to_owned())
}

/// Appends a row with a single write, because another item may append at the same time.
fn append(shell: &Shell, line: &Value) -> anyhow::Result<()> {
    let file = shell.root.join(LINES);
    fs::create_dir_all(file.parent().context("a file lies in a folder")?)?;
    let mut file = OpenOptions::new().create(true).append(true).open(&file)?;
    Ok(file.write_all(format!("{line}\n").as_bytes())?)
}

/// Counts the instructions of the shipped build.
fn counts_dist(shell: &Shell, _: Duration, _: u64, row: &mut Figures) -> anyhow::Result<()> {
    row.insert("count_limits_held".to_owned(), json!(counts::run(shell)?));
    Ok(())
}

/// Runs the simulation of owners, without clients and shards.
fn simulation(shell: &Shell, _: Duration, seed: u64, row: &mut Figures) -> anyhow::Result<()> {
    let shell = shell.with_profile("ci");
    compile::chosen(&shell, &["--test", "sim"])?;
    let mut sim = shell.command(compile::test_program(&shell, "tidegate::sim")?);
    sim.env("SIM_SEEDS", SEEDS.to_string()).env("TIDEGATE_SEED", seed.to_string());
    shell::run(sim.env("CARGO_MANIFEST_DIR", &shell.root))?;
    row.insert("seeds".to_owned(), json!(SEEDS));
    Ok(())
}

/// Runs the simulation of whole nodes with their clients, each seed in two processes.
fn world(shell: &Shell, _: Duration, seed: u64, row: &mut Figures) -> anyhow::Result<()> {
    let shell = shell.with_profile("ci");
    compile::chosen(&shell, &["--package", "tidegate-lab", "--test", "world"])?;
    let mut world = shell.command(compile::test_program(&shell, "tidegate-lab::world")?);
    world.env("WORLD_SEEDS", SEEDS.to_string()).env("TIDEGATE_SEED", seed.to_string());
    shell::run(world.env("CARGO_MANIFEST_DIR", shell.root.join("lab")))?;
    row.insert("seeds".to_owned(), json!(SEEDS));
    Ok(())
}

/// Rehearses a rollout by each overlay.
fn overlays(shell: &Shell, _: Duration, _: u64, row: &mut Figures) -> anyhow::Result<()> {
    OVERLAYS.iter().try_for_each(|folder| rehearse::run(shell, folder))?;
    row.insert("rollouts".to_owned(), json!(OVERLAYS.len()));
    Ok(())
}

/// Looks at nodes as an attacker does.
fn attack(shell: &Shell, _: Duration, _: u64, row: &mut Figures) -> anyhow::Result<()> {
    row.insert("checks".to_owned(), json!(security::run(shell, Extent::Full)?));
    Ok(())
}

fn fuzz_all(shell: &Shell, time: Duration, _: u64, row: &mut Figures) -> anyhow::Result<()> {
    let targets = fuzz::targets(shell)?.len();
    let each = (time.as_secs() / targets.max(1) as u64).max(1);
    fuzz::run(shell, each, None)?;
    row.insert("targets".to_owned(), json!(targets));
    Ok(())
}

/// Runs chaos on one node, or on three over three brokers with faults of up to a minute and clock jumps.
fn break_things(
    shell: &Shell,
    time: Duration,
    seed: u64,
    brokers: bool,
    row: &mut Figures,
) -> anyhow::Result<()> {
    let result = shell.scratch("soak")?.join("result.json");
    let words = ["--result".to_owned(), result.display().to_string()];
    let seconds = time.as_secs().max(60);
    let outcome = if brokers {
        chaos::cluster_long(shell, seconds, Some(seed), &words)
    } else {
        chaos::run(shell, seconds, Some(seed), &words)
    };
    // A run that breaks a promise writes its figures too; an incomplete run writes none.
    if let Ok(text) = fs::read_to_string(&result) {
        *row = serde_json::from_str(&text).context("chaos writes its figures as JSON")?;
    } else if outcome.is_ok() {
        bail!("chaos wrote no figures");
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_are_the_whole_time() {
        assert_eq!(ITEMS.iter().map(|item| item.share).sum::<u32>(), 100);
    }

    #[test]
    fn every_item_is_on_the_page_of_tests_and_security_is_one() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/internals/testing.md");
        let page = fs::read_to_string(page).expect("the page");
        let line = page.lines().find(|line| line.starts_with("| `cargo xtask soak")).expect("its row");
        for name in ITEMS.iter().map(|item| item.name).chain([SLOPE]) {
            assert!(line.contains(&format!("`{name}`")), "{name}: {line}");
        }
        assert!(ITEMS.iter().any(|item| item.name == "security"));
    }

    #[test]
    fn each_item_appends_a_row_with_its_figures() {
        let root = std::env::temp_dir().join(format!("tidegate-soak-{}", std::process::id()));
        let shell = Shell {
            root: root.clone(),
            target: root.join("target"),
            profile: "dist",
            services: shell::SERVICES_OF_TESTS,
            wanted: &[],
            are_measured: false,
            are_synced: false,
        };
        let (commit, date) = ("abc".to_owned(), "2026-11-30".to_owned());
        let book = Book { shell: &shell, commit, date, seed: 7, failed: Mutex::default() };
        book.keep("security", |row| {
            row.insert("checks".to_owned(), json!(40));
            Ok(())
        });
        book.keep("security", |_| bail!("testssl.sh found a weak cipher"));
        let text = fs::read_to_string(root.join(LINES)).expect("the file");
        let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("a row")).collect();
        assert_eq!((&rows[0]["kind"], &rows[0]["checks"]), (&json!("security"), &json!(40)), "{text}");
        assert_eq!((&rows[0]["verdict"], &rows[0]["seed"]), (&json!("clean"), &json!(7)), "{text}");
        assert_eq!(rows[1]["verdict"], "BROKEN testssl.sh found a weak cipher", "{text}");
        assert_eq!((rows.len(), book.failed.into_inner()), (2, vec!["security"]));
        fs::remove_dir_all(root).ok();
    }

    #[test]
    fn the_verdict_of_a_failed_item_names_the_broken_rules() {
        let (error, root) = (anyhow::anyhow!("it ended\nwith a log"), Path::new("/clone"));
        assert_eq!(verdict(&error, &Figures::new(), root), "BROKEN it ended");
        let row = |text: &str| Figures::from_iter([("verdict".to_owned(), json!(text))]);
        assert_eq!(verdict(&error, &row("BROKEN lost-acked 1"), root), "BROKEN lost-acked 1");
        assert_eq!(verdict(&error, &row("clean"), root), "BROKEN it ended");
    }

    #[test]
    fn the_verdict_has_no_path_of_the_clone() {
        let error = anyhow::anyhow!("exit status: 1: fuzz --target-dir /clone/target /clone/fuzz/corpus");
        let expected = "BROKEN exit status: 1: fuzz --target-dir target fuzz/corpus";
        assert_eq!(verdict(&error, &Figures::new(), Path::new("/clone")), expected);
    }
}
