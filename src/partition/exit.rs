//! Why an owner gives its partition up, with the cure where there is one, and what it waits out instead.

use tidegate_protocol::machine::ledger::Stop;

use super::owner::RETRY;
use crate::{
    bus::{Bounds, ReadError},
    store::StoreError,
};

/// Why an owner gave its partition up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GivenUp {
    #[error("the ledger stopped: {0}")]
    Ledger(#[from] Stop),
    #[error("the log stopped: {0}")]
    Log(#[from] ReadError),
    #[error("the store stopped: {0}")]
    Store(StoreError),
    #[error(
        "LOG_REPLACED: the log is not the one that was archived; restore it, or start with an empty store"
    )]
    LogReplaced,
    #[error(
        "LOG_REPLACED: records {archived} to {first} were deleted before they were archived; restore the log, or start with \
         an empty store; a log must keep its records for longer than its archive may be behind (`kafka.retention_…`)"
    )]
    RecordsDeleted { first: u64, archived: u64 },
    #[error(
        "LOG_REPLACED: the log ends at {next} and was archived up to {archived}: it lost its end; restore it from a broker \
         that has it, or start with an empty store; `kafka.replication` 3 or more keeps what one broker loses"
    )]
    RecordsLost { next: u64, archived: u64 },
    #[error("an archive of {0} rows did not end in time")]
    TooMuch(usize),
    /// By whoever assigned it.
    #[error("it was asked back")]
    Asked,
}

impl GivenUp {
    /// The log does not go on where it was archived to.
    pub(crate) fn missing(Bounds { first, next, .. }: Bounds, archived: u64) -> Self {
        if next < archived {
            Self::RecordsLost { next, archived }
        } else {
            Self::RecordsDeleted { first, archived }
        }
    }
}

/// Calls the store until it answers; what can't be mended by waiting ends the ownership.
pub(crate) async fn retry<T, F>(mut call: impl FnMut() -> F) -> Result<T, GivenUp>
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

/// Before the next try.
pub(crate) async fn wait_for_store(error: StoreError) -> Result<(), GivenUp> {
    match error {
        StoreError::Unavailable(_) | StoreError::NoConnection(_) | StoreError::Unknown(_) => {
            tracing::warn!(%error, "waiting for the store");
            tokio::time::sleep(RETRY).await;
            Ok(())
        }
        StoreError::LogReplaced(_) => Err(GivenUp::LogReplaced),
        other => Err(GivenUp::Store(other)),
    }
}
