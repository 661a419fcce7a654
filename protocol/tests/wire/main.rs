//! Bytes on the wire: frames and their forms, golden files, WebSocket framing, and what was fuzzed.
#![allow(clippy::unwrap_used)]

mod codec;
mod corpus;
mod frames;
mod json;
mod records;
mod support;
#[allow(dead_code)]
mod transcript;
mod vectors;
mod ws;
