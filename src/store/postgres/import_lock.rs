//! Exclusive access for an import: a mark in the tables keeps nodes out, also after an interrupted import.

use tokio_postgres::Client;

use super::{
    connect::{PostgresOpenError, Source},
    migrate,
};

/// Advisory lock held during an import; its neighbours are those of migrations and of changes of the weekly tables.
const IMPORT_LOCK: i64 = migrate::SCHEMA_LOCK + 2;

/// Query that returns a row if an import is unfinished.
const SELECT_MARK: &str = "SELECT FROM import";

const INSERT_MARK: &str = "INSERT INTO import DEFAULT VALUES";

/// Empties the tables that an import fills, and removes the mark. Number blocks are not part of an import.
const TRUNCATE_TABLES: &str = "
TRUNCATE partitions, heads, messages, members, stays, devices, memberships, marks, wishes, revocations, blocks, guard,
    guard_counts, keys, key_weeks, feed, feed_cursors, import";

/// Query that tests whether the tables contain data. A partition that was taken over but never archived does not count.
const HAS_DATA: &str = "
SELECT EXISTS (SELECT FROM heads) OR EXISTS (SELECT FROM messages) OR EXISTS (SELECT FROM members)
    OR EXISTS (SELECT FROM devices) OR EXISTS (SELECT FROM marks) OR EXISTS (SELECT FROM wishes)
    OR EXISTS (SELECT FROM revocations) OR EXISTS (SELECT FROM blocks) OR EXISTS (SELECT FROM guard)
    OR EXISTS (SELECT FROM keys) OR EXISTS (SELECT FROM partitions WHERE log_offset <> 0)";

/// Refuses tables with an unfinished import.
///
/// # Errors
/// [`PostgresOpenError::Importing`], or the server is unavailable.
pub(super) async fn refuse_unfinished_import(client: &Client) -> Result<(), PostgresOpenError> {
    match client.query_opt(SELECT_MARK, &[]).await? {
        Some(_) => Err(PostgresOpenError::Importing(
            "an import fills these tables, or was interrupted: wait for its end, or run the same `tidegate store import` again, \
             which restarts it"
                .to_owned(),
        )),
        None => Ok(()),
    }
}

/// Import in progress. Dropped before its end, it leaves the mark, and the next import starts over.
pub struct Importing {
    /// Session that holds the lock.
    client: Client,
}

impl Importing {
    /// Checks that the tables are empty, apart from the remains of an interrupted import, and takes the lock.
    pub(super) async fn begin(source: &Source) -> Result<Self, PostgresOpenError> {
        let client = Box::pin(migrate::migrate(source)).await?;
        // The schema lock is only needed during the migration.
        client.execute("SELECT pg_advisory_unlock($1)", &[&migrate::SCHEMA_LOCK]).await?;
        let lock = client.query_one("SELECT pg_try_advisory_lock($1)", &[&IMPORT_LOCK]).await?;
        if !lock.get::<_, bool>(0) {
            return Err(PostgresOpenError::Importing(
                "another import fills these tables: wait for its end".to_owned(),
            ));
        }
        let is_unfinished = client.query_opt(SELECT_MARK, &[]).await?.is_some();
        let has_data: bool = client.query_one(HAS_DATA, &[]).await?.get(0);
        if has_data && !is_unfinished {
            return Err(PostgresOpenError::Filled(
                "the tables contain conversations or users: an import needs a database without any; name an empty one in \
                 postgres.url"
                    .to_owned(),
            ));
        }
        Ok(Self { client })
    }

    /// Removes the remains of an interrupted import, and marks the tables.
    ///
    /// # Errors
    /// The server is unavailable.
    pub async fn mark(&self) -> Result<(), PostgresOpenError> {
        self.client
            .batch_execute(&format!("BEGIN; {TRUNCATE_TABLES}; {INSERT_MARK}; COMMIT"))
            .await
            .map_err(PostgresOpenError::from)
    }

    /// Removes the mark, so that nodes may use the imported data.
    ///
    /// # Errors
    /// The server is unavailable.
    pub async fn finish(self) -> Result<(), PostgresOpenError> {
        self.client.batch_execute("DELETE FROM import").await.map_err(PostgresOpenError::from)
    }

    /// Rolls the import back: empties the tables and removes the mark.
    ///
    /// # Errors
    /// The server is unavailable; the mark stays.
    pub async fn undo(self) -> Result<(), PostgresOpenError> {
        self.client.batch_execute(TRUNCATE_TABLES).await.map_err(PostgresOpenError::from)
    }
}
