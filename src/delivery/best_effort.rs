//! Best-effort messages to other nodes, outside the log: signals, and marker updates for a user's devices. Never
//! awaited.
//!
//! The nodes of users are found by their routes, with one lookup for many messages. While the routes are unavailable,
//! messages go to all peers, as signals to groups always do; a node without members drops them.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use tidegate_protocol::{
    codec::PushFrame,
    id::{ConversationId, UserId},
};
use tokio::{runtime::Handle, sync::mpsc};

use super::user_sessions;
use crate::{
    cluster::Cluster,
    link::{BestEffortMessage, BestEffortQueues},
    metrics::Metrics,
    routes::NodeBoot,
    supervised,
};

/// Messages that may wait for the lookup; further ones are dropped.
const QUEUE_ITEMS_MAX: usize = 4_096;

/// Messages looked up together.
const LOOKUP_ITEMS_MAX: usize = 512;

/// Sender of signals and marker updates to other nodes.
pub struct BestEffortSender {
    items: mpsc::Sender<QueuedItem>,
    metrics: Metrics,
}

/// Queued message, before the nodes are looked up.
struct QueuedItem {
    message: BestEffortMessage,
    /// Users whose nodes get it; `None` means all peers.
    of_users: Option<Vec<UserId>>,
}

struct BestEffortTask {
    cluster: Arc<Cluster>,
    queues: Arc<BestEffortQueues>,
}

impl BestEffortSender {
    /// Starts the background task on `runtime`.
    pub fn start(
        runtime: &Handle,
        cluster: &Arc<Cluster>,
        queues: Arc<BestEffortQueues>,
        metrics: Metrics,
    ) -> Arc<Self> {
        let (items, queue) = mpsc::channel(QUEUE_ITEMS_MAX);
        let task = BestEffortTask { cluster: Arc::clone(cluster), queues };
        supervised::spawn_on(runtime, "the sender of signals", task.run(queue));
        Arc::new(Self { items, metrics })
    }

    /// Sends a signal of a direct conversation to the nodes of its two users.
    pub fn signal_to_users(&self, conversation: &ConversationId, users: &[UserId], frame: &PushFrame) {
        self.signal(conversation, users.to_vec(), Some(users.to_vec()), frame);
    }

    /// Sends a signal of a group to all peers, for these members.
    pub fn signal_to_group(
        &self,
        conversation: &ConversationId,
        members: impl IntoIterator<Item = UserId>,
        frame: &PushFrame,
    ) {
        self.signal(conversation, members.into_iter().collect(), None, frame);
    }

    fn signal(
        &self,
        conversation: &ConversationId,
        users: Vec<UserId>,
        of_users: Option<Vec<UserId>>,
        frame: &PushFrame,
    ) {
        let (conversation, frame) = (conversation.clone(), Bytes::copy_from_slice(frame.proto()));
        let item = QueuedItem { message: BestEffortMessage::Signal { conversation, users, frame }, of_users };
        if self.items.try_send(item).is_err() {
            self.metrics.signals_dropped.increment(1);
        }
    }

    /// Sends a marker update to the user's devices on other nodes.
    pub fn mark(&self, conversation: &ConversationId, user: &UserId, seq: u64, frame: &PushFrame) {
        let frame = Bytes::copy_from_slice(frame.proto());
        let message =
            BestEffortMessage::Mark { conversation: conversation.clone(), user: user.clone(), seq, frame };
        if self.items.try_send(QueuedItem { message, of_users: Some(vec![user.clone()]) }).is_err() {
            self.metrics.peer_marks_lost.increment(1);
        }
    }
}

impl BestEffortTask {
    async fn run(self, mut queue: mpsc::Receiver<QueuedItem>) {
        let mut batch = Vec::with_capacity(LOOKUP_ITEMS_MAX);
        let mut peer_changes = self.cluster.peers.changes();
        loop {
            tokio::select! {
                biased;
                () = peer_changes.changed() => {
                    self.queues.forget_ended(|run| self.cluster.peers.is_live(run));
                    continue;
                }
                count = queue.recv_many(&mut batch, LOOKUP_ITEMS_MAX) => if count == 0 { return },
            }
            let peers = self.cluster.peers.others();
            // Without peers no lookup is needed.
            if peers.is_empty() {
                batch.clear();
                continue;
            }
            let all: Vec<NodeBoot> = peers.iter().map(|row| row.info.boot.clone()).collect();
            let users = batch.iter().filter_map(|item| item.of_users.as_ref()).flatten().collect();
            let by_user = user_sessions::lookup(&self.cluster, users).await.unwrap_or_else(|error| {
                tracing::debug!(%error, "routes unavailable; sending signals and marks to all peers");
                None
            });
            for item in batch.drain(..) {
                match (&item.of_users, &by_user) {
                    (Some(users), Some(by_user)) => {
                        let sessions = users.iter().filter_map(|user| by_user.get(user)).flatten();
                        let to: BTreeSet<&NodeBoot> = sessions.map(|(node, _)| node).collect();
                        to.into_iter().for_each(|node| self.queues.send(node, item.message.clone()));
                    }
                    _ => all.iter().for_each(|node| self.queues.send(node, item.message.clone())),
                }
            }
        }
    }
}
