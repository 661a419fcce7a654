//! Tidegate's wire format, log records and state machines.
//!
//! Pure: no socket, clock, randomness or async in this crate, so the same inputs and times always produce the same
//! outputs. Time is passed as [`Time`], randomness as a seed.
//!
//! | module | contents |
//! |---|---|
//! | [`id`] | ids of users, devices, groups, rooms and messages; conversation keys |
//! | [`code`] | every error and close code, with its cure |
//! | [`pb`] | the messages generated from `tidegate/v1/*.proto` |
//! | [`content`] | content of a message; preserves unknown fields |
//! | [`codec`] | frames to bytes and back: varint-framed protobuf, JSON lines |
//! | [`ws`] | WebSocket framing |
//! | [`record`] | records of the durable log |
//! | [`trace`] | trace context of a message |
//! | [`settings`] | settings of groups and users, by name |
//! | [`machine`] | the state machines: session, chain, window, ledger, drain |

pub mod code;
pub mod codec;
pub mod content;
pub mod id;
pub mod machine;
pub mod pb;
pub mod record;
pub mod settings;
pub mod time;
pub mod trace;
pub mod ws;

pub use code::Code;
pub use time::Time;
