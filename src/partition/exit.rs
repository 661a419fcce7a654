//! Reasons why an owner exits, with their cures, and the store errors that it waits out instead.

use tidegate_protocol::machine::ledger::Stop;

use crate::{
    bus::{Bounds, ReadError},
    store::StoreError,
};
use std::time::Duration;

/// Delay before a call to an unavailable port is retried.
pub(super) const PORT_RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// Reason why an owner exited.
#[derive(Debug, thiserror::Error)]
pub(super) enum OwnerExit {
    #[error("ledger stopped: {0}")]
    Ledger(#[from] Stop),
    #[error("reading the log failed: {0}")]
    Log(#[from] ReadError),
    #[error("store failed: {0}")]
    Store(StoreError),
    #[error(
        "LOG_REPLACED: the log is not the one that was archived; restore it, or start with an empty store"
    )]
    LogReplaced,
    #[error(
        "LOG_REPLACED: records {archived} to {first} were deleted unarchived; restore the log or start with an empty \
         store, and keep `kafka.retention_…` above the largest archive lag"
    )]
    RecordsDeleted { first: u64, archived: u64 },
    #[error(
        "LOG_REPLACED: the log ends at {next} but was archived up to {archived}; restore it from a broker that has \
         the rest or start with an empty store, and keep `kafka.replication` at 3 or more"
    )]
    RecordsLost { next: u64, archived: u64 },
    #[error(
        "STORE_BEFORE_IMPORT: history was imported, and the store is older than that, so its conversations would be \
         numbered from 1 again; restore a backup from after the import, or import again into an empty topic and database"
    )]
    StoreBeforeImport,
    #[error("archiving {0} rows timed out; retrying in smaller batches")]
    BatchTooLarge(usize),
    /// The group revoked the partition, or it was lost.
    #[error("partition revoked")]
    Revoked,
}

impl OwnerExit {
    /// Creates the exit for a log that does not continue where the archive ended.
    pub(super) fn missing(Bounds { first, next, .. }: Bounds, archived: u64) -> Self {
        if next < archived {
            Self::RecordsLost { next, archived }
        } else {
            Self::RecordsDeleted { first, archived }
        }
    }
}

/// Retries a store call until it succeeds, or fails with an error that waiting does not fix.
pub(super) async fn retry<T, F>(mut call: impl FnMut() -> F) -> Result<T, OwnerExit>
where
    F: Future<Output = Result<T, StoreError>>,
{
    loop {
        match call().await {
            Ok(done) => return Ok(done),
            Err(error) => wait_for_store(error).await?,
        }
    }
}

/// Waits before the next attempt; returns the exit if waiting does not fix the error.
pub(super) async fn wait_for_store(error: StoreError) -> Result<(), OwnerExit> {
    match error {
        StoreError::Unavailable(_) | StoreError::NoConnection(_) | StoreError::Unknown(_) => {
            tracing::warn!(%error, "store call failed; retrying");
            tokio::time::sleep(PORT_RETRY_INTERVAL).await;
            Ok(())
        }
        StoreError::LogReplaced(_) => Err(OwnerExit::LogReplaced),
        other => Err(OwnerExit::Store(other)),
    }
}
