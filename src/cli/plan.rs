//! `tidegate drain-plan` and `tidegate config`: evaluate, write or show a configuration before a node runs with it.

use std::{
    io::{self, Write as _},
    path::PathBuf,
    time::Duration,
};

use anyhow::{Context as _, bail};
use tidegate_protocol::machine::drain::{self, Plan};

use crate::{
    budget::Admission,
    config::{Config, ConfigError},
    node::{self, LAST_STEPS_MAX},
    private,
};

mod effective;

/// Options that name the sources of the configuration, as for `serve`.
#[derive(clap::Args, Debug)]
pub struct ConfigSource {
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE", env = "TIDEGATE_CONFIG")]
    config: Option<PathBuf>,
    /// Any configuration key, as section.key=value; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// Arguments of `tidegate drain-plan`.
#[derive(clap::Args, Debug)]
pub struct PlanArgs {
    /// Number of clients connected when the drain begins
    #[arg(short, long, value_name = "COUNT", default_value_t = 10_000)]
    conns: usize,
    #[command(flatten)]
    source: ConfigSource,
}

/// Arguments of `tidegate config`.
#[derive(clap::Args, Debug)]
pub struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(clap::Subcommand, Debug)]
enum ConfigCommand {
    /// List all problems of a configuration and of the files that it names, and check that a drain of a full node fits into
    /// the grace period
    Check(CheckArgs),
    /// Write a file with every setting, its default and what it is for
    Init(InitArgs),
    /// Show the settings that are in force, as TOML
    Show(ShowArgs),
}

/// Every setting with its default and its description.
const TEMPLATE: &str = include_str!("../../docs/tidegate.example.toml");

/// Arguments of `tidegate config init`.
#[derive(clap::Args, Debug)]
struct InitArgs {
    /// File to create
    #[arg(default_value = "tidegate.toml")]
    file: PathBuf,
}

/// Arguments of `tidegate config show`.
#[derive(clap::Args, Debug)]
struct ShowArgs {
    /// All settings, not only those that differ from their defaults
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    source: ConfigSource,
}

/// Arguments of `tidegate config check`.
#[derive(clap::Args, Debug)]
struct CheckArgs {
    #[command(flatten)]
    source: ConfigSource,
    /// Seconds between SIGTERM and SIGKILL, such as terminationGracePeriodSeconds of a pod or TimeoutStopSec of a unit
    #[arg(long, value_name = "SECONDS")]
    grace: Option<u64>,
    /// Check no files: those that the configuration names are on another machine
    #[arg(long)]
    without_files: bool,
}

/// Prints the plan of a drain.
///
/// # Errors
/// The configuration is invalid.
pub fn plan(args: &PlanArgs) -> anyhow::Result<()> {
    let config = args.source.load()?;
    let settings = config.drain_settings();
    let plan = drain::plan(args.conns, &settings);
    println!("drain of {} clients", plan.conns);
    println!(
        "  cordoned   {:>7.1} s   accepting, /readyz 503, load balancers stop choosing it",
        seconds(settings.lb_delay)
    );
    println!(
        "  slots      {:>7.1} s   {} clients a second, from the first to the last",
        seconds(plan.window),
        plan.rate
    );
    println!(
        "  a slot     {:>7.1} s   to reconnect elsewhere before the connection closes",
        seconds(plan.handover)
    );
    println!("  flush      {:>7.1} s   at most, after the last client", seconds(settings.flush));
    println!("  deadline   {:>7.1} s   drain.deadline_ms", seconds(settings.deadline));
    println!(
        "  needed     {:>7.1} s   of drain.deadline_ms, at most, for the whole drain at this pace",
        seconds(plan.deadline)
    );
    println!(
        "  grace      {:>7} s   to grant before SIGKILL (terminationGracePeriodSeconds)",
        grace(&plan, settings.deadline)
    );
    if let Some(why) = deadline_problem(&plan, settings.deadline) {
        println!("  {why}");
    }
    Ok(())
}

/// Checks, writes or shows a configuration.
///
/// # Errors
/// The configuration has problems; the error lists all of them, each with its key. Or the file can't be written.
pub fn config(args: &ConfigArgs) -> anyhow::Result<()> {
    match &args.command {
        ConfigCommand::Check(args) => check(args),
        ConfigCommand::Init(args) => init(args),
        ConfigCommand::Show(args) => {
            print!("{}", effective::settings(&args.source.load()?, args.all)?);
            Ok(())
        }
    }
}

