//! `cargo xtask`: the project's own commands. CI and new contributors run `cargo xtask test`.

mod commands;
mod cpu;
mod evidence;
mod interrupt;
#[allow(dead_code, unreachable_pub, reason = "tests take ports of other ranges, and are programs")]
#[path = "../../tests/support/port.rs"]
mod port;
mod run;
mod rustc;
mod rustdoc;
mod server;
mod services;
mod shell;
mod steps;
mod tools;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::{
    commands::{audit, bench, docs, fuzz, quick, security, soak},
    shell::Shell,
    steps::{chaos, compile, deny, nextest, rehearse},
};

/// The project's own commands.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Flags {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run all checks: formatting, lints, tests, conformance, chaos, third-party clients, instruction counts.
    Test {
        /// Run only these steps (see --list) and those that they need, in the usual order.
        steps: Vec<String>,
        /// Print the steps.
        #[arg(long)]
        list: bool,
        /// Run only formatting, lints, unit tests, stories, simulation, tidy and pages.
        #[arg(long, conflicts_with_all = ["steps", "list"])]
        quick: bool,
    },
    /// Run the tests whose names contain a filter, built as CI builds them, with servers if they need them.
    #[command(name = "t")]
    Matching {
        /// Part of a test's name; `--test NAME` and `--lib` limit the build to these programs. Options of nextest's `run` need
        /// their value in the same word, as in `--retries=3`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        words: Vec<String>,
    },
    /// Run one step in this process; `test` calls it.
    #[command(hide = true)]
    Step { name: String },
    /// Check licences, banned crates and sources (installs cargo-deny).
    Deny,
    /// Look for known vulnerabilities in all dependencies (installs cargo-deny, downloads the database of advisories).
    Audit {
        /// Clone of the database, with its newest state on the branch `main`, where it can't be downloaded.
        #[arg(long, value_name = "FOLDER")]
        database: Option<std::path::PathBuf>,
    },
    /// Fuzz every target (installs cargo-fuzz).
    Fuzz {
        /// Seconds for each target.
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// Fuzz only this target.
        target: Option<String>,
    },
    /// Run `tidegate-lab bench` with these arguments, on programs built for published figures (profile `dist`). For kafka,
    /// redis, cluster and groups, start servers, Kafka with its production JVM, unless --services names some.
    #[command(disable_help_flag = true)]
    Bench {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Break a node and its network under load, check every promise, and print a row for `docs/results/`.
    Chaos(ChaosArgs),
    /// Look at a node as an attacker does: testssl.sh and schemathesis (installed), floods of half-open and slow connections, planted secrets.
    Security {
        /// Only what the step of `test` does.
        #[arg(long)]
        short: bool,
    },
    /// Rehearse a rollout without Kubernetes: real processes and clients, with every number of the rendered manifests.
    Rehearse {
        /// Folder of k8s/ to render.
        #[arg(default_value = "base")]
        folder: String,
    },
    /// Manage real servers for tests and for trying out: Kafka, Redis 7 and 6.2, Postgres, private to this target folder.
    Services {
        #[command(subcommand)]
        what: Services,
    },
    /// Run the checks that are too long for every commit, with fresh seeds: simulation, fuzzing, chaos, three brokers, the
    /// overlays of a cluster with a StatefulSet, growth of memory. Results go to docs/results/.
    Soak {
        /// Minutes for the items whose duration can be chosen; builds and the simulation take another half hour.
        #[arg(long, default_value_t = 60)]
        minutes: u64,
        /// Items to run; all by default.
        items: Vec<String>,
    },
    /// Write the pages that are generated from the code.
    Docs {
        /// Check that they are current, and write nothing.
        #[arg(long)]
        check: bool,
    },
}

