//! Reload of the configuration: reads it again, and puts changed settings in force that need no restart.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::{files, keys, ports, settings};
use crate::{
    accept::FirstBytesPolicy,
    api::{
        access::AdminGate,
        messages::{MessageSender, SenderParts},
        reload::Reload,
    },
    auth::Verifier,
    broker::Broker,
    budget::Admission,
    cluster::Cluster,
    config::{Config, ConfigChanges, ConfigError},
    conversation::recall::Recaller,
    drain::Drainer,
    hooks::{HookSet, Hooks},
    limiter::Limiter,
    limits::RuleGuard,
    live::Live,
    log_limit,
    metrics::Metrics,
    net::{endpoint::ServerTrust, upgrade},
    private,
    room_rules::RoomRules,
    shard::{self, ConnSettings},
    webhooks::Webhooks,
};

/// Parts of a node that a reload changes.
pub(super) struct LiveParts {
    pub(super) shards: LiveShardParts,
    pub(super) admission: Arc<Admission>,
    pub(super) first_bytes: Arc<Live<FirstBytesPolicy>>,
    pub(super) drainer: Arc<Drainer>,
    pub(super) gate: Arc<AdminGate>,
    pub(super) cluster: Arc<Cluster>,
    pub(super) webhooks: Arc<Webhooks>,
}

/// Parts of all shards that a reload changes.
pub(super) struct LiveShardParts {
    verifier: Arc<Verifier>,
    limiter: Arc<Limiter>,
    rules: Arc<RuleGuard>,
    room_rules: Arc<Live<RoomRules>>,
    upgrade: Arc<Live<upgrade::Policy>>,
    conn_settings: Arc<Live<ConnSettings>>,
    recall_within: Arc<Live<Duration>>,
    edit_within: Arc<Live<Duration>>,
    hooks: Arc<Hooks>,
    metrics: Metrics,
}

impl LiveShardParts {
    /// Takes the parts from the context of the shards.
    pub(super) fn of(context: &shard::Context) -> Self {
        Self {
            verifier: Arc::clone(&context.verifier),
            limiter: Arc::clone(&context.limiter),
            rules: Arc::clone(&context.rules),
            room_rules: Arc::clone(&context.room_rules),
            upgrade: Arc::clone(&context.upgrade),
            conn_settings: Arc::clone(&context.conn_settings),
            recall_within: Arc::clone(&context.recaller.within),
            edit_within: Arc::clone(&context.recaller.edit_within),
            hooks: Arc::clone(&context.hooks),
            metrics: context.metrics.clone(),
        }
    }

    /// Returns the rules of all shards.
    pub(super) fn rules(&self) -> &Arc<RuleGuard> {
        &self.rules
    }
}

/// Reloader of a running node.
pub struct Reloader {
    /// Settings in force; locked while they are replaced, so that reloads take turns.
    config: Mutex<Config>,
    parts: LiveParts,
}

impl Reloader {
    /// Creates the reloader of a node that was started with `config`.
    pub(super) fn new(config: &Config, parts: LiveParts) -> Arc<Self> {
        Arc::new(Self { config: Mutex::new(config.clone()), parts })
    }

    /// Returns the guard of the admin port, which a reload changes, too.
    pub(super) fn gate(&self) -> &Arc<AdminGate> {
        &self.parts.gate
    }

    /// Returns the rules of limits, which a reload replaces.
    pub(super) fn rules(&self) -> &Arc<RuleGuard> {
        &self.parts.shards.rules
    }

    /// Creates the sender of messages of the admin API, whose limits are those of clients.
    pub(super) fn message_sender(
        &self,
        config: &Config,
        broker: &Broker,
    ) -> anyhow::Result<Arc<MessageSender>> {
        let shards = &self.parts.shards;
        Ok(Arc::new(MessageSender::new(SenderParts {
            admin: broker.admin.clone(),
            cluster: Arc::clone(&broker.cluster),
            rules: Arc::clone(&shards.rules),
            load: Arc::clone(&broker.load),
            conn_settings: Arc::clone(&shards.conn_settings),
            recaller: Recaller {
                admin: broker.admin.clone(),
                within: Arc::clone(&shards.recall_within),
                edit_within: Arc::clone(&shards.edit_within),
            },
            rooms: Arc::clone(&broker.rooms),
            directory: Arc::clone(broker.directory()),
            shards: broker.shard_handles(),
            metrics: shards.metrics.clone(),
            system_user: settings::system_user(config)?,
            limiter: Arc::clone(&shards.limiter),
            small_group_max: config.limits.small_group_max,
            is_gated: config.overload.gates,
        })))
    }

