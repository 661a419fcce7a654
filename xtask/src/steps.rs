//! Steps of `cargo xtask test`: their work, their time budgets, and which of them run in parallel.

mod autobahn;
pub(crate) mod chaos;
pub(crate) mod compile;
pub(crate) mod counts;
pub(crate) mod deny;
mod install;
mod junit;
pub(crate) mod lint;
mod manifests;
pub(crate) mod nextest;
pub(crate) mod rehearse;
pub(crate) mod security;
mod third_party;
mod user;
mod web;

use std::time::Duration;

use crate::shell::Shell;

/// Planned duration of a whole run on two cores; a longer run is reported and does not fail.
pub(crate) const WHOLE_RUN_MAX: Duration = Duration::from_secs(1_500);

/// Step of the test run, executed as a separate process with its own log.
pub(crate) struct TestStep {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    /// Budget on two cores within a whole run; the step fails at twice this. A whole run stays within 25
    /// minutes: a change that adds more than 60 s must save the rest elsewhere.
    pub(crate) budget: Duration,
    pub(crate) needs: Needs,
    /// Whether it runs at low CPU priority.
    pub(crate) gentle: bool,
    /// Returns the cases, if it counts any.
    pub(crate) run: fn(&Shell) -> anyhow::Result<Option<Cases>>,
}

/// Step that must finish before another starts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    Nothing,
    /// The programs of the step `build`.
    Build,
}

/// The cases of a step.
#[derive(Clone, Default)]
pub(crate) struct Cases {
    pub(crate) passed: usize,
    pub(crate) failed: Vec<String>,
    /// Names and seconds, the slowest first.
    pub(crate) slowest: Vec<(String, f64)>,
}

/// Wraps a step that counts no cases.
macro_rules! plain {
    ($run:expr) => {
        |shell| $run(shell).map(|()| None)
    };
}

/// Wraps a step that returns the number of cases that passed; none is a failure.
macro_rules! counted {
    ($run:expr) => {
        |shell| {
            let passed = $run(shell)?;
            anyhow::ensure!(passed > 0, "no case ran");
            Ok(Some(Cases { passed, ..Cases::default() }))
        }
    };
}

const fn step(
    name: &'static str,
    what: &'static str,
    budget: u64,
    needs: Needs,
    run: fn(&Shell) -> anyhow::Result<Option<Cases>>,
) -> TestStep {
    TestStep { name, what, budget: Duration::from_secs(budget), needs, gentle: false, run }
}

/// Builds a step of low CPU priority.
const fn gentle(step: TestStep) -> TestStep {
    TestStep { gentle: true, ..step }
}

