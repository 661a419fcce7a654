//! The project's own commands: `cargo xtask test` is what CI and a newcomer run.

mod autobahn;
mod chaos;
mod counts;
mod docs;
mod fuzz;
mod manifests;
mod rehearse;
mod server;
mod services;
mod shell;
mod steps;
mod third_party;
mod tools;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::shell::Shell;

/// The project's own commands.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Flags {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Formatting, lints, tests, conformance, other people's clients and instruction counts.
    Test {
        /// Run these steps only (see --list); the order stays.
        steps: Vec<String>,
        /// Print the steps.
        #[arg(long)]
        list: bool,
    },
    /// Licences, banned crates and sources (installs cargo-deny).
    Deny,
    /// Fuzz every target (installs cargo-fuzz).
    Fuzz {
        /// How long, for each target.
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// Only this target.
        target: Option<String>,
    },
    /// Passes everything on to `tidegate bench` of a release build.
    #[command(disable_help_flag = true)]
    Bench {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Break a node and its network while clients talk, check every promise, print a line for the ledger.
    Chaos {
        /// A minute and a half, as a step of the tests; with --cluster one broker, and faults of at most 10 s.
        #[arg(long, conflicts_with = "seconds")]
        short: bool,
        /// Three nodes over three brokers of Kafka, a Redis and a Postgres that are started for it, and break too, for up to
        /// a minute each.
        #[arg(long, conflicts_with = "drain")]
        cluster: bool,
        /// Only drain a node with 10,000 clients under load.
        #[arg(long, conflicts_with_all = ["seconds", "short"])]
        drain: bool,
        /// Only restart three nodes one after the other, this many times, under 15,000 clients.
        #[arg(long, value_name = "RESTARTS", conflicts_with_all = ["seconds", "short", "drain", "cluster", "seed"])]
        rolling: Option<usize>,
        /// Clients of that.
        #[arg(long, default_value_t = 15_000, requires = "rolling")]
        clients: usize,
        /// How long things break.
        #[arg(long, default_value_t = 120)]
        seconds: u64,
        /// What happens follows from it, but for timing.
        #[arg(long)]
        seed: Option<u64>,
        /// Passed on to `tidegate chaos`.
        #[arg(last = true)]
        args: Vec<String>,
    },
    /// A rollout without a cluster: real processes and clients, by every number of the rendered manifests.
    Rehearse {
        /// The folder of k8s/ that is rendered.
        #[arg(default_value = "base")]
        folder: String,
    },
    /// Real servers for tests and for trying out: Kafka, Redis 7 and 6.2, Postgres, private to this target folder.
    Services {
        #[command(subcommand)]
        what: Services,
    },
    /// Write the pages that are generated from the code.
    Docs {
        /// Only say whether they are current.
        #[arg(long)]
        check: bool,
    },
}

#[derive(Subcommand)]
enum Services {
    /// Install what is missing, start what does not run, write `target/services/services.json`.
    Up,
    /// Stop what `up` started, and remove its data.
    Down,
    /// Say what runs where; fails unless all do.
    Status,
}

fn main() -> ExitCode {
    match run(Flags::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nxtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    let shell = Shell::here()?;
    match command {
        Command::Test { list: true, .. } => {
            steps::list();
            Ok(())
        }
        Command::Test { steps, list: false } => steps::run(&shell, &steps),
        Command::Deny => tools::deny(&shell),
        Command::Fuzz { seconds, target } => fuzz::run(&shell, seconds, target.as_deref()),
        Command::Bench { args } => {
            let mut words = vec!["run", "--release", "--quiet", "--package", "tidegate", "--", "bench"];
            words.extend(args.iter().map(String::as_str));
            shell.cargo(&words)
        }
        Command::Chaos { rolling: Some(restarts), clients, args, .. } => {
            chaos::rolling(&shell, restarts, clients, &args)
        }
        Command::Chaos { drain: true, args, .. } => chaos::drain(&shell, &args),
        Command::Chaos { cluster: true, short: true, seed, args, .. } => {
            chaos::cluster_again(&shell, seed, &args)
        }
        Command::Chaos { cluster: true, seconds, seed, args, .. } => {
            chaos::cluster_long(&shell, seconds, seed, &args)
        }
        Command::Chaos { short: true, seed, args, .. } => chaos::run(&shell, chaos::SHORT, seed, &args),
        Command::Chaos { seconds, seed, args, .. } => chaos::run(&shell, seconds, seed, &args),
        Command::Rehearse { folder } => rehearse::run(&shell, &folder),
        Command::Services { what: Services::Up } => services::up(&shell),
        Command::Services { what: Services::Down } => services::down(&shell),
        Command::Services { what: Services::Status } => match services::status(&shell) {
            true => Ok(()),
            false => anyhow::bail!("not all services run: `cargo xtask services up`"),
        },
        Command::Docs { check } => docs::run(&shell, check),
    }
}
