//! `tidegate chaos` of a release build, by name of the commit.

use std::{fs, path::PathBuf};

use anyhow::Context as _;

use crate::{
    services,
    shell::{self, Shell},
    steps, tools,
};

/// How long things break in the test run, in seconds; with the quiet at the end and the checker that is below three
/// minutes.
pub(crate) const SHORT: u64 = 90;

/// The same for a cluster, beside half a minute for its servers: time for most of its faults to come twice.
pub(crate) const CLUSTER_SHORT: u64 = 100;

/// The step of `cargo xtask test`: another seed each time, which a failure prints.
pub(crate) fn short(shell: &Shell) -> anyhow::Result<()> {
    run(shell, SHORT, None, &[])
}

/// Breaks things for so long, then checks.
pub(crate) fn run(shell: &Shell, seconds: u64, seed: Option<u64>, more: &[String]) -> anyhow::Result<()> {
    let (commit, _) = shell::output(shell.command("git").args(["describe", "--always", "--dirty"]))?;
    let (seconds, commit) = (seconds.to_string(), commit.trim());
    let seed = seed.map(|seed| seed.to_string());
    let mut words = vec!["--seconds", &seconds, "--commit", commit];
    words.extend(seed.iter().flat_map(|seed| ["--seed", seed]));
    words.extend(more.iter().map(String::as_str));
    chaos(shell, &words)
}

/// Where the servers are that a run with several nodes breaks, and which.
const SERVERS: &str = "chaos-services";
const ONE_BROKER: &[&str] = &["kafka", "redis7", "postgres"];
const THREE_BROKERS: &[&str] = &["kafka", "kafka2", "kafka3", "redis7", "postgres"];

/// The step of `cargo xtask test`: another seed each time, which a failure prints.
pub(crate) fn cluster_short(shell: &Shell) -> anyhow::Result<()> {
    cluster(&shell.apart(SERVERS, ONE_BROKER), CLUSTER_SHORT, None, &[])
}

/// The short form with a seed of choice.
pub(crate) fn cluster_again(shell: &Shell, seed: Option<u64>, more: &[String]) -> anyhow::Result<()> {
    cluster(&shell.apart(SERVERS, ONE_BROKER), CLUSTER_SHORT, seed, more)
}

/// The long form: three brokers, faults of up to a minute, clocks that jump.
pub(crate) fn cluster_long(
    shell: &Shell,
    seconds: u64,
    seed: Option<u64>,
    more: &[String],
) -> anyhow::Result<()> {
    let words = ["--long".to_owned(), "--faketime".to_owned(), faketime(shell)?.display().to_string()];
    cluster(&shell.apart(SERVERS, THREE_BROKERS), seconds, seed, &[&words, more].concat())
}

/// Breaks several nodes, and the servers that are started for them.
fn cluster(apart: &Shell, seconds: u64, seed: Option<u64>, more: &[String]) -> anyhow::Result<()> {
    // What a run that was ended left.
    services::down(apart)?;
    services::with(apart, || {
        let list = apart.target.join(SERVERS).join("services.json").display().to_string();
        let words = ["--cluster".to_owned(), list];
        run(apart, seconds, seed, &[&words, more].concat())
    })
}

/// Restarts three nodes one after the other, so many times, under so many clients.
pub(crate) fn rolling(shell: &Shell, restarts: usize, clients: usize, more: &[String]) -> anyhow::Result<()> {
    let apart = shell.apart(SERVERS, ONE_BROKER);
    services::down(&apart)?;
    services::with(&apart, || {
        let list = apart.target.join(SERVERS).join("services.json").display().to_string();
        let (restarts, clients) = (restarts.to_string(), clients.to_string());
        let mut words = vec!["--cluster", &list, "--rolling", &restarts, "--clients", &clients];
        words.extend(more.iter().map(String::as_str));
        chaos(&apart, &words)
    })
}

/// The step of `cargo xtask test`: each node once, the second while something breaks that differs from run to run.
pub(crate) fn rolling_short(shell: &Shell) -> anyhow::Result<()> {
    rolling(shell, 3, ROLLING_SHORT, &["--with".to_owned(), "kill,redis,kafka".to_owned()])
}

/// Clients of the short form.
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

/// Runs the binary of the step `build`: `cargo run` leaves out the features of the tests, so it would compile a second one.
fn chaos(shell: &Shell, words: &[&str]) -> anyhow::Result<()> {
    shell.cargo(steps::BUILD)?;
    shell::run(shell.command(shell.release("tidegate")).arg("chaos").args(words))
}
