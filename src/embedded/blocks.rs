//! Block lists of users. The writer changes them like marks: without a sync of their own, confirmed after the next one.

use std::ops::Bound;

use async_trait::async_trait;
use fjall::{PersistMode, Readable as _};
use tidegate_protocol::id::UserId;
use tokio::sync::oneshot;

use super::{
    Database, DatabaseError, EmbeddedStore, Job,
    codec::{self, Pair},
    writer::Writer,
};
use crate::store::{AddedBlock, BlockEntry, BlockLists, BlockOutcome, BlocksPage, StoreError};

/// Change of the list of `user`.
pub(super) struct BlockEdit {
    user: UserId,
    other: UserId,
    /// Time of a new block, and the most entries of the list; `None` to remove the block.
    add: Option<(u64, u64)>,
}

impl Writer {
    /// Changes a block list.
    pub(super) fn edit_blocks(&mut self, edit: &BlockEdit) -> Result<BlockOutcome, StoreError> {
        self.check_usable()?;
        let BlockEdit { user, other, add } = edit;
        let mut outcome = BlockOutcome::Unchanged;
        self.write(PersistMode::Buffer, |database, _, batch| {
            let state = &database.state;
            let read = |key: &[u8]| state.get(key).map_err(DatabaseError::from);
            let key = codec::pair(Pair::Block, user.as_str(), other.as_str());
            let present = read(&key)?.map(|value| codec::block(&value)).transpose()?;
            if present.is_some() == add.is_some() {
                return Ok(());
            }
            let count_key = codec::block_count_key(user);
            let count = read(&count_key)?.map(|value| codec::number(&value)).transpose()?.unwrap_or(0);
            if add.is_some_and(|(_, list_max)| count >= list_max) {
                outcome = BlockOutcome::Full;
                return Ok(());
            }
            let head = read(codec::BLOCK_VERSION)?.map(|value| codec::number(&value)).transpose()?;
            let version = head.unwrap_or(0) + 1;
            match (add, present) {
                (Some((time, _)), _) => {
                    batch.insert(state, key, codec::put_block(version, *time));
                    batch.insert(
                        state,
                        codec::block_version_key(version),
                        codec::put_block_pair(user, other),
                    );
                    batch.insert(state, count_key, codec::put_number(count + 1));
                }
                (None, Some((added, _))) => {
                    batch.remove(state, key);
                    batch.remove(state, codec::block_version_key(added));
                    match count.saturating_sub(1) {
                        0 => batch.remove(state, count_key),
                        left => batch.insert(state, count_key, codec::put_number(left)),
                    }
                }
                (None, None) => {}
            }
            batch.insert(state, codec::BLOCK_VERSION, codec::put_number(version));
            outcome = BlockOutcome::Changed(version);
            Ok(())
        })?;
        Ok(outcome)
    }
}

fn list(
    database: &Database,
    user: &UserId,
    after: Option<&UserId>,
    limit: usize,
) -> Result<Vec<BlockEntry>, DatabaseError> {
    let mut found = Vec::new();
    let start = codec::pair(Pair::Block, user.as_str(), after.map_or("", UserId::as_str));
    for entry in database.snapshot().range(&database.state, (Bound::Excluded(start), Bound::Unbounded)) {
        let (key, value) = entry.into_inner()?;
        let Some(other) = codec::second(&key, Pair::Block, user.as_str())? else { break };
        if found.len() == limit {
            break;
        }
        found.push(BlockEntry { other: codec::user_id(other)?, time: codec::block(&value)?.1 });
    }
    Ok(found)
}

fn since(database: &Database, after: u64, limit: usize) -> Result<BlocksPage, DatabaseError> {
    let view = database.snapshot();
    let head = view.get(&database.state, codec::BLOCK_VERSION)?;
    let version = head.map(|value| codec::number(&value)).transpose()?.unwrap_or(0);
    let mut added = Vec::new();
    let range = codec::block_version_key(after.saturating_add(1))..=codec::block_version_key(u64::MAX);
    for entry in view.range(&database.state, range).take(limit) {
        let (key, value) = entry.into_inner()?;
        let (user, other) = codec::block_pair(&value)?;
        added.push(AddedBlock { version: codec::log_offset(&key)?, user, other });
    }
    Ok(BlocksPage { version, added })
}

impl EmbeddedStore {
    async fn edit_blocks(&self, edit: BlockEdit) -> Result<BlockOutcome, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.0.send(Job::Blocks(edit, reply))?;
        answer.await.unwrap_or_else(|_| Err(StoreError::Unknown("the writer ended".to_owned())))
    }
}

#[async_trait]
impl BlockLists for EmbeddedStore {
    async fn block(
        &self,
        user: &UserId,
        other: &UserId,
        time: u64,
        list_max: u64,
    ) -> Result<BlockOutcome, StoreError> {
        self.edit_blocks(BlockEdit { user: user.clone(), other: other.clone(), add: Some((time, list_max)) })
            .await
    }

    async fn unblock(&self, user: &UserId, other: &UserId) -> Result<BlockOutcome, StoreError> {
        self.edit_blocks(BlockEdit { user: user.clone(), other: other.clone(), add: None }).await
    }

    async fn blocks(
        &self,
        user: &UserId,
        after: Option<&UserId>,
        limit: usize,
    ) -> Result<Vec<BlockEntry>, StoreError> {
        let (user, after) = (user.clone(), after.cloned());
        self.0.read(move |database| Ok(list(database, &user, after.as_ref(), limit)?)).await
    }

    async fn is_blocked(&self, user: &UserId, other: &UserId) -> Result<bool, StoreError> {
        let key = codec::pair(Pair::Block, user.as_str(), other.as_str());
        let read =
            move |database: &Database| Ok(database.state.get(key).map_err(DatabaseError::from)?.is_some());
        self.0.read(read).await
    }

    async fn blocks_since(&self, after: u64, limit: usize) -> Result<BlocksPage, StoreError> {
        self.0.read(move |database| Ok(since(database, after, limit)?)).await
    }
}
