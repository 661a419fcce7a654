//! Recipients of notices about a group: all members of a small one, owners and admins of a large one.

use tidegate_protocol::{
    id::{ConversationId, UserId},
    record::Role,
};

use crate::store::{Store, StoreError};

/// Most admins of a group that are notified.
const ADMINS_MAX: usize = 100;

/// Members of a large group among whom its admins are looked for, in pages.
const PAGE_ROWS: usize = 1_000;
const PAGES_MAX: usize = 100;

/// Users that a storm concerns.
pub(super) struct StormRecipients {
    /// Recipients of notices.
    pub(super) notified: Vec<UserId>,
    /// Owners and admins, owners first.
    pub(super) admins: Vec<UserId>,
}

/// Finds the recipients of a group, which is small up to `small_max` members.
pub(super) async fn recipients(
    store: &dyn Store,
    group: &ConversationId,
    small_max: usize,
) -> Result<StormRecipients, StoreError> {
    let mut limit = small_max.saturating_add(1);
    let (mut members, mut owners, mut admins, mut after) = (Vec::new(), Vec::new(), Vec::new(), None);
    let mut is_large = false;
    for _ in 0..=PAGES_MAX {
        let page = store.members(group, after.as_ref(), limit).await?;
        let (count, is_last) = (page.len(), page.len() < limit);
        after = page.last().map(|(user, _)| user.clone());
        for (user, member) in page {
            match member.role {
                Role::Owner if owners.len() < ADMINS_MAX => owners.push(user.clone()),
                Role::Admin if admins.len() < ADMINS_MAX => admins.push(user.clone()),
                _ => {}
            }
            if !is_large {
                members.push(user);
            }
        }
        if is_last || count == 0 {
            break;
        }
        // The first page alone has all members of a small group.
        (is_large, limit) = (true, PAGE_ROWS);
        members.clear();
    }
    owners.append(&mut admins);
    owners.truncate(ADMINS_MAX);
    Ok(StormRecipients { notified: if is_large { owners.clone() } else { members }, admins: owners })
}
