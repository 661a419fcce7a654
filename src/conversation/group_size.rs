//! How large a group is, for what only small ones take; and among other nodes who its members are.

use std::sync::Arc;

use tidegate_protocol::{Code, id::ConversationId};

use crate::{mail::Size, store::Store};

/// Whether the group has at most `max` members; they are those in the node's indexes.
///
/// # Errors
/// `NOT_A_MEMBER` where there is no such group, `STORE_UNAVAILABLE` when the store can't be read.
pub async fn of(store: &dyn Store, group: &ConversationId, max: usize) -> Result<Size, Code> {
    match store.summary(group, None).await {
        Ok(Some(summary)) => Ok(Size { small: summary.members <= max as u64, members: None }),
        Ok(None) => Err(Code::NotAMember),
        Err(_) => Err(Code::StoreUnavailable),
    }
}

/// The same with the members of a small group by name, for a node among others: its indexes may be behind the store.
///
/// # Errors
/// As those of [`of`].
pub async fn with_members(store: &dyn Store, group: &ConversationId, max: usize) -> Result<Size, Code> {
    let found = store.members(group, None, max + 1).await.map_err(|_| Code::StoreUnavailable)?;
    if found.is_empty() {
        return Err(Code::NotAMember);
    }
    let small = found.len() <= max;
    let members = if small { found.into_iter().map(|(user, _)| user).collect() } else { Default::default() };
    Ok(Size { small, members: Some(Arc::new(members)) })
}
