//! Sync: the states of a user's conversations, and the positions that differ from those of an idle client (SPEC 7).
//!
//! The caller passes the read barrier first, so the store has everything that was acked or pushed before (ADR 16). A
//! client is indexed before its Welcome. So each message is read by `sync`, pushed, or both, but never missed.

use std::collections::{HashMap, HashSet};

use prost::Message as _;
use tidegate_protocol::{
    id::{ConversationId, UserId},
    machine::session::POSITIONS_MAX,
    pb,
    record::Body,
};

use super::{
    history::{is_pushed, push_of},
    reader::Reader,
    refusal::store_unavailable,
    unread::View,
};
use crate::{
    mail::Refusal,
    store::{ConversationSeq, Membership, Store, StoredRow},
};

/// Most conversation states returned at a time.
pub const STATES_MAX: usize = 128;

/// Fewest conversations that a part of a sync reads, if there are as many.
const STATES_MIN: usize = 8;

/// Approximate limit on the bytes of these states.
const STATES_BYTES_MAX: usize = 32 * 1024;

/// Largest last entry that is included in a conversation's state.
pub(super) const LAST_ENTRY_BYTES_MAX: usize = 4 * 1024;

/// Rows searched for a last entry that can be shown.
const LAST_ENTRY_ROWS: usize = 4;

/// Conversations of the user that a `ping` with positions reads, in addition to the named ones.
const PING_ROWS: usize = 1_024;

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

/// Returns the limit of the part after one with this many states: not much more than fits, so that few rows are read
/// twice.
pub fn next_limit(states: usize) -> usize {
    (states * 2).clamp(STATES_MIN, STATES_MAX)
}

