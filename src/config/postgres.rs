//! Section `[postgres]`: connections to Postgres.

use std::{path::PathBuf, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Postgres, for profile `cluster`: the archive of all messages; see docs/postgres.md.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct PostgresConfig {
    /// Address, `postgres://user@host:port/database`. Of several hosts, separated by commas, the one that accepts
    /// writes is used. Append `?application_name=…` to tell this node's sessions apart on the server; the default is
    /// `tidegate`.
    pub url: String,
    /// File that holds the password. Empty: none.
    pub password_file: PathBuf,
    /// Whether to encrypt, and to check the server's certificate.
    pub tls: bool,
    /// PEM file of the authority that signed the server's certificate. Empty: the authorities of the system.
    pub tls_ca_file: PathBuf,
    /// Most connections that this node opens: half of them for owners and the archive, half for logins and client
    /// queries. Of the latter half, two are reserved for logins and marks, from 6 on.
    pub pool_max: usize,
    /// Time to get a free connection, and to open a new one.
    pub connect_ms: u64,
    /// Time for one statement; after it the server cancels the statement.
    pub statement_ms: u64,
    /// Time after which the server ends a transaction whose node has stalled; a new owner waits for that.
    pub stalled_ms: u64,
}

impl Default for PostgresConfig {
    fn default() -> Self {
        Self {
            url: "postgres://tidegate@127.0.0.1:5432/tidegate".into(),
            password_file: PathBuf::new(),
            tls: false,
            tls_ca_file: PathBuf::new(),
            pool_max: 16,
            connect_ms: 2_000,
            statement_ms: 5_000,
            stalled_ms: 1_000,
        }
    }
}

impl PostgresConfig {
    /// Returns the time to get a connection.
    pub fn connect(&self) -> Duration {
        Duration::from_millis(self.connect_ms)
    }

    /// Returns the statement timeout, which the server enforces.
    pub fn statement(&self) -> Duration {
        Duration::from_millis(self.statement_ms)
    }

    /// Returns the lock timeout in ms, which exceeds the time that a stalled node can hold a lock.
    pub fn lock_ms(&self) -> u64 {
        self.stalled_ms.saturating_mul(2)
    }

    pub(super) fn check(&self, need: &mut impl FnMut(bool, &str)) {
        let address = self.url.strip_prefix("postgres://").or_else(|| self.url.strip_prefix("postgresql://"));
        need(address.is_some(), "postgres.url: write postgres://user@host:port/database");
        let login = address.and_then(|rest| rest.rsplit_once('@')).map_or("", |(login, _)| login);
        need(
            !login.contains(':') && !self.url.contains("password="),
            "postgres.url: the address has a password; put it into the file that postgres.password_file names",
        );
        need(
            !self.url.contains("sslmode="),
            "postgres.url: sslmode is not supported; remove it, and for TLS set postgres.tls=true",
        );
        need(
            self.tls || self.tls_ca_file.as_os_str().is_empty(),
            "postgres.tls_ca_file: needs postgres.tls=true",
        );
        need((2..=1_000).contains(&self.pool_max), "postgres.pool_max: between 2 and 1000");
        need((10..=60_000).contains(&self.connect_ms), "postgres.connect_ms: between 10 ms and one minute");
        need(
            (100..=600_000).contains(&self.statement_ms),
            "postgres.statement_ms: between 100 ms and ten minutes",
        );
        need(
            (50..=60_000).contains(&self.stalled_ms) && self.lock_ms() <= self.statement_ms,
            "postgres.stalled_ms: between 50 ms and half of postgres.statement_ms",
        );
    }
}
