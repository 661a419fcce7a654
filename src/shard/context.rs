//! Shard context: the index and limits of a shard, and its handles to the rest of the node.

use std::{future::Future, sync::Arc, time::Duration};

use tidegate_protocol::{
    id::{NodeId, UserId},
    machine::session,
};
use tokio::runtime::Handle;

use super::outbox::Caps;
use crate::{
    ack_times::AckTimes,
    assign::Assigner,
    auth::Verifier,
    budget::UserSends,
    cluster::Cluster,
    conversation::{read_budget::ReadBudget, recall::Recaller},
    delivery::best_effort::BestEffortSender,
    directory::Directory,
    hooks::Hooks,
    ingest::intake::Intake,
    inline,
    limiter::Limiter,
    limits::RuleGuard,
    live::Live,
    load::{GateSettings, LoadFigures},
    mail::{Mail, ShardHandle, ShardHandles},
    metrics::Metrics,
    net::upgrade,
    presence::PresenceWatches,
    room::Rooms,
    room_rules::RoomRules,
    routes::DevicePolicy,
    supervised,
};

/// Limits and deadlines of a connection, the same from its start to its end.
#[derive(Clone, Debug)]
pub struct ConnSettings {
    /// Limits of its session.
    pub limits: session::SessionLimits,
    /// Limits of its outbox.
    pub caps: Caps,
    /// Longest time from the first byte of a frame to its last.
    pub frame_deadline: Duration,
    /// Longest time for which the socket may take no bytes.
    pub write_deadline: Duration,
    /// Time for which input is discarded after the final frame.
    pub linger: Duration,
}

/// Dependencies and settings of a shard; everything shared is behind an `Arc`.
#[derive(Clone)]
pub struct Context {
    /// Index of the shard.
    pub index: usize,
    /// Name of the node.
    pub node: NodeId,
    /// Id of the node's run.
    pub boot: u64,
    /// Seed of the random choices of all shards of this run.
    pub seed: u64,
    /// Limits and deadlines of connections that begin from now on.
    pub conn_settings: Arc<Live<ConnSettings>>,
    /// Largest member count of a group that takes signals.
    pub small_group_max: usize,
    /// Limits on the sessions of one user, in the whole cluster.
    pub devices: DevicePolicy,
    /// Rate limits, shared by all shards.
    pub limiter: Arc<Limiter>,
    /// Rules of the operator, shared by all shards and the admin port.
    pub rules: Arc<RuleGuard>,
    /// Rules of live rooms.
    pub room_rules: Arc<Live<RoomRules>>,
    /// Load of the node, as its shards measure it.
    pub load: Arc<LoadFigures>,
    /// Whether the gates refuse, and from which delay on.
    pub gates: GateSettings,
    /// Largest number of bytes that wait in the mailbox.
    pub mailbox_bytes: usize,
    /// Origins that may upgrade to WebSocket.
    pub upgrade: Arc<Live<upgrade::Policy>>,
    /// Token verifier.
    pub verifier: Arc<Verifier>,
    /// Hooks in force.
    pub hooks: Arc<Hooks>,
    /// Assigner of clients to nodes.
    pub assigner: Arc<Assigner>,
    /// Directory of the shards that have a user or a conversation's members.
    pub directory: Arc<Directory>,
    /// Mailbox handles of all shards.
    pub handles: ShardHandles,
    /// Intake of the log.
    pub intake: Arc<Intake>,
    /// Times from sends to their acks.
    pub ack_times: Arc<AckTimes>,
    /// Ports of the node, and its view of the cluster.
    pub cluster: Arc<Cluster>,
    /// Bound on the reads of clients.
    pub reads: Arc<ReadBudget>,
    /// Bound on the sends in flight of users, shared by all shards.
    pub user_sends: Arc<UserSends>,
    /// Checker and sender of recalls.
    pub recaller: Recaller,
    /// Numbers of live rooms, and the nodes that have members of them.
    pub rooms: Arc<Rooms>,
    /// Watches of who of a conversation is online.
    pub watches: Arc<PresenceWatches>,
    /// Sender of signals and marks to other nodes; `None` on a single node.
    pub best_effort: Option<Arc<BestEffortSender>>,
    /// Services runtime, for futures that are not ready at once.
    pub runtime: Handle,
    /// Metrics of the node.
    pub metrics: Metrics,
    /// User that no client can log in as.
    pub system_user: UserId,
    /// Message id that triggers a panic in tests; empty for none.
    pub panic_on_msg_id: String,
    /// Whether that panic ends the shard instead of the connection.
    pub panic_in_shard: bool,
}

impl Context {
    /// Returns the handles of all shards; empty only while the node starts.
    pub fn shards(&self) -> &[ShardHandle] {
        self.handles.get().map_or(&[], Vec::as_slice)
    }

    /// Returns this shard's own handle.
    pub fn own_handle(&self) -> Option<ShardHandle> {
        self.shards().get(self.index).cloned()
    }

    /// Returns the output of `work` if it is ready now. Otherwise the services runtime completes it, and the output
    /// comes back to this shard in `mail`.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
        mail: impl FnOnce(T) -> Mail + Send + 'static,
    ) -> Option<T> {
        let home = self.own_handle();
        inline::run(&self.runtime, work, move |output| {
            Box::pin(async move {
                if let Some(home) = home {
                    home.post(mail(output)).await.ok();
                }
            })
        })
    }

    /// Completes `work` on the services runtime, and passes its output to this shard in `mail`.
    pub(super) fn run_later<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
        mail: impl FnOnce(T) -> Mail + Send + 'static,
    ) {
        let home = self.own_handle();
        supervised::spawn_on(&self.runtime, "a question of a shard", async move {
            let output = work.await;
            if let Some(home) = home {
                home.post(mail(output)).await.ok();
            }
        });
    }

    /// Runs `work`, whose end nothing waits for.
    pub(super) fn run_detached(&self, work: impl Future<Output = ()> + Send + 'static) {
        inline::run(&self.runtime, work, |()| Box::pin(std::future::ready(())));
    }

    /// Returns the size of the shared read buffer: one frame of the largest size, plus 64 KiB for further input. That
    /// size does not change while the node runs.
    pub(super) fn read_bytes(&self) -> usize {
        self.conn_settings.get().limits.frame_bytes_max as usize
            + tidegate_protocol::ws::HEADER_MAX
            + 64 * 1024
    }
}
