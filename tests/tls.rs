//! TLS and PROXY headers on the client port, over real sockets: versions, names, changed certificates, slow readers,
//! half-open handshakes, and who counts for which address.

#[path = "support/mod.rs"]
mod support;

#[path = "tls/handshakes.rs"]
mod handshakes;
#[path = "tls/hostile.rs"]
mod hostile;
#[path = "tls/proxies.rs"]
mod proxies;
#[path = "tls/records.rs"]
mod records;
#[path = "tls/tunnel.rs"]
mod tunnel;
