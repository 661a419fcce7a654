//! Makes the tables, once, whoever comes first; refuses those of a newer tidegate.

use refinery_core::{Migration, Runner, error::Kind};
use tokio_postgres::Client;

use super::{
    connect::{OpenError, Source},
    error::said,
};

/// All migrations. The text of one that was released never changes: the tables keep its checksum.
const MIGRATIONS: [(&str, &str); 3] = [
    ("V1__store", include_str!("migrations/V1__store.sql")),
    ("V2__import", include_str!("migrations/V2__import.sql")),
    ("V3__heads_of_partition", include_str!("migrations/V3__heads_of_partition.sql")),
];

/// The lock that who makes the tables holds: any number that others do not use.
pub(super) const LOCK: i64 = 0x7469_6465_6761_7465;

/// Waits for whoever makes them now; a large table may be rewritten.
const PATIENT: &str = "SET statement_timeout = 0; SET lock_timeout = '10min'; \
                       SET idle_in_transaction_session_timeout = '10min'";

/// A row if tables were ever made.
const THERE: &str = "SELECT WHERE to_regclass('refinery_schema_history') IS NOT NULL";

/// Brings the tables to what this tidegate knows. The lock ends with the session, which is given.
pub(super) async fn migrate(source: &Source) -> Result<Client, OpenError> {
    let mut client = Box::pin(source.alone()).await?;
    client.batch_execute(PATIENT).await?;
    client.execute("SELECT pg_advisory_lock($1)", &[&LOCK]).await?;
    let migrations = MIGRATIONS.iter().map(|(name, text)| Migration::unapplied(name, text));
    let runner = Runner::new(&migrations.collect::<Result<Vec<_>, _>>().map_err(|error| refused(&error))?);
    refuse_newer(&mut client, &runner).await?;
    runner.run_async(&mut client).await.map_err(|error| refused(&error))?;
    Ok(client)
}

async fn refuse_newer(client: &mut Client, runner: &Runner) -> Result<(), OpenError> {
    if client.query_opt(THERE, &[]).await?.is_none() {
        return Ok(());
    }
    let last = runner.get_last_applied_migration_async(client).await.map_err(|error| refused(&error))?;
    let stored = last.map_or(0, |it| it.version());
    let known = runner.get_migrations().iter().map(Migration::version).max().unwrap_or(0);
    if stored <= known {
        return Ok(());
    }
    Err(OpenError::Schema(format!(
        "the tables are of version {stored}, this tidegate knows {known}: start the newer tidegate that made them, or \
         restore the backup from before it"
    )))
}

fn refused(error: &refinery_core::Error) -> OpenError {
    match error.kind() {
        Kind::DivergentVersion(stored, _) | Kind::MissingVersion(stored) => OpenError::Schema(format!(
            "the tables were made by another {stored} than this tidegate has: use the tidegate that made them, or a \
             database of its own"
        )),
        Kind::Connection(text, cause) => match cause.downcast_ref::<tokio_postgres::Error>() {
            Some(cause) => OpenError::of(cause, format!("{text}: {}", said(cause))),
            None => OpenError::Away(text.clone()),
        },
        kind => OpenError::Schema(kind.to_string()),
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
