//! Membership reads, for an index that is older than a push: the changes since, or all members page by page.
//!
//! Owners archive membership changes before they publish anything (ADR 16), so the store has every change that precedes
//! a push. A store that has fallen back to an older state lacks them until an owner archives the log again: such a read
//! fails, because it would show removed members.

use tidegate_protocol::{
    id::{ConversationId, UserId},
    machine::ledger::{Head, Member},
    record::{Body, MemberAction, MemberChange},
};

use crate::store::{Direction, PageQuery, Store, StoreError};

/// Rows of history per page.
const PAGE_ROWS: usize = 1_000;

/// Approximate bytes of history per page.
const PAGE_BYTES: usize = 1024 * 1024;

/// Longest range of seqs that is read row by row; beyond it, all members are read.
const CATCH_UP_ROWS_MAX: u64 = 20_000;

/// Members per page.
const MEMBERS_PAGE_ROWS: usize = 1_000;

/// Reads the membership changes above `from` up to `to`, in order; `None` if history has pruned them or the range is
/// too long.
pub(super) async fn changes(
    store: &dyn Store,
    group: &ConversationId,
    from: u64,
    to: u64,
) -> Result<Option<Vec<(u64, MemberChange)>>, StoreError> {
    if to.saturating_sub(from) > CATCH_UP_ROWS_MAX {
        return Ok(None);
    }
    let (mut changes, mut cursor) = (Vec::new(), from);
    while cursor < to {
        let query =
            PageQuery { cursor, direction: Direction::Forward, limit: PAGE_ROWS, max_bytes: PAGE_BYTES };
        let page = store.page(group, query).await?;
        check_head(group, page.head.as_ref(), to)?;
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

/// Members that are connected to this node.
pub(super) type LocalMembers = Vec<(UserId, Member)>;

/// Members to read from the store, as of `to` or later.
pub(super) struct MembersQuery<'a> {
    /// Group whose members are read.
    pub(super) group: &'a ConversationId,
    /// Seq that the store must have reached.
    pub(super) to: u64,
    /// Most pages to read.
    pub(super) pages: usize,
}

/// Reads the members for which `is_here` holds, page by page; `None` if there are more pages than the query allows. The
/// whole membership is never in memory.
pub(super) async fn local_members(
    store: &dyn Store,
    query: MembersQuery<'_>,
    is_here: &(impl Fn(&UserId) -> bool + Sync),
) -> Result<Option<LocalMembers>, StoreError> {
    let MembersQuery { group, to, pages } = query;
    let (mut here, mut after) = (Vec::new(), None);
    for _ in 0..pages {
        let page = store.members(group, after.as_ref(), MEMBERS_PAGE_ROWS).await?;
        after = page.last().map(|(user, _)| user.clone());
        let is_last = page.len() < MEMBERS_PAGE_ROWS;
        here.extend(page.into_iter().filter(|(user, _)| is_here(user)));
        if is_last {
            // After the members, so that a store which fell back during the read is noticed.
            let summary = store.summary(group, None).await?;
            check_head(group, summary.as_ref().map(|it| &it.head), to)?;
            return Ok(Some(here));
        }
    }
    Ok(None)
}

/// Returns an error if the store has not reached the seq.
fn check_head(group: &ConversationId, head: Option<&Head>, to: u64) -> Result<(), StoreError> {
    match head.map_or(0, |head| head.last_seq) {
        has if has < to => {
            Err(StoreError::Unavailable(format!("{group} is at {has} there, {to} was published")))
        }
        _ => Ok(()),
    }
}

/// Returns the users that a change adds, and those that it removes; the creator of a group need not be among its users.
pub(super) fn joined_and_left(change: &MemberChange) -> (Vec<UserId>, Vec<UserId>) {
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
