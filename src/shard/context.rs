//! Shard context: the index and limits of a shard, and its handles to the rest of the node.

use std::{future::Future, sync::Arc, time::Duration};

use tidegate_protocol::{id::NodeId, machine::session};
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
    ingest::intake::Intake,
    inline,
    limiter::Limiter,
    mail::{Mail, ShardHandle, ShardHandles},
    metrics::Metrics,
    net::upgrade,
    room::Rooms,
};

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
    /// Limits of sessions.
    pub limits: session::SessionLimits,
    /// Largest member count of a group that takes signals.
    pub small_group_max: usize,
    /// Most devices of a user that are connected at once, in the whole cluster; 0 for no limit.
    pub devices_per_user: usize,
    /// Rate limits, shared by all shards.
    pub limiter: Arc<Limiter>,
    /// Limits of outboxes.
    pub caps: Caps,
    /// Largest number of bytes that wait in the mailbox.
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
    /// Sender of signals and marks to other nodes; `None` on a single node.
    pub best_effort: Option<Arc<BestEffortSender>>,
    /// Services runtime, for futures that are not ready at once.
    pub runtime: Handle,
    /// Metrics of the node.
    pub metrics: Metrics,
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

    /// Runs `work`, whose end nothing waits for.
    pub(super) fn run_detached(&self, work: impl Future<Output = ()> + Send + 'static) {
        inline::run(&self.runtime, work, |()| Box::pin(std::future::ready(())));
    }

    /// Returns the size of the shared read buffer: one frame of the largest size, plus 64 KiB for further input.
    pub(super) fn read_bytes(&self) -> usize {
        self.limits.frame_bytes_max as usize + tidegate_protocol::ws::HEADER_MAX + 64 * 1024
    }
}
