//! What the adapters on Redis share: one connection with a deadline and a breaker, scripts that load themselves.
//!
//! The scripts are in `redis/*.lua`, one a file; their first lines say which keys and arguments they take. Each
//! touches keys of one slot only, takes the time from the server, and may be run twice (DESIGN 3, 7).

mod breaker;
mod client;
mod connect;
mod script;

pub use connect::ConnectError;

pub(crate) use client::{Call, CallError, Client};
pub(crate) use script::Script;
