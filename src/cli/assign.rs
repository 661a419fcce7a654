//! Client of `GET /v1/assign`, which any client port of the cluster serves: asks which nodes to connect to.

use std::time::Duration;

use anyhow::{Context as _, bail};
use serde::Deserialize;
use tokio::time::timeout;

use super::http::Connection;

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
        let mut why = anyhow::anyhow!("no URL to query was given");
        for url in urls {
            let reply = timeout(REPLY_TIMEOUT, ask_one(host_port(url)?, token, query)).await;
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

async fn ask_one(address: &str, token: &str, query: &str) -> anyhow::Result<Reply> {
    let mut connection = Connection::open(address, REPLY_TIMEOUT).await?;
    let (status, body) = connection.get_as(&format!("/v1/assign{query}"), token).await?;
    match status {
        200 => Ok(Reply::Assigned(serde_json::from_str(&body)?)),
        status => Ok(Reply::Refused(status, body)),
    }
}

/// Returns host and port of `http://h:1`, `ws://h:1/x`, `tcp://h:1` or `h:1`.
///
/// # Errors
/// The URL needs TLS, which this client does not support.
pub fn host_port(url: &str) -> anyhow::Result<&str> {
    let rest = match url.split_once("://") {
        Some(("http" | "ws" | "tcp", rest)) => rest,
        Some((scheme, _)) => bail!("{url}: {scheme} is not supported; use http, ws or tcp"),
        None => url,
    };
    Ok(rest.split('/').next().unwrap_or(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_port_is_taken_from_every_supported_url() {
        for url in ["http://h:1", "http://h:1/", "ws://h:1/v1/ws", "tcp://h:1", "h:1"] {
            assert_eq!(host_port(url).expect("a supported scheme"), "h:1", "{url}");
        }
        assert!(host_port("wss://h:1").expect_err("TLS").to_string().contains("wss"));
    }
}
