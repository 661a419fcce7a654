//! The state machines: by example, and against naive models.
//!
//! | room | what it tests |
//! |---|---|
//! | `chain` | the nextId chain |
//! | `ledger` | the ledger on one owner; several owners are simulated in `tests/ledger_sim` |
//! | `session` | the session, driven as a shard drives it |
//! | `window` | pushes not yet acked |
#![allow(clippy::unwrap_used)]

mod chain;
mod ledger;
mod session;
mod window;
