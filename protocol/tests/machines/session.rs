//! Tests of the session machine, driven as a shard drives it.

mod answers;
mod edits;
mod frames;
mod give_back;
mod ids;
mod login;
mod order;
mod property;
mod requests;
mod rooms;
pub(crate) mod support;
mod watches;
