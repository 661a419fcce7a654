//! Tests of the wire format: frames and their encodings, golden files, WebSocket framing, and the fuzz corpus.
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
