//! The tests: every program that `build` made, one process per case, with real servers running.

use std::{env, fs, path::PathBuf, process::Command, thread::available_parallelism};

use anyhow::{Context as _, bail};
use serde_json::Value;

use super::{Cases, compile, junit};
use crate::{
    evidence, services,
    shell::{self, Shell},
    tools,
};

/// Most tests wait for a timer or another process, so a core has several; `.config/nextest.toml` says which ones compute.
const SLOTS_PER_CORE: usize = 4;

/// There are this many tests at least; fewer mean that some were not found.
const CASES_MIN: usize = 1_400;

/// Test programs that use the servers.
const SERVED: &[&str] = &["bench", "cluster", "conformance", "golden", "versions"];

/// The step of `cargo xtask test`.
pub(crate) fn run(shell: &Shell) -> anyhow::Result<Option<Cases>> {
    let work = || services::with(shell, || shell::run(&mut nextest(shell, "run", &[])?));
    let cases = cases(shell, work)?;
    let count = cases.passed + cases.failed.len();
    if count < CASES_MIN {
        bail!("{count} tests ran, and there are {CASES_MIN} at least: a test program is missing");
    }
    Ok(Some(cases))
}

/// The tests of `cargo xtask test --quick`: those that need no server and no process of a node.
pub(crate) fn quick(shell: &Shell) -> anyhow::Result<Cases> {
    const QUICK: &str = "kind(lib) | kind(bin) | binary(stories) | binary(sim) | binary(tidy) | binary(docs) \
                         | package(tidegate-protocol)";
    cases(shell, || shell::run(&mut nextest(shell, "run", &["--filterset", QUICK])?))
}

/// Runs nextest by `work`, and reads its report.
///
/// # Errors
/// There is no report, or the run failed in another way than by a case.
fn cases(shell: &Shell, work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<Cases> {
    let report = junit_file(shell);
    fs::remove_file(&report).ok();
    let outcome = work();
    if outcome.is_err() {
        evidence::keep(shell, &report, "junit.xml");
    }
    let text = fs::read_to_string(&report).with_context(|| format!("no report {}", report.display()));
    match (outcome, text.map(|text| junit::read(&text))) {
        (outcome, Err(error)) => Err(outcome.err().unwrap_or(error)),
        (Err(error), Ok(cases)) if cases.failed.is_empty() => Err(error),
        (_, Ok(cases)) => Ok(cases),
    }
}

/// The tests of the pages, which write those that are generated if `update` is set.
pub(crate) fn pages(shell: &Shell, update: bool) -> anyhow::Result<()> {
    let tests = |filter: &str| {
        let mut run = nextest(shell, "run", &["--filterset", filter])?;
        shell::run(run.env("TIDEGATE_UPDATE_DOCS", if update { "1" } else { "0" }))
    };
    if update {
        // A node answers the examples of the admin API; its page is written from the answers.
        tests("binary(process) & test(recorded_answers)")?;
    }
    tests("binary(docs)")
}

/// `cargo xtask t`: the tests that match, with the very build of the step `tests`; servers run on for the next call.
pub(crate) fn matching(shell: &Shell, words: &[String]) -> anyhow::Result<()> {
    let Words { chosen, programs: of_chosen, names, options } = Words::split(words);
    compile::chosen(shell, &chosen)?;
    let filters: Vec<&str> = of_chosen.iter().map(String::as_str).chain(names).collect();
    let mut list = nextest(shell, "list", &["--message-format", "json"])?;
    let listed: Value = serde_json::from_str(&shell::stdout(list.args(&filters))?)?;
    let programs = programs(&listed);
    if programs.is_empty() {
        bail!(
            "no test matches {}; a filter is a part of a test's name, e.g. `cluster::crashes`",
            words.join(" ")
        );
    }
    if programs.iter().any(|name| SERVED.contains(&name.as_str())) {
        services::up(shell)?;
    }
    shell::run(nextest(shell, "run", &[])?.args(&filters).args(options))
}

/// The words of `cargo xtask t`, by the program that they are for.
#[derive(Debug, PartialEq, Eq)]
struct Words<'a> {
    /// The test programs to build, for cargo.
    chosen: Vec<&'a str>,
    /// A filter of those programs for nextest, if any were chosen.
    programs: Vec<String>,
    /// Parts of names, and filters (`-E`), for nextest.
    names: Vec<&'a str>,
    /// Options of nextest's `run`.
    options: Vec<&'a str>,
}

