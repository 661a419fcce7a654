//! Networking: listeners and socket options, socket I/O, and the HTTP upgrade of client connections.

pub mod sockopt;
pub mod transfer;
pub mod upgrade;
