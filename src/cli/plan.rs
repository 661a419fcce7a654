//! `tidegate drain-plan` and `tidegate config check`: what a configuration means, before a node runs with it.

use std::{path::PathBuf, time::Duration};

use anyhow::bail;
use tidegate_protocol::machine::drain::{self, Plan};

use crate::{budget::Admission, config::Config, node::LAST_STEPS};

/// Where the configuration comes from, as for `serve`.
#[derive(clap::Args, Debug)]
pub struct From {
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
    /// Clients that are connected when the drain begins
    #[arg(short, long, value_name = "COUNT", default_value_t = 10_000)]
    conns: usize,
    #[command(flatten)]
    from: From,
}

/// Arguments of `tidegate config`.
#[derive(clap::Args, Debug)]
pub struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(clap::Subcommand, Debug)]
enum ConfigCommand {
    /// Say all that is wrong with a configuration, and whether a drain of a full node fits into its time
    Check(CheckArgs),
}

/// Arguments of `tidegate config check`.
#[derive(clap::Args, Debug)]
struct CheckArgs {
    #[command(flatten)]
    from: From,
    /// Seconds between SIGTERM and SIGKILL: terminationGracePeriodSeconds of a pod, TimeoutStopSec of a unit
    #[arg(long, value_name = "SECONDS")]
    grace: Option<u64>,
}

/// Prints the numbers of a drain.
///
/// # Errors
/// Says what is wrong with the configuration.
pub fn plan(args: &PlanArgs) -> anyhow::Result<()> {
    let config = args.from.load()?;
    let settings = config.drain_settings();
    let plan = drain::plan(args.conns, &settings);
    println!("drain of {} clients", plan.conns);
    println!(
        "  cordoned   {:>7.1} s   accepting, /readyz 503, load balancers look elsewhere",
        seconds(settings.lb_delay)
    );
    println!(
        "  slots      {:>7.1} s   {} clients a second, from the first to the last",
        seconds(plan.window),
        plan.rate
    );
    println!("  a slot     {:>7.1} s   to come over before the connection closes", seconds(plan.handover));
    println!("  flush      {:>7.1} s   at most, when nobody is left", seconds(settings.flush));
    println!("  deadline   {:>7.1} s   drain.deadline_ms", seconds(settings.deadline));
    println!(
        "  needed     {:>7.1} s   of drain.deadline_ms, at most, for all of it at this pace",
        seconds(plan.deadline)
    );
    println!(
        "  grace      {:>7} s   to grant before SIGKILL (terminationGracePeriodSeconds)",
        grace(&plan, settings.deadline)
    );
    if let Some(why) = short(&plan, settings.deadline) {
        println!("  {why}");
    }
    Ok(())
}

/// Says whether the configuration is sound.
///
/// # Errors
/// All problems, each with its key.
pub fn config(args: &ConfigArgs) -> anyhow::Result<()> {
    let ConfigCommand::Check(args) = &args.command;
    let config = args.from.load()?;
    let conns = Admission::new(config.limits.conns_max, 0).conns_max();
    let settings = config.drain_settings();
    let plan = drain::plan(conns, &settings);
    let mut problems: Vec<String> = short(&plan, settings.deadline).into_iter().collect();
    let needed = grace(&plan, settings.deadline);
    if let Some(given) = args.grace.filter(|given| *given < needed) {
        problems.push(format!(
            "--grace {given}: a drain of {conns} clients (limits.conns_max) may take {needed} s; grant that much, or lower \
             limits.conns_max or drain.deadline_ms"
        ));
    }
    problems.extend(too_short(&config));
    if !problems.is_empty() {
        bail!("the configuration can be read, but the drain does not fit:\n  {}", problems.join("\n  "));
    }
    println!("the configuration is sound; a drain of {conns} clients takes at most {needed} s");
    Ok(())
}

impl From {
    fn load(&self) -> anyhow::Result<Config> {
        Ok(Config::load(self.config.as_deref(), &self.set)?)
    }
}

/// Why the grace that the configuration names is too short for a full node, with the cure.
pub(super) fn too_short(config: &Config) -> Option<String> {
    let given = config.drain.grace_ms;
    let conns = Admission::new(config.limits.conns_max, 0).conns_max();
    let settings = config.drain_settings();
    let needed = grace(&drain::plan(conns, &settings), settings.deadline);
    (given > 0 && given < needed * 1_000).then(|| {
        format!(
            "drain.grace_ms {given}: a drain of {conns} clients (limits.conns_max) may take {needed} s, and the process is killed \
             before; grant that much (terminationGracePeriodSeconds), or lower limits.conns_max or drain.deadline_ms"
        )
    })
}

/// Why the deadline is too short for so many, with the cure.
fn short(plan: &Plan, deadline: Duration) -> Option<String> {
    let needed = plan.deadline.as_millis();
    (plan.deadline > deadline).then(|| {
        format!(
            "drain.deadline_ms {}: {} clients need {needed} at drain.max_rate; raise it, or drain.max_rate, or lower \
             limits.conns_max; else they are closed faster than that, and the last ones may be cut",
            deadline.as_millis(),
            plan.conns
        )
    })
}

/// Seconds to grant: for the plan, and never less than the deadline, when nobody is left, and what the node does then.
fn grace(plan: &Plan, deadline: Duration) -> u64 {
    let whole = plan.grace.max(deadline + LAST_STEPS);
    whole.as_millis().div_ceil(1_000).try_into().unwrap_or(u64::MAX)
}

fn seconds(span: Duration) -> f64 {
    span.as_secs_f64()
}
