//! Clear: takes the beginning of a conversation away for one user, on all devices; nobody else notices (DESIGN 6.6).

use tidegate_protocol::{
    id::{ConversationId, UserId},
    pb::{self, server_frame::Body as Said},
};

use super::{
    history::{Refusal, away},
    read_position::{self, Above},
};
use crate::store::{Mark, Personal, Store};

/// Clears everything up to `seq`, as far as there is something. Gives the place if it moved; it only moves forward.
///
/// # Errors
/// `NOT_A_MEMBER` for who was never in; `NOT_YET` where nothing was said yet, or `seq` lies above what is known.
pub async fn clear(
    store: &dyn Store,
    user: &UserId,
    conversation: &ConversationId,
    seq: u64,
    above: Above,
) -> Result<Option<Mark>, Refusal> {
    let mark = read_position::reach(store, user, conversation, (seq, above), |view| view.level().cleared.seq)
        .await?;
    let Some(mark) = mark else {
        // Whoever moved it may not be confirmed yet.
        store.save_marks(&[]).await.map_err(away)?;
        return Ok(None);
    };
    let change = (user.clone(), conversation.clone(), Personal::Cleared(mark));
    store.save_marks(&[change]).await.map_err(away)?;
    Ok(Some(mark))
}

/// What the user's other devices hear of it.
pub fn cleared(conversation: &ConversationId, mark: Mark) -> (u64, Said) {
    let cleared = pb::Cleared { conversation: conversation.to_string(), seq: mark.seq };
    (mark.seq, Said::Cleared(cleared))
}
