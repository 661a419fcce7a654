//! Admin API of what happens: events, the moves of clients between nodes, and the steps of messages.

pub mod event_stream;
pub(super) mod events;
pub(super) mod flows;
pub(super) mod trace;
pub(super) mod webhooks;
