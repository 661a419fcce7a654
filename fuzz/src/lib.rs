//! The fuzz targets as functions; see `targets` and `upgrade`.

pub mod targets;
mod upgrade;

pub use self::upgrade::upgrade;

/// The broker's own file, without the broker: it would compile for minutes, and under sanitizers.
#[path = "../../src/net"]
pub mod net {
    pub mod upgrade;
}
