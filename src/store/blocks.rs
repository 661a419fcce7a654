//! Block lists, a part of the port `Store`: users keep others from writing to them directly.
//!
//! Each change raises one version of the whole store, so that nodes find what they have not read yet. A store that falls
//! back to an older state shows an older version.

use async_trait::async_trait;
use tidegate_protocol::id::UserId;

use super::StoreError;

/// Entry of a block list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockEntry {
    /// Blocked user.
    pub other: UserId,
    /// Time of the block, in ms since 1970.
    pub time: u64,
}

/// Result of a change of a block list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockOutcome {
    /// List changed, at this version.
    Changed(u64),
    /// List unchanged: it was as requested before.
    Unchanged,
    /// Block refused: the list has as many entries as it may have. Nothing changed.
    Full,
}

/// Block with the version that added it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddedBlock {
    /// Version of the store from which on the block is in force.
    pub version: u64,
    /// User whose list it is.
    pub user: UserId,
    /// Blocked user.
    pub other: UserId,
}

/// Blocks above a version, with the version of the same snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlocksPage {
    /// Version of the last change of any list; 0 if there was none.
    pub version: u64,
    /// Blocks that exist, by rising version.
    pub added: Vec<AddedBlock>,
}

/// Block lists of users, as durable as marks. On return a change is visible to every read.
#[async_trait]
pub trait BlockLists: Send + Sync {
    /// Adds `other` to the list of `user`, with its `time`, unless the list has `list_max` entries. Concurrent calls don't
    /// exceed that.
    async fn block(
        &self,
        user: &UserId,
        other: &UserId,
        time: u64,
        list_max: u64,
    ) -> Result<BlockOutcome, StoreError>;

    /// Removes `other` from the list of `user`.
    async fn unblock(&self, user: &UserId, other: &UserId) -> Result<BlockOutcome, StoreError>;

    /// Returns up to `limit` entries of the list of `user`, sorted, above `after`; an empty page is the end.
    async fn blocks(
        &self,
        user: &UserId,
        after: Option<&UserId>,
        limit: usize,
    ) -> Result<Vec<BlockEntry>, StoreError>;

    /// Returns whether `other` is on the list of `user`.
    async fn is_blocked(&self, user: &UserId, other: &UserId) -> Result<bool, StoreError>;

    /// Returns up to `limit` blocks of all users that were added after the version `after`, and the current version.
    async fn blocks_since(&self, after: u64, limit: usize) -> Result<BlocksPage, StoreError>;
}
