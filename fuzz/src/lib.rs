//! Fuzz targets as functions, in `targets` and `upgrade`.

pub mod targets;
mod upgrade;

pub use self::upgrade::upgrade;

/// Upgrade module of the broker, included by path: the whole broker would take minutes to compile with sanitizers.
#[path = "../../src/net"]
pub mod net {
    pub mod upgrade;
}

/// Networks of the broker, which the upgrade needs.
#[path = "../../src/networks.rs"]
pub mod networks;
