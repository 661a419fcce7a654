//! Group size: decides whether a group is small enough for signals, and in a cluster reads its members.

use std::sync::Arc;

use tidegate_protocol::{Code, id::ConversationId};

use crate::{
    mail::GroupSize,
    store::{ReadClass, Store},
};

/// Returns whether the group has at most `max` members, without listing them: a single node's indexes are exact.
///
/// # Errors
/// `NOT_A_MEMBER` if there is no such group; `STORE_UNAVAILABLE` if the store can't be read.
pub async fn of(store: &dyn Store, group: &ConversationId, max: usize) -> Result<GroupSize, Code> {
    match store.summary(group, None).await {
        Ok(Some(summary)) => Ok(GroupSize { small: summary.members <= max as u64, members: None }),
        Ok(None) => Err(Code::NotAMember),
        Err(_) => Err(Code::StoreUnavailable),
    }
}

/// Returns whether the group has at most `max` members, and lists them if so. For a clustered node,
/// whose indexes may lag behind the store.
///
/// # Errors
/// The errors of [`of`].
pub async fn with_members(store: &dyn Store, group: &ConversationId, max: usize) -> Result<GroupSize, Code> {
    let groups = std::slice::from_ref(group);
    let found = store.group_members(groups, max, ReadClass::Client).await;
    let found = found.map_err(|_| Code::StoreUnavailable)?.pop().flatten();
    let found = found.filter(|it| it.members > 0).ok_or(Code::NotAMember)?;
    let small = found.members <= max as u64;
    Ok(GroupSize { small, members: Some(Arc::new(found.users.into_iter().collect())) })
}
