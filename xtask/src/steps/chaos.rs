//! Steps and commands that run `tidegate-lab chaos`, with the name of the commit.

use std::{env, fs, path::PathBuf};

use anyhow::Context as _;

use crate::{
    evidence, services,
    shell::{self, Shell},
    steps::web,
    tools,
};

/// Seconds of faults in the test run; with the quiet phase and the checker it takes less than three minutes.
pub(crate) const SHORT_FAULTS_S: u64 = 90;

/// Seconds of faults over three brokers.
const BROKERS_FAULTS_S: u64 = 60;

/// Seconds of faults in the step cluster, without the start of its servers: most faults come twice.
pub(crate) const CLUSTER_FAULTS_S: u64 = 100;

/// Runs the step `chaos`, in which some devices have the TypeScript client, then plants losses into the history. Returns how
/// many of them the checker found.
pub(crate) fn short(shell: &Shell) -> anyhow::Result<usize> {
    let history = shell.scratch("chaos-history")?.join("history.jsonl");
    let adapter = web::adapter(shell, "chaos-client")?;
    let words = ["--history".to_owned(), history.display().to_string(), "--adapter".to_owned(), adapter];
    run(shell, SHORT_FAULTS_S, Some(shell.seed()?), &words)?;
    let lab = shell.built("tidegate-lab");
    let (named, _) = shell::output(shell.command(lab).args(["check", "--planted"]).arg(&history))?;
    print!("{named}");
    fs::remove_file(history)?;
    Ok(named.lines().filter(|line| line.starts_with("planted: ")).count())
}

/// Injects faults into one node for that many seconds, then checks the history.
pub(crate) fn run(shell: &Shell, seconds: u64, seed: Option<u64>, more: &[String]) -> anyhow::Result<()> {
    let (seconds, commit) = (seconds.to_string(), shell.commit_name()?);
    let seed = seed.map(|seed| seed.to_string());
    let mut words = vec!["--seconds", &seconds, "--commit", &commit];
    words.extend(seed.iter().flat_map(|seed| ["--seed", seed]));
    words.extend(more.iter().map(String::as_str));
    chaos(shell, &words)
}

/// Servers of a run with several nodes, which breaks them too.
const ONE_BROKER: &[&str] = &["kafka", "redis7", "postgres"];
const THREE_BROKERS: &[&str] = &["kafka", "kafka2", "kafka3", "redis7", "postgres"];

/// Runs the step `cluster`: three nodes over one broker; some devices have the TypeScript client.
pub(crate) fn cluster_short(shell: &Shell) -> anyhow::Result<()> {
    let words = ["--adapter".to_owned(), web::adapter(shell, "cluster-client")?];
    let apart = shell.apart(shell::SERVICES_OF_CHAOS, ONE_BROKER);
    cluster(&apart, CLUSTER_FAULTS_S, Some(shell.seed()?), &words)
}

/// Runs the step `brokers`: three brokers, one of which may break.
pub(crate) fn brokers_short(shell: &Shell) -> anyhow::Result<()> {
    cluster(
        &shell.apart(shell::SERVICES_OF_BROKERS, THREE_BROKERS),
        BROKERS_FAULTS_S,
        Some(shell.seed()?),
        &[],
    )
}

/// Runs the short form, with a given seed if there is one.
pub(crate) fn cluster_again(shell: &Shell, seed: Option<u64>, more: &[String]) -> anyhow::Result<()> {
    cluster(&shell.apart(shell::SERVICES_OF_CHAOS, ONE_BROKER), CLUSTER_FAULTS_S, seed, more)
}

/// Runs the long form: three brokers, faults of up to a minute, clock jumps.
pub(crate) fn cluster_long(
    shell: &Shell,
    seconds: u64,
    seed: Option<u64>,
    more: &[String],
) -> anyhow::Result<()> {
    let words = ["--long".to_owned(), "--faketime".to_owned(), faketime(shell)?.display().to_string()];
    cluster(&shell.apart(shell::SERVICES_OF_CHAOS, THREE_BROKERS), seconds, seed, &[&words, more].concat())
}

/// Injects faults into several nodes and the servers that are started for them.
fn cluster(apart: &Shell, seconds: u64, seed: Option<u64>, more: &[String]) -> anyhow::Result<()> {
    services::with_new(apart, |list| {
        let words = ["--cluster".to_owned(), list.to_owned()];
        run(apart, seconds, seed, &[&words, more].concat())
    })
}

/// Restarts three nodes in turn, `restarts` times in all, under `clients` clients.
pub(crate) fn rolling(shell: &Shell, restarts: usize, clients: usize, more: &[String]) -> anyhow::Result<()> {
    let apart = shell.apart(shell::SERVICES_OF_CHAOS, ONE_BROKER);
    services::with_new(&apart, |list| {
        let (restarts, clients) = (restarts.to_string(), clients.to_string());
        let mut words = vec!["--cluster", list, "--rolling", &restarts, "--clients", &clients];
        words.extend(more.iter().map(String::as_str));
        chaos(&apart, &words)
    })
}

/// Runs the step `rolling`: each node restarts once, the second during a fault that the seed selects.
pub(crate) fn rolling_short(shell: &Shell) -> anyhow::Result<()> {
    let seed = shell.seed()?.to_string();
    let words = ["--seed", &seed, "--with", "kill,redis,kafka"].map(str::to_owned);
    rolling(shell, 3, ROLLING_SHORT, &words)
}

/// Clients of the step `rolling`.
const ROLLING_SHORT: usize = 1_500;

/// The library of Debian's `faketime` for programs with threads.
fn faketime(shell: &Shell) -> anyhow::Result<PathBuf> {
    tools::ensure_program(shell, "faketime", "faketime")?;
    // A folder for each kind of machine.
    let folders = fs::read_dir("/usr/lib")?.filter_map(|entry| Some(entry.ok()?.path()));
    let mut files = folders.map(|folder| folder.join("faketime/libfaketimeMT.so.1"));
    files.find(|file| file.is_file()).context("the package `faketime` has no libfaketimeMT.so.1")
}

/// Drains a node with 10,000 clients under load.
pub(crate) fn drain(shell: &Shell, more: &[String]) -> anyhow::Result<()> {
    let mut words = vec!["--drain", "10000"];
    words.extend(more.iter().map(String::as_str));
    chaos(shell, &words)
}

/// Runs the built program, which finds the node in its own folder. A run that broke a promise keeps the data and logs of
/// the nodes and the history, until the next run of the step.
fn chaos(shell: &Shell, words: &[&str]) -> anyhow::Result<()> {
    // Steps run in parallel.
    let step = env::var(evidence::STEP).unwrap_or_else(|_| "by-hand".to_owned());
    let folder = shell.scratch(&format!("chaos-{step}"))?;
    let mut command = shell.command(shell.built("tidegate-lab"));
    command.arg("chaos").args(words).arg("--directory").arg(&folder);
    let outcome = shell::run(&mut command);
    if outcome.is_err() {
        evidence::keep(shell, &folder.join("history.jsonl"), "history.jsonl");
        let reason = fs::read_to_string(folder.join("failure.txt")).unwrap_or_default().replace('\n', " | ");
        return outcome
            .with_context(|| format!("{reason}; what the nodes kept and logged: {}", folder.display()));
    }
    Ok(fs::remove_dir_all(folder)?)
}