/// All steps, in the order in which they are listed.
pub(crate) const STEPS: &[TestStep] = &[
    step("fmt", "cargo fmt --check", 10, Needs::Nothing, plain!(lint::format)),
    step(
        "tools",
        "what the steps need and is missing, into a cache",
        240,
        Needs::Nothing,
        plain!(install::all),
    ),
    step(
        "build",
        "programs, examples and tests, once, for all steps; clippy compiles the tests",
        480,
        Needs::Nothing,
        plain!(compile::all),
    ),
    step(
        "deny",
        "licences, bans and sources of every dependency of the workspace",
        60,
        Needs::Nothing,
        plain!(deny::run),
    ),
    step(
        "schema",
        "buf lint of the wire and record schema; compose.yaml by its schema",
        30,
        Needs::Nothing,
        plain!(third_party::schema),
    ),
    step(
        "web",
        "the TypeScript client and the console: types, size, built page, tests without a node",
        90,
        Needs::Nothing,
        counted!(web::build),
    ),
    step("tests", "all tests, with real Kafka, Redis and Postgres", 430, Needs::Build, nextest::run),
    step(
        "clippy",
        "lints: warnings of the build are errors",
        10,
        Needs::Build,
        plain!(compile::deny_warnings),
    ),
    gentle(step(
        "rustdoc",
        "broken links and examples of the documentation",
        150,
        Needs::Build,
        plain!(lint::rustdoc),
    )),
    gentle(step(
        "fuzz-build",
        "the fuzz targets compile, with their own lock file",
        110,
        Needs::Nothing,
        plain!(lint::fuzz),
    )),
    step(
        "manifests",
        "what k8s/ renders to, its alerts and the Dockerfile: by schemas, and by the binary",
        30,
        Needs::Build,
        plain!(manifests::run),
    ),
    step(
        "chaos",
        "kill -9, broken disks and networks for 90 s, then the checker",
        150,
        Needs::Build,
        counted!(chaos::short),
    ),
    step(
        "cluster",
        "the same for three nodes, and for the Kafka, Redis and Postgres below them",
        170,
        Needs::Build,
        plain!(chaos::cluster_short),
    ),
    step(
        "user",
        "the tests of processes and of the store on disk, as an ordinary user",
        40,
        Needs::Build,
        counted!(user::run),
    ),
    step(
        "brokers",
        "three nodes over three brokers, which break too, for 60 s",
        110,
        Needs::Build,
        plain!(chaos::brokers_short),
    ),
    step(
        "rehearsal",
        "a rollout by the numbers of k8s/, with real processes and clients",
        120,
        Needs::Build,
        plain!(rehearse::step),
    ),
    step(
        "clients",
        "the TypeScript client with a node, and the conformance kit, in two versions of Node and Chromium",
        70,
        Needs::Build,
        counted!(web::clients),
    ),
    step(
        "browser",
        "the console in Chromium, with a node and with a cluster whose nodes are killed",
        120,
        Needs::Build,
        counted!(web::browser),
    ),
    step("autobahn", "WebSocket conformance of examples/ws_echo", 20, Needs::Build, counted!(autobahn::run)),
    step(
        "third-party",
        "other people's clients talk through a node, also behind HAProxy and nginx; OpenSSL's TLS",
        25,
        Needs::Build,
        counted!(third_party::run),
    ),
    step(
        "security",
        "TLS of a node by testssl.sh, its admin API by schemathesis; floods of slow requests; no secret in an output",
        60,
        Needs::Build,
        counted!(security::short),
    ),
    gentle(step(
        "counts",
        "instructions against benches/counts.toml",
        40,
        Needs::Build,
        counted!(counts::run),
    )),
    step(
        "rolling",
        "three nodes restart one after the other under 1,500 clients, one of them while something breaks",
        110,
        Needs::Build,
        plain!(chaos::rolling_short),
    ),
];

/// Schedule: consecutive phases of parallel lanes, whose steps run one after the other. Steps that wait share
/// the machine with steps that compute. Two run alone: `browser`, because a page that gets no processor for 10 s
/// misses the deadline of its handshake, and `rolling`, which judges the pauses of clients.
pub(crate) const PHASES: &[&[&[&str]]] = &[
    &[&["fmt", "build"], &["tools", "deny", "schema", "web"]],
    &[&["tests"], &["clippy", "manifests", "fuzz-build"]],
    &[
        &["chaos", "rehearsal", "autobahn", "third-party"],
        &["cluster", "brokers"],
        &["user", "security", "clients", "counts"],
        &["rustdoc"],
    ],
    &[&["browser"]],
    &[&["rolling"]],
];

/// Returns a step by its name.
pub(crate) fn find(name: &str) -> Option<&'static TestStep> {
    STEPS.iter().find(|step| step.name == name)
}

/// Prints the steps.
pub(crate) fn list() {
    STEPS.iter().for_each(|step| println!("{}", listed(step)));
}

/// Formats a step for `--list`.
pub(crate) fn listed(step: &TestStep) -> String {
    format!("{:<12} {}", step.name, step.what)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn every_step_runs_once_and_behind_what_it_needs() {
        let planned: Vec<&str> = PHASES.iter().copied().flatten().copied().flatten().copied().collect();
        for step in STEPS {
            assert_eq!(planned.iter().filter(|name| **name == step.name).count(), 1, "{}", step.name);
        }
        assert_eq!(planned.len(), STEPS.len());
        let builds = PHASES[0].iter().any(|lane| lane.contains(&"build"));
        assert!(builds, "the first phase builds");
        for name in PHASES[0].iter().copied().flatten() {
            let step = find(name).expect("it is in the list");
            assert!(step.needs != Needs::Build, "{name} may run before the build is done");
        }
    }

    /// The critical path by budgets is the time of a whole run in which nothing takes longer than planned.
    #[test]
    fn the_budgets_add_up_to_25_minutes_at_most() {
        let seconds = |lane: &&[&str]| -> u64 {
            lane.iter().filter_map(|name| find(name)).map(|step| step.budget.as_secs()).sum()
        };
        let all: u64 = PHASES.iter().map(|lanes| lanes.iter().map(seconds).max().unwrap_or(0)).sum();
        assert!(all <= WHOLE_RUN_MAX.as_secs(), "{all} s");
    }
}
