//! How Postgres is reached.

use std::{path::PathBuf, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Postgres, for profile `cluster`: the archive of all messages; see docs/postgres.md.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct Postgres {
    /// Address, `postgres://user@host:port/database`; several hosts with commas between: the one that takes writes is used.
    /// With `?application_name=…` at its end, by which the server tells a node's sessions from others; otherwise it is `tidegate`.
    pub url: String,
    /// File that holds the password; empty = none.
    pub password_file: PathBuf,
    /// Encrypts and checks the server's certificate.
    pub tls: bool,
    /// PEM file of the authority that signed it; empty = those of the system.
    pub tls_ca_file: PathBuf,
    /// Connections that this node opens at most: half of them for what is archived, half for what clients ask.
    pub pool_max: usize,
    /// For a connection: to get a free one, and to open a new one.
    pub connect_ms: u64,
    /// For one statement: the server ends it then.
    pub statement_ms: u64,
    /// A node that stops within a transaction is cut off by the server after this long; a new owner waits for it.
    pub stalled_ms: u64,
}

impl Default for Postgres {
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

impl Postgres {
    /// For getting a connection.
    pub fn connect(&self) -> Duration {
        Duration::from_millis(self.connect_ms)
    }

    /// For a statement, at the server.
    pub fn statement(&self) -> Duration {
        Duration::from_millis(self.statement_ms)
    }

    /// For a lock: longer than somebody who stopped may hold it.
    pub fn lock_ms(&self) -> u64 {
        self.stalled_ms.saturating_mul(2)
    }

    pub(super) fn check(&self, need: &mut impl FnMut(bool, &str)) {
        let address = self.url.strip_prefix("postgres://").or_else(|| self.url.strip_prefix("postgresql://"));
        need(address.is_some(), "postgres.url: as postgres://user@host:port/database");
        let login = address.and_then(|rest| rest.rsplit_once('@')).map_or("", |(login, _)| login);
        need(
            !login.contains(':') && !self.url.contains("password="),
            "postgres.url: no password in the address; put it into the file that postgres.password_file names",
        );
        need(
            !self.url.contains("sslmode="),
            "postgres.url: no sslmode in the address; TLS is postgres.tls=true",
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
