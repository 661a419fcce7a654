//! Partitions: assigns them to nodes, numbers their records by the ledger, archives and publishes the outcome.

mod archiver;
pub mod assignment;
mod batch;
pub mod dispatcher;
mod exit;
mod group_sizes;
mod lag;
pub mod membership;
pub mod owner;
mod position_check;
pub mod retention;
pub mod rules;
mod stall;
pub mod storm_actions;
mod storms;
