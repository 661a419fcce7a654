//! Forwarding of development requests to the admin port of another node, which a page of this port can't call: cuts,
//! crashes and drains of a cluster for development.

use std::{net::SocketAddr, time::Duration};

use axum::{
    Extension, Json,
    extract::State,
    http::{
        HeaderValue, Method, Request, StatusCode,
        header::{AUTHORIZATION, CONTENT_TYPE, HOST, RETRY_AFTER},
    },
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_protocol::Code;
use tokio::{net::TcpStream, time::timeout};

use crate::{
    api::{
        Api, Problem,
        access::{Caller, RouteNeed},
        caller::Ends,
        dev::{self, DevRefusal},
        extract::JsonObject,
    },
    keys::Scope,
    routes::NodeBoot,
};

/// Requests that may be forwarded, with the right that each needs.
pub(in crate::api) const FORWARDED: [(&str, &str, RouteNeed); 5] = [
    ("POST", "/v1/dev/cut", RouteNeed::Scope(Scope::Users)),
    ("POST", ABORT, OPERATE),
    ("POST", "/v1/drain", OPERATE),
    ("DELETE", "/v1/drain", OPERATE),
    ("POST", "/v1/weight", OPERATE),
];

const OPERATE: RouteNeed = RouteNeed::Scope(Scope::Operate);

/// Request that has no response.
const ABORT: &str = "/v1/dev/abort";

/// Longest wait for the other node.
const FORWARD_TIMEOUT: Duration = Duration::from_secs(8);

/// Largest body of a response.
const BODY_BYTES_MAX: usize = 64 * 1024;

/// Request for another node.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct ForwardWish {
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
pub(in crate::api) async fn forward(
    State(api): State<Api>,
    ends: Option<Extension<Ends>>,
    Extension(caller): Extension<Caller>,
    wish: Result<JsonObject<ForwardWish>, Problem>,
) -> Result<Response, DevRefusal> {
    dev::tools(&api)?;
    dev::own_account(ends)?;
    let JsonObject(wish) = wish?;
    let wanted =
        |(method, path, _): &&(&str, &str, RouteNeed)| (*method, *path) == (&*wish.method, &*wish.path);
    let Some((.., need)) = FORWARDED.iter().find(wanted) else {
        let why = "only cuts, crashes, drains and weights of docs/http.md can be forwarded";
        return Err(Problem(Code::BadContent, why.into()).into());
    };
    if let Err(refused) = caller.require(*need) {
        // A program of this machine.
        api.gate.count(&refused, None);
        return Ok(refused.response());
    }
    let others = api.cluster.peers.others();
    let peer = others.iter().find(|row| row.info.boot.node.as_str() == wish.node).ok_or(NO_SUCH_NODE)?;
    let address = address(&peer.info.description.console).ok_or(dev::NOT_FOR_DEVELOPMENT)?;
    let not_yet = |why: &str| Problem(Code::NotYet, why.into()).into();
    match timeout(FORWARD_TIMEOUT, send(address, &peer.info.boot, &wish, caller.authorization)).await {
        Ok(Ok(Answer::Response(status, body))) => {
            let is_refusal = status.is_client_error() || status.is_server_error();
            let media = if is_refusal { "application/problem+json" } else { "application/json" };
            let mut response = (status, [(CONTENT_TYPE, media)], body).into_response();
            if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
                // The members of the body have the exact time.
                response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
            }
            Ok(response)
        }
        // The connection of a crashed node ends without a response.
        Ok(Ok(Answer::Ended)) if wish.path == ABORT => {
            Ok(Json(json!({"node": wish.node, "aborted": true})).into_response())
        }
        Ok(Ok(Answer::Stranger)) => {
            Err(not_yet("another program, or a newer run of the node, answers at the address of that node"))
        }
        _ => Err(not_yet("the other node does not answer")),
    }
}

/// Outcome of a request that was sent to a console.
enum Answer {
    /// The node's response.
    Response(StatusCode, Bytes),
    /// The connection ended after the request.
    Ended,
    /// The console is not that of the node: it got no request.
    Stranger,
}

/// Returns the address of a console, which must be on loopback, whatever the other node has announced.
pub(in crate::api) fn address(console: &str) -> Option<SocketAddr> {
    let address: SocketAddr = console.strip_prefix("http://")?.parse().ok()?;
    address.ip().is_loopback().then_some(address)
}

/// Sends the request with the caller's key, after the console has reported that it is that of the node: another program
/// may have its port by now. A program of another account gets no key, whatever it reports.
async fn send(
    address: SocketAddr,
    boot: &NodeBoot,
    wish: &ForwardWish,
    authorization: Option<HeaderValue>,
) -> anyhow::Result<Answer> {
    let stream = TcpStream::connect(address).await?;
    let ends = Ends { caller: address, node: stream.local_addr()? };
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let answer = async {
        let who = exchange(&mut sender, request(address, "GET", "/v1/console", String::new())?).await?;
        // The kernel names the account of the other end once that has accepted the connection, as its answer shows.
        if !is_console_of(boot, &who.1) || !ends.is_own_account() {
            return anyhow::Ok(Answer::Stranger);
        }
        let body = if wish.body.is_null() { String::new() } else { wish.body.to_string() };
        let mut request = request(address, &wish.method, &wish.path, body)?;
        if let Some(authorization) = authorization {
            request.headers_mut().insert(AUTHORIZATION, authorization);
        }
        let answer = exchange(&mut sender, request).await;
        drop(sender);
        Ok(answer.map_or(Answer::Ended, |(status, body)| Answer::Response(status, body)))
    };
    let (answer, _ended) = tokio::join!(answer, connection);
    answer
}

fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    body: String,
) -> anyhow::Result<Request<Full<Bytes>>> {
    let request = Request::builder().method(Method::from_bytes(method.as_bytes())?).uri(path);
    let request = request.header(HOST, address.to_string()).header(CONTENT_TYPE, "application/json");
    Ok(request.body(Full::new(Bytes::from(body)))?)
}

/// Sends a request, and reads the response up to its limit.
async fn exchange(
    sender: &mut SendRequest<Full<Bytes>>,
    request: Request<Full<Bytes>>,
) -> anyhow::Result<(StatusCode, Bytes)> {
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body = Limited::new(response.into_body(), BODY_BYTES_MAX).collect().await;
    Ok((status, body.map_err(|error| anyhow::anyhow!("{error}"))?.to_bytes()))
}

/// Returns whether the facts of a console are those of a run of a node.
fn is_console_of(boot: &NodeBoot, facts: &[u8]) -> bool {
    let facts: Value = serde_json::from_slice(facts).unwrap_or_default();
    facts["node"] == *boot.node.as_str() && facts["boot"] == format!("{:x}", boot.boot)
}

#[cfg(test)]
mod tests {
    use tidegate_protocol::id::NodeId;

    use super::*;

    #[test]
    fn only_the_console_of_the_same_run_is_that_of_the_node() {
        let boot = NodeBoot { node: NodeId::new("n2").unwrap(), boot: 0x5f };
        assert!(is_console_of(&boot, br#"{"node":"n2","boot":"5f","version":"0.1.0"}"#));
        for facts in [
            r#"{"node":"n1","boot":"5f"}"#,
            r#"{"node":"n2","boot":"60"}"#,
            r#"{"node":"n2"}"#,
            "<html>",
            "",
            "null",
        ] {
            assert!(!is_console_of(&boot, facts.as_bytes()), "{facts}");
        }
    }

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
