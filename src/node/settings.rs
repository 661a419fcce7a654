//! Settings of shards, owners and the client listener, derived from the configuration.

use std::{sync::Arc, thread, time::Duration};

use anyhow::Context as _;
use tidegate_protocol::machine::{chain::ChainLimits, ledger::LEDGER_NEWEST, session, window::WindowLimits};

use crate::{
    assign::Assigner,
    auth::Verifier,
    budget::{self, Admission},
    cluster::Cluster,
    config::{Assign, Config},
    conversation::recall::Recaller,
    directory::Directory,
    ingest::{admin::Admin, intake::Intake},
    mail::ShardHandles,
    metrics::Metrics,
    net::upgrade,
    partition::{
        owner,
        retention::{self, Keep},
        rules,
    },
    routes::NodeDescription,
    shard::{self, Caps},
};

use super::tasks::UnloggedServices;

/// Dependencies that all shards of a node share.
pub(super) struct ShardDependencies<'a> {
    pub(super) config: &'a Config,
    pub(super) cluster: &'a Arc<Cluster>,
    pub(super) intake: &'a Arc<Intake>,
    pub(super) directory: &'a Arc<Directory>,
    pub(super) handles: &'a ShardHandles,
    pub(super) admin: &'a Admin,
    pub(super) unlogged: &'a UnloggedServices,
    pub(super) assigner: &'a Arc<Assigner>,
}

impl ShardDependencies<'_> {
    pub(super) fn context(
        &self,
        token_key: &[u8],
        runtime: tokio::runtime::Handle,
        metrics: Metrics,
    ) -> shard::Context {
        let config = self.config;
        shard::Context {
            index: 0,
            node: self.cluster.me.node.clone(),
            boot: self.cluster.me.boot,
            limits: session_limits(config),
            small_group_max: config.limits.small_group_max,
            caps: Caps { control: config.limits.control_bytes_max, data: config.limits.outbox_bytes_max },
            mailbox_bytes: config.limits.mailbox_bytes_max,
            frame_deadline: Duration::from_millis(config.timing.frame_ms),
            write_deadline: Duration::from_millis(config.timing.write_ms),
            linger: Duration::from_millis(config.timing.linger_ms),
            upgrade: upgrade::Policy { origins: config.listen.origins.clone() },
            verifier: Arc::new(Verifier::hs256(token_key)),
            assigner: Arc::clone(self.assigner),
            directory: Arc::clone(self.directory),
            handles: Arc::clone(self.handles),
            intake: Arc::clone(self.intake),
            cluster: Arc::clone(self.cluster),
            recaller: Recaller {
                admin: self.admin.clone(),
                within: Duration::from_millis(config.limits.recall_ms),
            },
            rooms: Arc::clone(&self.unlogged.rooms),
            best_effort: self.unlogged.best_effort.clone(),
            runtime,
            metrics,
            panic_on_msg_id: match config.fault.panic_in.as_str() {
                "shard" => config.fault.panic_on_msg_id_in("shard"),
                _ => config.fault.panic_on_msg_id_in("connection"),
            },
            panic_in_shard: config.fault.panic_in == "shard",
        }
    }
}

/// Builds the admission, or refuses to start a node to which no client could connect.
pub(super) fn admission(config: &Config) -> anyhow::Result<Arc<Admission>> {
    let admission = Admission::new(config.limits.conns_max, config.limits.conns_per_ip);
    if admission.conns_max() == 0 {
        let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
        anyhow::bail!(
            "open-file limit is {files}, but the node itself needs {}, so no client could connect; raise `ulimit -n`",
            budget::DESCRIPTORS_RESERVED
        );
    }
    Ok(admission)
}

pub(super) fn owner_settings(config: &Config) -> anyhow::Result<owner::Settings> {
    let section = &config.retention;
    let node = Keep::parse(&section.messages).context("retention.messages: none, 1d, 7d, 30d or forever")?;
    let every = Duration::from_millis(section.sweep_ms);
    let keys = Duration::from_secs(section.keys_days * 86_400);
    let retention = retention::Settings { node, every, keys, wall_ms: crate::clock::wall_ms };
    Ok(owner::Settings {
        small_group_max: config.limits.small_group_max,
        retention,
        rules: rules_settings(config)?,
        // The log of a single node is readable before it is synced, so a record that is read may still be lost.
        answers_first: config.log.answers_first().filter(|_| config.node.profile == "cluster"),
        panic_on_msg_id: config.fault.panic_on_msg_id_in("owner"),
    })
}

fn rules_settings(config: &Config) -> anyhow::Result<rules::Settings> {
    let wanted = config.log.wanted().context("log.rules: `newest` or a version")?;
    let known = if config.fault.rules_max == 0 { LEDGER_NEWEST } else { config.fault.rules_max };
    Ok(rules::Settings { known, wanted, settle: config.log.settle() })
}

pub(super) fn shard_count(config: &Config) -> usize {
    match config.node.shards {
        0 => thread::available_parallelism().map_or(1, |cores| cores.get()).min(crate::directory::SHARDS_MAX),
        shards => shards,
    }
}

fn session_limits(config: &Config) -> session::Limits {
    let (limits, timing) = (&config.limits, &config.timing);
    let ms = Duration::from_millis;
    let u32 = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let heartbeat = ms(timing.heartbeat_ms);
    session::Limits {
        handshake: ms(timing.handshake_ms),
        login_answer: ms(timing.handshake_ms),
        heartbeat,
        heartbeat_min: heartbeat.min(Duration::from_secs(5)),
        heartbeat_max: heartbeat.max(Duration::from_secs(300)),
        frame_bytes_max: u32(limits.frame_bytes_max),
        content_bytes_max: u32(limits.content_bytes_max),
        in_flight_max: limits.in_flight_max as usize,
        chain: ChainLimits {
            hold_max: limits.hold_max as usize,
            hold_bytes_max: limits.hold_bytes_max as usize,
            order_timeout: ms(timing.order_timeout_ms),
        },
        errors_max: u16::try_from(limits.errors_max).unwrap_or(u16::MAX),
        rooms_max: limits.rooms_max as usize,
        signal_bytes_max: u32(limits.signal_bytes_max),
        signals_per_second: limits.signals_per_second,
        reply_deadline: ms(timing.reply_ms),
        window: WindowLimits {
            count_max: limits.window_max,
            bytes_max: limits.window_bytes_max,
            ack_timeout: ms(timing.ack_timeout_ms),
            tries: u8::try_from(timing.ack_tries).unwrap_or(u8::MAX),
        },
        ..session::Limits::default()
    }
}

/// Returns the description that the node announces to its peers.
pub(super) fn node_description(assign: &Assign) -> NodeDescription {
    let version = if assign.version.is_empty() { env!("CARGO_PKG_VERSION") } else { &assign.version };
    NodeDescription {
        weight: assign.weight,
        version: version.to_owned(),
        share: u8::try_from(assign.share).ok(),
        zone: assign.zone.clone(),
        labels: assign.labels.clone(),
        accepts: assign.accepts,
        drain: None,
        node_topic: None,
    }
}
