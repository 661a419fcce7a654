//! While an import fills the tables nobody else may: a mark in them keeps nodes out, also after an import that was cut off.

use tokio_postgres::Client;

use super::{
    connect::{OpenError, Source},
    migrate,
};

/// The lock that an import holds: next to those of who makes the tables and of who changes the weeks.
const LOCK: i64 = migrate::LOCK + 2;

/// A row if an import is not finished.
const MARKED: &str = "SELECT FROM import";

const MARK: &str = "INSERT INTO import DEFAULT VALUES";

/// What an import fills, with the mark. Floors of numbers are no part of it.
const EMPTY: &str = "
TRUNCATE partitions, heads, messages, members, stays, devices, memberships, marks, wishes, keys, key_weeks, import";

/// Whether there is anything; a partition that was taken over and has nothing yet is not.
const FILLED: &str = "
SELECT EXISTS (SELECT FROM heads) OR EXISTS (SELECT FROM messages) OR EXISTS (SELECT FROM members)
    OR EXISTS (SELECT FROM devices) OR EXISTS (SELECT FROM marks) OR EXISTS (SELECT FROM wishes)
    OR EXISTS (SELECT FROM keys) OR EXISTS (SELECT FROM partitions WHERE log_offset <> 0)";

/// Refuses tables that an import has not finished.
///
/// # Errors
/// [`OpenError::Importing`]; the server is away.
pub(super) async fn refuse_half(client: &Client) -> Result<(), OpenError> {
    match client.query_opt(MARKED, &[]).await? {
        Some(_) => Err(OpenError::Importing(
            "an import fills these tables, or was cut off: wait for its end, or run the same `tidegate store import` again, \
             which begins anew"
                .to_owned(),
        )),
        None => Ok(()),
    }
}

/// An import that goes on. Dropped before its end it leaves the mark, which the next import finds.
pub struct Importing {
    /// Its session holds the lock.
    client: Client,
}

impl Importing {
    /// Looks whether the tables may be filled; what an import that was cut off left in them does not count.
    pub(super) async fn begin(source: &Source) -> Result<Self, OpenError> {
        let client = Box::pin(migrate::migrate(source)).await?;
        // The lock on how the tables are made is for as long as they are made.
        client.execute("SELECT pg_advisory_unlock($1)", &[&migrate::LOCK]).await?;
        let lock = client.query_one("SELECT pg_try_advisory_lock($1)", &[&LOCK]).await?;
        if !lock.get::<_, bool>(0) {
            return Err(OpenError::Importing(
                "another import fills these tables: wait for its end".to_owned(),
            ));
        }
        let half = client.query_opt(MARKED, &[]).await?.is_some();
        let filled: bool = client.query_one(FILLED, &[]).await?.get(0);
        if filled && !half {
            return Err(OpenError::Filled(
                "there are conversations or users in the tables: an import needs a database without any; name an empty one in \
                 postgres.url"
                    .to_owned(),
            ));
        }
        Ok(Self { client })
    }

    /// Empties the tables of what an import left that was cut off, and marks them.
    ///
    /// # Errors
    /// The server is away.
    pub async fn mark(&self) -> Result<(), OpenError> {
        self.client.batch_execute(&format!("BEGIN; {EMPTY}; {MARK}; COMMIT")).await.map_err(OpenError::from)
    }

    /// Everything is there: nodes may use it.
    ///
    /// # Errors
    /// The server is away.
    pub async fn finish(self) -> Result<(), OpenError> {
        self.client.batch_execute("DELETE FROM import").await.map_err(OpenError::from)
    }

    /// Takes everything back.
    ///
    /// # Errors
    /// The server is away: the mark stays.
    pub async fn undo(self) -> Result<(), OpenError> {
        self.client.batch_execute(EMPTY).await.map_err(OpenError::from)
    }
}
