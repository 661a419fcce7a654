//! Section `[evidence]`: what is done with evidence of abuse.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Days for which the file of security events is kept unless it is configured, twice: as the file and as the older one.
const FILE_DAYS: u32 = 7;

/// Evidence of abuse, and what the node does about its authors by itself; see docs/evidence.md.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct EvidenceConfig {
    /// Whether networks and users with a score of 100 are banned, and devices that block their chains again and again are
    /// suspended. If not, scores are shown alone.
    pub ban: bool,
    /// Whether clients on this machine are scored, banned and suspended like others. Without it they never are, nor by
    /// operators as networks; for tests.
    pub loopback: bool,
    /// Beginnings of the paths at a gateway that serve captchas, such as `/captcha`: requests for them are evidence, see
    /// docs/apisix.md.
    pub captcha_paths: Vec<String>,
    /// Beginnings of the paths at a gateway that check passwords or codes, such as `/login` and `/v1/sms`: requests to them
    /// are evidence, whatever their status, except 401 and 403, which are `gateway_denied`; the first 20 of a network in a
    /// minute are free, see docs/apisix.md.
    pub login_paths: Vec<String>,
    /// URL of the global rule of APISIX to which the banned networks are written, such as
    /// `http://127.0.0.1:9180/apisix/admin/global_rules/tidegate-bans`; see docs/apisix.md. Empty: none.
    pub apisix_url: String,
    /// File with the key of APISIX's Admin API, mode 600.
    pub apisix_key_file: PathBuf,
    /// PEM file with the authorities of its certificate. Empty: those of the system.
    pub apisix_ca_file: PathBuf,
    /// File of security events as JSON lines, created with mode 600; at 32 MiB it is renamed with the suffix `.1`. `-`: the
    /// log, target `tidegate::evidence`. Empty: none.
    pub file: PathBuf,
    /// Days after which the file is renamed, and after which the renamed one is removed; 0: never because of its age.
    pub file_days: u32,
}

impl Default for EvidenceConfig {
    fn default() -> Self {
        Self {
            ban: true,
            loopback: false,
            captcha_paths: Vec::new(),
            login_paths: Vec::new(),
            apisix_url: String::new(),
            apisix_key_file: PathBuf::new(),
            apisix_ca_file: PathBuf::new(),
            file: PathBuf::new(),
            file_days: FILE_DAYS,
        }
    }
}
