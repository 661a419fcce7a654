//! Hostile, broken and stalled clients on real sockets against the real binary: bounded memory, a coded close, and no
//! effect on other clients.

#[path = "../support/mod.rs"]
mod support;

mod bytes;
mod caps;
mod chat;
mod churn;
mod faults;
mod flood;
mod framing;
mod handshake;
mod logs;
mod memory;
mod ports;
mod raw;
mod stalled;
