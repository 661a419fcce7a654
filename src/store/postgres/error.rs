//! Errors of Postgres calls, classified for retries and for the errors of the port.

use deadpool_postgres::PoolError;
use tokio_postgres::error::{DbError, SqlState};

use crate::store::StoreError;

/// Error of a step. Its transaction had no effect, unless the error is `Store(Unknown)`.
#[derive(Debug)]
pub(super) enum PostgresError {
    /// The server is unavailable, busy or full, or refuses the call.
    Unavailable(String),
    /// All connections are in use, or none can be opened; the call was not sent.
    NoConnection(String),
    /// Concurrent transactions prevented this one; it may succeed at once if repeated.
    Retriable(String),
    /// A row with the same key already exists.
    RowExists(String),
    /// There is no table for the week of these keys.
    NoTable(String),
    /// A stored value can't be read.
    Damaged(String),
    /// Error of the port, returned as it is.
    Store(StoreError),
}

impl PostgresError {
    /// Returns whether the server has refused the call, so that the connection stays usable.
    pub(super) fn is_refusal(&self) -> bool {
        match self {
            Self::Retriable(_) | Self::RowExists(_) | Self::NoTable(_) => true,
            Self::Store(error) => !matches!(error, StoreError::Unknown(_)),
            Self::Unavailable(_) | Self::NoConnection(_) | Self::Damaged(_) => false,
        }
    }
}

/// Returns the error for a stored value that this program does not write.
pub(super) fn damaged() -> PostgresError {
    PostgresError::Damaged("a stored value can't be read".to_owned())
}

impl From<tokio_postgres::Error> for PostgresError {
    fn from(error: tokio_postgres::Error) -> Self {
        let text = text_of(&error);
        let Some(code) = error.code() else { return Self::Unavailable(text) };
        match *code {
            SqlState::T_R_SERIALIZATION_FAILURE | SqlState::T_R_DEADLOCK_DETECTED => Self::Retriable(text),
            SqlState::UNIQUE_VIOLATION => Self::RowExists(text),
            SqlState::CHECK_VIOLATION => Self::NoTable(text),
            SqlState::DATA_CORRUPTED | SqlState::INDEX_CORRUPTED => Self::Damaged(text),
            _ => Self::Unavailable(text),
        }
    }
}

impl From<PoolError> for PostgresError {
    fn from(error: PoolError) -> Self {
        Self::NoConnection(match error {
            PoolError::Backend(error) => text_of(&error),
            PoolError::Timeout(_) => "no connection within postgres.connect_ms".to_owned(),
            error => error.to_string(),
        })
    }
}

impl From<StoreError> for PostgresError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// Classifies a failed COMMIT: the outcome is known only if the server reports a rollback.
pub(super) fn commit_error(error: &tokio_postgres::Error) -> PostgresError {
    let rolled_back = [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED];
    match error.code() {
        Some(code) if rolled_back.contains(code) => PostgresError::Retriable(text_of(error)),
        _ => PostgresError::Store(StoreError::Unknown(text_of(error))),
    }
}

/// Returns the text of an error, without its details, which can contain what users wrote.
pub(super) fn text_of(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(error) => server_text(error),
        None => {
            let source = std::error::Error::source(error).map(|cause| format!(": {cause}"));
            format!("{error}{}", source.unwrap_or_default())
        }
    }
}

fn server_text(error: &DbError) -> String {
    format!("{} (SQLSTATE {})", error.message(), error.code().code())
}
