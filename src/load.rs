//! Load of a node: what its shards measure of themselves, the gates that refuse work before queues grow, and the load level.
//!
//! Each shard has its own gates, so that no lock covers a decision: the work in flight of a node is limited to the sum of
//! its shards' limits. The watch of the load reads what the shards publish, and sets the level that they all obey.

mod figures;
mod gates;
mod pressure;
mod visits;

pub use self::{
    figures::{GateFigures, LoadFigures, ShardFigures, TurnMeter},
    gates::{GateSettings, OverloadWait, ShardGates},
    pressure::{LoadWatch, PressureInputs},
    visits::VisitLag,
};
