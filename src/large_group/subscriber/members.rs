//! What a node reads of a large group when its index is older than a push: the changes since, or all members, page by page.
//!
//! Owners archive changes of members before they tell anything (ADR 16), so the store has every change that lies before a push.

use tidegate_protocol::{
    id::{ConversationId, UserId},
    machine::ledger::Member,
    record::{Body, MemberAction, MemberChange},
};

use crate::store::{Direction, PageQuery, Store, StoreError};

/// Rows of history read at a time, and about the most bytes of them.
const ROWS: usize = 1_000;
const ROWS_BYTES: usize = 1024 * 1024;

/// A longer way is not gone row by row.
const ROWS_MAX: u64 = 20_000;

/// Members read at a time.
const PAGE: usize = 1_000;

/// The changes of members above `from` up to `to`, in order; none where the history does not tell them, or would take
/// too long to.
pub(super) async fn changes(
    store: &dyn Store,
    group: &ConversationId,
    from: u64,
    to: u64,
) -> Result<Option<Vec<(u64, MemberChange)>>, StoreError> {
    if to.saturating_sub(from) > ROWS_MAX {
        return Ok(None);
    }
    let (mut changes, mut cursor) = (Vec::new(), from);
    while cursor < to {
        let query = PageQuery { cursor, direction: Direction::Forward, limit: ROWS, max_bytes: ROWS_BYTES };
        let page = store.page(group, query).await?;
        let pruned = page.head.as_ref().is_none_or(|head| head.pruned_to > cursor);
        let Some(last) = page.rows.last().map(|row| row.row.seq).filter(|_| !pruned) else { return Ok(None) };
        for row in page.rows.into_iter().filter(|row| row.row.seq <= to) {
            if let Body::Member(change) = row.row.body {
                changes.push((row.row.seq, change));
            }
        }
        cursor = last;
    }
    Ok(Some(changes))
}

/// Members who are here.
pub(super) type Here = Vec<(UserId, Member)>;

/// The members that `is_here` says yes to, read a page at a time and never held together; none where there are more than so
/// many pages.
pub(super) async fn members_here(
    store: &dyn Store,
    group: &ConversationId,
    is_here: &(impl Fn(&UserId) -> bool + Sync),
    pages: usize,
) -> Result<Option<Here>, StoreError> {
    let (mut here, mut after) = (Vec::new(), None);
    for _ in 0..pages {
        let page = store.members(group, after.as_ref(), PAGE).await?;
        let Some((last, _)) = page.last() else { return Ok(Some(here)) };
        after = Some(last.clone());
        let whole = page.len() < PAGE;
        here.extend(page.into_iter().filter(|(user, _)| is_here(user)));
        if whole {
            return Ok(Some(here));
        }
    }
    Ok(None)
}

/// Who comes in and who goes by a change; the creator of a group need not be among its users.
pub(super) fn moved(change: &MemberChange) -> (Vec<UserId>, Vec<UserId>) {
    let users = change.users.clone();
    match change.action {
        MemberAction::Create => (users.into_iter().chain(change.by.clone()).collect(), Vec::new()),
        MemberAction::Join => (users, Vec::new()),
        MemberAction::Leave | MemberAction::Kick => (Vec::new(), users),
        MemberAction::Role
        | MemberAction::Settings
        | MemberAction::Delete
        | MemberAction::Mute
        | MemberAction::Unmute => (Vec::new(), Vec::new()),
    }
}
