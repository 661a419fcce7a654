//! TLS over real sockets: versions, names, changed certificates, slow readers, half-open handshakes, certificates of
//! clients, the admin port, and PROXY headers, which tell who counts for which address.

#[path = "support/mod.rs"]
mod support;

#[path = "tls/admin.rs"]
mod admin;
#[path = "tls/cert.rs"]
mod cert;
#[path = "tls/clients.rs"]
mod clients;
#[path = "tls/commands.rs"]
mod commands;
#[path = "tls/fairness.rs"]
mod fairness;
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
