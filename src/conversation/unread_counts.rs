//! Unread counts of many users, each derived from memberships and marks like that of one user.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use tidegate_protocol::{
    id::{ConversationId, UserId},
    settings::UserSettings,
};
use tokio::time::{Instant, timeout_at};

use super::{reader::Reader, refusal::store_unavailable, unread::View};
use crate::{
    mail::Refusal,
    store::{MembershipsRequest, Store},
};

/// Users whose conversations are read in the first call; they double with each. The first are few, so that some users are
/// counted however slow the store is.
const FIRST_USERS: usize = 8;

/// Most users whose conversations are read in one call.
const USERS_PER_CALL: usize = 64;

/// Conversations of one user that are read in one call with many others; most users have fewer.
const CONVERSATIONS_MIN: usize = 64;

/// Conversations of one user that are read in one call with few others.
const CONVERSATIONS_MAX: usize = 1_000;

/// Conversations of all users that are read in one call. A call whose caller gives up goes on in the store until then.
const CONVERSATIONS_PER_CALL: usize = USERS_PER_CALL * CONVERSATIONS_MIN;

/// Unread messages of a user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnreadCount {
    /// Number of unread messages, by the setting of the user; at most the cap.
    pub unread: u64,
    /// Number of conversations with unread messages, as far as they were read.
    pub conversations: u64,
    /// Whether the count ended at the cap.
    pub is_capped: bool,
    /// Whether the time ended before all conversations were read.
    pub is_partial: bool,
}

/// User whose conversations are being counted.
struct Counting {
    place: usize,
    reader: Reader,
    after: Option<ConversationId>,
    count: UnreadCount,
}

/// Counts the unread messages of each user, in order, for at most `time_max`; `None` for a user of whom nothing was read by
/// then. With a `cap` the count of a user ends there.
///
/// # Errors
/// `STORE_UNAVAILABLE` if the store can't be read.
pub async fn count(
    store: &dyn Store,
    users: &[UserId],
    cap: Option<u64>,
    now_ms: u64,
    time_max: Duration,
) -> Result<Vec<Option<UnreadCount>>, Refusal> {
    let until = Instant::now() + time_max;
    let mut counts = vec![None; users.len()];
    let Ok(settings) = timeout_at(until, settings(store, users)).await else { return Ok(counts) };
    let settings = settings?;
    let counting = |(place, user): (usize, &UserId)| {
        let of_user = settings.get(user).copied().unwrap_or_default();
        let reader = Reader::with_settings(user.clone(), &of_user, now_ms);
        Counting { place, reader, after: None, count: UnreadCount::default() }
    };
    let mut left: VecDeque<Counting> = users.iter().enumerate().map(counting).collect();
    let mut users_at_once = FIRST_USERS;
    while !left.is_empty() {
        let batch: Vec<Counting> = left.drain(..left.len().min(users_at_once)).collect();
        users_at_once = (users_at_once * 2).min(USERS_PER_CALL);
        let Ok(counted) = timeout_at(until, count_page(store, batch, cap)).await else { break };
        for (it, is_done) in counted? {
            if let Some(count) = counts.get_mut(it.place) {
                *count = Some(UnreadCount { is_partial: !is_done, ..it.count });
            }
            if !is_done {
                // A user with many conversations delays no other.
                left.push_back(it);
            }
        }
    }
    Ok(counts)
}

/// Returns the settings of all users.
async fn settings(store: &dyn Store, users: &[UserId]) -> Result<HashMap<UserId, UserSettings>, Refusal> {
    let all = store.settings_of(users).await.map_err(store_unavailable)?;
    Ok(users.iter().cloned().zip(all).collect())
}

/// Counts a page of the conversations of each user, and returns which users are done.
async fn count_page(
    store: &dyn Store,
    mut batch: Vec<Counting>,
    cap: Option<u64>,
) -> Result<Vec<(Counting, bool)>, Refusal> {
    let limit = (CONVERSATIONS_PER_CALL / batch.len().max(1)).clamp(CONVERSATIONS_MIN, CONVERSATIONS_MAX);
    let request =
        |it: &Counting| MembershipsRequest { user: it.reader.user.clone(), after: it.after.clone(), limit };
    let requests: Vec<MembershipsRequest> = batch.iter().map(request).collect();
    let pages = store.memberships_of(&requests).await.map_err(store_unavailable)?;
    let mut counted = Vec::with_capacity(batch.len());
    for (mut it, page) in batch.drain(..).zip(pages) {
        for membership in &page {
            // What the setting `retention` hides counts as well, so its end is not searched.
            let view = View::new(&membership.conversation, &membership.head, &membership.member_view);
            let unread = it.reader.unread(&membership.conversation, &view);
            it.count.unread += unread;
            it.count.conversations += u64::from(unread > 0);
        }
        if let Some(cap) = cap.filter(|cap| it.count.unread > *cap) {
            it.count.unread = cap;
            it.count.is_capped = true;
        }
        it.after = page.last().map(|last| last.conversation.clone());
        let is_done = page.len() < limit || it.count.is_capped;
        counted.push((it, is_done));
    }
    Ok(counted)
}
