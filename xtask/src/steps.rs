//! The steps of `cargo xtask test`: in order, timed, the first failure ends it.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use crate::{autobahn, chaos, counts, manifests, rehearse, services, shell::Shell, third_party, tools};

type Run = fn(&Shell) -> anyhow::Result<()>;

/// The release build that all later steps use.
pub(crate) const BUILD: &[&str] = &["build", "--release", "--package", "tidegate", "--bins", "--examples"];

/// What the tests are built with beside the default: Kafka's TLS and SCRAM, which want the system's OpenSSL (ADR 8).
const ALL: &str = "tidegate/kafka-tls";

/// Cheap ones first, so that a slip is told within a minute.
const STEPS: &[(&str, &str, Run)] = &[
    ("fmt", "cargo fmt --check", |shell| shell.cargo(&["fmt", "--all", "--check"])),
    ("clippy", "lints, warnings are errors", |shell| {
        tools::ensure_openssl(shell)?;
        shell.cargo(&["clippy", "--workspace", "--all-targets", "--features", ALL, "--", "-D", "warnings"])
    }),
    ("deny", "licences, bans and sources of every dependency", tools::deny),
    ("schema", "buf lint of the wire and record schema; compose.yaml by its schema", third_party::schema),
    ("tests", "cargo test --workspace, beside real Kafka, Redis and Postgres", |shell| {
        tools::ensure_openssl(shell)?;
        services::with(shell, || shell.cargo(&["test", "--workspace", "--features", ALL]))
    }),
    ("build", "release build and examples", |shell| shell.cargo(BUILD)),
    (
        "manifests",
        "what k8s/ renders to, its alerts and the Dockerfile: by schemas, and by the binary",
        manifests::run,
    ),
    ("rehearsal", "a rollout by the numbers of k8s/, with real processes and clients", rehearse::step),
    ("autobahn", "WebSocket conformance of examples/ws_echo", autobahn::run),
    ("third-party", "other people's clients talk through a node", third_party::run),
    ("chaos", "kill -9, broken disks and networks for 90 s, then the checker", chaos::short),
    (
        "cluster",
        "the same for three nodes, and for the Kafka, Redis and Postgres below them",
        chaos::cluster_short,
    ),
    (
        "rolling",
        "three nodes restart one after the other under 1,500 clients, one of them while something breaks",
        chaos::rolling_short,
    ),
    ("counts", "instructions against benches/counts.toml", counts::run),
];

/// Prints the names.
pub(crate) fn list() {
    for (name, what, _) in STEPS {
        println!("{}", listed(name, what));
    }
}

fn listed(name: &str, what: &str) -> String {
    format!("{name:<12} {what}")
}

/// Runs the steps named, all when none is.
pub(crate) fn run(shell: &Shell, wanted: &[String]) -> anyhow::Result<()> {
    if let Some(unknown) = wanted.iter().find(|name| !STEPS.iter().any(|(step, ..)| step == name)) {
        let known: Vec<&str> = STEPS.iter().map(|(name, ..)| *name).collect();
        bail!("there is no step `{unknown}`; the steps are {}", known.join(", "));
    }
    let chosen = STEPS.iter().filter(|(name, ..)| wanted.is_empty() || wanted.iter().any(|w| w == name));
    let mut timed: Vec<(&str, Duration)> = Vec::new();
    for (name, what, step) in chosen {
        eprintln!("\n== {name}: {what}");
        let start = Instant::now();
        let outcome = step(shell);
        timed.push((name, start.elapsed()));
        if outcome.is_err() {
            print_table(&timed, Some(name));
        }
        outcome.with_context(|| format!("step `{name}` failed; alone: cargo xtask test {name}"))?;
    }
    print_table(&timed, None);
    Ok(())
}

fn print_table(timed: &[(&str, Duration)], failed: Option<&str>) {
    println!("\n{:<12} {:>8}", "step", "seconds");
    for (name, took) in timed {
        let verdict = if failed == Some(*name) { "FAILED" } else { "ok" };
        println!("{name:<12} {:>8.1}  {verdict}", took.as_secs_f64());
    }
    let total: Duration = timed.iter().map(|(_, took)| *took).sum();
    println!("{:<12} {:>8.1}", "total", total.as_secs_f64());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readme_shows_the_steps() {
        let shell = Shell::here().expect("cargo names the crate");
        let readme = std::fs::read_to_string(shell.root.join("README.md")).expect("a README");
        let lines: Vec<String> = STEPS.iter().map(|(name, what, _)| listed(name, what)).collect();
        assert!(readme.contains(&lines.join("\n")), "README.md lists other steps than {lines:#?}");
    }
}
