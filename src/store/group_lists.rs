//! Part of the port `Store` that lists groups and their members, of any number, for administrators.
//!
//! Each call is one bounded read: it visits at most so many rows, whatever they are, and says where to go on. So a page may
//! have fewer rows than were asked for, or none, before the list ends.

use async_trait::async_trait;
use tidegate_protocol::{
    id::{ConversationId, UserId},
    machine::ledger::{Head, Member},
    record::Role,
};

use super::{ConversationHead, Store, StoreError};
use crate::fault::Faulty;

/// Most rows that a page visits for members of one role, of which a group has few.
const VISITED_BY_ROLE: usize = 10_000;

/// Approximate most bytes of the settings of the groups of a page; the first group is returned whatever it has.
pub const GROUP_PAGE_BYTES_MAX: usize = 1 << 20;

/// Returns how many rows a page visits to find `limit` of them: users who left and groups that were deleted have rows, too.
pub const fn rows_visited_max(limit: usize) -> usize {
    limit.saturating_mul(2).saturating_add(256)
}

/// Page of a list, sorted by key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListPage<T, K> {
    /// Rows, at most as many as were asked for.
    pub rows: Vec<T>,
    /// Key to continue after; `None` if the list ends with this page.
    pub next: Option<K>,
}

/// Current member of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMember {
    /// User.
    pub user: UserId,
    /// Member row of the user.
    pub member: Member,
}

/// Group in which a user is a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupOfUser {
    /// Group.
    pub group: ConversationHead,
    /// Member row of the user.
    pub member: Member,
}

/// Request for a page of the members of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MembersRequest {
    /// Group.
    pub group: ConversationId,
    /// Role of the members that count; `None` for all.
    pub role: Option<Role>,
    /// Last user of the previous page, exclusive.
    pub after: Option<UserId>,
    /// Most members.
    pub limit: usize,
}

impl MembersRequest {
    /// Returns how many rows the page visits at most.
    pub const fn visited_max(&self) -> usize {
        if self.role.is_some() { VISITED_BY_ROLE } else { rows_visited_max(self.limit) }
    }

    /// Returns whether the row is one of the list.
    pub(crate) fn lists(&self, member: &Member) -> bool {
        member.is_in() && self.role.is_none_or(|role| member.role == role)
    }
}

/// Lists of groups and members, for administrators.
#[async_trait]
pub trait GroupLists: Send + Sync {
    /// Returns a page of the groups whose keys begin with `prefix`, above `after`. Deleted groups are left out.
    async fn group_page(
        &self,
        prefix: &str,
        after: Option<&ConversationId>,
        limit: usize,
    ) -> Result<ListPage<ConversationHead, ConversationId>, StoreError>;

    /// Returns a page of the current members of a group; `None` if there is no such group, or it was deleted.
    ///
    /// Each page is a snapshot of its own: a user who is a member throughout the listing is on exactly one page.
    async fn member_page(
        &self,
        request: &MembersRequest,
    ) -> Result<Option<ListPage<GroupMember, UserId>>, StoreError>;

    /// Returns a page of the groups in which the user is a member now, above `after`. Deleted groups are left out.
    async fn groups_of(
        &self,
        user: &UserId,
        after: Option<&ConversationId>,
        limit: usize,
    ) -> Result<ListPage<GroupOfUser, ConversationId>, StoreError>;
}

#[async_trait]
impl GroupLists for Faulty<dyn Store> {
    async fn group_page(
        &self,
        prefix: &str,
        after: Option<&ConversationId>,
        limit: usize,
    ) -> Result<ListPage<ConversationHead, ConversationId>, StoreError> {
        self.call("group_page", self.inner.group_page(prefix, after, limit)).await
    }

    async fn member_page(
        &self,
        request: &MembersRequest,
    ) -> Result<Option<ListPage<GroupMember, UserId>>, StoreError> {
        self.call("member_page", self.inner.member_page(request)).await
    }

    async fn groups_of(
        &self,
        user: &UserId,
        after: Option<&ConversationId>,
        limit: usize,
    ) -> Result<ListPage<GroupOfUser, ConversationId>, StoreError> {
        self.call("groups_of", self.inner.groups_of(user, after, limit)).await
    }
}

/// Collects a page from the rows that a store visits, in the order of their keys.
pub(crate) struct PageBuilder<T, K> {
    page: ListPage<T, K>,
    limit: usize,
    visited_max: usize,
    visited: usize,
    bytes: usize,
    last: Option<K>,
}

impl<T, K: Clone> PageBuilder<T, K> {
    /// Creates an empty page of at most `limit` rows, out of `visited_max`.
    pub(crate) fn new(limit: usize, visited_max: usize) -> Self {
        let page = ListPage { rows: Vec::new(), next: None };
        Self { page, limit, visited_max, visited: 0, bytes: 0, last: None }
    }

    /// Visits a row, whose content has about so many bytes; `row` is `None` if it is not one of the list. Returns whether
    /// the next row may be visited, too.
    pub(crate) fn visit(&mut self, key: K, row: Option<T>, bytes: usize) -> bool {
        self.visited += 1;
        if let Some(row) = row {
            self.bytes = self.bytes.saturating_add(bytes);
            let is_full = self.page.rows.len() == self.limit || self.bytes > GROUP_PAGE_BYTES_MAX;
            if is_full && !self.page.rows.is_empty() {
                self.page.next = self.last.take();
                return false;
            }
            self.page.rows.push(row);
        }
        if self.visited == self.visited_max {
            self.page.next = Some(key);
            return false;
        }
        self.last = Some(key);
        true
    }

    /// Returns the page.
    pub(crate) fn finish(self) -> ListPage<T, K> {
        self.page
    }
}

/// Returns about how many bytes the settings of a group have.
pub(crate) fn settings_bytes(head: &Head) -> usize {
    head.settings.iter().map(|(name, value)| name.len() + value.len() + 6).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pages(rows: &[(bool, usize)], limit: usize, visited_max: usize) -> Vec<Vec<usize>> {
        let (mut from, mut all) = (0, Vec::new());
        loop {
            let mut page = PageBuilder::new(limit, visited_max);
            for (key, (is_listed, bytes)) in rows.iter().enumerate().skip(from) {
                if !page.visit(key, is_listed.then_some(key), *bytes) {
                    break;
                }
            }
            let ListPage { rows, next } = page.finish();
            all.push(rows);
            let Some(next) = next else { return all };
            from = next + 1;
        }
    }

    proptest! {
        #[test]
        fn pages_have_each_listed_row_once_and_are_bounded(
            rows in prop::collection::vec((any::<bool>(), 0..600_000usize), 0..60),
            limit in 1..9usize,
            visited_max in 1..20usize,
        ) {
            let found = pages(&rows, limit, visited_max);
            let expected: Vec<usize> = (0..rows.len()).filter(|key| rows[*key].0).collect();
            prop_assert_eq!(found.concat(), expected);
            for page in &found {
                let bytes: usize = page.iter().map(|key| rows[*key].1).sum();
                prop_assert!(page.len() <= limit && (page.len() < 2 || bytes <= GROUP_PAGE_BYTES_MAX));
            }
            prop_assert!(found.len() <= rows.len() + 1);
        }
    }
}
