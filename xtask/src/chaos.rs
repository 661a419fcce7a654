//! `tidegate chaos` of a release build, by name of the commit.

use crate::{
    services,
    shell::{self, Shell},
    steps,
};

/// How long things break in the test run, in seconds; with the quiet at the end and the checker that is below three
/// minutes.
pub(crate) const SHORT: u64 = 90;

/// The same for a cluster: time for each of its faults to come twice.
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

/// Where the servers are that a run with several nodes breaks.
const SERVERS: &str = "chaos-services";

/// Breaks several nodes, and the servers that are started for them.
pub(crate) fn cluster(shell: &Shell, seconds: u64, seed: Option<u64>, more: &[String]) -> anyhow::Result<()> {
    let apart = shell.apart(SERVERS);
    // What a run that was ended left.
    services::down(&apart)?;
    services::with(&apart, || {
        let list = apart.target.join(SERVERS).join("services.json").display().to_string();
        let words = ["--cluster".to_owned(), list];
        run(&apart, seconds, seed, &[&words, more].concat())
    })
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
