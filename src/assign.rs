//! Client assignment: answers `GET /v1/assign` on the client port, and chooses the alternates that a drain announces.
//!
//! Answers come from the peer list as last fetched, so they cost no call and continue while the routes (Redis) are
//! unavailable. The client port is the one that clients reach through any load balancer, and a request is authorised by
//! the token of the login. The admin port is for operators.

use std::{sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};
use tidegate_protocol::{
    id::UserId,
    machine::assign::{self, Candidate},
};
use tokio::time::Instant;

use crate::{
    auth::TokenRefusal,
    cluster::Cluster,
    net::upgrade::{AssignAsked, Transport},
    routes::{NodeDescription, NodeInfo, NodeState},
};

/// Shortest interval between peer refreshes requested by assign requests. A draining node leaves the answers about as
/// soon.
const PEER_REFRESH_INTERVAL: Duration = Duration::from_millis(500);

/// Most alternates announced to a client.
const ALTERNATES_MAX: usize = 3;

/// Ranks the nodes for a client, and holds the description that this node announces.
pub struct Assigner {
    cluster: Arc<Cluster>,
    ttl: Duration,
    state: Mutex<State>,
}

struct State {
    /// Description of this node, without the progress of its drain.
    description: NodeDescription,
    /// Last announcement of this node; the routes have it a little later.
    announced: Option<NodeInfo>,
    refreshed_at: Option<Instant>,
}

/// Address of a node that a client can connect to.
struct Endpoint {
    node: String,
    address: String,
}

impl Assigner {
    /// Creates an assigner for a node described by `description`; clients may use an answer for `ttl`.
    pub fn new(cluster: Arc<Cluster>, description: NodeDescription, ttl: Duration) -> Self {
        Self { cluster, ttl, state: Mutex::new(State { description, announced: None, refreshed_at: None }) }
    }

    /// Returns the description of this node.
    pub fn description(&self) -> NodeDescription {
        self.state().description.clone()
    }

    /// Changes the weight and the version share of this node, and returns those in force. `None` keeps a value; a share
    /// of -1 removes it.
    pub fn set(&self, weight: Option<u32>, share: Option<i16>) -> (u32, Option<u8>) {
        let mut state = self.state();
        if let Some(weight) = weight {
            state.description.weight = weight;
        }
        if let Some(share) = share {
            state.description.share = u8::try_from(share).ok();
        }
        (state.description.weight, state.description.share)
    }

    /// Stores the announcement that this node is about to make.
    pub fn set_announced(&self, info: &NodeInfo) {
        self.state().announced = Some(info.clone());
    }

    /// Returns the other nodes for this user, best first, with addresses for its transport.
    pub fn alternates(&self, user: &str, transport: Transport) -> Vec<String> {
        let me = self.cluster.me.node.as_str();
        let endpoints = self.endpoints(user, "", Some(transport)).into_iter();
        let others = endpoints.filter(|endpoint| endpoint.node != me);
        others.map(|endpoint| endpoint.address).take(ALTERNATES_MAX).collect()
    }

    /// Returns how many clients per second the peers accept from this node in a drain; `None` if they accept none.
    /// Other draining nodes get equal parts.
    pub fn others_accept(&self) -> Option<u32> {
        let snapshot = self.cluster.peers.snapshot();
        let draining = snapshot.others.iter().filter(|row| row.info.state != NodeState::Ready).count() as u64;
        let ready = snapshot.others.iter().filter(|row| row.info.state == NodeState::Ready);
        let all: u64 = ready.map(|row| u64::from(row.info.description.accepts)).sum();
        (all > 0).then(|| u32::try_from(all / (draining + 1)).unwrap_or(u32::MAX).max(1))
    }

    /// Returns the HTTP response to an assign request of `user`.
    pub fn answer(&self, request: &AssignAsked, user: &UserId) -> Vec<u8> {
        self.request_refresh();
        let endpoints = self.endpoints(user.as_str(), &request.zone, request.transport);
        let endpoints: Vec<Value> = endpoints
            .into_iter()
            .take(request.count)
            .map(|it| json!({"node": it.node, "address": it.address}))
            .collect();
        let stale = self.cluster.peers.snapshot().stale;
        let ttl = u64::try_from(self.ttl.as_millis()).unwrap_or(u64::MAX);
        let body = json!({"addresses": endpoints, "ttlMs": ttl, "stale": stale});
        response("200 OK", "", request, Some(body))
    }

