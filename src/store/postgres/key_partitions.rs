//! The weekly tables of dedup keys: made ahead of the first key, dropped when the rules forget the last.
//!
//! A key's hash is random, so an insert may touch any page of the index: of one week's index, and not of all keys that
//! there ever were. A week is a matter of storage only: what is forgotten is said by the rules of each partition.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::{
    codec::Reader,
    error::Trouble,
    session::{Session, call},
};

/// Whoever changes the tables of the weeks holds it to the end of the transaction.
const LOCK: &str = "SELECT pg_advisory_xact_lock(x'7469646567617465'::bigint + 1)";

/// Whether the table of a week is there.
const FIND: &str = "SELECT to_regclass('keys_w' || $1::integer) IS NOT NULL";

/// Weeks that have no key above what the rules of its partition forget.
const FORGOTTEN: &str = "
SELECT week FROM key_weeks w LEFT JOIN partitions p ON p.partition = w.partition
GROUP BY week HAVING bool_and(w.below <= coalesce(p.keys_from, 0)) ORDER BY week";

const FORGET: &str = "DELETE FROM key_weeks WHERE week = $1";

/// What this node knows of the weeks.
#[derive(Default)]
pub(super) struct Weeks(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// Those that have a table.
    tables: BTreeSet<i32>,
    /// What the rules of each partition forget, as last heard.
    keys_from: BTreeMap<i32, u64>,
}

impl Weeks {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn has(&self, week: i32) -> bool {
        self.lock().tables.contains(&week)
    }

    /// Something is not as it was thought to be.
    pub(super) fn forget(&self) {
        self.lock().tables.clear();
    }

    /// Whether the rules of the partition forget more than they did.
    pub(super) fn may_drop(&self, partition: i32, keys_from: u64) -> bool {
        self.lock().keys_from.insert(partition, keys_from).unwrap_or(0) < keys_from
    }

    /// Makes the table of the week. Who writes to other weeks is not held up: a table that is attached needs a lock
    /// that they do not mind, other than one that is created in place.
    pub(super) async fn make(&self, session: &mut Session, week: i32) -> Result<(), Trouble> {
        session.begin("BEGIN", &[call(LOCK, &[])]).await?;
        let found = session.go_on(&[call(FIND, &[&week])]).await?;
        let there = match found.first().and_then(|rows| rows.first()) {
            Some(row) => Reader::new(row).get::<bool>()?,
            None => false,
        };
        if !there {
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

/// Drops the tables of weeks whose keys are all forgotten. Archives wait for the time of a drop, at most 100 ms; where
/// that is too short nothing happens, and the next call tries again.
pub(super) async fn drop_forgotten(session: &mut Session) -> Result<(), Trouble> {
    let found = session.read(&[call(FORGOTTEN, &[])]).await?;
    for row in found.first().into_iter().flatten() {
        let week: i32 = Reader::new(row).get()?;
        session.begin("BEGIN; SET LOCAL lock_timeout = 100", &[call(LOCK, &[])]).await?;
        // Somebody may have written to it meanwhile: then it is not forgotten any more.
        session.change("LOCK TABLE keys IN ACCESS EXCLUSIVE MODE").await?;
        let still = session.go_on(&[call(FORGOTTEN, &[])]).await?;
        let still =
            still.first().into_iter().flatten().any(|row| row.try_get(0).is_ok_and(|it: i32| it == week));
        if still {
            session.change(&format!("DROP TABLE IF EXISTS keys_w{week}")).await?;
            session.go_on(&[call(FORGET, &[&week])]).await?;
        }
        session.commit().await?;
    }
    Ok(())
}