/// Writes the file, which must not exist.
fn init(args: &InitArgs) -> anyhow::Result<()> {
    let file = args.file.display();
    // Passwords are often written into it.
    let mut created = match private::options().create_new(true).open(&args.file) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            bail!("{file} exists: name another file")
        }
        created => created.with_context(|| format!("{file} can't be created"))?,
    };
    created.write_all(TEMPLATE.as_bytes()).with_context(|| format!("{file} can't be written"))?;
    println!(
        "{file} has every setting with its default: change what you need, then `tidegate serve --config {file}`"
    );
    Ok(())
}

/// Checks the configuration, the files that it names, and that a drain of a full node fits.
fn check(args: &CheckArgs) -> anyhow::Result<()> {
    let source = &args.source;
    let (config, mut problems) = Config::read(source.config.as_deref(), &source.set)?;
    // A drain with wrong settings can't be planned.
    let drain = problems.is_empty().then(|| FullDrain::plan(&config, args.grace));
    if !args.without_files {
        problems.extend(node::file_problems(&config));
    }
    match drain {
        Some(FullDrain { conns, needed, problems: unfit }) if problems.is_empty() => {
            if !unfit.is_empty() {
                bail!("the configuration is valid, but the drain does not fit:\n  {}", unfit.join("\n  "));
            }
            println!("the configuration is valid; a drain of {conns} clients takes at most {needed} s");
            Ok(())
        }
        drain => {
            problems.extend(drain.into_iter().flat_map(|drain| drain.problems));
            Err(ConfigError(problems).into())
        }
    }
}

/// Plan of the drain of a full node.
struct FullDrain {
    conns: usize,
    /// Longest time, in seconds.
    needed: u64,
    problems: Vec<String>,
}

impl FullDrain {
    /// Plans the drain, and collects the reasons for which it does not fit.
    fn plan(config: &Config, given: Option<u64>) -> Self {
        let conns = Admission::new(config.limits.conns_max, 0).conns_max();
        let settings = config.drain_settings();
        let plan = drain::plan(conns, &settings);
        let mut problems: Vec<String> = deadline_problem(&plan, settings.deadline).into_iter().collect();
        let needed = grace(&plan, settings.deadline);
        if let Some(given) = given.filter(|given| *given < needed) {
            problems.push(format!(
                "--grace {given}: a drain of {conns} clients (limits.conns_max) may take {needed} s; grant that much, or lower \
                 limits.conns_max or drain.deadline_ms"
            ));
        }
        problems.extend(grace_problem(config));
        Self { conns, needed, problems }
    }
}

impl ConfigSource {
    /// Loads the configuration.
    ///
    /// # Errors
    /// It is invalid; the error lists all problems.
    pub(super) fn load(&self) -> anyhow::Result<Config> {
        Ok(Config::load(self.config.as_deref(), &self.set)?)
    }
}

/// Returns why `drain.grace_ms` is too short to drain a full node, with the cure; `None` if it is not.
pub(super) fn grace_problem(config: &Config) -> Option<String> {
    let given = config.drain.grace_ms;
    let conns = Admission::new(config.limits.conns_max, 0).conns_max();
    let settings = config.drain_settings();
    let needed = grace(&drain::plan(conns, &settings), settings.deadline);
    (given > 0 && given < needed * 1_000).then(|| {
        format!(
            "drain.grace_ms {given}: a drain of {conns} clients (limits.conns_max) may take {needed} s, but the process is killed \
             earlier; grant that much (terminationGracePeriodSeconds), or lower limits.conns_max or drain.deadline_ms"
        )
    })
}

/// Returns why the deadline is too short for the plan, with the cure; `None` if it is not.
fn deadline_problem(plan: &Plan, deadline: Duration) -> Option<String> {
    let needed = plan.deadline.as_millis();
    (plan.deadline > deadline).then(|| {
        format!(
            "drain.deadline_ms {}: {} clients need {needed} at drain.max_rate; raise it, or drain.max_rate, or lower \
             limits.conns_max; otherwise clients are closed faster, and the last ones may be cut",
            deadline.as_millis(),
            plan.conns
        )
    })
}

/// Returns the seconds to grant: enough for the plan, and at least for the deadline and the shutdown after it.
fn grace(plan: &Plan, deadline: Duration) -> u64 {
    let whole = plan.grace.max(deadline + LAST_STEPS_MAX);
    whole.as_millis().div_ceil(1_000).try_into().unwrap_or(u64::MAX)
}

fn seconds(span: Duration) -> f64 {
    span.as_secs_f64()
}
