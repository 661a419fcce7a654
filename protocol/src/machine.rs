//! Sans-I/O state machines: each takes inputs and a time and returns actions, which its driver executes.
//!
//! Methods are of three kinds: `handle_*` take an input and `now`, getters return state, `poll_*` return the next
//! action. No machine reads a clock; a timer is a [`crate::Time`] that the driver passes back.

pub mod assign;
pub mod breaker;
pub mod chain;
pub mod drain;
pub mod frame_budget;
pub mod gate;
pub mod ledger;
pub mod permit;
pub mod presence;
pub mod rate;
pub mod reactions;
pub mod room_members;
pub mod room_outbox;
pub mod room_sample;
pub mod score;
pub mod session;
pub mod storm;
pub mod threshold;
pub mod waiting;
pub mod webhook;
pub mod window;
