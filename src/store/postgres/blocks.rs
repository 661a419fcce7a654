//! Block lists. Changes are rare and lock one row, so that their versions become visible in order.

use async_trait::async_trait;
use tidegate_protocol::id::UserId;

use super::{
    PostgresStore,
    codec::{Reader, big, limit},
    error::{PostgresError, damaged},
    session::{Session, call},
};
use crate::store::{AddedBlock, BlockEntry, BlockLists, BlockOutcome, BlocksPage, StoreError};

/// Next version, with the lock on it. It follows the clock: after a fall-back to an older state no version is used twice.
const LOCK_VERSION: &str = "
SELECT greatest(version + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) FROM block_version FOR UPDATE";

const COUNT: &str = "SELECT count(*), count(*) FILTER (WHERE other = $2) FROM blocks WHERE user_id = $1";

const INSERT: &str = "INSERT INTO blocks (user_id, other, version, time) VALUES ($1, $2, $3, $4)";

const DELETE: &str = "DELETE FROM blocks WHERE user_id = $1 AND other = $2";

const PUT_VERSION: &str = "UPDATE block_version SET version = $1";

const SELECT_LIST: &str =
    "SELECT other, time FROM blocks WHERE user_id = $1 AND other > $2 ORDER BY other LIMIT $3";

const SELECT_ONE: &str = "SELECT count(*) FROM blocks WHERE user_id = $1 AND other = $2";

const SELECT_VERSION: &str = "SELECT version FROM block_version";

const SELECT_SINCE: &str =
    "SELECT version, user_id, other FROM blocks WHERE version > $1 ORDER BY version LIMIT $2";

/// Adds the user to the list with this time and limit, or removes it if there is none.
async fn change(
    session: &mut Session,
    user: &UserId,
    other: &UserId,
    add: Option<(u64, u64)>,
) -> Result<BlockOutcome, PostgresError> {
    let (user, other) = (user.as_str(), other.as_str());
    let found = session.begin("BEGIN", &[call(LOCK_VERSION, &[]), call(COUNT, &[&user, &other])]).await?;
    let number = |call: usize, column: usize| {
        let row = found.get(call).and_then(|rows| rows.first()).ok_or_else(damaged)?;
        let mut reader = Reader::new(row);
        reader.skip(column);
        reader.big()
    };
    let (version, count, is_blocked) = (number(0, 0)?, number(1, 0)?, number(1, 1)? > 0);
    if is_blocked == add.is_some() {
        session.commit().await?;
        return Ok(BlockOutcome::Unchanged);
    }
    let at = big(version);
    let put_version = call(PUT_VERSION, &[&at]);
    match add {
        Some((_, list_max)) if count >= list_max => {
            session.commit().await?;
            return Ok(BlockOutcome::Full);
        }
        Some((time, _)) => {
            let time = big(time);
            session.finish(&[call(INSERT, &[&user, &other, &at, &time]), put_version]).await?;
        }
        None => session.finish(&[call(DELETE, &[&user, &other]), put_version]).await?,
    }
    Ok(BlockOutcome::Changed(version))
}

async fn list(
    session: &mut Session,
    user: &UserId,
    after: Option<&UserId>,
    rows: usize,
) -> Result<Vec<BlockEntry>, PostgresError> {
    let (user, after) = (user.as_str(), after.map_or("", UserId::as_str));
    let found = session.read(&[call(SELECT_LIST, &[&user, &after, &limit(rows)])]).await?;
    let entry = |row| {
        let mut reader = Reader::new(row);
        Ok(BlockEntry { other: reader.user()?, time: reader.big()? })
    };
    found.iter().flatten().map(entry).collect()
}

async fn since(session: &mut Session, after: u64, rows: usize) -> Result<BlocksPage, PostgresError> {
    let (after, rows) = (big(after), limit(rows));
    let found = session.read(&[call(SELECT_VERSION, &[]), call(SELECT_SINCE, &[&after, &rows])]).await?;
    let version = found.first().and_then(|rows| rows.first()).ok_or_else(damaged)?;
    let block = |row| {
        let mut reader = Reader::new(row);
        Ok(AddedBlock { version: reader.big()?, user: reader.user()?, other: reader.user()? })
    };
    let added = found.get(1).into_iter().flatten().map(block).collect::<Result<_, PostgresError>>()?;
    Ok(BlocksPage { version: Reader::new(version).big()?, added })
}

#[async_trait]
impl BlockLists for PostgresStore {
    async fn block(
        &self,
        user: &UserId,
        other: &UserId,
        time: u64,
        list_max: u64,
    ) -> Result<BlockOutcome, StoreError> {
        let core = &*self.core;
        core.run(move || async move {
            change(&mut core.readers().await?, user, other, Some((time, list_max))).await
        })
        .await
    }

    async fn unblock(&self, user: &UserId, other: &UserId) -> Result<BlockOutcome, StoreError> {
        let core = &*self.core;
        core.run(move || async move { change(&mut core.readers().await?, user, other, None).await }).await
    }

    async fn blocks(
        &self,
        user: &UserId,
        after: Option<&UserId>,
        limit: usize,
    ) -> Result<Vec<BlockEntry>, StoreError> {
        let core = &*self.core;
        core.run(move || async move { list(&mut core.readers().await?, user, after, limit).await }).await
    }

    async fn is_blocked(&self, user: &UserId, other: &UserId) -> Result<bool, StoreError> {
        let core = &*self.core;
        let once = move || async move {
            let (user, other) = (user.as_str(), other.as_str());
            let found =
                core.client_reads(self.reads).await?.read(&[call(SELECT_ONE, &[&user, &other])]).await?;
            Ok(Reader::new(found.iter().flatten().next().ok_or_else(damaged)?).big()? > 0)
        };
        core.run(once).await
    }

    async fn blocks_since(&self, after: u64, limit: usize) -> Result<BlocksPage, StoreError> {
        let core = &*self.core;
        core.run(move || async move { since(&mut core.readers().await?, after, limit).await }).await
    }
}
