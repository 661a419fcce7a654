//! Number blocks: durable high-water marks of room numbers, each step in one statement (flaws S6-S12).

use std::num::NonZeroU64;

use async_trait::async_trait;

use super::{
    PostgresStore,
    codec::{Reader, big},
    error::{PostgresError, damaged},
    session::{Session, call},
};
use crate::{
    scratch::{Block, FloorError, Floors},
    store::StoreError,
};

/// Reserves a block. The epoch is read before the update, so a block reserved while the epoch is raised has the old one
/// and is discarded.
const RESERVE_BLOCK: &str = "
INSERT INTO floors (key, floor) VALUES ($1, $3::bigint + $2::bigint)
ON CONFLICT (key) DO UPDATE SET floor = greatest(floors.floor, $3) + $2
RETURNING floor, (SELECT epoch FROM floor_epoch)";

const SELECT_EPOCH: &str = "SELECT epoch FROM floor_epoch";

const RAISE_EPOCH: &str = "UPDATE floor_epoch SET epoch = greatest(epoch, $1) + 1 RETURNING epoch";

pub(super) async fn reserve(
    session: &mut Session,
    key: &str,
    size: NonZeroU64,
    above: u64,
) -> Result<Block, PostgresError> {
    let (by, above) = (big(size.get()), big(above));
    let found = session.begin("BEGIN", &[call(RESERVE_BLOCK, &[&key, &by, &above])]).await?;
    let row = found.iter().flatten().next().ok_or_else(damaged)?;
    let mut reader = Reader::new(row);
    let (floor, epoch) = (reader.big()?, reader.big()?);
    session.commit().await?;
    let before = floor.checked_sub(size.get()).ok_or_else(damaged)?;
    Ok(Block { numbers: before + 1..=floor, epoch })
}

pub(super) async fn epoch(session: &mut Session) -> Result<u64, PostgresError> {
    let found = session.read(&[call(SELECT_EPOCH, &[])]).await?;
    Reader::new(found.iter().flatten().next().ok_or_else(damaged)?).big()
}

pub(super) async fn raise(session: &mut Session, above: u64) -> Result<u64, PostgresError> {
    let found = session.begin("BEGIN", &[call(RAISE_EPOCH, &[&big(above)])]).await?;
    let epoch = Reader::new(found.iter().flatten().next().ok_or_else(damaged)?).big()?;
    session.commit().await?;
    Ok(epoch)
}

impl From<StoreError> for FloorError {
    fn from(error: StoreError) -> Self {
        Self::Unavailable(error.to_string())
    }
}

#[async_trait]
impl Floors for PostgresStore {
    async fn reserve(&self, key: &str, size: NonZeroU64, above: u64) -> Result<Block, FloorError> {
        let core = &*self.core;
        let once = move || async move { reserve(&mut core.owners().await?, key, size, above).await };
        Ok(core.run(once).await?)
    }

    async fn epoch(&self) -> Result<u64, FloorError> {
        let core = &*self.core;
        Ok(core.run(move || async move { epoch(&mut core.owners().await?).await }).await?)
    }

    async fn raise(&self, above: u64) -> Result<u64, FloorError> {
        let core = &*self.core;
        let once = move || async move { raise(&mut core.owners().await?, above).await };
        Ok(core.run(once).await?)
    }
}
