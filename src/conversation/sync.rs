//! Sync: the states of a user's conversations, and the positions that differ from those of an idle client (SPEC 7).
//!
//! The caller passes the read barrier first, so the store has everything that was acked or pushed before (ADR 16). A
//! client is indexed before its Welcome. So each message is read by `sync`, pushed, or both, but never missed.

use std::collections::HashMap;

use prost::Message as _;
use tidegate_protocol::{
    id::{ConversationId, UserId},
    machine::session::POSITIONS_MAX,
    pb,
    record::Body,
};

use super::{history::push_of, reader::Reader, refusal::store_unavailable, unread::View};
use crate::{
    mail::Refusal,
    store::{Direction, Membership, PageQuery, Store, StoredRow},
};

/// Most conversation states returned at a time.
const STATES_MAX: usize = 128;

/// Approximate limit on the bytes of these states.
const STATES_BYTES_MAX: usize = 32 * 1024;

/// Largest last entry that is included in a conversation's state.
const LAST_ENTRY_BYTES_MAX: usize = 4 * 1024;

/// Rows searched for a last entry that can be shown.
const LAST_ENTRY_ROWS: usize = 4;

/// Memberships read at a time for a `ping` with positions.
const MEMBERSHIPS_PAGE_ROWS: usize = 256;

/// Positions that a client declared, by conversation.
pub type Positions = HashMap<ConversationId, u64>;

/// Part of a user's conversation states.
#[derive(Debug, PartialEq)]
pub struct States {
    /// States, in the order of the conversation keys.
    pub states: Vec<pb::ConversationState>,
    /// Conversation to continue after, if there may be more.
    pub next: Option<ConversationId>,
}

/// Reads the states of the conversations after `after`, without the last entry of
/// those that are up to date in `positions`.
///
/// # Errors
/// `STORE_UNAVAILABLE` if the store can't be read.
pub async fn states(
    store: &dyn Store,
    reader: &Reader,
    positions: &Positions,
    after: Option<&ConversationId>,
) -> Result<States, Refusal> {
    let page = store.memberships(&reader.user, after, STATES_MAX).await.map_err(store_unavailable)?;
    let whole = page.len() < STATES_MAX;
    let (mut states, mut bytes, mut next) = (Vec::with_capacity(page.len()), 0, None);
    let count = page.len();
    for (n, membership) in page.into_iter().enumerate() {
        let state = state(store, reader, positions, &membership).await?;
        bytes += state.encoded_len();
        states.push(state);
        if bytes >= STATES_BYTES_MAX || n + 1 == count {
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
    let (conversation, member_view) = (&membership.conversation, &membership.member_view);
    let view = reader.view(store, conversation, &membership.head, member_view).await?;
    let has_all = positions.get(&membership.conversation).is_some_and(|seq| *seq >= view.max());
    let last = if has_all { None } else { last(store, &membership.conversation, &view).await? };
    Ok(pb::ConversationState {
        conversation: membership.conversation.to_string(),
        max_seq: view.max(),
        min_seq: view.min(),
        read_seq: view.mark().seq,
        unread: reader.unread(conversation, &view),
        last,
        cleared_seq: view.user_state().cleared.seq,
        hidden: view.user_state().hidden.iter().map(|it| it.seq).collect(),
    })
}

/// Returns the newest entry that can be shown; `None` if it is not among the last rows, or too large.
async fn last(
    store: &dyn Store,
    conversation: &ConversationId,
    view: &View,
) -> Result<Option<pb::Push>, Refusal> {
    // Skip hidden entries at the end.
    let shown =
        view.user_state().hidden.iter().rev().fold(view.max(), |end, it| end - u64::from(it.seq == end));
    if shown <= view.removed_to() {
        return Ok(None);
    }
    let cursor = shown.saturating_add(1);
    let query = PageQuery {
        cursor,
        direction: Direction::Backward,
        limit: LAST_ENTRY_ROWS,
        max_bytes: LAST_ENTRY_BYTES_MAX,
    };
    let page = store.page(conversation, query).await.map_err(store_unavailable)?;
    let is_shown = |row: &&StoredRow| view.shows(row.row.seq) && !matches!(row.row.body, Body::Recall(_));
    let last = page.rows.iter().filter(is_shown).find_map(push_of);
    Ok(last.filter(|push| push.encoded_len() <= LAST_ENTRY_BYTES_MAX))
}

/// Returns the positions of conversations that are ahead of the client's, or that it did not name.
///
/// At most [`POSITIONS_MAX`] are returned, the named ones first: otherwise the same
/// unnamed ones could fill every answer.
///
/// # Errors
/// `STORE_UNAVAILABLE` if the store can't be read.
pub async fn changed(
    store: &dyn Store,
    user: &UserId,
    positions: &Positions,
) -> Result<Vec<pb::Position>, Refusal> {
    let (mut changed, mut unnamed, mut after) = (Vec::new(), Vec::new(), None);
    let mut left = positions.len();
    loop {
        let page = store
            .memberships(user, after.as_ref(), MEMBERSHIPS_PAGE_ROWS)
            .await
            .map_err(store_unavailable)?;
        let whole = page.len() < MEMBERSHIPS_PAGE_ROWS;
        after = page.last().map(|it| it.conversation.clone());
        for it in page {
            let seq = View::new(&it.conversation, &it.head, &it.member_view).max();
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
