//! Clear: truncates a conversation for one user, on all devices, without effect for other users (SPEC 7).

use tidegate_protocol::{
    id::{ConversationId, UserId},
    pb::{self, server_frame::Body as FrameBody},
};

use super::{
    read_position::{self, BeyondHead},
    refusal::store_unavailable,
};
use crate::{
    mail::Refusal,
    store::{Mark, Personal, Store},
};

/// Clears the conversation up to `seq`, or to its end. Returns the new position if it moved; it only moves forward.
///
/// # Errors
/// `NOT_A_MEMBER` if the user never was a member; `NOT_YET` if the conversation has no message yet, or may have
/// unstored messages up to `seq`.
pub async fn clear(
    store: &dyn Store,
    user: &UserId,
    conversation: &ConversationId,
    seq: u64,
    above: BeyondHead,
) -> Result<Option<Mark>, Refusal> {
    let mark =
        read_position::advance(store, user, conversation, seq, above, |view| view.user_state().cleared.seq)
            .await?;
    let Some(mark) = mark else {
        // An earlier change of this position may not be durable yet; wait until it is.
        store.save_marks(&[]).await.map_err(store_unavailable)?;
        return Ok(None);
    };
    let change = (user.clone(), conversation.clone(), Personal::Cleared(mark));
    store.save_marks(&[change]).await.map_err(store_unavailable)?;
    Ok(Some(mark))
}

/// Returns the seq and the frame for the user's other devices.
pub fn cleared(conversation: &ConversationId, mark: Mark) -> (u64, FrameBody) {
    let cleared = pb::Cleared { conversation: conversation.to_string(), seq: mark.seq };
    (mark.seq, FrameBody::Cleared(cleared))
}
