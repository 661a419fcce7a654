//! Asking the cluster where to connect, as clients do: `GET /v1/assign` on any client port.

use std::time::Duration;

use anyhow::{Context as _, bail};
use serde::Deserialize;
use tokio::time::timeout;

use super::http::Connection;

/// How long one asked node may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// Where to connect, best first.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Assigned {
    /// The places.
    pub addresses: Vec<Place>,
    /// For how long the answer holds.
    pub ttl_ms: u64,
    /// Whether it is what the node saw last, with Redis away.
    pub stale: bool,
}

/// A place to connect to.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Place {
    /// The node.
    pub node: String,
    /// As host:port, or with the transport asked for before it.
    pub address: String,
}

impl Assigned {
    /// Asks the first of these that answers, each `http://host:port` or `host:port`.
    ///
    /// # Errors
    /// None answers, or the first that does refuses the token.
    pub async fn ask(urls: &[String], token: &str, query: &str) -> anyhow::Result<Self> {
        let mut why = anyhow::anyhow!("nobody was named to ask");
        for url in urls {
            let asked = timeout(PATIENCE, ask_one(host_port(url)?, token, query)).await;
            match asked.context("no answer in time").and_then(|said| said) {
                Ok(Said::Fine(assigned)) => return Ok(assigned),
                Ok(Said::Refused(status, body)) => bail!("{url}: {status}: {}", body.trim()),
                Err(error) => why = error.context(format!("{url} can't be asked")),
            }
        }
        Err(why)
    }
}

enum Said {
    Fine(Assigned),
    Refused(u16, String),
}

async fn ask_one(address: &str, token: &str, query: &str) -> anyhow::Result<Said> {
    let mut connection = Connection::open(address, PATIENCE).await?;
    let (status, body) = connection.get_as(&format!("/v1/assign{query}"), token).await?;
    match status {
        200 => Ok(Said::Fine(serde_json::from_str(&body)?)),
        status => Ok(Said::Refused(status, body)),
    }
}

/// What is connected to of `http://h:1`, `ws://h:1/x`, `tcp://h:1` or `h:1`.
///
/// # Errors
/// It needs TLS, which this client does not speak.
pub fn host_port(url: &str) -> anyhow::Result<&str> {
    let place = match url.split_once("://") {
        Some(("http" | "ws" | "tcp", place)) => place,
        Some((scheme, _)) => bail!("{url}: {scheme} is not spoken here; http, ws and tcp are"),
        None => url,
    };
    Ok(place.split('/').next().unwrap_or(place))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_host_and_a_port() {
        for url in ["http://h:1", "http://h:1/", "ws://h:1/v1/ws", "tcp://h:1", "h:1"] {
            assert_eq!(host_port(url).expect("spoken here"), "h:1", "{url}");
        }
        assert!(host_port("wss://h:1").expect_err("TLS").to_string().contains("wss"));
    }
}
