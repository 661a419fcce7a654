//! Read: moves a user's mark forward, and tells the user's other devices (DESIGN 6.6, 6.8).

use std::sync::Arc;

use tidegate_protocol::{
    codec::PushFrame,
    id::{ConversationId, UserId},
    pb::{self, server_frame::Body as Said},
};

use super::{
    history::{Refusal, away},
    read_position::{self, Above},
};
use crate::{
    delivery::best_effort::Beside,
    directory::Directory,
    mail::{Audience, ConnKey, Delivery, Item, Mail, ShardHandles},
    store::{Mark, Personal, Store},
};

/// Marks everything up to `seq` as read, as far as there is something and the user may see it. Gives the new mark if
/// it moved.
///
/// # Errors
/// `NOT_A_MEMBER` for who was never in; `NOT_YET` where nothing was said yet, or `seq` lies above what is known.
pub async fn read(
    store: &dyn Store,
    user: &UserId,
    conversation: &ConversationId,
    seq: u64,
    above: Above,
) -> Result<Option<Mark>, Refusal> {
    let mark = read_position::reach(store, user, conversation, (seq, above), |view| view.mark().seq).await?;
    let Some(mark) = mark else {
        // Whoever moved it may not be confirmed yet.
        store.save_marks(&[]).await.map_err(away)?;
        return Ok(None);
    };
    let change = (user.clone(), conversation.clone(), Personal::Read(mark));
    store.save_marks(&[change]).await.map_err(away)?;
    Ok(Some(mark))
}

/// What the user's other devices hear of a read mark.
pub fn receipt(user: &UserId, conversation: &ConversationId, mark: Mark) -> (u64, Said) {
    let receipt =
        pb::Receipt { conversation: conversation.to_string(), user: user.to_string(), seq: mark.seq };
    (mark.seq, Said::Receipt(receipt))
}

/// How the user's devices are told, here and on other nodes.
pub struct Devices {
    /// Which shards have the user.
    pub directory: Arc<Directory>,
    /// All shards.
    pub shards: ShardHandles,
    /// The way to other nodes; none = there are none.
    pub beside: Option<Arc<Beside>>,
}

impl Devices {
    /// Tells the user's connections other than `actor` what changed, up to a seq. One that misses it learns it at its next
    /// Sync, as does one whose shard has no room for mail, or whose node did not hear of it.
    pub fn tell(
        &self,
        user: &UserId,
        conversation: &ConversationId,
        (seq, said): (u64, Said),
        actor: ConnKey,
    ) {
        let frame = PushFrame::new(&pb::ServerFrame { id: 0, body: Some(said) });
        if let Some(beside) = &self.beside {
            beside.mark(conversation, user, seq, &frame);
        }
        let delivery = Delivery {
            conversation: conversation.clone(),
            seq,
            audience: Audience::Users([user.clone()].into()),
            frame: Arc::new(frame),
            origin: Some(actor),
            tracked: false,
        };
        let Some(shards) = self.shards.get() else { return };
        for shard in self.directory.user(user).iter() {
            if let Some(handle) = shards.get(shard) {
                handle.try_post(Mail::Deliver(vec![Item::Push(delivery.clone())]));
            }
        }
    }
}
