//! Overview: the conversations of a user as an administrator lists them, by key or by the time of their last entry.

use std::cmp::Reverse;

use tidegate_protocol::id::ConversationId;

use super::{
    entry_size::entry_bytes,
    reader::Reader,
    refusal::store_unavailable,
    sync::{LAST_ENTRY_BYTES_MAX, last_entries},
    unread::View,
};
use crate::{
    mail::Refusal,
    store::{ConversationHead, ConversationSeq, Membership, Store, StoredRow, Summary},
};

/// Most conversations of a user that one request reads. A list by time leaves later ones out, and says so; a list by key
/// ends its page there.
pub const CONVERSATIONS_MAX: usize = 10_000;

/// Conversations that are read in one call.
const PAGE_ROWS: usize = 1_000;

/// Conversation of a user with the user's view of it.
#[derive(Debug)]
pub struct Listed {
    /// Conversation, and the user's state in it.
    pub membership: Membership,
    /// View of the user.
    pub view: View,
    /// Number of unread messages, by the setting of the user.
    pub unread: u64,
    /// Newest entry that can be shown; `None` if it was not requested, is too large, or is hidden by many others.
    pub last: Option<StoredRow>,
    /// Time of the newest row, in lists by time.
    pub time: Option<u64>,
}

/// Request for a page of a user's conversations.
#[derive(Clone, Copy, Debug)]
pub struct OverviewRequest {
    /// Most conversations.
    pub limit: usize,
    /// Whether to list only those with unread messages.
    pub only_unread: bool,
    /// Whether to return their newest entries.
    pub with_last: bool,
}

/// Position in a list by time: conversations before it were returned.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimePosition {
    /// Time of the last conversation that was returned.
    pub time: u64,
    /// Key of that conversation.
    pub conversation: ConversationId,
}

/// Page of a list by key.
#[derive(Debug)]
pub struct KeyPage {
    /// Conversations, sorted by key.
    pub listed: Vec<Listed>,
    /// Conversation to continue after, if there may be more.
    pub next: Option<ConversationId>,
}

/// Page of a list by time.
#[derive(Debug)]
pub struct TimePage {
    /// Conversations, that with the newest entry first; those with entries of one millisecond are sorted by key.
    pub listed: Vec<Listed>,
    /// Position to continue after, if there are more.
    pub next: Option<TimePosition>,
    /// Whether the user has more than [`CONVERSATIONS_MAX`] conversations, and those with the last keys are left out.
    pub is_cut: bool,
}

/// Conversations of a user, as far as one request reads them.
pub(super) struct Memberships {
    pub(super) listed: Vec<Listed>,
    pub(super) is_cut: bool,
}

/// Lists conversations by key: one that exists throughout the listing is on exactly one page.
///
/// # Errors
/// `STORE_UNAVAILABLE` if the store can't be read.
pub async fn by_key(
    store: &dyn Store,
    reader: &Reader,
    after: Option<&ConversationId>,
    request: OverviewRequest,
) -> Result<KeyPage, Refusal> {
    let (mut listed, mut next, mut read) = (Vec::new(), after.cloned(), 0);
    while listed.len() < request.limit && read < CONVERSATIONS_MAX {
        let rows = if request.only_unread { PAGE_ROWS } else { request.limit };
        let page = page(store, reader, next.as_ref(), rows).await?;
        read += page.len();
        let is_last = page.len() < rows;
        next = page.last().map(|it| it.membership.conversation.clone()).or(next);
        let wanted = page.into_iter().filter(|it| !request.only_unread || it.unread > 0);
        listed.extend(wanted);
        if is_last {
            next = None;
            break;
        }
    }
    if listed.len() > request.limit {
        listed.truncate(request.limit);
        next = listed.last().map(|it| it.membership.conversation.clone());
    }
    add_last(store, &mut listed, request).await?;
    Ok(KeyPage { listed, next })
}

/// Lists conversations by the time of their last entry, the newest first. A conversation that gets an entry during the
/// listing moves to its front, and is not on later pages.
///
/// # Errors
/// `STORE_UNAVAILABLE` if the store can't be read.
pub async fn by_time(
    store: &dyn Store,
    reader: &Reader,
    after: Option<&TimePosition>,
    request: OverviewRequest,
) -> Result<TimePage, Refusal> {
    let Memberships { mut listed, is_cut } = all(store, reader).await?;
    listed.retain(|it| !request.only_unread || it.unread > 0);
    let end = |it: &Listed| ConversationSeq {
        conversation: it.membership.conversation.clone(),
        seq: it.view.max(),
    };
    let ends: Vec<ConversationSeq> = listed.iter().map(end).collect();
    let times = times(store, &ends).await?;
    for (it, time) in listed.iter_mut().zip(times) {
        it.time = Some(time.unwrap_or_default());
    }
    let is_after =
        |it: &Listed| after.is_none_or(|after| recency(it) > (Reverse(after.time), &after.conversation));
    listed.retain(is_after);
    listed.sort_unstable_by(|one, other| recency(one).cmp(&recency(other)));
    let has_more = listed.len() > request.limit;
    listed.truncate(request.limit);
    let position = |it: &Listed| {
        let conversation = it.membership.conversation.clone();
        TimePosition { time: it.time.unwrap_or_default(), conversation }
    };
    let next = listed.last().filter(|_| has_more).map(position);
    add_last(store, &mut listed, request).await?;
    Ok(TimePage { listed, next, is_cut })
}

