//! Best-effort messages to other nodes, outside the log: signals, notices, and marker updates for a user's devices.
//! Never awaited.
//!
//! The nodes of users are found by their routes, with one lookup for many messages, and each node gets a signal for
//! those users only that have a session there. While the routes are unavailable, messages go to all peers, for all
//! users; a node without any of them drops them.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
};

use bytes::Bytes;
use tidegate_protocol::{
    codec::PushFrame,
    id::{ConversationId, UserId},
};
use tokio::{runtime::Handle, sync::mpsc};

use super::user_sessions::{self, UserSessions};
use crate::{
    cluster::Cluster,
    link::{BestEffortMessage, BestEffortQueues},
    metrics::Metrics,
    routes::NodeBoot,
    supervised,
};

/// Messages that may wait for the lookup; further ones are dropped.
const QUEUE_ITEMS_MAX: usize = 4_096;

/// Messages that may wait when a signal or notice is accepted; the rest of the queue is for marks.
const QUEUE_SIGNALS_MAX: usize = 3_072;

/// Messages taken from the queue together.
const BATCH_ITEMS_MAX: usize = 512;

/// Recipients, counted for each message, from which no further message is looked up together with the earlier ones.
const LOOKUP_RECIPIENTS_MAX: usize = 8_192;

/// Sender of signals and marker updates to other nodes.
pub struct BestEffortSender {
    items: mpsc::Sender<QueuedItem>,
    metrics: Metrics,
}

/// Queued message, before the nodes are looked up.
struct QueuedItem {
    /// Message; a signal or notice without its users.
    message: BestEffortMessage,
    recipients: Recipients,
}

/// Users that a message is for.
enum Recipients {
    /// Users of a direct conversation or a notice, or the user of a mark.
    Few(Vec<UserId>),
    /// Members of a group, shared with the shard that looked them up.
    Members(Arc<HashSet<UserId>>),
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
        self.signal(conversation, Recipients::Few(users.to_vec()), frame);
    }

    /// Sends a signal of a group to the nodes of these members.
    pub fn signal_to_group(
        &self,
        conversation: &ConversationId,
        members: &Arc<HashSet<UserId>>,
        frame: &PushFrame,
    ) {
        self.signal(conversation, Recipients::Members(Arc::clone(members)), frame);
    }

    fn signal(&self, conversation: &ConversationId, recipients: Recipients, frame: &PushFrame) {
        let (conversation, frame) = (conversation.clone(), Bytes::copy_from_slice(frame.proto()));
        let message = BestEffortMessage::Signal { conversation, users: Vec::new(), frame };
        let has_room = self.items.capacity() > QUEUE_ITEMS_MAX - QUEUE_SIGNALS_MAX;
        if !has_room || self.items.try_send(QueuedItem { message, recipients }).is_err() {
            self.metrics.signals_dropped.increment(1);
        }
    }

    /// Sends a notice about a conversation to the nodes of these users.
    pub fn notice(&self, conversation: &ConversationId, users: &[UserId], frame: &PushFrame) {
        let (conversation, frame) = (conversation.clone(), Bytes::copy_from_slice(frame.proto()));
        let message = BestEffortMessage::Notice { conversation, users: Vec::new(), frame };
        let recipients = Recipients::Few(users.to_vec());
        let has_room = self.items.capacity() > QUEUE_ITEMS_MAX - QUEUE_SIGNALS_MAX;
        if !has_room || self.items.try_send(QueuedItem { message, recipients }).is_err() {
            self.metrics.storm_notices_dropped.increment(1);
        }
    }

    /// Sends a marker update to the user's devices on other nodes.
    pub fn mark(&self, conversation: &ConversationId, user: &UserId, seq: u64, frame: &PushFrame) {
        let frame = Bytes::copy_from_slice(frame.proto());
        let message =
            BestEffortMessage::Mark { conversation: conversation.clone(), user: user.clone(), seq, frame };
        let recipients = Recipients::Few(vec![user.clone()]);
        if self.items.try_send(QueuedItem { message, recipients }).is_err() {
            self.metrics.peer_marks_lost.increment(1);
        }
    }
}