#[derive(Args)]
struct ChaosArgs {
    /// Run for 90 s, as the step of `test` does; with --cluster, use one broker and faults of at most 10 s.
    #[arg(long, conflicts_with = "seconds")]
    short: bool,
    /// Run three nodes over three Kafka brokers, a Redis and a Postgres of the run, which break too, for up to a minute
    /// each.
    #[arg(long, conflicts_with = "drain")]
    cluster: bool,
    /// Only drain a node with 10,000 clients under load.
    #[arg(long, conflicts_with_all = ["seconds", "short"])]
    drain: bool,
    /// Only restart three nodes one after the other, this many times, under 15,000 clients.
    #[arg(long, value_name = "RESTARTS", conflicts_with_all = ["seconds", "short", "drain", "cluster", "seed"])]
    rolling: Option<usize>,
    /// Clients of the rolling restarts.
    #[arg(long, default_value_t = 15_000, requires = "rolling")]
    clients: usize,
    /// Seconds during which things break.
    #[arg(long, default_value_t = 120)]
    seconds: u64,
    /// The seed of all random choices; two runs of one seed differ in timing only.
    #[arg(long)]
    seed: Option<u64>,
    /// Arguments for `tidegate-lab chaos`.
    #[arg(last = true)]
    args: Vec<String>,
}

#[derive(Subcommand)]
enum Services {
    /// Install what is missing, start what does not run, write `target/services/services.json`.
    Up,
    /// Stop the servers of every kind of run and remove their data.
    Down,
    /// Print the address of each server; fails unless all run.
    Status,
}

fn main() -> ExitCode {
    let as_a_compiler = rustc::run_if_named().and_then(|()| rustdoc::run_if_named());
    match as_a_compiler.and_then(|()| run(Flags::parse().command)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nxtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    let shell = &Shell::here()?;
    // Two runs would share servers, reports and lists of programs. A step runs under the lock of its run.
    let needs_none = matches!(
        command,
        Command::Step { .. }
            | Command::Test { list: true, .. }
            | Command::Services { what: Services::Status }
    );
    let _lock = shell.lock_target(!needs_none)?;
    rustc::install(&shell.target)?;
    match command {
        // A signal ends it, as the run that started it expects.
        Command::Step { .. } => {}
        Command::Test { list: false, quick: false, .. } => interrupt::watch_all()?,
        _ => interrupt::watch()?,
    }
    match command {
        Command::Test { list: true, .. } => {
            steps::list();
            Ok(())
        }
        Command::Test { quick: true, .. } => quick::run(shell),
        Command::Test { steps, .. } => run::run(shell, &steps),
        Command::Matching { words } => nextest::matching(shell, &words),
        Command::Step { name } => run::in_this_process(shell, &name),
        Command::Deny => deny::run(shell),
        Command::Audit { database } => audit::run(shell, database.as_deref()),
        Command::Fuzz { seconds, target } => fuzz::run(shell, seconds, target.as_deref()),
        Command::Bench { args } => bench::run(shell, &args),
        Command::Chaos(args) => {
            let shell = shell.with_profile("release");
            compile::programs(&shell)?;
            break_things(&shell, &args)
        }
        Command::Security { short } => security::run(shell, short),
        Command::Soak { minutes, items } => soak::run(shell, minutes, &items),
        Command::Rehearse { folder } => {
            let shell = shell.with_profile("release");
            compile::programs(&shell)?;
            rehearse::run(&shell, &folder)
        }
        Command::Services { what: Services::Up } => {
            services::up(&Shell { are_synced: true, ..shell.clone() })
        }
        Command::Services { what: Services::Down } => services::down_everywhere(shell),
        Command::Services { what: Services::Status } => match services::status(shell) {
            true => Ok(()),
            false => anyhow::bail!("not all services run: `cargo xtask services up`"),
        },
        Command::Docs { check } => docs::run(shell, check),
    }
}

/// Runs the chosen form of `cargo xtask chaos`.
fn break_things(shell: &Shell, args: &ChaosArgs) -> anyhow::Result<()> {
    let ChaosArgs { short, cluster, drain, rolling, clients, seconds, seed, args } = args;
    match (rolling, drain, cluster, short) {
        (Some(restarts), ..) => chaos::rolling(shell, *restarts, *clients, args),
        (None, true, ..) => chaos::drain(shell, args),
        (None, false, true, true) => chaos::cluster_again(shell, *seed, args),
        (None, false, true, false) => chaos::cluster_long(shell, *seconds, *seed, args),
        (None, false, false, true) => chaos::run(shell, chaos::SHORT_FAULTS_S, *seed, args),
        (None, false, false, false) => chaos::run(shell, *seconds, *seed, args),
    }
}
