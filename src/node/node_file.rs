//! Node file: tells other commands on this machine where a node listens.

use std::{
    fs,
    io::Write as _,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::private;

/// File in the data directory with the addresses of a running node.
pub const NODE_FILE: &str = "node.json";

/// Addresses and process of a running node; also the content of [`NODE_FILE`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Addresses {
    /// Client port.
    pub client: SocketAddr,
    /// Admin port.
    pub admin: SocketAddr,
    /// Port for probes and metrics, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub monitor: Option<SocketAddr>,
    /// Process id.
    pub pid: u32,
    /// Certificate of the admin port, which then speaks TLS; `None` if it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin_certificate: Option<PathBuf>,
    /// Whether tokens that are signed with the secret of the node or the cluster are accepted.
    #[serde(default = "yes")]
    pub has_secret: bool,
    /// Token key shared with other nodes; `None` if it is `token.key` in the data directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
}

impl Addresses {
    /// Returns the URL of the admin port.
    pub fn admin_url(&self) -> String {
        let scheme = if self.admin_certificate.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.admin)
    }
}

const fn yes() -> bool {
    true
}

/// Writes the node file under another name and renames it, so that readers never see half of it.
pub(super) fn write(data: &Path, addresses: &Addresses) -> anyhow::Result<PathBuf> {
    let path = data.join(NODE_FILE);
    let draft = path.with_extension("tmp");
    let text = serde_json::to_vec(addresses)?;
    let opened = private::options().create(true).truncate(true).open(&draft);
    let written = opened.and_then(|mut file| file.write_all(&text)).and_then(|()| fs::rename(&draft, &path));
    written.with_context(|| {
        let (path, draft) = (path.display(), draft.display());
        format!("{path} can't be written by way of {draft}; keep node.data writable for the node alone")
    })?;
    Ok(path)
}
