//! Weekly tables of dedup keys: created before the first key, dropped when the rules have expired the last (ADR 10).
//!
//! A key's hash is random, so an insert may touch any page of the index, which must therefore be that of one week and
//! not of all keys. The week is only a storage unit; the rules of each partition decide which keys have expired.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::{Mutex, MutexGuard};

use super::{
    codec::Reader,
    error::PostgresError,
    session::{Session, call},
};

/// Advisory lock for changes of the weekly tables, held to the end of the transaction.
const LOCK_WEEKS: &str = "SELECT pg_advisory_xact_lock(x'7469646567617465'::bigint + 1)";

/// Query that tests whether the table of a week exists.
const TABLE_EXISTS: &str = "SELECT to_regclass('keys_w' || $1::integer) IS NOT NULL";

/// Query for the weeks in which all keys have expired.
const EXPIRED_WEEKS: &str = "
SELECT week FROM key_weeks w LEFT JOIN partitions p ON p.partition = w.partition
GROUP BY week HAVING bool_and(w.below <= coalesce(p.keys_from, 0)) ORDER BY week";

const DELETE_WEEK: &str = "DELETE FROM key_weeks WHERE week = $1";

/// Node's cache of existing weekly tables and expired keys.
#[derive(Default)]
pub(super) struct KeyPartitions(Mutex<State>);

#[derive(Default)]
struct State {
    /// Weeks that have a table.
    tables: BTreeSet<i32>,
    /// Offset of each partition below which keys have expired, as of its last archive.
    keys_from: BTreeMap<i32, u64>,
}

impl KeyPartitions {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    pub(super) fn has(&self, week: i32) -> bool {
        self.lock().tables.contains(&week)
    }

    /// Clears the cached tables, after one turned out to be missing.
    pub(super) fn clear(&self) {
        self.lock().tables.clear();
    }

    /// Returns whether more keys of the partition have expired than at its last archive.
    pub(super) fn may_drop(&self, partition: i32, keys_from: u64) -> bool {
        self.lock().keys_from.insert(partition, keys_from).unwrap_or(0) < keys_from
    }

    /// Creates the table of the week without blocking writes to other weeks.
    ///
    /// Attaching a table takes a weaker lock than creating it in place.
    pub(super) async fn create(&self, session: &mut Session, week: i32) -> Result<(), PostgresError> {
        session.begin("BEGIN", &[call(LOCK_WEEKS, &[])]).await?;
        let found = session.execute(&[call(TABLE_EXISTS, &[&week])]).await?;
        let exists = match found.first().and_then(|rows| rows.first()) {
            Some(row) => Reader::new(row).get::<bool>()?,
            None => false,
        };
        if !exists {
            session
                .change(&format!(
                    "CREATE TABLE keys_w{week} (LIKE keys INCLUDING ALL, CHECK (week = {week}));
                     ALTER TABLE keys ATTACH PARTITION keys_w{week} FOR VALUES IN ({week})"
                ))
                .await?;
        }
        session.commit().await?;
        self.lock().tables.insert(week);
        Ok(())
    }
}

/// Drops the tables of weeks in which all keys have expired.
///
/// Archives wait while a table is dropped, at most 100 ms. If the lock is not free by then, the next call retries.
pub(super) async fn drop_expired(session: &mut Session) -> Result<(), PostgresError> {
    let found = session.read(&[call(EXPIRED_WEEKS, &[])]).await?;
    for row in found.first().into_iter().flatten() {
        let week: i32 = Reader::new(row).get()?;
        session.begin("BEGIN; SET LOCAL lock_timeout = 100", &[call(LOCK_WEEKS, &[])]).await?;
        // Check again under the lock: an archive may have written keys to this week meanwhile.
        session.change("LOCK TABLE keys IN ACCESS EXCLUSIVE MODE").await?;
        let is_expired = session.execute(&[call(EXPIRED_WEEKS, &[])]).await?;
        let is_expired = is_expired
            .first()
            .into_iter()
            .flatten()
            .any(|row| row.try_get(0).is_ok_and(|it: i32| it == week));
        if is_expired {
            session.change(&format!("DROP TABLE IF EXISTS keys_w{week}")).await?;
            session.execute(&[call(DELETE_WEEK, &[&week])]).await?;
        }
        session.commit().await?;
    }
    Ok(())
}
