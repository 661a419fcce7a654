//! Tests of the state machines: by example, and against naive models.
//!
//! | module | subject |
//! |---|---|
//! | `assign` | assignment of clients to nodes |
//! | `chain` | the nextId chain |
//! | `drain` | the drain of a node |
//! | `frame_budget` | budget of the frames of a connection |
//! | `ledger` | the ledger with one owner; `tests/ledger_sim` simulates several |
//! | `rate` | rate limits and their tables |
//! | `session` | the session, driven as a shard drives it |
//! | `transcripts` | the golden transcripts, replayed with the real session and ledger |
//! | `window` | unacked pushes |
#![allow(clippy::unwrap_used)]

mod assign;
mod chain;
mod drain;
mod frame_budget;
mod ledger;
mod rate;
#[path = "../../../tests/support/seed.rs"]
mod seed;
mod session;
#[allow(dead_code)]
#[path = "../wire/transcript.rs"]
mod transcript;
mod transcripts;
mod window;