/// Returns the place in a list by time: lower ones come first.
fn recency(it: &Listed) -> (Reverse<u64>, &ConversationId) {
    (Reverse(it.time.unwrap_or_default()), &it.membership.conversation)
}

/// Returns the heads of conversations, in order; `None` for one that does not exist.
///
/// # Errors
/// `STORE_UNAVAILABLE` if the store can't be read.
pub async fn heads_of(
    store: &dyn Store,
    conversations: &[ConversationId],
) -> Result<Vec<Option<ConversationHead>>, Refusal> {
    store.heads_of(conversations).await.map_err(store_unavailable)
}

/// Returns up to `limit` conversations whose keys begin with `prefix`, sorted by key, above `after`.
///
/// # Errors
/// `STORE_UNAVAILABLE` if the store can't be read.
pub async fn heads(
    store: &dyn Store,
    prefix: &str,
    after: Option<&ConversationId>,
    limit: usize,
) -> Result<Vec<ConversationHead>, Refusal> {
    store.heads(prefix, after, limit).await.map_err(store_unavailable)
}

/// Returns all conversations of a user, at most [`CONVERSATIONS_MAX`].
pub(super) async fn all(store: &dyn Store, reader: &Reader) -> Result<Memberships, Refusal> {
    let mut listed: Vec<Listed> = Vec::new();
    loop {
        let after = listed.last().map(|it| it.membership.conversation.clone());
        let page = page(store, reader, after.as_ref(), PAGE_ROWS).await?;
        let is_last = page.len() < PAGE_ROWS;
        listed.extend(page);
        if is_last || listed.len() >= CONVERSATIONS_MAX {
            return Ok(Memberships { listed, is_cut: !is_last });
        }
    }
}

/// Returns the times of rows, in order.
pub(super) async fn times(store: &dyn Store, rows: &[ConversationSeq]) -> Result<Vec<Option<u64>>, Refusal> {
    let mut all = Vec::with_capacity(rows.len());
    for rows in rows.chunks(PAGE_ROWS) {
        all.extend(store.times(rows).await.map_err(store_unavailable)?);
    }
    Ok(all)
}

/// Returns the user's view of each of these conversations, in order; `None` where the user never was a member.
///
/// # Errors
/// `STORE_UNAVAILABLE` if the store can't be read.
pub async fn of_conversations(
    store: &dyn Store,
    reader: &Reader,
    conversations: &[ConversationId],
    with_last: bool,
) -> Result<Vec<Option<Listed>>, Refusal> {
    let summaries = store.summaries(conversations, &reader.user).await.map_err(store_unavailable)?;
    let membership = |(id, summary): (&ConversationId, Option<Summary>)| {
        let summary = summary?;
        let (head, members) = (summary.head, summary.members);
        Some(Membership { conversation: id.clone(), member_view: summary.member_view?, head, members })
    };
    let found: Vec<Option<Membership>> = conversations.iter().zip(summaries).map(membership).collect();
    let is_there: Vec<bool> = found.iter().map(Option::is_some).collect();
    let mut listed = listed(store, reader, found.into_iter().flatten().collect()).await?;
    let request = OverviewRequest { limit: listed.len(), only_unread: false, with_last };
    add_last(store, &mut listed, request).await?;
    let mut listed = listed.into_iter();
    Ok(is_there.into_iter().map(|is_there| if is_there { listed.next() } else { None }).collect())
}

async fn page(
    store: &dyn Store,
    reader: &Reader,
    after: Option<&ConversationId>,
    limit: usize,
) -> Result<Vec<Listed>, Refusal> {
    let page = store.memberships(&reader.user, after, limit).await.map_err(store_unavailable)?;
    listed(store, reader, page).await
}

async fn listed(
    store: &dyn Store,
    reader: &Reader,
    memberships: Vec<Membership>,
) -> Result<Vec<Listed>, Refusal> {
    let views = reader.views(store, &memberships).await?;
    let listed = |(membership, view): (Membership, View)| {
        let unread = reader.unread(&membership.conversation, &view);
        Listed { membership, view, unread, last: None, time: None }
    };
    Ok(memberships.into_iter().zip(views).map(listed).collect())
}

async fn add_last(store: &dyn Store, listed: &mut [Listed], request: OverviewRequest) -> Result<(), Refusal> {
    if !request.with_last {
        return Ok(());
    }
    let memberships: Vec<Membership> = listed.iter().map(|it| it.membership.clone()).collect();
    let views: Vec<View> = listed.iter().map(|it| it.view.clone()).collect();
    let lasts = last_entries(store, &memberships, &views, |_, _| true).await?;
    for (it, last) in listed.iter_mut().zip(lasts) {
        // The store bounds messages only; a change may name many users.
        it.last = last.filter(|row| entry_bytes(row) <= LAST_ENTRY_BYTES_MAX);
    }
    Ok(())
}
