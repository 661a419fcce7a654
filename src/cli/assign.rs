//! Client of `GET /v1/assign`, which any client port of the cluster serves: asks which nodes to connect to.

use std::time::Duration;

use anyhow::{Context as _, bail};
use serde::Deserialize;
use tokio::time::timeout;

pub use super::http::host_port;
use super::http::{Connection, TlsClient};

/// Time for one node to reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(3);

/// Assignment of a client to nodes.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Assigned {
    /// Nodes to connect to, best first.
    pub addresses: Vec<Endpoint>,
    /// How long the assignment is valid, in ms.
    pub ttl_ms: u64,
    /// Whether Redis is unavailable, so that the nodes are those last seen.
    pub stale: bool,
}

/// Address of a node for clients.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Endpoint {
    /// Name of the node.
    pub node: String,
    /// Address as host:port, or with the requested transport before it.
    pub address: String,
}

impl Assigned {
    /// Queries `urls`, each `http://host:port` or `host:port`, and returns the first answer.
    ///
    /// # Errors
    /// None answers, or the first that does refuses the token.
    pub async fn ask(urls: &[String], token: &str, query: &str) -> anyhow::Result<Self> {
        Self::ask_over(urls, None, token, query).await
    }

    /// Queries `urls` as [`Assigned::ask`] does, over TLS if it is given.
    ///
    /// # Errors
    /// As [`Assigned::ask`].
    pub(super) async fn ask_over(
        urls: &[String],
        tls: Option<&TlsClient>,
        token: &str,
        query: &str,
    ) -> anyhow::Result<Self> {
        let mut why = anyhow::anyhow!("no URL to query was given");
        for url in urls {
            let reply = timeout(REPLY_TIMEOUT, Box::pin(ask_one(&host_port(url)?, tls, token, query))).await;
            match reply.context("no answer in time").and_then(|reply| reply) {
                Ok(Reply::Assigned(assigned)) => return Ok(assigned),
                Ok(Reply::Refused(status, body)) => bail!("{url}: {status}: {}", body.trim()),
                Err(error) => why = error.context(format!("{url} can't be queried")),
            }
        }
        Err(why)
    }
}

enum Reply {
    Assigned(Assigned),
    Refused(u16, String),
}

async fn ask_one(address: &str, tls: Option<&TlsClient>, token: &str, query: &str) -> anyhow::Result<Reply> {
    let mut connection = Connection::open_client(address, tls, REPLY_TIMEOUT).await?;
    let (status, body) = connection.get_as(&format!("/v1/assign{query}"), token).await?;
    match status {
        200 => Ok(Reply::Assigned(serde_json::from_str(&body)?)),
        status => Ok(Reply::Refused(status, body)),
    }
}
