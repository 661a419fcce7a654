//! Hide: hides single entries for one user, on all devices, without effect for other users (SPEC 7).
//!
//! Hidden entries are stored seq by seq, so their number is limited; a clear up to a seq forgets those below it.

use tidegate_protocol::{
    Code,
    id::ConversationId,
    pb::{self, server_frame::Body as FrameBody},
    record::Body,
};

use super::{read_position::OwnConversation, refusal::store_unavailable, unread::counts_as_unread};
use crate::{
    mail::Refusal,
    store::{Hidden, Personal},
};

/// Most entries of one conversation that a user may hide. Two concurrent requests
/// may exceed it by one request's entries.
pub const HIDDEN_MAX: usize = 500;

/// Approximate limit on the bytes of rows read at a time.
const HIDE_PAGE_BYTES: usize = 1 << 20;

/// Hides those of `seqs` (ascending) that the user can see, or has got above a bound, and returns them.
///
/// # Errors
/// `NOT_A_MEMBER` if the user never was a member; `NOT_YET` if the conversation has no message yet,
/// or may have unstored messages up to the highest seq; `TOO_MANY_HIDDEN` if they exceed
/// [`HIDDEN_MAX`], in which case none is hidden.
pub async fn hide(of: OwnConversation<'_>, seqs: &[u64]) -> Result<Vec<u64>, Refusal> {
    let OwnConversation { store, user, conversation, .. } = of;
    let highest = seqs.iter().copied().max().unwrap_or_default();
    let view = of.whole_view(highest).await?;
    let mut wanted: Vec<u64> = seqs.iter().copied().filter(|seq| view.shows(*seq)).collect();
    let forget = view.pruned_to.min(view.mark().seq);
    let hidden_before = view.user_state().hidden.iter().filter(|it| it.seq > forget).count();
    if hidden_before + wanted.len() > HIDDEN_MAX {
        return Err((Code::TooManyHidden, ""));
    }
    let mut hidden = Vec::with_capacity(wanted.len());
    while !wanted.is_empty() {
        let rows =
            store.rows_at(conversation, &wanted, HIDE_PAGE_BYTES).await.map_err(store_unavailable)?.rows;
        // Without rows, retention has just removed them.
        let up_to = rows.last().map_or(u64::MAX, |row| row.row.seq);
        for row in &rows {
            let of_other = matches!(&row.row.body, Body::Message(message) if counts_as_unread(message, user));
            hidden.push(Hidden { seq: row.row.seq, counts: of_other && view.was_in(row.row.ordinal) });
        }
        wanted.retain(|seq| *seq > up_to);
    }
    let hidden_seqs: Vec<u64> = hidden.iter().map(|it| it.seq).collect();
    if !hidden_seqs.is_empty() {
        of.save(Some(Personal::Hidden { seqs: hidden, forget })).await?;
    }
    Ok(hidden_seqs)
}

/// Returns the last seq and the frame for the user's other devices.
pub fn hidden(conversation: &ConversationId, seqs: Vec<u64>) -> (u64, FrameBody) {
    let last = seqs.last().copied().unwrap_or_default();
    (last, FrameBody::Hidden(pb::Hidden { conversation: conversation.to_string(), seqs }))
}
