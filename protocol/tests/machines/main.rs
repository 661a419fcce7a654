//! The state machines: by example, and against naive models.
//!
//! | room | what it tests |
//! |---|---|
//! | `assign` | which nodes clients are sent to |
//! | `chain` | the nextId chain |
//! | `drain` | how a node leaves |
//! | `ledger` | the ledger on one owner; several owners are simulated in `tests/ledger_sim` |
//! | `session` | the session, driven as a shard drives it |
//! | `transcripts` | the golden conversations, said by the real session and ledger |
//! | `window` | pushes not yet acked |
#![allow(clippy::unwrap_used)]

mod assign;
mod chain;
mod drain;
mod ledger;
#[allow(unreachable_pub, reason = "other test binaries hand it on")]
#[path = "../../../tests/support/seed.rs"]
mod seed;
mod session;
#[allow(dead_code)]
#[path = "../wire/transcript.rs"]
mod transcript;
mod transcripts;
mod window;
