//! The section `[auth]`: whose tokens are taken.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whose tokens are taken.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct Auth {
    /// File with the key that tokens are signed with, 64 hex digits, closed to others (mode 600), the same on all nodes of a
    /// cluster: `openssl rand -hex 32` makes one. Empty = `token.key` in node.data, made at the first start; only for
    /// node.profile = `single`.
    pub key_file: PathBuf,
}
