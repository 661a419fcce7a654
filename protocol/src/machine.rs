//! The state machines: values that take inputs and a time and say what to do; the drivers around them do it.
//!
//! A machine's methods are of three kinds: `handle_*` take an input and `now`, getters tell its state, `poll_*` say
//! what to do next. Nothing here reads a clock; a timer is a [`crate::Time`] that the driver passes back.

pub mod assign;
pub mod chain;
pub mod drain;
pub mod ledger;
pub mod session;
pub mod window;
