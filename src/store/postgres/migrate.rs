//! Migration: the first node creates or upgrades the tables; tables of a newer tidegate are refused.

use refinery_core::{Migration, Runner, error::Kind};
use tokio_postgres::Client;

use super::{
    connect::{PostgresOpenError, Source},
    error::text_of,
};

/// All migrations. A released migration must never change, not even in its comments: the tables store its checksum.
const MIGRATIONS: [(&str, &str); 11] = [
    ("V1__store", include_str!("migrations/V1__store.sql")),
    ("V2__import", include_str!("migrations/V2__import.sql")),
    ("V3__heads_of_partition", include_str!("migrations/V3__heads_of_partition.sql")),
    ("V4__revocations", include_str!("migrations/V4__revocations.sql")),
    ("V5__blocks", include_str!("migrations/V5__blocks.sql")),
    ("V6__guard", include_str!("migrations/V6__guard.sql")),
    ("V7__feed", include_str!("migrations/V7__feed.sql")),
    ("V8__edits", include_str!("migrations/V8__edits.sql")),
    ("V9__push", include_str!("migrations/V9__push.sql")),
    ("V10__bound", include_str!("migrations/V10__bound.sql")),
    ("V11__presence", include_str!("migrations/V11__presence.sql")),
];

/// Advisory lock held during migrations: an arbitrary number that no other application uses.
pub(super) const SCHEMA_LOCK: i64 = 0x7469_6465_6761_7465;

/// Session timeouts for migrations: another node may hold the lock, and a large table may be rewritten.
const LONG_TIMEOUTS: &str = "SET statement_timeout = 0; SET lock_timeout = '10min'; \
                       SET idle_in_transaction_session_timeout = '10min'";

/// Query that returns a row if a migration ever ran.
const HISTORY_EXISTS: &str = "SELECT WHERE to_regclass('refinery_schema_history') IS NOT NULL";

/// Migrates the tables to the version of this tidegate, and returns the session, which holds the lock.
pub(super) async fn migrate(source: &Source) -> Result<Client, PostgresOpenError> {
    let mut client = Box::pin(source.dedicated()).await?;
    client.batch_execute(LONG_TIMEOUTS).await?;
    client.execute("SELECT pg_advisory_lock($1)", &[&SCHEMA_LOCK]).await?;
    let migrations = MIGRATIONS.iter().map(|(name, text)| Migration::unapplied(name, text));
    let runner = Runner::new(&migrations.collect::<Result<Vec<_>, _>>().map_err(|error| refused(&error))?);
    refuse_newer(&mut client, &runner).await?;
    runner.run_async(&mut client).await.map_err(|error| refused(&error))?;
    Ok(client)
}

async fn refuse_newer(client: &mut Client, runner: &Runner) -> Result<(), PostgresOpenError> {
    if client.query_opt(HISTORY_EXISTS, &[]).await?.is_none() {
        return Ok(());
    }
    let last = runner.get_last_applied_migration_async(client).await.map_err(|error| refused(&error))?;
    let stored = last.map_or(0, |it| it.version());
    let known = runner.get_migrations().iter().map(Migration::version).max().unwrap_or(0);
    if stored <= known {
        return Ok(());
    }
    Err(PostgresOpenError::Schema(format!(
        "the tables have version {stored}, this tidegate supports {known}: start the newer tidegate that created them, or \
         restore the backup from before it"
    )))
}

fn refused(error: &refinery_core::Error) -> PostgresOpenError {
    match error.kind() {
        Kind::DivergentVersion(stored, _) | Kind::MissingVersion(stored) => {
            PostgresOpenError::Schema(format!(
                "the tables were created by a different {stored} than that of this tidegate: use the tidegate that created them, \
             or another database"
            ))
        }
        Kind::Connection(text, cause) => match cause.downcast_ref::<tokio_postgres::Error>() {
            Some(cause) => PostgresOpenError::of(cause, format!("{text}: {}", text_of(cause))),
            None => PostgresOpenError::Unavailable(text.clone()),
        },
        kind => PostgresOpenError::Schema(kind.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_a_migration() {
        let root = std::env::var_os("CARGO_MANIFEST_DIR").unwrap();
        let folder = std::path::Path::new(&root).join("src/store/postgres/migrations");
        let files =
            std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut files: Vec<String> = files.collect();
        files.sort_by_key(|name| name[1..].split('_').next().and_then(|nth| nth.parse::<u32>().ok()));
        assert_eq!(files, MIGRATIONS.map(|(name, _)| format!("{name}.sql")));
    }
}
