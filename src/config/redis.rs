//! Section `[redis]`: connections to Redis.

use std::{path::PathBuf, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Redis, for profile `cluster`: routes, and state that may be lost.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct RedisConfig {
    /// Addresses as `redis://host:port`, with an optional `/database` if standalone; with other modes those of the
    /// sentinels or of some cluster nodes.
    pub urls: Vec<String>,
    /// `standalone`: one server; `sentinel`: the master that the sentinels at `urls` name; `cluster`: Redis Cluster.
    pub mode: String,
    /// Name of the master, with mode `sentinel`.
    pub sentinel_master: String,
    /// Whether to encrypt, and to check the server's certificate.
    pub tls: bool,
    /// PEM file of the authority that signed the server's certificate. Empty: the authorities of the system.
    pub tls_ca_file: PathBuf,
    /// Redis user. Empty: the default user.
    pub username: String,
    /// File that holds the Redis password. Empty: none. Sentinels are queried without a password.
    pub password_file: PathBuf,
    /// Time from a call to its reply; after it the node continues without Redis. At most 200.
    pub timeout_ms: u64,
    /// Prefix of all keys.
    pub prefix: String,
}

impl Default for RedisConfig {
    fn default() -> Self {
        Self {
            urls: vec!["redis://127.0.0.1:6379".into()],
            mode: "standalone".into(),
            sentinel_master: "tidegate".into(),
            tls: false,
            tls_ca_file: PathBuf::new(),
            username: String::new(),
            password_file: PathBuf::new(),
            timeout_ms: 200,
            prefix: "tg".into(),
        }
    }
}

impl RedisConfig {
    /// Returns the timeout of a call.
    pub fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }

    pub(super) fn check(&self, need: &mut impl FnMut(bool, &str)) {
        need(
            matches!(self.mode.as_str(), "standalone" | "sentinel" | "cluster"),
            "redis.mode: `standalone`, `sentinel` or `cluster`",
        );
        need(!self.urls.is_empty(), "redis.urls: set at least one address, such as redis://127.0.0.1:6379");
        need(
            self.urls.iter().all(|url| url.starts_with("redis://") && url.len() > "redis://".len()),
            "redis.urls: write each as redis://host:port; for TLS set redis.tls=true",
        );
        need(
            !self.urls.iter().any(|url| url.contains('@')),
            "redis.urls: an address has a password; put it into the file that redis.password_file names",
        );
        need(
            self.mode != "standalone" || self.urls.len() <= 1,
            "redis.urls: name one address only, or set redis.mode to sentinel or cluster",
        );
        need(
            self.mode != "sentinel" || !self.sentinel_master.is_empty(),
            "redis.sentinel_master: set the name under which the sentinels monitor the master",
        );
        need(self.tls || self.tls_ca_file.as_os_str().is_empty(), "redis.tls_ca_file: needs redis.tls=true");
        need((10..=200).contains(&self.timeout_ms), "redis.timeout_ms: between 10 and 200 ms");
        need(
            tidegate_protocol::id::check_id(&self.prefix).is_ok(),
            "redis.prefix: must match [A-Za-z0-9_.-]{1,64}",
        );
    }
}
