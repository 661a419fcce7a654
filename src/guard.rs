//! Guard: what administrators and nodes decide about callers, from the store to the parts that apply it.

pub mod apisix;
mod candidates;
mod decisions;
mod order_faults;
pub mod permits;
pub mod profiles;
pub mod rules;
mod sentinel;
mod wide_bans;

pub use sentinel::Sentinel;
