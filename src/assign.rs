//! Where clients are sent: the answers of `GET /v1/assign` on the client port, and the alternates of a drain.
//!
//! It is answered from what the lease of this node has seen last, so it costs no call and goes on while the routes
//! (Redis) are away. It is on the client port because that is the one that clients reach, through whatever load balancer
//! stands before it, and the token that logs them in there is what they ask with; the admin port is the operator's.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tidegate_protocol::{
    Code,
    machine::assign::{self, Candidate},
};

use crate::{
    auth::Verifier,
    net::upgrade::{AssignAsked, Transport},
    ports::Ports,
    routes::{About, NodeInfo, NodeState},
};

/// A look at the nodes is asked for when somebody asks for a node and the last time is this long ago: nodes that leave are
/// out of the answers about as soon.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Alternates that a client is told.
const ALTERNATES: usize = 3;

/// Knows the nodes, and what this one says of itself.
pub struct Assigner {
    ports: Arc<Ports>,
    ttl: Duration,
    state: Mutex<State>,
}

struct State {
    /// What this node says of itself, but for how its drain goes.
    about: About,
    /// What it said last; the routes know it a little later.
    own: Option<NodeInfo>,
    looked: Option<Instant>,
}

/// A place to connect to.
struct Place {
    node: String,
    address: String,
}

impl Assigner {
    /// An assigner that says so of this node; answers hold for `ttl`.
    pub fn new(ports: Arc<Ports>, about: About, ttl: Duration) -> Self {
        Self { ports, ttl, state: Mutex::new(State { about, own: None, looked: None }) }
    }

    /// What this node says of itself.
    pub fn about(&self) -> About {
        self.state().about.clone()
    }

    /// Changes how much of the newcomers this node gets; what is none stays. A share of -1 takes it away. What holds then.
    pub fn set(&self, weight: Option<u32>, share: Option<i16>) -> (u32, Option<u8>) {
        let mut state = self.state();
        if let Some(weight) = weight {
            state.about.weight = weight;
        }
        if let Some(share) = share {
            state.about.share = u8::try_from(share).ok();
        }
        (state.about.weight, state.about.share)
    }

    /// What the node says now.
    pub fn said(&self, info: &NodeInfo) {
        self.state().own = Some(info.clone());
    }

    /// The other nodes that take this user, best first, as its connection needs their addresses.
    pub fn alternates(&self, user: &str, transport: Transport) -> Vec<String> {
        let own = self.ports.me.node.as_str();
        let places = self.places(user, "", Some(transport)).into_iter();
        places.filter(|place| place.node != own).map(|place| place.address).take(ALTERNATES).collect()
    }

    /// Newcomers a second that the others take from this node while it leaves; none when there is nobody to go to. What
    /// other nodes that leave as well send them is left to those.
    pub fn others_accept(&self) -> Option<u32> {
        let seen = self.ports.peers.seen();
        let leaving = seen.others.iter().filter(|row| row.info.state != NodeState::Ready).count() as u64;
        let ready = seen.others.iter().filter(|row| row.info.state == NodeState::Ready);
        let all: u64 = ready.map(|row| u64::from(row.info.about.accepts)).sum();
        (all > 0).then(|| u32::try_from(all / (leaving + 1)).unwrap_or(u32::MAX).max(1))
    }

    /// The HTTP response to a client that asks.
    pub fn answer(&self, asked: &AssignAsked, verifier: &Verifier) -> Vec<u8> {
        if asked.preflight {
            return response("204 No Content", asked, None);
        }
        let identity = match verifier.verify(&asked.token) {
            Ok(identity) => identity,
            Err((code, why)) => return response("401 Unauthorized", asked, Some(refusal(code, why))),
        };
        self.ask_for_a_look();
        let places = self.places(identity.user.as_str(), &asked.zone, asked.transport);
        let places: Vec<Value> = places
            .into_iter()
            .take(asked.count)
            .map(|it| json!({"node": it.node, "address": it.address}))
            .collect();
        let stale = self.ports.peers.seen().stale;
        let ttl = u64::try_from(self.ttl.as_millis()).unwrap_or(u64::MAX);
        let body = json!({"addresses": places, "ttlMs": ttl, "stale": stale});
        response("200 OK", asked, Some(body))
    }

    fn places(&self, user: &str, zone: &str, transport: Option<Transport>) -> Vec<Place> {
        let seen = self.ports.peers.seen();
        let own = self.state().own.clone();
        let nodes: Vec<&NodeInfo> = (seen.others.iter().map(|row| &row.info))
            .chain(own.as_ref())
            .filter(|info| info.state == NodeState::Ready)
            .collect();
        let candidates: Vec<Candidate<'_>> = nodes.iter().map(|info| candidate(info)).collect();
        let order = assign::assign(user, zone, &candidates).into_iter();
        order
            .flat_map(|at| {
                let info = nodes[at];
                let addresses = info.client_addresses.iter().filter_map(|it| address_for(it, transport));
                addresses.map(|address| Place { node: info.boot.node.to_string(), address })
            })
            .collect()
    }

    /// At most so often, however many ask.
    fn ask_for_a_look(&self) {
        let now = Instant::now();
        let mut state = self.state();
        if state.looked.is_none_or(|then| now - then >= LOOK_EVERY) {
            state.looked = Some(now);
            self.ports.peers.look_again();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn candidate(info: &NodeInfo) -> Candidate<'_> {
    Candidate {
        node: info.boot.node.as_str(),
        conns: info.conns,
        capacity: info.capacity,
        weight: info.about.weight,
        version: &info.about.version,
        share: info.about.share,
        zone: &info.about.zone,
    }
}

/// The address as that transport needs it, if it is one of it.
fn address_for(address: &str, transport: Option<Transport>) -> Option<String> {
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

fn refusal(code: Code, why: &str) -> Value {
    let message = if why.is_empty() { code.what() } else { why };
    json!({"code": code.number(), "name": code.name(), "message": message, "cure": code.cure()})
}

/// A whole response; the connection ends behind it.
fn response(status: &str, asked: &AssignAsked, body: Option<Value>) -> Vec<u8> {
    let mut head = format!("HTTP/1.1 {status}\r\nConnection: close\r\nCache-Control: no-store\r\n");
    if let Some(origin) = &asked.origin {
        head += &format!("Access-Control-Allow-Origin: {origin}\r\nVary: Origin\r\n");
        if asked.preflight {
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
    fn an_address_is_told_to_those_who_speak_what_it_takes() {
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
