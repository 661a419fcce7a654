//! `tidegate topics`: the topics of a cluster, made on purpose.

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
    what: What,
}

#[derive(clap::Subcommand, Debug)]
enum What {
    /// Make the topics that are missing, as the section kafka says; fail on those that promise less, and say how to mend them
    Ensure(Ensure),
}

#[derive(clap::Args, Debug)]
struct Ensure {
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE", env = "TIDEGATE_CONFIG")]
    config: Option<PathBuf>,
    /// A node whose topic is made as well; may be repeated. Those of node.ids, which nodes lease, are made without being named
    #[arg(long = "node", value_name = "ID")]
    nodes: Vec<String>,
    /// Any configuration key, as section.key=value; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// Makes the topics.
///
/// # Errors
/// A wrong configuration, brokers that don't answer, and topics that are there and promise less.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let What::Ensure(args) = &args.what;
    for node in &args.nodes {
        check_id(node).with_context(|| format!("node {node:?}"))?;
    }
    let config = Config::load(args.config.as_deref(), &args.set)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(ensure(&config, &args.nodes))
}

/// Makes the topics of the log, of these nodes and of all ids that nodes may lease, and prints a line for each.
///
/// # Errors
/// There is no Kafka, its brokers don't answer, or topics are there and promise less.
pub(super) async fn ensure(config: &Config, nodes: &[String]) -> anyhow::Result<()> {
    if config.kafka.brokers.is_empty() {
        bail!("there is no Kafka to make topics on: set node.profile=cluster and kafka.brokers");
    }
    // Who will have which id is not known before.
    let leased = node::leased_ids(config)?;
    let nodes: Vec<String> = nodes.iter().cloned().chain(leased.iter().map(ToString::to_string)).collect();
    let plans = topic_plans(&config.kafka, &nodes);
    let states = ensure_topics(&config.kafka, &plans).await?;
    let mut differ = 0;
    for ((name, state), plan) in states.iter().zip(&plans) {
        match state {
            TopicState::Made => {
                println!("{name}  made: partitions {}, replication {}", plan.partitions, plan.replication)
            }
            TopicState::There => println!("{name}  is there, with all that the settings ask for"),
            TopicState::Differs(how) => {
                differ += 1;
                eprintln!("{how}");
            }
        }
    }
    if differ > 0 {
        bail!("{differ} of {} topics are not as the settings say; nothing was changed on them", plans.len());
    }
    Ok(())
}
