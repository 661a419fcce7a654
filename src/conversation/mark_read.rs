//! Read marks: advances a user's read mark, and notifies the user's other devices (SPEC 7).

use std::sync::Arc;

use tidegate_protocol::{
    codec::PushFrame,
    id::{ConversationId, UserId},
    pb::{self, server_frame::Body as FrameBody},
};

use super::read_position::{self, OwnConversation};
use crate::{
    delivery::{best_effort::BestEffortSender, signals::route_signal},
    directory::Directory,
    mail::{Audience, ConnKey, Delivery, Item, Mail, Refusal, ShardHandles, Volatile},
    store::{Mark, Personal},
};

/// Advances the read mark to `seq`, or to the last seq that the user may see. Returns the new mark if it moved.
///
/// # Errors
/// `NOT_A_MEMBER` if the user never was a member; `NOT_YET` if the conversation has no message yet, or may have
/// unstored messages up to `seq`.
pub async fn read(of: OwnConversation<'_>, seq: u64) -> Result<Option<Mark>, Refusal> {
    let mark = read_position::read(of, seq).await?;
    of.save(mark.map(Personal::Read)).await?;
    Ok(mark)
}

/// Returns the seq and the receipt frame for the user's other devices.
pub fn receipt(user: &UserId, conversation: &ConversationId, mark: Mark) -> (u64, FrameBody) {
    let receipt =
        pb::Receipt { conversation: conversation.to_string(), user: user.to_string(), seq: mark.seq };
    (mark.seq, FrameBody::Receipt(receipt))
}

/// Notifier of a user's devices, on this node and on others.
pub struct Devices {
    /// Directory of the shards that have the user.
    pub directory: Arc<Directory>,
    /// Handles of all shards.
    pub shards: ShardHandles,
    /// Sender to other nodes; `None` on a single node.
    pub best_effort: Option<Arc<BestEffortSender>>,
}

impl Devices {
    /// Sends a signal to the other nodes and to the shards of its recipients; a shard with a full mailbox is skipped, and
    /// what the queue to the other nodes has no room for is dropped. Returns the number of shards that were skipped.
    pub fn signal(&self, signal: &Volatile) -> u64 {
        let at = route_signal(signal, &self.directory, self.best_effort.as_deref());
        let shards = self.shards.get();
        let handles = at.iter().filter_map(|shard| shards?.get(shard));
        handles.filter(|handle| !handle.try_post(Mail::Signal(signal.clone()))).count() as u64
    }

    /// Sends a change to the user's connections other than `actor`; to all if an administrator made it. Best effort: a connection that misses it, because
    /// of a full mailbox or a lost message to its node, learns of it at its next `sync`.
    pub fn notify(
        &self,
        user: &UserId,
        conversation: &ConversationId,
        seq: u64,
        body: FrameBody,
        actor: Option<ConnKey>,
    ) {
        let frame = PushFrame::new(&pb::ServerFrame { id: 0, body: Some(body) });
        if let Some(best_effort) = &self.best_effort {
            best_effort.mark(conversation, user, seq, &frame);
        }
        let delivery = Delivery {
            conversation: conversation.clone(),
            seq,
            audience: Audience::Users([user.clone()].into()),
            frame: Arc::new(frame),
            origin: actor,
            tracked: false,
            class: 0,
        };
        let Some(shards) = self.shards.get() else { return };
        for shard in self.directory.user(user).iter() {
            if let Some(handle) = shards.get(shard) {
                handle.try_post(Mail::Deliver(vec![Item::Push(delivery.clone())]));
            }
        }
    }
}
