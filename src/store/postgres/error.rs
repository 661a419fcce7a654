//! What can go wrong at the server, and which error of the port it is.

use deadpool_postgres::PoolError;
use tokio_postgres::error::{DbError, SqlState};

use crate::store::StoreError;

/// Why a step did not succeed. Nothing of its transaction is there, unless it is `Store(Unknown)`.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The server is away, busy, full, or refuses.
    Away(String),
    /// All connections are in use, or none can be made: it was not begun.
    NoConnection(String),
    /// Others were in the way: the same transaction may succeed at once.
    Again(String),
    /// A row with that key is there already.
    Taken(String),
    /// There is no table for these keys.
    NoTable(String),
    /// What is stored can't be read.
    Damaged(String),
    /// The answer of the port.
    Store(StoreError),
}

impl Trouble {
    /// Whether the connection goes on: the server is there and has said no.
    pub(super) fn was_answered(&self) -> bool {
        match self {
            Self::Again(_) | Self::Taken(_) | Self::NoTable(_) => true,
            Self::Store(error) => !matches!(error, StoreError::Unknown(_)),
            Self::Away(_) | Self::NoConnection(_) | Self::Damaged(_) => false,
        }
    }
}

/// A stored value that is not what was written.
pub(super) fn damaged() -> Trouble {
    Trouble::Damaged("a stored value can't be read".to_owned())
}

impl From<tokio_postgres::Error> for Trouble {
    fn from(error: tokio_postgres::Error) -> Self {
        let text = said(&error);
        let Some(code) = error.code() else { return Self::Away(text) };
        match *code {
            SqlState::T_R_SERIALIZATION_FAILURE | SqlState::T_R_DEADLOCK_DETECTED => Self::Again(text),
            SqlState::UNIQUE_VIOLATION => Self::Taken(text),
            SqlState::CHECK_VIOLATION => Self::NoTable(text),
            SqlState::DATA_CORRUPTED | SqlState::INDEX_CORRUPTED => Self::Damaged(text),
            _ => Self::Away(text),
        }
    }
}

impl From<PoolError> for Trouble {
    fn from(error: PoolError) -> Self {
        Self::NoConnection(match error {
            PoolError::Backend(error) => said(&error),
            PoolError::Timeout(_) => "no connection within postgres.connect_ms".to_owned(),
            error => error.to_string(),
        })
    }
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// What became of a transaction whose COMMIT failed: only if the server said that it was rolled back, we know.
pub(super) fn at_commit(error: &tokio_postgres::Error) -> Trouble {
    let rolled_back = [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED];
    match error.code() {
        Some(code) if rolled_back.contains(code) => Trouble::Again(said(error)),
        _ => Trouble::Store(StoreError::Unknown(said(error))),
    }
}

/// An error in words, without the details that name rows: they may hold what users wrote.
pub(super) fn said(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(error) => said_by_server(error),
        None => {
            let source = std::error::Error::source(error).map(|cause| format!(": {cause}"));
            format!("{error}{}", source.unwrap_or_default())
        }
    }
}

fn said_by_server(error: &DbError) -> String {
    format!("{} (SQLSTATE {})", error.message(), error.code().code())
}
