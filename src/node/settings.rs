//! Settings of shards, owners and the client listener, derived from the configuration.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use tidegate_protocol::{
    id::UserId,
    machine::{
        chain::ChainLimits, ledger::LEDGER_NEWEST, presence::PresenceLimits, session, window::WindowLimits,
    },
};

use super::Addresses;
use crate::{
    accept::FirstBytesPolicy,
    auth::Verifier,
    broker::{self, ShardSettings},
    budget::{self, Admission, CacheBudget},
    cluster::Cluster,
    config::{Config, LimitsConfig},
    evidence::GatewayPaths,
    hooks::Hooks,
    limiter::RateLimits,
    limits::RuleSet,
    live::Live,
    load::GateSettings,
    net::upgrade::{self, ForwardedHeader},
    networks::Networks,
    partition::{
        owner,
        retention::{self, FeedRetention, Keep},
        rules,
    },
    private,
    routes::{DevicePolicy, NodeDescription, OnePer},
    shard::{Caps, ConnSettings},
    webhooks::WebhookPolicy,
};

/// Returns the limits of the broker, and the description of the node for its peers.
pub(super) fn broker(config: &Config, addresses: &Addresses, source: &str) -> broker::Settings {
    broker::Settings {
        intake_bytes_max: config.limits.intake_bytes_max,
        devices: devices(config),
        small_group_max: config.limits.small_group_max,
        description: node_description(config, addresses),
        assign_ttl: Duration::from_millis(config.assign.ttl_ms),
        webhooks: WebhookPolicy {
            source: source.to_owned(),
            allows_plain: config.webhooks.allow_plain || config.is_development(),
            content_hosts: config.webhooks.hosts(config.is_development()),
            ca_file: config.webhooks.ca_file.clone(),
            aside_after_ms: Some(config.fault.webhook_aside_ms).filter(|ms| *ms > 0),
        },
        presence: PresenceLimits {
            watched_max: config.limits.watched_max,
            members_max: config.limits.watched_members_max,
            user_watches_max: config.limits.watches_per_user,
            users_per_round: config.limits.presence_users_per_second,
            has_direct: config.limits.watch_direct,
        },
    }
}

/// Returns the limits on the sessions of a user.
fn devices(config: &Config) -> DevicePolicy {
    DevicePolicy {
        // Checked with the configuration.
        one_per: OnePer::named(&config.login.devices).unwrap_or_default(),
        max: config.limits.devices_per_user,
        replaces_oldest: config.login.devices_full == "replace",
    }
}

/// Returns the settings of all shards, whose time begins at `start`.
pub(super) fn shards(
    config: &Config,
    verifier: Arc<Verifier>,
    hooks: Arc<Hooks>,
    start: Instant,
) -> anyhow::Result<ShardSettings> {
    let (limits, fault) = (&config.limits, &config.fault);
    let conns = conn_settings(config);
    let rules = limit_rules(config).map_err(|problems| anyhow::anyhow!(problems.join("\n")))?;
    report_overlaps(&rules);
    Ok(ShardSettings {
        seed: rand::random(),
        limits: conns.limits,
        rates: rate_limits(limits),
        rules,
        room_rules: config.rooms.rules(),
        start,
        caps: conns.caps,
        gates: gates(config),
        mailbox_bytes: limits.mailbox_bytes_max,
        frame_deadline: conns.frame_deadline,
        write_deadline: conns.write_deadline,
        linger: conns.linger,
        upgrade: Arc::new(Live::new(upgrade_policy(config))),
        verifier,
        hooks,
        recall_within: recall_within(limits),
        edit_within: edit_within(limits),
        system_user: system_user(config)?,
        panic_on_msg_id: match fault.panic_in.as_str() {
            "shard" => fault.panic_on_msg_id_in("shard"),
            _ => fault.panic_on_msg_id_in("connection"),
        },
        panic_in_shard: fault.panic_in == "shard",
    })
}

/// Returns the settings of the gates.
fn gates(config: &Config) -> GateSettings {
    let is_archived = config.node.profile == "cluster" && config.log.answers_first().is_none();
    config.overload.gate_settings(is_archived)
}

