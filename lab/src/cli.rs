//! The command line: measure, break, check.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Context as _;
use clap::{Parser, Subcommand};

use crate::{
    attack, bench, chaos,
    checker::{self, Budget, History, planted},
    hostile, kit,
};

/// Load generator, fault injection and history checker of Tidegate.
#[derive(Parser, Debug)]
#[command(name = "tidegate-lab", version, about, after_help = EXAMPLES, disable_help_subcommand = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  tidegate-lab bench fanout --quick              one scenario; shows that it works
  tidegate-lab chaos --seconds 60 --history run  break a node for a minute, and check
  tidegate-lab check run                         check that history again
  tidegate-lab hostile --before OLD              what attacks cost an honest pair, on two versions
  tidegate-lab attack --node 127.0.0.1:7800      whether a node stops hostile clients by itself
  tidegate-lab kit --adapter \"COMMAND\" --level L1  whether a client library keeps the protocol

The node is the program `tidegate` in the same folder, unless an option names another one.";

#[derive(Subcommand, Debug)]
enum Command {
    /// Measure a node against raw loops of system calls, in one run
    Bench(bench::Args),
    /// Break a node and its network, then check every promise from what clients saw and what the log holds
    Chaos(chaos::Args),
    /// Attack a node as hostile clients do, and measure what that costs an honest pair
    Hostile(hostile::Args),
    /// Attack a running node, and check that it defends itself: flood, probing, spam, order abuse, a storm
    Attack(attack::Args),
    /// Judge a client library by the cases of a scripted node
    Kit(kit::Args),
    /// Serve the kit with a small client, whose faults the kit has to find
    KitReference(kit::reference::Args),
    /// Check a history that `chaos --history` recorded
    Check(CheckArgs),
}

#[derive(clap::Args, Debug)]
struct CheckArgs {
    /// The history, as JSON lines
    #[arg(value_name = "FILE")]
    history: PathBuf,
    /// Then plant losses into it, each of which the checker has to name
    #[arg(long)]
    planted: bool,
}

/// Parses the arguments and runs the command. The exit code is 0 when it is done, 1 when it failed, and 2 for wrong
/// usage.
pub fn main() -> ExitCode {
    tidegate::cli::end_with_reader();
    let result = match Cli::parse().command {
        Command::Bench(args) => bench::run(&args),
        Command::Chaos(args) => chaos::run(&args),
        Command::Hostile(args) => hostile::run(&args),
        Command::Attack(args) => attack::run(&args),
        Command::Kit(args) => kit::run(&args),
        Command::KitReference(args) => kit::reference::run(&args),
        Command::Check(args) => check(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tidegate-lab: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn check(args: &CheckArgs) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(&args.history).with_context(|| args.history.display().to_string())?;
    if args.planted {
        let named = planted::all_named(&text)?;
        println!("{named} planted losses were named");
        return Ok(());
    }
    checker::check(&History::parse(&text)?, Budget::default()).judge()
}