impl<'a> Words<'a> {
    fn split(words: &'a [String]) -> Self {
        let (mut chosen, mut names, mut options) = (Vec::new(), Vec::new(), Vec::new());
        let mut programs = Vec::new();
        let mut words = words.iter().map(String::as_str);
        while let Some(word) = words.next() {
            match word {
                "--lib" | "--bins" => {
                    chosen.push(word);
                    programs.push(format!("kind({})", if word == "--lib" { "lib" } else { "bin" }));
                }
                "--test" => {
                    let name = words.next();
                    chosen.extend([word].into_iter().chain(name));
                    programs.extend(name.map(|name| format!("binary({name})")));
                }
                "-E" | "--filterset" => names.extend([word].into_iter().chain(words.next())),
                word if word.starts_with('-') => options.push(word),
                word => names.push(word),
            }
        }
        // Nextest runs what any of several filters matches, so a filter of the caller's stays the only one.
        let has_filter = names.iter().any(|word| word.starts_with('-'));
        let programs = if programs.is_empty() || has_filter {
            Vec::new()
        } else {
            vec!["-E".to_owned(), programs.join(" | ")]
        };
        Self { chosen, programs, names, options }
    }
}

/// The programs that have a matching test.
fn programs(listed: &Value) -> Vec<String> {
    let suites = listed["rust-suites"].as_object().into_iter().flatten();
    let matches = |suite: &Value| {
        let cases = suite["testcases"].as_object().into_iter().flatten();
        cases.into_iter().any(|(_, case)| case["filter-match"]["status"] == "matches")
    };
    let names = suites.filter(|(_, suite)| matches(suite)).map(|(_, suite)| suite["binary-name"].as_str());
    names.flatten().map(str::to_owned).collect()
}

fn junit_file(shell: &Shell) -> PathBuf {
    // Nextest keeps its store there, whatever the target folder is.
    shell.root.join("target/nextest/default/junit.xml")
}

/// Nextest over the programs that were built, which calls no cargo.
fn nextest(shell: &Shell, what: &str, words: &[&str]) -> anyhow::Result<Command> {
    let cores = available_parallelism().map_or(2, usize::from);
    let mut command = shell.command(tools::nextest(shell)?);
    command.args(["nextest", what]);
    command.arg("--binaries-metadata").arg(shell.target.join(compile::BINARIES));
    command.arg("--cargo-metadata").arg(shell.target.join(compile::METADATA));
    if what == "run" {
        command.args(["--test-threads", &(SLOTS_PER_CORE * cores).to_string()]);
    }
    command.args(words).env("CARGO_TARGET_DIR", &shell.target);
    let seed = shell.seed()?.to_string();
    for name in ["TIDEGATE_SEED", "PROPTEST_RNG_SEED"] {
        if env::var_os(name).is_none() {
            command.env(name, &seed);
        }
    }
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_for_cargo_or_for_the_filter() {
        let words = ["--test", "cluster", "crashes::", "--lib", "--no-capture"].map(str::to_owned);
        let programs = vec!["-E".to_owned(), "binary(cluster) | kind(lib)".to_owned()];
        let chosen = vec!["--test", "cluster", "--lib"];
        let split = Words { chosen, programs, names: vec!["crashes::"], options: vec!["--no-capture"] };
        assert_eq!(Words::split(&words), split);
        let words = ["-E", "test(a)", "--test", "cluster"].map(str::to_owned);
        let split = Words::split(&words);
        assert_eq!((split.names, split.programs), (vec!["-E", "test(a)"], Vec::new()));
    }

    #[test]
    fn programs_with_a_match_are_found() {
        let suite = |name: &str, status: &str| serde_json::json!({"binary-name": name, "testcases": {"a": {"filter-match": {"status": status}}}});
        let listed = serde_json::json!({"rust-suites": {
            "tidegate::cluster": suite("cluster", "matches"),
            "tidegate::sim": suite("sim", "mismatch"),
        }});
        assert_eq!(programs(&listed), ["cluster"]);
    }
}
