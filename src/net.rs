//! Networking: listeners and socket options, the transport of shards, and the HTTP upgrade of client connections.

pub mod io;
pub mod sockopt;
pub mod tcp;
pub mod transfer;
pub mod upgrade;