/// Returns the rules of the file that the configuration names.
///
/// # Errors
/// The file has problems; the error lists all of them, each with the setting and the file.
pub(super) fn limit_rules(config: &Config) -> Result<RuleSet, Vec<String>> {
    let file = &config.limits.rules_file;
    let name = |why: String| private::unusable("limits.rules_file", file, why);
    RuleSet::read(file, limit_wait_max(config)).map_err(|problems| problems.into_iter().map(name).collect())
}

/// Returns the longest wait of a message for a limit: it ends before the deadline of its answer, which the questions to the
/// hooks may have used a part of, before pushes are sent again whose acks are not read meanwhile, and before silence counts.
fn limit_wait_max(config: &Config) -> Duration {
    let (timing, hooks) = (&config.timing, &config.hooks);
    let asked_ms = hooks.asked_ms_max();
    let answered_ms = timing.reply_ms.saturating_sub(asked_ms);
    Duration::from_millis(answered_ms.min(timing.ack_timeout_ms).min(timing.heartbeat_ms)) / 2
}

/// Logs which of the rules that count the same requests refuses first.
pub(super) fn report_overlaps(rules: &RuleSet) {
    for overlap in rules.overlaps() {
        tracing::info!(%overlap, "rules of limits.rules_file overlap");
    }
}

/// Returns the limits and deadlines of connections that begin from now on.
pub(super) fn conn_settings(config: &Config) -> ConnSettings {
    let (limits, timing) = (&config.limits, &config.timing);
    ConnSettings {
        limits: session_limits(config),
        caps: Caps { control: limits.control_bytes_max, data: limits.outbox_bytes_max },
        frame_deadline: Duration::from_millis(timing.frame_ms),
        write_deadline: Duration::from_millis(timing.write_ms),
        linger: Duration::from_millis(timing.linger_ms),
    }
}

/// Returns the user that messages of the admin API have as their sender.
pub(super) fn system_user(config: &Config) -> anyhow::Result<UserId> {
    Ok(UserId::new(&config.api.system_user)?)
}

/// Returns the time within which a sender may edit a message.
pub(super) fn edit_within(limits: &LimitsConfig) -> Duration {
    Duration::from_millis(limits.edit_ms)
}

/// Returns the time within which a sender may recall a message.
pub(super) fn recall_within(limits: &LimitsConfig) -> Duration {
    Duration::from_millis(limits.recall_ms)
}

/// Returns the policy for upgrades to WebSocket.
pub(super) fn upgrade_policy(config: &Config) -> upgrade::Policy {
    upgrade::Policy {
        origins: config.listen.origins.clone(),
        admits_loopback: config.is_development(),
        // Checked with the configuration.
        forwarders: Networks::parse(&config.listen.forwarders).unwrap_or_default(),
        forwarded_header: ForwardedHeader::named(&config.listen.forwarded_header).unwrap_or_default(),
        cookies: config.hooks.login_cookies.clone(),
    }
}

/// Returns the policy for the first bytes of connections.
pub(super) fn first_bytes_policy(config: &Config) -> FirstBytesPolicy {
    FirstBytesPolicy {
        is_tls_required: config.tls.required,
        // Checked with the configuration.
        proxies: Networks::parse(&config.listen.proxies).unwrap_or_default(),
        forwarders: Networks::parse(&config.listen.forwarders).unwrap_or_default(),
    }
}

/// Returns the networks of proxies, which are never banned.
fn exempt(config: &Config) -> Networks {
    let policy = first_bytes_policy(config);
    policy.proxies.with(&policy.forwarders)
}

/// Puts the settings of evidence and bans in force.
pub(super) fn set_evidence(config: &Config, cluster: &Cluster) {
    cluster.bans.set_includes_loopback(config.evidence.loopback);
    cluster.bans.set_exempt(exempt(config));
    cluster.evidence.set_bans(config.evidence.ban);
    let (captcha, login) = (config.evidence.captcha_paths.clone(), config.evidence.login_paths.clone());
    cluster.evidence.set_gateway_paths(GatewayPaths { captcha, login });
}

/// Builds the admission, or refuses to start a node to which no client could connect.
pub(super) fn admission(config: &Config) -> anyhow::Result<Arc<Admission>> {
    let admission = Admission::new(config.limits.conns_max, config.limits.conns_per_ip);
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    let (clients, reserved) = (admission.conns_max(), budget::DESCRIPTORS_RESERVED);
    tracing::info!(files, reserved, clients, "open-file limit, and what it leaves for clients");
    if clients == 0 {
        anyhow::bail!(
            "open-file limit is {files}, but the node itself needs {}, so no client could connect; raise `ulimit -n`",
            budget::DESCRIPTORS_RESERVED
        );
    }
    Ok(admission)
}

