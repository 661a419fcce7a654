//! Time: the wall clock of this machine, and the time of a shard's turn.

use std::time::SystemTime;

use tidegate_protocol::Time;

/// Time of one turn, read once by the driver of a shard.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Time since the start of the node, for deadlines.
    pub at: Time,
    /// Wall clock in ms since 1970, for display, times of messages, ages of entries and the expiry of tokens.
    pub wall_ms: u64,
}

/// Returns the wall clock in ms since 1970, which may jump; never for deadlines.
pub(crate) fn wall_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
