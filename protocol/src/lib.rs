//! Tidegate's wire, records and state machines.
//!
//! Pure: no socket, clock, randomness or async anywhere below this file, so replaying the same inputs and times
//! replays the same behaviour. Time comes in as [`Time`], randomness as a seed.
//!
//! | room | what it holds |
//! |---|---|
//! | [`id`] | the ids that people and programs choose, and conversation keys |
//! | [`code`] | every error and close code, with its cure |
//! | [`pb`] | the messages generated from `tidegate/v1/*.proto` |
//! | [`content`] | what a person said, unknown fields kept |
//! | [`codec`] | frames ↔ bytes: varint-framed protobuf, JSON lines |
//! | [`ws`] | WebSocket framing |
//! | [`record`] | what the durable log carries |
//! | [`trace`] | how the steps of a message are found again |
//! | [`settings`] | what groups and users may set, by name |
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
