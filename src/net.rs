//! Networking: listeners and socket options, the transport of shards with its TLS, and the HTTP upgrade of client
//! connections.

pub(crate) mod endpoint;
pub mod io;
pub mod sockopt;
pub mod tcp;
pub mod tls;
pub mod transfer;
pub mod upgrade;
