//! Tests of WebSocket framing: the rules by example, and arbitrary bytes.

mod properties;
mod rules;
