//! Clear and bound: the ends of what one user can read of a conversation, on all devices, without effect for other users (SPEC 7).
//!
//! A clear is permanent. A bound is set by the admin API alone, which can move it in both directions.

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

/// Clears the conversation up to `seq`, or to its end, also above the user's bound. Returns the new position if it moved; it only
/// moves forward.
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
    let mark = read_position::clear(store, user, conversation, seq, above).await?;
    let Some(mark) = mark else {
        // An earlier change of this position may not be durable yet; wait until it is.
        store.save_marks(&[]).await.map_err(store_unavailable)?;
        return Ok(None);
    };
    let change = (user.clone(), conversation.clone(), Personal::Cleared(mark));
    store.save_marks(&[change]).await.map_err(store_unavailable)?;
    Ok(Some(mark))
}

/// Bounds what the user can read of the conversation to `seq`, or to its end if that is lower; `None` removes the bound.
///
/// # Errors
/// `NOT_A_MEMBER` if the user never was a member; `NOT_YET` if the conversation has no message yet, or may have
/// unstored messages up to `seq`.
pub async fn bound(
    store: &dyn Store,
    user: &UserId,
    conversation: &ConversationId,
    seq: Option<u64>,
    above: BeyondHead,
) -> Result<(), Refusal> {
    let bound = match seq {
        Some(seq) => read_position::bound(store, user, conversation, seq, above).await?.map(Some),
        None => {
            read_position::whole_view(store, user, conversation, above, 0).await?;
            Some(None)
        }
    };
    let change = bound.map(|bound| (user.clone(), conversation.clone(), Personal::Bound(bound)));
    // Without a change, an earlier one may not be durable yet; wait until it is.
    store.save_marks(change.as_slice()).await.map_err(store_unavailable)
}

/// Returns the seq and the frame for the user's other devices.
pub fn cleared(conversation: &ConversationId, mark: Mark) -> (u64, FrameBody) {
    let cleared = pb::Cleared { conversation: conversation.to_string(), seq: mark.seq };
    (mark.seq, FrameBody::Cleared(cleared))
}
