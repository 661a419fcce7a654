//! Group memberships of a user, read from the store at a login.

use tidegate_protocol::id::{ConversationId, ConversationKind, ID_BYTES_MAX, UserId};

use crate::store::{Store, StoreError};

/// Memberships read from the store per page.
const MEMBERSHIPS_PAGE_ROWS: usize = 1_000;

/// Group of a user, as the store had it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupMembership {
    pub(crate) group: ConversationId,
    /// Last seq of the group at that time.
    pub(crate) as_of: u64,
    /// Member count at that time.
    pub(crate) members: u64,
}

/// Reads the groups of the user, as of what is archived.
///
/// # Errors
/// Fails if the store can't be read.
pub(crate) async fn groups_of(store: &dyn Store, user: &UserId) -> Result<Vec<GroupMembership>, StoreError> {
    let mut groups = Vec::new();
    // Direct conversations come first, may be thousands, and are not needed.
    let mut after = last_direct();
    loop {
        let page = store.memberships(user, after.as_ref(), MEMBERSHIPS_PAGE_ROWS).await?;
        let Some(last) = page.last() else { return Ok(groups) };
        after = Some(last.conversation.clone());
        let is_last = page.len() < MEMBERSHIPS_PAGE_ROWS;
        let is_group = |id: &ConversationId| matches!(id.kind(), ConversationKind::Group(_));
        let mine = page.into_iter().filter(|row| row.member_view.member.is_in() && row.head.deleted_seq == 0);
        let mine = mine.filter(|row| is_group(&row.conversation));
        groups.extend(mine.map(|row| GroupMembership {
            group: row.conversation,
            as_of: row.head.last_seq,
            members: row.members,
        }));
        if is_last {
            return Ok(groups);
        }
    }
}

/// Returns the last key that a direct conversation can have.
fn last_direct() -> Option<ConversationId> {
    let user = UserId::new(&"z".repeat(ID_BYTES_MAX)).ok()?;
    Some(ConversationId::direct(&user, &user))
}
