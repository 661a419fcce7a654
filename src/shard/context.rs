//! What a shard is given at start: its number, its limits, and the handles to the rest of the node.

use std::{sync::Arc, time::Duration};

use tidegate_protocol::{id::NodeId, machine::session};
use tokio::runtime::Handle;

use super::outbox::Caps;
use crate::{
    assign::Assigner,
    auth::Verifier,
    conversation::recall::Recaller,
    delivery::best_effort::Beside,
    directory::Directory,
    ingest::intake::Intake,
    mail::{ShardHandle, ShardHandles},
    metrics::Metrics,
    net::upgrade,
    ports::Ports,
    room::Rooms,
};

/// The surroundings of a shard; everything shared is behind an `Arc`.
#[derive(Clone)]
pub struct Context {
    /// Which shard.
    pub index: usize,
    /// The node's name.
    pub node: NodeId,
    /// This run of the node.
    pub boot: u64,
    /// Bounds of sessions.
    pub limits: session::Limits,
    /// Groups up to this many members take signals.
    pub small_group_max: usize,
    /// Bounds of outboxes.
    pub caps: Caps,
    /// Bytes that may wait in its mailbox.
    pub mailbox_bytes: usize,
    /// From the first byte of a frame to its last.
    pub frame_deadline: Duration,
    /// For a socket that takes no bytes.
    pub write_deadline: Duration,
    /// How long input is discarded after the final frame.
    pub linger: Duration,
    /// Who may upgrade to WebSocket.
    pub upgrade: upgrade::Policy,
    /// Checks tokens.
    pub verifier: Arc<Verifier>,
    /// Where clients are sent.
    pub assigner: Arc<Assigner>,
    /// Which shards have whom.
    pub directory: Arc<Directory>,
    /// All shards.
    pub handles: ShardHandles,
    /// The way to the log.
    pub intake: Arc<Intake>,
    /// The five ports.
    pub ports: Arc<Ports>,
    /// Takes messages back.
    pub recaller: Recaller,
    /// Who numbers live rooms, and the nodes that have members of them.
    pub rooms: Arc<Rooms>,
    /// The way of signals and marks to the other nodes; none = there are no other nodes.
    pub beside: Option<Arc<Beside>>,
    /// The services runtime, for futures that must wait.
    pub runtime: Handle,
    /// What is counted.
    pub metrics: Metrics,
    /// A fault for tests; empty = none.
    pub panic_on_msg_id: String,
    /// Whether that fault ends the shard and not only the connection.
    pub panic_in_shard: bool,
}

impl Context {
    /// All shards; empty only while the node starts.
    pub fn shards(&self) -> &[ShardHandle] {
        self.handles.get().map_or(&[], Vec::as_slice)
    }

    /// This shard's own handle.
    pub fn own_handle(&self) -> Option<ShardHandle> {
        self.shards().get(self.index).cloned()
    }

    /// Size of the shared read buffer: a whole frame of the largest size, and room to read on.
    pub(super) fn read_bytes(&self) -> usize {
        self.limits.frame_bytes_max as usize + tidegate_protocol::ws::HEADER_MAX + 64 * 1024
    }
}
