//! Clear and bound: the ends of what one user can read of a conversation, on all devices, without effect for other users (SPEC 7).
//!
//! A clear is permanent. A bound is set by the admin API alone, which can move it in both directions.

use tidegate_protocol::{
    id::ConversationId,
    pb::{self, server_frame::Body as FrameBody},
};

use super::read_position::{self, OwnConversation};
use crate::{
    mail::Refusal,
    store::{Mark, Personal},
};

/// Clears the conversation up to `seq`, or to its end, also above the user's bound. Returns the new position if it moved; it only
/// moves forward.
///
/// # Errors
/// `NOT_A_MEMBER` if the user never was a member; `NOT_YET` if the conversation has no message yet, or may have
/// unstored messages up to `seq`.
pub async fn clear(of: OwnConversation<'_>, seq: u64) -> Result<Option<Mark>, Refusal> {
    let mark = read_position::clear(of, seq).await?;
    of.save(mark.map(Personal::Cleared)).await?;
    Ok(mark)
}

/// Bounds what the user can read of the conversation to `seq`, or to its end if that is lower; `None` removes the bound.
///
/// # Errors
/// `NOT_A_MEMBER` if the user never was a member; `NOT_YET` if the conversation has no message yet, or may have
/// unstored messages up to `seq`.
pub async fn bound(of: OwnConversation<'_>, seq: Option<u64>) -> Result<(), Refusal> {
    let bound = match seq {
        Some(seq) => Some(read_position::bound(of, seq).await?),
        None => {
            of.whole_view(0).await?;
            None
        }
    };
    // A bound that is there already is set again: another one may be about to be written.
    of.save(Some(Personal::Bound(bound))).await
}

/// Returns the seq and the frame for the user's other devices.
pub fn cleared(conversation: &ConversationId, mark: Mark) -> (u64, FrameBody) {
    let cleared = pb::Cleared { conversation: conversation.to_string(), seq: mark.seq };
    (mark.seq, FrameBody::Cleared(cleared))
}