/// Reads the states of at most `limit` conversations after `after`, without the last entry of
/// those that are up to date in `positions`.
///
/// # Errors
/// `STORE_UNAVAILABLE` if the store can't be read.
pub async fn states(
    store: &dyn Store,
    reader: &Reader,
    positions: &Positions,
    after: Option<&ConversationId>,
    limit: usize,
) -> Result<States, Refusal> {
    let page = store.memberships(&reader.user, after, limit).await.map_err(store_unavailable)?;
    let whole = page.len() < limit;
    let views = reader.views(store, &page).await?;
    let has_news = |membership: &Membership, view: &View| {
        positions.get(&membership.conversation).is_none_or(|seq| *seq < view.max())
    };
    let lasts = last_entries(store, &page, &views, has_news).await?;
    let (mut states, mut bytes, mut next) = (Vec::with_capacity(page.len()), 0, None);
    let count = page.len();
    for (n, ((membership, view), last)) in page.into_iter().zip(&views).zip(lasts).enumerate() {
        let last = last.as_ref().and_then(push_of);
        let last = last.filter(|push| push.encoded_len() <= LAST_ENTRY_BYTES_MAX);
        let state = state(reader, &membership, view, last);
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

fn state(
    reader: &Reader,
    membership: &Membership,
    view: &View,
    last: Option<pb::Push>,
) -> pb::ConversationState {
    let conversation = &membership.conversation;
    pb::ConversationState {
        conversation: conversation.to_string(),
        max_seq: view.max(),
        min_seq: view.min(),
        read_seq: view.mark().seq,
        unread: reader.unread(conversation, view),
        last,
        cleared_seq: view.user_state().cleared.seq,
        hidden: view.user_state().hidden.iter().map(|it| it.seq).collect(),
    }
}

/// Returns the newest entry of each conversation that can be shown; `None` if it is not wanted, if it is not among the last
/// rows, or if it is too large.
///
/// # Errors
/// `STORE_UNAVAILABLE` if the store can't be read.
pub(super) async fn last_entries(
    store: &dyn Store,
    page: &[Membership],
    views: &[View],
    is_wanted: impl Fn(&Membership, &View) -> bool + Send,
) -> Result<Vec<Option<StoredRow>>, Refusal> {
    let end = |(membership, view): (&Membership, &View)| {
        // Skip hidden entries at the end.
        let hidden = view.user_state().hidden.iter().rev();
        let shown = hidden.fold(view.max(), |end, it| end - u64::from(it.seq == end));
        let conversation = || membership.conversation.clone();
        (is_wanted(membership, view) && shown > view.removed_to())
            .then(|| ConversationSeq { conversation: conversation(), seq: shown.saturating_add(1) })
    };
    let ends: Vec<Option<ConversationSeq>> = page.iter().zip(views).map(end).collect();
    let wanted: Vec<ConversationSeq> = ends.iter().flatten().cloned().collect();
    let mut found = match wanted.is_empty() {
        true => Vec::new(),
        false => {
            let newest = store.newest(&wanted, LAST_ENTRY_ROWS, LAST_ENTRY_BYTES_MAX).await;
            newest.map_err(store_unavailable)?
        }
    }
    .into_iter();
    let last = |(end, view): (&Option<ConversationSeq>, &View)| {
        end.as_ref()?;
        // There are no rows if the newest is too large.
        let is_shown = |row: &StoredRow| {
            view.shows(row.row.seq)
                && view.may_have(row)
                && !matches!(row.row.body, Body::Recall(_) | Body::Edit(_))
                && is_pushed(row)
        };
        found.next()?.into_iter().find(is_shown)
    };
    Ok(ends.iter().zip(views).map(last).collect())
}

/// Positions of conversations that differ from a client's.
#[derive(Debug, PartialEq)]
pub struct Changed {
    /// Positions, at most [`POSITIONS_MAX`].
    pub positions: Vec<pb::Position>,
    /// Conversation after which the next call searches for those that the client did not name; `None` if this call
    /// reached the last one.
    pub next: Option<ConversationId>,
}

/// Returns the positions of conversations that are ahead of the client's, or that it did not name.
///
/// At most [`POSITIONS_MAX`] are returned, the named ones first: otherwise the same unnamed ones could fill every
/// answer. The cost does not grow with the number of the user's conversations: unnamed ones are searched among
/// [`PING_ROWS`] conversations after `after`, so a user with more learns of all of them in several calls.
///
/// # Errors
/// `STORE_UNAVAILABLE` if the store can't be read.
pub async fn changed(
    store: &dyn Store,
    user: &UserId,
    positions: &Positions,
    after: Option<&ConversationId>,
) -> Result<Changed, Refusal> {
    let page = store.memberships(user, after, PING_ROWS).await.map_err(store_unavailable)?;
    let is_last = page.len() < PING_ROWS;
    let (mut changed, mut unnamed, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
    for it in &page {
        let seq = View::new(&it.conversation, &it.head, &it.member_view).max();
        let position = || pb::Position { conversation: it.conversation.to_string(), seq };
        match positions.get(&it.conversation) {
            Some(has) => {
                seen.insert(&it.conversation);
                changed.extend((seq > *has).then(position));
            }
            None if unnamed.len() < POSITIONS_MAX => unnamed.push(position()),
            None => {}
        }
    }
    // The page has all conversations of most users.
    if !is_last || after.is_some() {
        let elsewhere = |id: &&ConversationId| !seen.contains(*id);
        let mut named: Vec<ConversationId> = positions.keys().filter(elsewhere).cloned().collect();
        named.sort_unstable();
        if !named.is_empty() {
            let summaries = store.summaries(&named, user).await.map_err(store_unavailable)?;
            changed.extend(named.iter().zip(summaries).filter_map(|(id, summary)| {
                let summary = summary?;
                let seq = View::new(id, &summary.head, &summary.member_view?).max();
                let is_ahead = positions.get(id).is_some_and(|has| seq > *has);
                is_ahead.then(|| pb::Position { conversation: id.to_string(), seq })
            }));
        }
    }
    changed.append(&mut unnamed);
    changed.truncate(POSITIONS_MAX);
    let next = page.last().filter(|_| !is_last).map(|it| it.conversation.clone());
    Ok(Changed { positions: changed, next })
}
