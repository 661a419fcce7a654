//! Large-group subscriber: receives records from the node topic and from local owners, tracks local members, and passes
//! each push to the shards (ADR 15).
//!
//! One task handles records, logins and membership changes one after the other, and posts to the shards in that order.
//! It never holds a whole membership, only the seq up to which the shards' indexes are right. Local members get
//! `Behind` for records that may have been missed: no loss is silent.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use dashmap::DashSet;
use parking_lot::Mutex;
use prost::Message as _;
use std::hash::RandomState;
use tidegate_protocol::{
    id::{ConversationId, UserId},
    pb,
};
use tokio::{
    sync::{mpsc, oneshot},
    time,
};

use crate::{
    bus::NodeFeed,
    cluster::Cluster,
    delivery::{local::LocalDispatcher, memberships::GroupMembership},
    directory::Directory,
    mail::{ConnKey, Delivery},
    metrics::Metrics,
    supervised,
};

mod index;
mod members;
mod missed;
mod task;

pub(crate) use self::missed::MissedRanges;
use self::task::SubscriberTask;

/// Commands that may wait for the task.
const COMMANDS_MAX: usize = 4_096;

/// Bytes of records that may wait for the task.
const QUEUE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// How long the sender of a small group's member change waits for the shards to get it.
const MEMBER_CHANGE_TIMEOUT: Duration = Duration::from_millis(200);

/// Generation of every interest in a group; it never changes, because membership is tracked by seqs.
const INTEREST_GENERATION: u64 = 1;

/// Handle of the subscriber task.
pub struct GroupSubscriber {
    cluster: Arc<Cluster>,
    /// Largest member count of a small group.
    small_max: u64,
    commands: mpsc::Sender<Command>,
    shared: Arc<Shared>,
    metrics: Metrics,
}

/// State shared by the task and its callers.
#[derive(Default)]
struct Shared {
    /// Bytes of queued records.
    queued_bytes: AtomicUsize,
    /// Records that did not fit the queue.
    missed: Mutex<MissedRanges>,
    /// Groups with declared interest: the other nodes know that they have members here.
    declared: DashSet<ConversationId, RandomState>,
}

/// Source of a large-group record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordSource {
    /// Owner on this node; it publishes every record, with or without local members.
    LocalOwner,
    /// Other node, which expects members here.
    Peer,
}

/// Command to the task.
enum Command {
    /// Encoded `FanOut`, and its source.
    Record(Bytes, RecordSource),
    /// Login of a connection that waits for its groups.
    Login(Box<Login>),
    /// Membership change of a small group, from its owner's node: the push, its local delivery, and the waiting sender.
    PeerPush(Box<(pb::Push, Delivery)>, oneshot::Sender<()>),
}

/// Connection that waits for its groups.
struct Login {
    key: ConnKey,
    user: UserId,
    groups: Vec<GroupMembership>,
    /// Gets whether the connection is indexed; false if the indexes are newer than the memberships it read.
    indexed: oneshot::Sender<bool>,
}

impl GroupSubscriber {
    /// Starts the task with the opened node topic; `out` posts to the shards. Must run in a runtime.
    pub fn start(
        cluster: &Arc<Cluster>,
        directory: &Arc<Directory>,
        small_group_max: usize,
        feed: Box<dyn NodeFeed>,
        out: LocalDispatcher,
        metrics: Metrics,
    ) -> Arc<Self> {
        let (commands, queue) = mpsc::channel(COMMANDS_MAX);
        let shared = Arc::new(Shared::default());
        let (small_max, cluster) = (small_group_max as u64, Arc::clone(cluster));
        let task = SubscriberTask::new(
            Arc::clone(&cluster),
            Arc::clone(directory),
            Arc::clone(&shared),
            small_max,
            out,
            metrics.clone(),
        );
        supervised::spawn("the subscriber of large groups", task.run(queue, feed));
        Arc::new(Self { cluster, small_max, commands, shared, metrics })
    }

    /// Queues records of large groups, each an encoded `FanOut`, without waiting. Local members get `Behind` for a
    /// record that does not fit.
    pub fn records(&self, from: RecordSource, records: impl IntoIterator<Item = Bytes>) {
        for record in records {
            let weight = record.len();
            let before = self.shared.queued_bytes.fetch_add(weight, Ordering::Relaxed);
            let is_queued = (before == 0 || before + weight <= QUEUE_BYTES_MAX)
                && self.commands.try_send(Command::Record(record.clone(), from)).is_ok();
            if !is_queued {
                self.shared.queued_bytes.fetch_sub(weight, Ordering::Relaxed);
                self.metrics.fan_outs_lost.increment(1);
                self.shared.missed.lock().add_record(record);
            }
        }
    }

    /// Queues a push of a small group that may change its members, and waits until the shards have it. So the group's
    /// next push comes after it. A task that waits for the store delays the caller by [`MEMBER_CHANGE_TIMEOUT`] at
    /// most.
    pub(crate) async fn apply_peer_push(&self, push: pb::Push, delivery: Delivery) {
        let (applied, is_applied) = oneshot::channel();
        // The task ends with the runtime.
        self.commands.send(Command::PeerPush(Box::new((push, delivery)), applied)).await.ok();
        if time::timeout(MEMBER_CHANGE_TIMEOUT, is_applied).await.is_err() {
            tracing::debug!("membership change still queued; later pushes may overtake it");
        }
    }

    /// Adds a connection to the indexes of its groups, as the store had them; false if it must read them again.
    /// Interest in its large groups is declared before, or else as soon as possible: the user is in this node's index,
    /// interest is declared, and then the client reads (ADR 15).
    pub(crate) async fn login(&self, key: ConnKey, user: &UserId, groups: Vec<GroupMembership>) -> bool {
        let undeclared: Vec<(ConversationId, u64)> = groups
            .iter()
            .filter(|it| it.members > self.small_max && !self.shared.declared.contains(&it.group))
            .map(|it| (it.group.clone(), INTEREST_GENERATION))
            .collect();
        if !undeclared.is_empty() {
            match self.cluster.ports.routes.declare(&self.cluster.me, &undeclared).await {
                Ok(_) => undeclared.into_iter().for_each(|(group, _)| {
                    self.shared.declared.insert(group);
                }),
                Err(error) => tracing::debug!(%error, "failed to declare interest in large groups; retrying"),
            }
        }
        let (indexed, is_indexed) = oneshot::channel();
        let login = Login { key, user: user.clone(), groups, indexed };
        if self.commands.send(Command::Login(Box::new(login))).await.is_err() {
            return true;
        }
        is_indexed.await.unwrap_or(true)
    }
}

/// Encodes the node-topic record for pushes that were left out up to `seq`.
pub(crate) fn hint(group: &str, seq: u64) -> Bytes {
    pb::FanOut { conversation: group.to_owned(), seq, ..Default::default() }.encode_to_vec().into()
}

/// Map keyed by group.
type Groups<T> = HashMap<ConversationId, T, RandomState>;