impl BestEffortTask {
    async fn run(self, mut queue: mpsc::Receiver<QueuedItem>) {
        let mut batch = Vec::with_capacity(BATCH_ITEMS_MAX);
        let mut peer_changes = self.cluster.peers.changes();
        loop {
            tokio::select! {
                biased;
                () = peer_changes.changed() => {
                    self.queues.forget_ended(|run| self.cluster.peers.is_live(run));
                    continue;
                }
                count = queue.recv_many(&mut batch, BATCH_ITEMS_MAX) => if count == 0 { return },
            }
            let mut rest = batch.as_slice();
            while !rest.is_empty() {
                let (now, later) = rest.split_at(looked_up_together(rest));
                self.send(now).await;
                rest = later;
            }
            batch.clear();
        }
    }

    /// Looks up the recipients of the items, and enqueues the messages for their nodes.
    async fn send(&self, items: &[QueuedItem]) {
        let peers = self.cluster.peers.others();
        // Without peers no lookup is needed.
        if peers.is_empty() {
            return;
        }
        let users: BTreeSet<&UserId> = items.iter().flat_map(|item| item.recipients.iter()).collect();
        let by_user = user_sessions::lookup(&self.cluster, users).await.unwrap_or_else(|error| {
            tracing::debug!(%error, "routes unavailable; sending signals and marks to all peers");
            None
        });
        for item in items {
            match &by_user {
                Some(by_user) => {
                    for (node, message) in item.by_node(by_user) {
                        self.queues.send(node, message);
                    }
                }
                None => {
                    let message = item.message_for(item.recipients.sorted().cloned().collect());
                    peers.iter().for_each(|row| self.queues.send(&row.info.boot, message.clone()));
                }
            }
        }
    }
}

/// Returns how many of the first items are looked up with one call; at least one.
fn looked_up_together(items: &[QueuedItem]) -> usize {
    let mut recipients = 0;
    let fitting = items.iter().take_while(|item| {
        recipients += item.recipients.len();
        recipients <= LOOKUP_RECIPIENTS_MAX
    });
    fitting.count().max(1)
}

impl QueuedItem {
    /// Returns the message for each node on which a recipient has a session.
    fn by_node<'a>(
        &self,
        by_user: &'a UserSessions,
    ) -> impl Iterator<Item = (&'a NodeBoot, BestEffortMessage)> {
        let mut users: BTreeMap<&NodeBoot, Vec<UserId>> = BTreeMap::new();
        for (node, session) in self.recipients.sorted().filter_map(|user| by_user.get(user)).flatten() {
            let there = users.entry(node).or_default();
            // The sessions of a user follow each other.
            if there.last() != Some(&session.user) {
                there.push(session.user.clone());
            }
        }
        users.into_iter().map(|(node, users)| (node, self.message_for(users)))
    }

    /// Returns the message to a node that has these recipients.
    fn message_for(&self, recipients: Vec<UserId>) -> BestEffortMessage {
        match &self.message {
            BestEffortMessage::Signal { conversation, frame, .. } => BestEffortMessage::Signal {
                conversation: conversation.clone(),
                users: recipients,
                frame: frame.clone(),
            },
            BestEffortMessage::Notice { conversation, frame, .. } => BestEffortMessage::Notice {
                conversation: conversation.clone(),
                users: recipients,
                frame: frame.clone(),
            },
            other => other.clone(),
        }
    }
}

impl Recipients {
    fn len(&self) -> usize {
        match self {
            Self::Few(users) => users.len(),
            Self::Members(members) => members.len(),
        }
    }

    fn iter(&self) -> impl Iterator<Item = &UserId> {
        let (few, members) = match self {
            Self::Few(users) => (users.as_slice(), None),
            Self::Members(members) => ([].as_slice(), Some(members)),
        };
        few.iter().chain(members.into_iter().flat_map(|members| members.iter()))
    }

    /// Returns the users in order: that of a set differs from process to process.
    fn sorted(&self) -> impl Iterator<Item = &UserId> {
        let mut users: Vec<&UserId> = self.iter().collect();
        users.sort_unstable();
        users.into_iter()
    }
}

#[cfg(test)]
mod tests;
