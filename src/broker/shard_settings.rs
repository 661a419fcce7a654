//! Settings of the shards of a broker, and the context that shards get.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tidegate_protocol::{id::UserId, machine::session};
use tokio::runtime::Handle;

use super::Broker;
use crate::{
    auth::Verifier,
    conversation::{read_budget::ReadBudget, recall::Recaller},
    guard::{permits, profiles, rules::StoredRules},
    hooks::Hooks,
    limiter::{Limiter, RateLimits},
    limits::{RuleGuard, RuleSet},
    live::Live,
    load::GateSettings,
    net::upgrade,
    room_rules::RoomRules,
    shard::{self, Caps, ConnSettings},
    supervised,
};

/// Reads of clients that run at once on a node of a cluster, whose store answers many in one statement and bounds its
/// connections itself.
const READS_CLUSTERED: usize = 64;

/// Reads of clients that run at once on a single node, where each blocks a thread that owners need too.
const READS_SINGLE: usize = 32;

/// Settings that all shards of a broker share.
pub struct ShardSettings {
    /// Seed of the random choices of all shards.
    pub seed: u64,
    /// Limits of sessions.
    pub limits: session::SessionLimits,
    /// Rate limits of addresses, users and devices.
    pub rates: RateLimits,
    /// Rules of the operator.
    pub rules: RuleSet,
    /// Rules of live rooms.
    pub room_rules: RoomRules,
    /// Time base of the shards.
    pub start: Instant,
    /// Limits of outboxes.
    pub caps: Caps,
    /// Whether the gates refuse, and from which delay on.
    pub gates: GateSettings,
    /// Largest number of bytes that wait in the mailbox of a shard.
    pub mailbox_bytes: usize,
    /// Longest time from the first byte of a frame to its last.
    pub frame_deadline: Duration,
    /// Longest time for which a socket may take no bytes.
    pub write_deadline: Duration,
    /// Time for which input is discarded after the final frame.
    pub linger: Duration,
    /// Origins that may upgrade to WebSocket.
    pub upgrade: Arc<Live<upgrade::Policy>>,
    /// Token verifier.
    pub verifier: Arc<Verifier>,
    /// Hooks in force.
    pub hooks: Arc<Hooks>,
    /// Time within which a sender may recall a message.
    pub recall_within: Duration,
    /// Time within which a sender may edit a message.
    pub edit_within: Duration,
    /// User that no client can log in as.
    pub system_user: UserId,
    /// Message id that triggers a panic in tests; empty for none.
    pub panic_on_msg_id: String,
    /// Whether that panic ends the shard instead of the connection.
    pub panic_in_shard: bool,
}

impl ShardSettings {
    /// Creates settings with the default limits of sessions, no limits on rates, small buffers and deadlines of seconds.
    pub fn new(verifier: Verifier) -> Self {
        Self {
            seed: 0,
            limits: session::SessionLimits::default(),
            rates: RateLimits::default(),
            rules: RuleSet::default(),
            room_rules: RoomRules::default(),
            start: tokio::time::Instant::now().into_std(),
            caps: Caps { control: 128 * 1024, data: 256 * 1024 },
            gates: GateSettings::default(),
            mailbox_bytes: 1 << 20,
            frame_deadline: Duration::from_secs(10),
            write_deadline: Duration::from_secs(10),
            linger: Duration::from_secs(1),
            upgrade: Arc::default(),
            verifier: Arc::new(verifier),
            hooks: Arc::default(),
            recall_within: Duration::from_secs(120),
            edit_within: Duration::from_secs(900),
            system_user: UserId::new("system").expect("a valid id"),
            panic_on_msg_id: String::new(),
            panic_in_shard: false,
        }
    }
}

impl Broker {
    /// Creates the guard of the rules, and starts to ask for permits if there are other nodes.
    fn rules(&self, settings: &ShardSettings) -> Arc<RuleGuard> {
        let (file, metrics) = (&settings.rules, self.metrics.clone());
        if !self.is_clustered {
            return Arc::new(RuleGuard::new(file, metrics, settings.start));
        }
        let node = permits::node_hash(self.cluster.me.node.as_str());
        let rules = Arc::new(RuleGuard::clustered(file, metrics.clone(), settings.start, node));
        let carrying = permits::carry_asks(Arc::clone(&rules), Arc::clone(&self.cluster), metrics);
        supervised::spawn("the permits of limits", carrying);
        rules
    }

    /// Creates the context of the first shard; the others differ in their index. Must run in a runtime.
    pub fn shard_context(&self, settings: ShardSettings) -> shard::Context {
        let me = &self.cluster.me;
        let rules = self.rules(&settings);
        self.rules.set(Arc::clone(&rules)).ok();
        self.cluster.guard.add_handler(Arc::new(StoredRules::new(Arc::clone(&rules))));
        let keeping =
            profiles::keep_profiles(Arc::clone(&rules), Arc::clone(&self.cluster), self.metrics.clone());
        supervised::spawn("the histories of limits", keeping);
        shard::Context {
            index: 0,
            node: me.node.clone(),
            boot: me.boot,
            seed: settings.seed,
            conn_settings: Arc::new(Live::new(ConnSettings {
                limits: settings.limits,
                caps: settings.caps,
                frame_deadline: settings.frame_deadline,
                write_deadline: settings.write_deadline,
                linger: settings.linger,
            })),
            small_group_max: self.small_group_max,
            devices: self.devices,
            limiter: Arc::new(Limiter::new(settings.rates, self.metrics.clone())),
            rules,
            room_rules: Arc::new(Live::new(settings.room_rules)),
            load: Arc::clone(&self.load),
            gates: settings.gates,
            mailbox_bytes: settings.mailbox_bytes,
            upgrade: settings.upgrade,
            verifier: settings.verifier,
            hooks: settings.hooks,
            assigner: Arc::clone(&self.assigner),
            directory: Arc::clone(&self.local.directory),
            handles: Arc::clone(&self.local.handles),
            intake: Arc::clone(&self.intake),
            ack_times: Arc::clone(&self.ack_times),
            cluster: Arc::clone(&self.cluster),
            reads: Arc::new(ReadBudget::new(if self.is_clustered { READS_CLUSTERED } else { READS_SINGLE })),
            user_sends: Arc::default(),
            recaller: Recaller {
                admin: self.admin.clone(),
                within: Arc::new(Live::new(settings.recall_within)),
                edit_within: Arc::new(Live::new(settings.edit_within)),
            },
            rooms: Arc::clone(&self.rooms),
            watches: Arc::clone(&self.watches),
            best_effort: self.remote.as_ref().map(|remote| Arc::clone(&remote.best_effort)),
            runtime: Handle::current(),
            metrics: self.metrics.clone(),
            system_user: settings.system_user,
            panic_on_msg_id: settings.panic_on_msg_id,
            panic_in_shard: settings.panic_in_shard,
        }
    }
}
