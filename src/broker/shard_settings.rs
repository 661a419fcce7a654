//! Settings of the shards of a broker, and the context that shards get.

use std::{sync::Arc, time::Duration};

use tidegate_protocol::machine::session;
use tokio::runtime::Handle;

use super::Broker;
use crate::{
    auth::Verifier,
    conversation::{read_budget::ReadBudget, recall::Recaller},
    limiter::{Limiter, RateLimits},
    net::upgrade,
    shard::{self, Caps},
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
    /// Most devices of a user that are connected at once; 0 for no limit.
    pub devices_per_user: usize,
    /// Rate limits of addresses, users and devices.
    pub rates: RateLimits,
    /// Limits of outboxes.
    pub caps: Caps,
    /// Largest number of bytes that wait in the mailbox of a shard.
    pub mailbox_bytes: usize,
    /// Longest time from the first byte of a frame to its last.
    pub frame_deadline: Duration,
    /// Longest time for which a socket may take no bytes.
    pub write_deadline: Duration,
    /// Time for which input is discarded after the final frame.
    pub linger: Duration,
    /// Origins that may upgrade to WebSocket.
    pub upgrade: upgrade::Policy,
    /// Token verifier.
    pub verifier: Arc<Verifier>,
    /// Time within which a sender may recall a message.
    pub recall_within: Duration,
    /// Message id that triggers a panic in tests; empty for none.
    pub panic_on_msg_id: String,
    /// Whether that panic ends the shard instead of the connection.
    pub panic_in_shard: bool,
}

impl ShardSettings {
    /// Creates settings with the default limits of sessions, no limits on devices and rates, small buffers and deadlines of seconds.
    pub fn new(verifier: Verifier) -> Self {
        Self {
            seed: 0,
            limits: session::SessionLimits::default(),
            devices_per_user: 0,
            rates: RateLimits::default(),
            caps: Caps { control: 128 * 1024, data: 256 * 1024 },
            mailbox_bytes: 1 << 20,
            frame_deadline: Duration::from_secs(10),
            write_deadline: Duration::from_secs(10),
            linger: Duration::from_secs(1),
            upgrade: upgrade::Policy::default(),
            verifier: Arc::new(verifier),
            recall_within: Duration::from_secs(120),
            panic_on_msg_id: String::new(),
            panic_in_shard: false,
        }
    }
}

impl Broker {
    /// Creates the context of the first shard; the others differ in their index. Must run in a runtime.
    pub fn shard_context(&self, settings: ShardSettings) -> shard::Context {
        let me = &self.cluster.me;
        shard::Context {
            index: 0,
            node: me.node.clone(),
            boot: me.boot,
            seed: settings.seed,
            limits: settings.limits,
            small_group_max: self.small_group_max,
            devices_per_user: settings.devices_per_user,
            limiter: Arc::new(Limiter::new(settings.rates, self.metrics.clone())),
            caps: settings.caps,
            mailbox_bytes: settings.mailbox_bytes,
            frame_deadline: settings.frame_deadline,
            write_deadline: settings.write_deadline,
            linger: settings.linger,
            upgrade: settings.upgrade,
            verifier: settings.verifier,
            assigner: Arc::clone(&self.assigner),
            directory: Arc::clone(&self.local.directory),
            handles: Arc::clone(&self.local.handles),
            intake: Arc::clone(&self.intake),
            ack_times: Arc::clone(&self.ack_times),
            cluster: Arc::clone(&self.cluster),
            reads: Arc::new(ReadBudget::new(if self.is_clustered { READS_CLUSTERED } else { READS_SINGLE })),
            user_sends: Arc::default(),
            recaller: Recaller { admin: self.admin.clone(), within: settings.recall_within },
            rooms: Arc::clone(&self.rooms),
            best_effort: self.remote.as_ref().map(|remote| Arc::clone(&remote.best_effort)),
            runtime: Handle::current(),
            metrics: self.metrics.clone(),
            panic_on_msg_id: settings.panic_on_msg_id,
            panic_in_shard: settings.panic_in_shard,
        }
    }
}
