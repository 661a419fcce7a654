//! Forwarding of development requests to the admin port of another node, which a page of this port can't call: cuts,
//! crashes and drains of a cluster for development.

use std::{net::SocketAddr, time::Duration};

use axum::{
    Json,
    extract::{State, rejection::JsonRejection},
    http::{
        Method, Request, StatusCode,
        header::{CONTENT_TYPE, HOST},
    },
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_protocol::Code;
use tokio::{net::TcpStream, time::timeout};

use super::{Api, Problem, bad_body, dev, dev::DevRefusal};

/// Requests that may be forwarded.
const FORWARDED: [(&str, &str); 5] = [
    ("POST", "/v1/dev/cut"),
    ("POST", ABORT),
    ("POST", "/v1/drain"),
    ("DELETE", "/v1/drain"),
    ("POST", "/v1/weight"),
];

/// Request that has no response.
const ABORT: &str = "/v1/dev/abort";

/// Longest wait for the other node.
const FORWARD_TIMEOUT: Duration = Duration::from_secs(8);

/// Largest body of a response.
const BODY_BYTES_MAX: usize = 64 * 1024;

/// Request for another node.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ForwardWish {
    node: String,
    method: String,
    path: String,
    #[serde(default)]
    body: Value,
}

/// Refusal of a request for a node that is not known.
const NO_SUCH_NODE: DevRefusal = DevRefusal::Cured(
    StatusCode::NOT_FOUND,
    Code::NotFound,
    "there is no such live node, apart from this one",
    "Use the name of a node that GET /v1/console lists in `peers`.",
);

/// Sends the request to the node and passes its response on.
pub(super) async fn forward(
    State(api): State<Api>,
    wish: Result<Json<ForwardWish>, JsonRejection>,
) -> Result<Response, DevRefusal> {
    dev::tools(&api)?;
    let Json(wish) = wish.map_err(bad_body)?;
    if !FORWARDED.contains(&(wish.method.as_str(), wish.path.as_str())) {
        let why = "only cuts, crashes, drains and weights of docs/http.md can be forwarded";
        return Err(Problem(Code::BadContent, why.into()).into());
    }
    let others = api.cluster.peers.others();
    let peer = others.iter().find(|row| row.info.boot.node.as_str() == wish.node).ok_or(NO_SUCH_NODE)?;
    let address = address(&peer.info.description.console).ok_or(dev::NOT_FOR_DEVELOPMENT)?;
    match timeout(FORWARD_TIMEOUT, send(address, &wish)).await {
        Ok(Ok((status, body))) => Ok((status, [(CONTENT_TYPE, "application/json")], body).into_response()),
        // The connection of a crashed node ends without a response.
        Ok(Err(_)) if wish.path == ABORT => {
            Ok(Json(json!({"node": wish.node, "aborted": true})).into_response())
        }
        _ => Err(Problem(Code::NotYet, "the other node does not answer".into()).into()),
    }
}

/// Returns the address of a console, which must be on loopback, whatever the other node has announced.
fn address(console: &str) -> Option<SocketAddr> {
    let address: SocketAddr = console.strip_prefix("http://")?.parse().ok()?;
    address.ip().is_loopback().then_some(address)
}

async fn send(address: SocketAddr, wish: &ForwardWish) -> anyhow::Result<(StatusCode, Bytes)> {
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let body = if wish.body.is_null() { String::new() } else { wish.body.to_string() };
    let request = Request::builder()
        .method(Method::from_bytes(wish.method.as_bytes())?)
        .uri(&wish.path)
        .header(HOST, address.to_string())
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body)))?;
    let exchange = async {
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), BODY_BYTES_MAX).collect().await;
        let body = body.map_err(|error| anyhow::anyhow!("{error}"))?.to_bytes();
        drop(sender);
        anyhow::Ok((status, body))
    };
    let (answer, _ended) = tokio::join!(exchange, connection);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_consoles_on_loopback_are_called() {
        for console in ["http://127.0.0.1:7811", "http://[::1]:7811"] {
            assert!(address(console).is_some(), "{console}");
        }
        for console in
            ["", "http://192.0.2.1:80", "http://localhost:80", "https://127.0.0.1:1", "http://127.0.0.1:1/x"]
        {
            assert_eq!(address(console), None, "{console}");
        }
    }
}
