//! Access over nodes as processes: what ends connections and messages elsewhere, and how nodes authenticate each other.

mod attack;
mod backend;
mod devices;
mod ending;
mod limits;
mod link_tls;
mod messages;
mod privacy;

use std::{net::SocketAddr, time::Duration};

use serde_json::Value;
use tidegate_protocol::pb;

use crate::support::{Client, Cluster, ServerBody, ServiceProxy, Stopwatch, free_port, http};

/// Limit until a change is in force on another node: twice the promised time, on a machine that runs other clusters.
const IN_FORCE_MAX: Duration = Duration::from_secs(4);

/// Two nodes whose ways to Redis and to each other can be cut.
struct Severable {
    cluster: Cluster,
    redis: ServiceProxy,
    /// Way to each node for its peer.
    links: [ServiceProxy; 2],
    listens: [SocketAddr; 2],
}

impl Severable {
    fn start(sets: &[&str]) -> Self {
        let redis = ServiceProxy::to_service("redis7");
        let listens = [(); 2].map(|()| SocketAddr::from(([127, 0, 0, 1], free_port())));
        let url = format!("redis.urls=[redis://{}]", redis.address());
        let sets: Vec<&str> = sets.iter().copied().chain([url.as_str()]).collect();
        let links = listens.map(ServiceProxy::to);
        let mut it = Self { cluster: Cluster::prepare(2, &sets), redis, links, listens };
        it.restart(&[]);
        it
    }

    /// Starts both nodes, after killing those that run, with these further settings.
    fn restart(&mut self, sets: &[&str]) {
        for nth in 0..2 {
            self.cluster.kill(nth);
            let listen = format!("link.listen={}", self.listens[nth]);
            let advertise = format!("link.advertise={}", self.links[nth].address());
            let all: Vec<&str> = sets.iter().copied().chain([listen.as_str(), advertise.as_str()]).collect();
            self.cluster.set_for(nth, &all);
        }
        self.cluster.start_nodes(0..2);
        self.cluster.all_owned();
        self.cluster.all_linked();
    }
}

/// Sends a request to the admin port of a node; returns the status and the answer.
fn call(cluster: &Cluster, nth: usize, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let (status, answer) = http::ask(cluster.node(nth).admin(), method, path, &body);
    (status, serde_json::from_str(&answer).unwrap_or(Value::Null))
}

/// Waits for the end of a connection, which comes once and in time; returns its close frame.
#[track_caller]
fn end_of(client: &mut Client, within: Duration) -> pb::Close {
    let began = Stopwatch::start();
    let frame = client.take("a close", |frame| matches!(frame.body, Some(ServerBody::Close(_))));
    assert!(began.elapsed() < within, "closed after {:?}", began.elapsed());
    let late = client.until_end();
    assert!(late.is_empty(), "frames after the close: {late:?}");
    match frame.body {
        Some(ServerBody::Close(close)) => close,
        other => panic!("{other:?}"),
    }
}
