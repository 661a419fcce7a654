//! Admin API of what happens: recent events, the moves of clients between nodes, and the steps of messages.

pub(super) mod events;
pub(super) mod flows;
pub(super) mod trace;
pub(super) mod webhooks;
