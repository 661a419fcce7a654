//! Block lists in memory.

use std::{collections::BTreeMap, ops::Bound};

use async_trait::async_trait;
use tidegate_protocol::id::UserId;

use super::MemoryStore;
use crate::store::{AddedBlock, BlockEntry, BlockLists, BlockOutcome, BlocksPage, StoreError};

/// Block lists of all users.
#[derive(Clone, Default)]
pub(super) struct AllBlocks {
    version: u64,
    /// Version and time of each block, by its user and the blocked user.
    lists: BTreeMap<UserId, BTreeMap<UserId, (u64, u64)>>,
}

#[async_trait]
impl BlockLists for MemoryStore {
    async fn block(
        &self,
        user: &UserId,
        other: &UserId,
        time: u64,
        list_max: u64,
    ) -> Result<BlockOutcome, StoreError> {
        let blocks = &mut self.lock().blocks;
        let version = blocks.version + 1;
        let list = blocks.lists.entry(user.clone()).or_default();
        if list.contains_key(other) {
            return Ok(BlockOutcome::Unchanged);
        }
        if list.len() as u64 >= list_max {
            return Ok(BlockOutcome::Full);
        }
        list.insert(other.clone(), (version, time));
        blocks.version = version;
        Ok(BlockOutcome::Changed(version))
    }

    async fn unblock(&self, user: &UserId, other: &UserId) -> Result<BlockOutcome, StoreError> {
        let blocks = &mut self.lock().blocks;
        let Some(list) = blocks.lists.get_mut(user) else { return Ok(BlockOutcome::Unchanged) };
        if list.remove(other).is_none() {
            return Ok(BlockOutcome::Unchanged);
        }
        if list.is_empty() {
            blocks.lists.remove(user);
        }
        blocks.version += 1;
        Ok(BlockOutcome::Changed(blocks.version))
    }

    async fn blocks(
        &self,
        user: &UserId,
        after: Option<&UserId>,
        limit: usize,
    ) -> Result<Vec<BlockEntry>, StoreError> {
        let state = self.lock();
        let Some(list) = state.blocks.lists.get(user) else { return Ok(Vec::new()) };
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let entries = list.range::<UserId, _>((from, Bound::Unbounded)).take(limit);
        Ok(entries.map(|(other, (_, time))| BlockEntry { other: other.clone(), time: *time }).collect())
    }

    async fn is_blocked(&self, user: &UserId, other: &UserId) -> Result<bool, StoreError> {
        Ok(self.lock().blocks.lists.get(user).is_some_and(|list| list.contains_key(other)))
    }

    async fn blocks_since(&self, after: u64, limit: usize) -> Result<BlocksPage, StoreError> {
        let blocks = &self.lock().blocks;
        let all = blocks.lists.iter().flat_map(|(user, list)| list.iter().map(move |entry| (user, entry)));
        let mut added: Vec<AddedBlock> = all
            .filter(|(_, (_, (version, _)))| *version > after)
            .map(|(user, (other, (version, _)))| AddedBlock {
                version: *version,
                user: user.clone(),
                other: other.clone(),
            })
            .collect();
        added.sort_by_key(|it| it.version);
        added.truncate(limit);
        Ok(BlocksPage { version: blocks.version, added })
    }
}
