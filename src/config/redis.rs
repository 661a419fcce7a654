//! How Redis is reached.

use std::{path::PathBuf, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Redis, for profile `cluster`: who is where, and what may be lost.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct Redis {
    /// Addresses, `redis://host:port` (standalone: and `/database`); of the sentinels or of some cluster nodes if `mode` says so.
    pub urls: Vec<String>,
    /// `standalone`: one server; `sentinel`: the master that the sentinels at `urls` name; `cluster`: Redis Cluster.
    pub mode: String,
    /// With `sentinel`: the name of the master.
    pub sentinel_master: String,
    /// Encrypts and checks the server's certificate.
    pub tls: bool,
    /// PEM file of the authority that signed it; empty = those of the system.
    pub tls_ca_file: PathBuf,
    /// User of Redis; empty = the default one.
    pub username: String,
    /// File that holds the password of Redis; empty = none. Sentinels are asked without one.
    pub password_file: PathBuf,
    /// From a call to its answer; later the node goes on without. At most 200.
    pub timeout_ms: u64,
    /// What all keys begin with.
    pub prefix: String,
}

impl Default for Redis {
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

impl Redis {
    /// The deadline of a call.
    pub fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }

    pub(super) fn check(&self, need: &mut impl FnMut(bool, &str)) {
        need(
            matches!(self.mode.as_str(), "standalone" | "sentinel" | "cluster"),
            "redis.mode: `standalone`, `sentinel` or `cluster`",
        );
        need(!self.urls.is_empty(), "redis.urls: at least one address, as redis://127.0.0.1:6379");
        need(
            self.urls.iter().all(|url| url.starts_with("redis://") && url.len() > "redis://".len()),
            "redis.urls: each as redis://host:port; TLS is redis.tls=true",
        );
        need(
            !self.urls.iter().any(|url| url.contains('@')),
            "redis.urls: no password in an address; put it into the file that redis.password_file names",
        );
        need(
            self.mode != "standalone" || self.urls.len() <= 1,
            "redis.urls: one address with redis.mode=standalone; several are for sentinel and cluster",
        );
        need(
            self.mode != "sentinel" || !self.sentinel_master.is_empty(),
            "redis.sentinel_master: the name under which the sentinels know the master",
        );
        need(self.tls || self.tls_ca_file.as_os_str().is_empty(), "redis.tls_ca_file: needs redis.tls=true");
        need((10..=200).contains(&self.timeout_ms), "redis.timeout_ms: between 10 and 200 ms");
        need(
            tidegate_protocol::id::check_id(&self.prefix).is_ok(),
            "redis.prefix: must match [A-Za-z0-9_.-]{1,64}",
        );
    }
}
