//! Hide: deletes entries for one user, on all devices; nobody else notices (DESIGN 6.6).
//!
//! What is hidden is remembered seq by seq, so its number is bounded; clearing up to a seq makes room.

use tidegate_protocol::{
    Code,
    id::{ConversationId, UserId},
    pb::{self, server_frame::Body as Said},
    record::Body,
};

use super::{
    history::{Refusal, away},
    read_position::{self, Above},
};
use crate::store::{Direction, Hidden, PageQuery, Personal, Store};

/// The most entries of one conversation that a user may hide one by one. Two devices that ask at the same moment may
/// go over it by one request.
pub const HIDDEN_MAX: usize = 500;

/// About the most bytes of rows read at a time.
const STEP_BYTES: usize = 1 << 20;

/// Hides those of `seqs` (ascending) that the user can see; gives them.
///
/// # Errors
/// `NOT_A_MEMBER` for who was never in; `NOT_YET` where nothing was said yet, or a seq lies above what is known;
/// `TOO_MANY_HIDDEN` when there is no room for all of them: then none is hidden.
pub async fn hide(
    store: &dyn Store,
    user: &UserId,
    conversation: &ConversationId,
    seqs: &[u64],
    above: Above,
) -> Result<Vec<u64>, Refusal> {
    let view = read_position::look(store, user, conversation).await?;
    above.check(&view, seqs.iter().copied().max().unwrap_or_default())?;
    let mut wanted: Vec<u64> = seqs.iter().copied().filter(|seq| view.shows(*seq)).collect();
    let forget = view.pruned_to.min(view.mark().seq);
    let kept = view.level().hidden.iter().filter(|it| it.seq > forget).count();
    if kept + wanted.len() > HIDDEN_MAX {
        return Err((Code::TooManyHidden, ""));
    }
    let mut hidden = Vec::with_capacity(wanted.len());
    while let Some(first) = wanted.first().copied() {
        let run = wanted.iter().zip(first..).take_while(|(seq, next)| *seq == next).count();
        let query =
            PageQuery { cursor: first - 1, direction: Direction::Forward, limit: run, max_bytes: STEP_BYTES };
        let rows = store.page(conversation, query).await.map_err(away)?.rows;
        // Without rows, or with later ones only, retention was here just now.
        let up_to = rows.last().map_or(u64::MAX, |row| row.row.seq);
        for row in rows.iter().filter(|row| wanted.contains(&row.row.seq)) {
            let of_other = matches!(&row.row.body, Body::Message(message) if message.sender != *user);
            hidden.push(Hidden { seq: row.row.seq, counts: of_other && view.was_in(row.row.ordinal) });
        }
        wanted.retain(|seq| *seq > up_to);
    }
    let told: Vec<u64> = hidden.iter().map(|it| it.seq).collect();
    if !told.is_empty() {
        let change = Personal::Hidden { seqs: hidden, forget };
        store.save_marks(&[(user.clone(), conversation.clone(), change)]).await.map_err(away)?;
    }
    Ok(told)
}

/// What the user's other devices hear of it.
pub fn hidden(conversation: &ConversationId, seqs: Vec<u64>) -> (u64, Said) {
    let last = seqs.last().copied().unwrap_or_default();
    (last, Said::Hidden(pb::Hidden { conversation: conversation.to_string(), seqs }))
}
