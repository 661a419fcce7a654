//! Delivery: dispatches pushes and replies to the shards of this node, and routes them to other nodes.

pub mod answer_cache;
pub mod best_effort;
pub(crate) mod in_flight;
pub mod local;
pub(crate) mod memberships;
pub mod notices;
pub mod peer_queue;
pub mod pending;
pub(crate) mod push;
pub mod router;
pub mod signals;
pub(crate) mod trace_steps;
mod user_sessions;
