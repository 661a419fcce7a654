//! Notices about conversations to the connections of users: once, to connections that nothing waits for, and never
//! tracked. A connection that is behind gets none.

use std::sync::Arc;

use tidegate_protocol::{
    codec::PushFrame,
    id::{ConversationId, UserId},
    pb::{self, server_frame::Body},
};

use super::best_effort::BestEffortSender;
use crate::{
    directory::{Directory, ShardSet},
    mail::{Audience, Mail, ShardHandle, ShardHandles, Volatile},
    metrics::Metrics,
};

/// Sender of notices to users of all nodes.
pub struct NoticeSender {
    directory: Arc<Directory>,
    shards: ShardHandles,
    /// `None` without other nodes.
    best_effort: Option<Arc<BestEffortSender>>,
    metrics: Metrics,
}

impl NoticeSender {
    /// Creates a sender. Nothing is sent to local users until `shards` is filled.
    pub fn new(
        directory: Arc<Directory>,
        shards: ShardHandles,
        best_effort: Option<Arc<BestEffortSender>>,
        metrics: Metrics,
    ) -> Self {
        Self { directory, shards, best_effort, metrics }
    }

    /// Sends a notice to all connections of the users, as far as it fits their queues. Never waits.
    pub fn send(&self, conversation: &ConversationId, users: &[UserId], notice: pb::Notice) {
        let frame = Arc::new(PushFrame::new(&pb::ServerFrame { id: 0, body: Some(Body::Notice(notice)) }));
        if let Some(best_effort) = &self.best_effort {
            best_effort.notice(conversation, users, &frame);
        }
        if let Some(shards) = self.shards.get() {
            let dropped = post_notice(&self.directory, shards, conversation.clone(), users, frame);
            self.metrics.storm_notices_dropped.increment(dropped);
        }
    }
}

/// Posts a notice to the shards that have the users. Returns the number of shards that have no capacity for it.
pub(crate) fn post_notice(
    directory: &Directory,
    shards: &[ShardHandle],
    conversation: ConversationId,
    users: &[UserId],
    frame: Arc<PushFrame>,
) -> u64 {
    let mut to = ShardSet::default();
    users.iter().for_each(|user| to.extend(directory.user(user)));
    let notice =
        Volatile { conversation, audience: Audience::Users(users.into()), only: None, frame, origin: None };
    let is_dropped = |shard: &usize| {
        shards.get(*shard).is_some_and(|handle| !handle.try_post(Mail::Signal(notice.clone())))
    };
    to.iter().filter(is_dropped).count() as u64
}
