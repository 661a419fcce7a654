//! The state machines: by example, and against naive models.
//!
//! | room | what it tests |
//! |---|---|
//! | `chain` | the nextId chain |
//! | `drain` | how a node leaves |
//! | `ledger` | the ledger on one owner; several owners are simulated in `tests/ledger_sim` |
//! | `session` | the session, driven as a shard drives it |
//! | `transcripts` | the golden conversations, said by the real session and ledger |
//! | `window` | pushes not yet acked |
#![allow(clippy::unwrap_used)]

mod chain;
mod drain;
mod ledger;
mod session;
#[allow(dead_code)]
#[path = "../wire/transcript.rs"]
mod transcript;
mod transcripts;
mod window;
