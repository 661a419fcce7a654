//! The floors of numbers (DESIGN 6.6), each step one durable statement.

use std::num::NonZeroU64;

use super::{
    codec::{Reader, big},
    error::{Trouble, damaged},
    session::{Session, call},
};
use crate::scratch::Block;

/// The epoch is that of before: one that is raised meanwhile is not yet carried, so the block is thrown away, never kept.
const RESERVE: &str = "
INSERT INTO floors (key, floor) VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET floor = floors.floor + EXCLUDED.floor
RETURNING floor, (SELECT epoch FROM floor_epoch)";

const EPOCH: &str = "SELECT epoch FROM floor_epoch";

const RAISE: &str = "UPDATE floor_epoch SET epoch = epoch + 1 RETURNING epoch";

pub(super) async fn reserve(session: &mut Session, key: &str, size: NonZeroU64) -> Result<Block, Trouble> {
    let by = big(size.get());
    let found = session.begin("BEGIN", &[call(RESERVE, &[&key, &by])]).await?;
    let row = found.iter().flatten().next().ok_or_else(damaged)?;
    let mut reader = Reader::new(row);
    let (floor, epoch) = (reader.big()?, reader.big()?);
    session.commit().await?;
    let before = floor.checked_sub(size.get()).ok_or_else(damaged)?;
    Ok(Block { numbers: before + 1..=floor, epoch })
}

pub(super) async fn epoch(session: &mut Session) -> Result<u64, Trouble> {
    let found = session.read(&[call(EPOCH, &[])]).await?;
    Reader::new(found.iter().flatten().next().ok_or_else(damaged)?).big()
}

pub(super) async fn raise(session: &mut Session) -> Result<u64, Trouble> {
    let found = session.begin("BEGIN", &[call(RAISE, &[])]).await?;
    let epoch = Reader::new(found.iter().flatten().next().ok_or_else(damaged)?).big()?;
    session.commit().await?;
    Ok(epoch)
}
