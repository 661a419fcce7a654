//! Listeners and what happens on a socket before it belongs to a shard.

pub mod sockopt;
pub mod transfer;
pub mod upgrade;