    /// Puts the settings of the configuration file in force, unless it, or a file that it names, has a problem. `problems`
    /// are those found before.
    fn apply(&self, config: &mut Config, mut problems: Vec<String>) -> Result<ConfigChanges, ConfigError> {
        let (fresh, found) = match config.reread() {
            Ok(reread) => reread,
            Err(ConfigError(found)) => {
                problems.extend(found);
                // Those of the file are unknown.
                add_new(&mut problems, files::problems(config));
                return Err(ConfigError(problems));
            }
        };
        problems.extend(found);
        problems.extend(log_limit::filter(&fresh.log.filter).err().map(|why| format!("log.filter: {why}")));
        add_new(&mut problems, files::problems(&fresh));
        if !problems.is_empty() {
            return Err(ConfigError(problems));
        }
        let (merged, changes) = config.with_live_settings_of(&fresh)?;
        // Nothing changes if one of these parts can't be built.
        let own_keys = ports::token_key(&merged).and_then(|secret| keys::own_keys(&merged.auth, &secret));
        let own_keys = own_keys.map_err(|error| problems.extend(files::lines(&error)));
        let filter = log_limit::filter(&merged.log.filter);
        let filter = filter.map_err(|why| problems.push(format!("log.filter: {why}")));
        let content_bytes_max = merged.limits.content_bytes_max;
        let hooks = HookSet::new(&merged.hooks, content_bytes_max, &self.parts.shards.metrics);
        let hooks = hooks.map_err(|error| problems.push(error.to_string()));
        let rules = settings::limit_rules(&merged).map_err(|found| problems.extend(found));
        let trust = ServerTrust::read(&merged.webhooks.ca_file);
        let trust = trust.map_err(|error| problems.push(format!("webhooks.ca_file: {error}")));
        let built = (own_keys, filter, hooks, rules, trust);
        let (Ok(own_keys), Ok(filter), Ok(hooks), Ok(rules), Ok(trust)) = built else {
            return Err(ConfigError(problems));
        };
        let parts = &self.parts;
        parts.shards.verifier.replace(own_keys, keys::rules(&merged.auth));
        parts.shards.limiter.set_limits(settings::rate_limits(&merged.limits));
        settings::report_overlaps(&rules);
        parts.shards.rules.replace(&rules);
        parts.shards.room_rules.set(merged.rooms.rules());
        parts.admission.set_limits(merged.limits.conns_max, merged.limits.conns_per_ip);
        parts.shards.upgrade.set(settings::upgrade_policy(&merged));
        parts.shards.conn_settings.set(settings::conn_settings(&merged));
        parts.shards.recall_within.set(settings::recall_within(&merged.limits));
        parts.shards.edit_within.set(settings::edit_within(&merged.limits));
        parts.drainer.set_settings(merged.drain_settings());
        parts.shards.hooks.replace(hooks);
        parts.webhooks.set_trust(trust);
        parts.cluster.storms.set_rule(merged.storm.rule(), merged.storm.action());
        parts.cluster.storms.set_room_threshold(merged.storm.room_threshold);
        settings::set_evidence(&merged, &parts.cluster);
        parts.first_bytes.set(settings::first_bytes_policy(&merged));
        if let Some(filter) = filter {
            log_limit::set_filter(filter);
        }
        *config = merged;
        Ok(changes)
    }
}

impl Reload for Reloader {
    fn reload(&self) -> Result<ConfigChanges, ConfigError> {
        let began = Instant::now();
        let mut config = self.config.lock();
        let keys = self.parts.gate.reload();
        let keys = keys.map_err(|why| private::unusable("admin.keys_file", &config.admin.keys_file, why));
        let reloaded = self.apply(&mut config, keys.err().into_iter().collect());
        match &reloaded {
            Ok(ConfigChanges { live, needs_restart }) => {
                let took = began.elapsed();
                tracing::info!(changed = ?live, ?needs_restart, ?took, "configuration read again");
            }
            Err(error) => tracing::error!(
                problems = ?error.0,
                "the configuration can't be used; the former one stays in force"
            ),
        }
        reloaded
    }
}

/// Adds the problems that are not in the list yet. A problem of the file of admin keys is found by the gate, too.
fn add_new(problems: &mut Vec<String>, found: Vec<String>) {
    for problem in found {
        if !problems.contains(&problem) {
            problems.push(problem);
        }
    }
}
