//! Redis client shared by the adapters: one connection with a deadline and a circuit breaker, and self-loading scripts.
//!
//! The scripts are in `redis/*.lua`, one per file; their first lines declare the keys, arguments and results. Each
//! touches keys of one slot only, takes the time from the server, and may be run twice
//! (`docs/internals/adr/0009-redis-one-slot-at-a-time.md`).

mod client;
mod connect;
mod keys;
mod script;

pub use self::{connect::ConnectError, keys::RedisKey};

pub(crate) use client::{Call, CallError, RedisClient};
pub(crate) use script::Script;
