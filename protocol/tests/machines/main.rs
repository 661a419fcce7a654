//! Tests of the state machines: by example, and against naive models.
//!
//! | module | subject |
//! |---|---|
//! | `assign` | assignment of clients to nodes |
//! | `breaker` | circuit breakers |
//! | `chain` | the nextId chain |
//! | `drain` | the drain of a node |
//! | `frame_budget` | budget of the frames of a connection |
//! | `gate` | the node guard: admission by delay |
//! | `ledger` | the ledger with one owner; `tests/ledger_sim` simulates several |
//! | `permit` | rate limits of a cluster |
//! | `presence` | presence of watched conversations |
//! | `rate` | rate limits and their tables |
//! | `reactions` | reactions of a live room |
//! | `room_members` | number of members of a live room |
//! | `room_outbox` | room frames that wait for a connection |
//! | `room_sample` | sampling of a live room |
//! | `score` | scores of evidence, and bans that follow |
//! | `session` | the session, driven as a shard drives it |
//! | `storm` | message storms |
//! | `threshold` | limits that follow the load and the history |
//! | `transcripts` | the golden transcripts, replayed with the real session and ledger |
//! | `waiting` | notices that messages wait |
//! | `webhook` | delivery of the feed to webhooks |
//! | `window` | unacked pushes |
#![allow(clippy::unwrap_used)]

mod assign;
mod breaker;
mod chain;
mod drain;
mod frame_budget;
mod gate;
mod ledger;
mod permit;
mod presence;
mod rate;
mod reactions;
mod room_members;
mod room_outbox;
mod room_sample;
mod score;
#[path = "../../../tests/support/seed.rs"]
mod seed;
mod session;
mod storm;
mod threshold;
#[allow(dead_code)]
#[path = "../wire/transcript.rs"]
mod transcript;
mod transcripts;
mod waiting;
mod webhook;
mod window;
