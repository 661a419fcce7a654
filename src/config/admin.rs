//! Sections `[admin]` and `[api]`: keys and audit log of the admin port, the console, whether the node is for development,
//! and messages of back ends.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_protocol::id::check_id;

use super::Config;

/// Keys, audit log and console of the admin port, and rights that only a node for development has.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct AdminConfig {
    /// File with the keys of the admin port, which `tidegate key` makes; it holds no secrets, but the mode has to be 600, or
    /// 440 for a group of the node alone. It is read again each second. Empty: no keys, and `listen.admin` has to be loopback.
    pub keys_file: PathBuf,
    /// Allows a `listen.admin` that is not loopback although keys and answers are not encrypted: TLS ends in front of it,
    /// or the network is trusted.
    pub allow_plaintext: bool,
    /// Certificate of the admin port with its chain (PEM), which may be that of the client port. Changed files are read
    /// within two seconds. Empty: no TLS.
    pub tls_cert: PathBuf,
    /// Private key of the certificate (PEM).
    pub tls_key: PathBuf,
    /// Whether `listen.monitor` speaks TLS with this certificate, too; the probes of an orchestrator then need the scheme
    /// HTTPS.
    pub tls_monitor: bool,
    /// File of the audit log, created with mode 600. Empty: `audit.jsonl` in node.data.
    pub audit_file: PathBuf,
    /// Most bytes of the audit log. Its file is rotated at a quarter of them; three older ones are kept.
    pub audit_bytes_max: u64,
    /// Whether the audit log has reads of what people wrote: 60 lines at once, then one each second, with the number of
    /// those left out. Refused keys and changes are recorded in any case.
    pub audit_reads: bool,
    /// Console on `listen.admin`: `off`; `read`: its page changes nothing, except that it traces messages; `full`;
    /// `auto`: `full` on a node for development, `read` elsewhere. Programs are not affected.
    pub console: String,
    /// Whether the node is for development: `yes`, `no` or `auto`. Such a node creates tokens for its console, cuts
    /// connections on request, and lets web pages on loopback connect. `yes` needs a loopback `listen.client`. `auto`:
    /// yes if `listen.client` is loopback and the other settings of `listen`, `tls`, `admin.tls_cert`, `assign.addresses`, `auth.key_file`,
    /// `auth.key_files`, `auth.jwks_url` and `node.profile` have their defaults.
    pub development: String,
    /// Whether the console may crash the node; for `tidegate up`.
    #[serde(skip)]
    pub may_abort: bool,
}

/// Messages that back ends send by the admin API.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct ApiConfig {
    /// Sender of messages without `from`; [A-Za-z0-9_.-]{1,64}. No client can log in as this user. The same on all nodes.
    pub system_user: String,
}

impl Default for ApiConfig {
    fn default() -> Self {
        Self { system_user: "system".into() }
    }
}

/// Audit log in the data directory.
const AUDIT_FILE: &str = "audit.jsonl";

/// Rights of the console's page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConsoleMode {
    /// No page.
    Off,
    /// The page changes nothing.
    Read,
    /// The page may use the whole admin API.
    Full,
}

impl ConsoleMode {
    /// Returns the value of `admin.console`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Read => "read",
            Self::Full => "full",
        }
    }
}

impl Default for AdminConfig {
    fn default() -> Self {
        Self {
            keys_file: PathBuf::new(),
            allow_plaintext: false,
            tls_cert: PathBuf::new(),
            tls_key: PathBuf::new(),
            tls_monitor: false,
            audit_file: PathBuf::new(),
            audit_bytes_max: 32 << 20,
            audit_reads: true,
            console: "auto".into(),
            development: "auto".into(),
            may_abort: false,
        }
    }
}

impl AdminConfig {
    /// Returns whether the admin port speaks TLS.
    pub fn is_encrypted(&self) -> bool {
        !self.tls_cert.as_os_str().is_empty()
    }
}

impl Config {
    /// Returns whether the node is for development. A program of the node's account can get a token for any user of such
    /// a node, so `auto` does not take a node for one that operators have given a key, addresses or services.
    pub fn is_development(&self) -> bool {
        let listen = &self.listen;
        let is_on_loopback = listen.client.ip().is_loopback() && listen.admin.ip().is_loopback();
        let is_wanted = match self.admin.development.as_str() {
            "yes" => true,
            "auto" => {
                self.node.profile == "single"
                    && self.auth.has_own_secret()
                    && self.assign.addresses.is_empty()
                    && !listen.allow_public
                    && listen.origins.is_empty()
                    && listen.proxies.is_empty()
                    && listen.forwarders.is_empty()
                    && !self.tls.is_on()
                    && !self.admin.is_encrypted()
            }
            _ => false,
        };
        is_wanted && is_on_loopback
    }

    /// Returns the rights of the console's page.
    pub fn console(&self) -> ConsoleMode {
        match self.admin.console.as_str() {
            "off" => ConsoleMode::Off,
            "full" => ConsoleMode::Full,
            "auto" if self.is_development() => ConsoleMode::Full,
            _ => ConsoleMode::Read,
        }
    }

    /// Returns the file of the audit log.
    pub fn audit_file(&self) -> PathBuf {
        let named = &self.admin.audit_file;
        if named.as_os_str().is_empty() { self.node.data.join(AUDIT_FILE) } else { named.clone() }
    }

    pub(super) fn check_admin(&self, need: &mut impl FnMut(bool, &str)) {
        let admin = &self.admin;
        let (is_loopback, has_keys) =
            (self.listen.admin.ip().is_loopback(), !admin.keys_file.as_os_str().is_empty());
        need(
            is_loopback || has_keys,
            "listen.admin: not a loopback address, so callers need keys; set admin.keys_file to a file that `tidegate key add` \
             made, or listen on loopback",
        );
        need(
            is_loopback || !has_keys || admin.allow_plaintext || admin.is_encrypted(),
            "listen.admin: not a loopback address, and keys would cross the network unencrypted; set admin.tls_cert and \
             admin.tls_key, or admin.allow_plaintext=true if TLS ends in front of it or the network is trusted, or listen on \
             loopback",
        );
        need(
            admin.is_encrypted() != admin.tls_key.as_os_str().is_empty(),
            "admin: tls_cert and tls_key go together; set both or none",
        );
        need(
            !admin.tls_monitor || (admin.is_encrypted() && !self.listen.monitor.is_empty()),
            "admin.tls_monitor: needs admin.tls_cert and listen.monitor",
        );
        need(
            (1 << 16..=1 << 40).contains(&admin.audit_bytes_max),
            "admin.audit_bytes_max: between 65536 bytes and 1 TiB",
        );
        need(check_id(&self.api.system_user).is_ok(), "api.system_user: must match [A-Za-z0-9_.-]{1,64}");
        need(
            ["auto", "off", "read", "full"].contains(&admin.console.as_str()),
            "admin.console: `auto`, `off`, `read` or `full`",
        );
        need(
            ["auto", "yes", "no"].contains(&admin.development.as_str()),
            "admin.development: `auto`, `yes` or `no`",
        );
        need(
            admin.development != "yes" || self.is_development(),
            "admin.development: `yes` needs a loopback address in listen.client, because any program that reaches the node \
             gets tokens; set `auto`, or listen on loopback",
        );
    }
}
