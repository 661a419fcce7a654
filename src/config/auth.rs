//! Section `[auth]`: verification of client tokens.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Verification of client tokens.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct AuthConfig {
    /// File with the key that tokens are signed with: 64 hex digits, mode 600, the same on all nodes of a cluster.
    /// Create it with `openssl rand -hex 32`. Empty: `token.key` in node.data, created at the first start; only for
    /// node.profile = `single`.
    pub key_file: PathBuf,
}
