//! Sync: where all conversations of a user stand; and which of them are not where an idle client believes (DESIGN 6.4).
//!
//! What the store says is at least as new as everything that was acked or pushed before: who asks has passed the barrier
//! (ADR 16). A client is indexed before its Welcome. So a message is in what Sync reads, or is pushed, or both: never none.

use std::collections::HashMap;

use prost::Message as _;
use tidegate_protocol::{
    id::{ConversationId, UserId},
    machine::session::POSITIONS_MAX,
    pb,
    record::Body,
};

use super::{
    history::{Refusal, away, push_of},
    reader::Reader,
    unread::View,
};
use crate::store::{Direction, Membership, PageQuery, Store, StoredRow};

/// Conversations told at a time, and about the most bytes of them.
const STATES_MAX: usize = 128;
const STATES_BYTES: usize = 32 * 1024;

/// The largest content that comes along as the last message of a conversation.
const LAST_BYTES: usize = 4 * 1024;

/// Rows looked at for a last message that can be shown.
const LAST_ROWS: usize = 4;

/// Memberships read at a time for a Ping.
const PAGE: usize = 256;

/// What a client said it has.
pub type Positions = HashMap<ConversationId, u64>;

/// Some of a user's conversations.
#[derive(Debug, PartialEq)]
pub struct States {
    /// Where they stand, in the order of their keys.
    pub states: Vec<pb::ConversationState>,
    /// The last one, if there may be more.
    pub next: Option<ConversationId>,
}

/// The conversations above `after`; one that is where `positions` say comes without its last message.
///
/// # Errors
/// When the store can't be read.
pub async fn states(
    store: &dyn Store,
    reader: &Reader,
    positions: &Positions,
    after: Option<&ConversationId>,
) -> Result<States, Refusal> {
    let page = store.memberships(&reader.user, after, STATES_MAX).await.map_err(away)?;
    let whole = page.len() < STATES_MAX;
    let (mut states, mut bytes, mut next) = (Vec::with_capacity(page.len()), 0, None);
    let count = page.len();
    for (n, membership) in page.into_iter().enumerate() {
        let state = state(store, reader, positions, &membership).await?;
        bytes += state.encoded_len();
        states.push(state);
        if bytes >= STATES_BYTES || n + 1 == count {
            let last = whole && n + 1 == count;
            next = (!last).then_some(membership.conversation);
            break;
        }
    }
    Ok(States { states, next })
}

async fn state(
    store: &dyn Store,
    reader: &Reader,
    positions: &Positions,
    membership: &Membership,
) -> Result<pb::ConversationState, Refusal> {
    let (conversation, standing) = (&membership.conversation, &membership.standing);
    let view = reader.view(store, conversation, &membership.head, standing).await?;
    let has_all = positions.get(&membership.conversation).is_some_and(|seq| *seq >= view.max());
    let last = if has_all { None } else { last(store, &membership.conversation, &view).await? };
    Ok(pb::ConversationState {
        conversation: membership.conversation.to_string(),
        max_seq: view.max(),
        min_seq: view.min(),
        read_seq: view.mark().seq,
        unread: reader.unread(conversation, &view),
        last,
        cleared_seq: view.level().cleared.seq,
        hidden: view.level().hidden.iter().map(|it| it.seq).collect(),
    })
}

/// The newest row that can be shown; none when it is far up, or too large to come unasked.
async fn last(
    store: &dyn Store,
    conversation: &ConversationId,
    view: &View,
) -> Result<Option<pb::Push>, Refusal> {
    // Below what is hidden at the end, there may be something to show.
    let shown = view.level().hidden.iter().rev().fold(view.max(), |end, it| end - u64::from(it.seq == end));
    if shown <= view.gone_to() {
        return Ok(None);
    }
    let cursor = shown.saturating_add(1);
    let query = PageQuery { cursor, direction: Direction::Backward, limit: LAST_ROWS, max_bytes: LAST_BYTES };
    let page = store.page(conversation, query).await.map_err(away)?;
    let is_shown = |row: &&StoredRow| view.shows(row.row.seq) && !matches!(row.row.body, Body::Recall(_));
    let last = page.rows.iter().filter(is_shown).find_map(push_of);
    Ok(last.filter(|push| push.encoded_len() <= LAST_BYTES))
}

/// The conversations whose last seq is above what the client has, or that it did not name; at most as many as a
/// client can name. Those that it named come first: else the others, the same ones each time, could fill every answer.
///
/// # Errors
/// When the store can't be read.
pub async fn changed(
    store: &dyn Store,
    user: &UserId,
    positions: &Positions,
) -> Result<Vec<pb::Position>, Refusal> {
    let (mut changed, mut unnamed, mut after) = (Vec::new(), Vec::new(), None);
    let mut left = positions.len();
    loop {
        let page = store.memberships(user, after.as_ref(), PAGE).await.map_err(away)?;
        let whole = page.len() < PAGE;
        after = page.last().map(|it| it.conversation.clone());
        for it in page {
            let seq = View::new(&it.conversation, &it.head, &it.standing).max();
            let named = positions.get(&it.conversation);
            left = left.saturating_sub(usize::from(named.is_some()));
            let to = match named {
                Some(has) if seq > *has => &mut changed,
                None if unnamed.len() < POSITIONS_MAX => &mut unnamed,
                _ => continue,
            };
            to.push(pb::Position { conversation: it.conversation.to_string(), seq });
        }
        if whole || (left == 0 && changed.len() + unnamed.len() >= POSITIONS_MAX) {
            changed.append(&mut unnamed);
            changed.truncate(POSITIONS_MAX);
            return Ok(changed);
        }
    }
}