    fn endpoints(&self, user: &str, zone: &str, transport: Option<Transport>) -> Vec<Endpoint> {
        let snapshot = self.cluster.peers.snapshot();
        let announced = self.state().announced.clone();
        let nodes: Vec<&NodeInfo> = (snapshot.others.iter().map(|row| &row.info))
            .chain(announced.as_ref())
            .filter(|info| info.state == NodeState::Ready)
            .collect();
        let candidates: Vec<Candidate<'_>> = nodes.iter().map(|info| candidate(info)).collect();
        let order = assign::assign(user, zone, &candidates).into_iter();
        order
            .flat_map(|at| {
                let info = nodes[at];
                let addresses = info.client_addresses.iter().filter_map(|it| address_for(it, transport));
                addresses.map(|address| Endpoint { node: info.boot.node.to_string(), address })
            })
            .collect()
    }

    /// Requests a peer refresh, at most once per [`PEER_REFRESH_INTERVAL`].
    fn request_refresh(&self) {
        let now = Instant::now();
        let mut state = self.state();
        if state.refreshed_at.is_none_or(|then| now - then >= PEER_REFRESH_INTERVAL) {
            state.refreshed_at = Some(now);
            self.cluster.peers.request_refresh();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

fn candidate(info: &NodeInfo) -> Candidate<'_> {
    Candidate {
        node: info.boot.node.as_str(),
        conns: info.conns,
        capacity: info.capacity,
        weight: info.description.weight,
        version: &info.description.version,
        share: info.description.share,
        zone: &info.description.zone,
    }
}

/// Returns the address with the scheme of the transport; `None` if the address is for another one.
pub(crate) fn address_for(address: &str, transport: Option<Transport>) -> Option<String> {
    let (scheme, fits) = match transport {
        None => return Some(address.to_owned()),
        Some(Transport::Tcp) => ("tcp", ["tcp", "tls"]),
        Some(Transport::Ws) => ("ws", ["ws", "wss"]),
    };
    match address.split_once("://") {
        None => Some(format!("{scheme}://{address}")),
        Some((named, _)) => fits.contains(&named).then(|| address.to_owned()),
    }
}

/// Returns the HTTP response to a browser's preflight.
pub fn preflight_response(request: &AssignAsked) -> Vec<u8> {
    response("204 No Content", "", request, None)
}

/// Returns the HTTP response to an assign request whose token is refused.
pub fn refusal_response(request: &AssignAsked, refusal: &TokenRefusal) -> Vec<u8> {
    let TokenRefusal { code, reason, wait } = refusal;
    let message = if reason.is_empty() { code.what() } else { reason };
    let body = json!({"code": code.number(), "name": code.name(), "message": message, "cure": code.cure()});
    let Some(wait) = wait else { return response("401 Unauthorized", "", request, Some(body)) };
    let seconds = wait.as_millis().div_ceil(1_000);
    response("429 Too Many Requests", &format!("Retry-After: {seconds}\r\n"), request, Some(body))
}

/// Builds a complete response, with further headers, that closes the connection.
fn response(status: &str, headers: &str, request: &AssignAsked, body: Option<Value>) -> Vec<u8> {
    let mut head = format!("HTTP/1.1 {status}\r\nConnection: close\r\nCache-Control: no-store\r\n{headers}");
    if let Some(origin) = &request.origin {
        head += &format!("Access-Control-Allow-Origin: {origin}\r\nVary: Origin\r\n");
        if request.takes_cookies {
            head += "Access-Control-Allow-Credentials: true\r\n";
        }
        if request.preflight {
            head += "Access-Control-Allow-Headers: authorization\r\nAccess-Control-Allow-Methods: GET\r\n\
                     Access-Control-Max-Age: 600\r\n";
        }
    }
    if let Some(body) = body {
        let body = format!("{body}\n");
        head += &format!("Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    } else {
        head += "\r\n";
    }
    head.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_matches_the_transport_of_the_client() {
        let (tcp, ws) = (Some(Transport::Tcp), Some(Transport::Ws));
        let cases = [
            ("h:1", None, Some("h:1")),
            ("h:1", tcp, Some("tcp://h:1")),
            ("h:1", ws, Some("ws://h:1")),
            ("wss://h:1/x", ws, Some("wss://h:1/x")),
            ("wss://h:1/x", tcp, None),
            ("tls://h:1", tcp, Some("tls://h:1")),
            ("tls://h:1", ws, None),
            ("tls://h:1", None, Some("tls://h:1")),
        ];
        for (address, transport, expected) in cases {
            assert_eq!(address_for(address, transport).as_deref(), expected, "{address} {transport:?}");
        }
    }
}
