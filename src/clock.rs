//! Wall clock of this machine.

use std::time::SystemTime;

/// Returns the wall clock in ms since 1970, for display only, never for decisions.
pub(crate) fn wall_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