/// Returns the settings of the owners.
///
/// # Errors
/// A retention or a version of the rules is invalid.
pub(super) fn owners(config: &Config) -> anyhow::Result<owner::Settings> {
    let section = &config.retention;
    let node = Keep::parse(&section.messages).context("retention.messages: none, 1d, 7d, 30d or forever")?;
    let every = Duration::from_millis(section.sweep_ms);
    let keys = Duration::from_secs(section.keys_days * 86_400);
    let feed = FeedRetention {
        keep: Duration::from_secs(config.events.retention_hours * 3_600),
        bytes_max: config.events.feed_bytes_max,
    };
    let retention = retention::Settings { node, every, keys, feed, wall_ms: crate::clock::wall_ms };
    Ok(owner::Settings {
        small_group_max: config.limits.small_group_max,
        retention,
        rules: rules(config)?,
        // The log of a single node is readable before it is synced, so a record that is read may still be lost.
        answers_first: config.log.answers_first().filter(|_| config.node.profile == "cluster"),
        cache: Arc::new(CacheBudget::new(
            config.limits.ledger_cache_bytes_max,
            budget::memory_limit(config.limits.memory_bytes),
        )),
        panic_on_msg_id: config.fault.panic_on_msg_id_in("owner"),
    })
}

/// Returns the versions of the ledger's rules that the node supports and wants.
///
/// # Errors
/// The wanted version is invalid.
pub(super) fn rules(config: &Config) -> anyhow::Result<rules::Settings> {
    let wanted = config.log.wanted().context("log.rules: `newest` or a version")?;
    let known = if config.fault.rules_max == 0 { LEDGER_NEWEST } else { config.fault.rules_max };
    let has_peers = config.node.profile == "cluster";
    Ok(rules::Settings { known, wanted, settle: config.log.settle(), has_peers })
}

pub(super) fn shard_count(config: &Config) -> usize {
    match config.node.shards {
        0 => thread::available_parallelism().map_or(1, |cores| cores.get()).min(crate::directory::SHARDS_MAX),
        shards => shards,
    }
}

/// Signals of a user, as a multiple of those of a connection: as many as one connection may send in any second, in a
/// burst and after it.
const SIGNALS_OF_USER: u32 = 2;

pub(super) fn rate_limits(limits: &LimitsConfig) -> RateLimits {
    RateLimits {
        address_logins: limits.address_logins_per_second,
        user_logins: limits.user_logins_per_second,
        joins: limits.joins_per_second,
        queries: limits.queries_per_second,
        sends: limits.sends_per_second,
        signals: limits.signals_per_second.saturating_mul(SIGNALS_OF_USER),
        new_conversations: limits.new_conversations_per_minute,
    }
}

fn session_limits(config: &Config) -> session::SessionLimits {
    let (limits, timing) = (&config.limits, &config.timing);
    let ms = Duration::from_millis;
    let u32 = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let heartbeat = ms(timing.heartbeat_ms);
    session::SessionLimits {
        handshake: ms(timing.handshake_ms),
        login_answer: ms(timing.handshake_ms),
        heartbeat,
        heartbeat_min: heartbeat.min(Duration::from_secs(5)),
        heartbeat_max: heartbeat.max(Duration::from_secs(300)),
        frame_bytes_max: u32(limits.frame_bytes_max),
        hello_bytes_max: u32(limits.hello_bytes_max),
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
        frames_per_second: limits.frames_per_second,
        has_watches: limits.watched_max > 0,
        reply_deadline: ms(timing.reply_ms),
        window: WindowLimits {
            count_max: limits.window_max,
            bytes_max: limits.window_bytes_max,
            ack_timeout: ms(timing.ack_timeout_ms),
            tries: u8::try_from(timing.ack_tries).unwrap_or(u8::MAX),
        },
        ..session::SessionLimits::default()
    }
}

/// Returns the description that the node announces to its peers.
fn node_description(config: &Config, addresses: &Addresses) -> NodeDescription {
    let assign = &config.assign;
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
        console: if config.is_development() { addresses.admin_url() } else { String::new() },
    }
}
