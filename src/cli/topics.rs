//! `tidegate topics`: creates and checks the Kafka topics of a cluster, which nothing else creates.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use tidegate_protocol::id::check_id;

use crate::{
    bus::{TopicState, ensure_topics, topic_plans},
    config::Config,
    node,
};

/// Arguments of `tidegate topics`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Create the missing topics as the section kafka configures them; fail on existing ones that promise less, with
    /// the cure
    Ensure(Ensure),
}

#[derive(clap::Args, Debug)]
struct Ensure {
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE", env = "TIDEGATE_CONFIG")]
    config: Option<PathBuf>,
    /// Node whose topic is created too; may be repeated. Topics for the ids of node.ids, which nodes lease, are
    /// always created
    #[arg(long = "node", value_name = "ID")]
    nodes: Vec<String>,
    /// Any configuration key, as section.key=value; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// Creates the missing topics and checks the others.
///
/// # Errors
/// The configuration is invalid, brokers don't answer, or existing topics promise less.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let Command::Ensure(args) = &args.command;
    for node in &args.nodes {
        check_id(node).with_context(|| format!("node {node:?}"))?;
    }
    let config = Config::load(args.config.as_deref(), &args.set)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(ensure(&config, &args.nodes))
}

/// Creates the topics of the log, of these nodes and of all ids that nodes may lease, and prints a line for each.
///
/// # Errors
/// No Kafka is configured, its brokers don't answer, or existing topics promise less.
pub(super) async fn ensure(config: &Config, nodes: &[String]) -> anyhow::Result<()> {
    if config.kafka.brokers.is_empty() {
        bail!("no Kafka is configured: set node.profile=cluster and kafka.brokers");
    }
    // Any node may lease any of the ids.
    let leased = node::leased_ids(config)?;
    let nodes: Vec<String> = nodes.iter().cloned().chain(leased.iter().map(ToString::to_string)).collect();
    let plans = topic_plans(&config.kafka, &nodes);
    let states = ensure_topics(&config.kafka, &plans).await?;
    let mut differ = 0;
    for ((name, state), plan) in states.iter().zip(&plans) {
        match state {
            TopicState::Made => {
                println!("{name}  created: partitions {}, replication {}", plan.partitions, plan.replication)
            }
            TopicState::There => println!("{name}  exists, with all that the settings ask for"),
            TopicState::Differs(how) => {
                differ += 1;
                eprintln!("{how}");
            }
        }
    }
    if differ > 0 {
        bail!(
            "{differ} of {} topics differ from the settings and were not changed; see above how",
            plans.len()
        );
    }
    Ok(())
}
