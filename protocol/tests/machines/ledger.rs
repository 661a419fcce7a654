//! Tests of the ledger with one owner: its rules by example, and random histories against the naive model.

mod cache;
#[allow(dead_code)]
#[path = "../ledger_sim/model.rs"]
mod model;
mod properties;
mod rules;
#[allow(dead_code)]
#[path = "../ledger_sim/store.rs"]
pub(crate) mod store;
mod switch;
