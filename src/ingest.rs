//! Ingest: takes sends from shards and administrators and appends them to the log.

pub mod admin;
pub mod appender;
pub mod intake;
pub mod recovery;
