//! A node that starts while services are unavailable: it waits, says for what, and serves by itself when all are
//! available.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use serde_json::Value;
use tidegate_protocol::codec::Wire;

use crate::{
    send_until_acked,
    support::{Cluster, ServiceProxy, eventually, eventually_within, free_port, http},
};

/// Limit of one attempt: tables are created, and the Kafka client waits for a reply of its own.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(40);

/// Waits for an open port and returns the status and the body of that path.
fn get(port: SocketAddr, path: &str) -> (u16, Value) {
    eventually("the port is open", || TcpStream::connect(port).ok());
    let (status, said) = http::ask(port, "GET", path, "");
    (status, serde_json::from_str(&said).unwrap_or(Value::Null))
}

/// Opens a probe that keeps its connection, with one request done.
fn kept_open(port: SocketAddr) -> TcpStream {
    let mut probe = TcpStream::connect(port).expect("an open port");
    probe.write_all(b"GET /livez HTTP/1.1\r\nHost: probe\r\n\r\n").expect("it reads");
    let (mut said, mut some) = (Vec::new(), [0; 512]);
    while !said.ends_with(b"}") {
        let more = probe.read(&mut some).expect("it answers");
        assert!(more > 0, "{}", String::from_utf8_lossy(&said));
        said.extend_from_slice(&some[..more]);
    }
    assert!(said.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&said));
    probe
}

#[test]
fn node_waits_for_unavailable_services_at_its_start() {
    let [redis, postgres, kafka] = ["redis7", "postgres", "kafka"].map(ServiceProxy::to_service);
    let mut cluster = Cluster::prepare(1, &["node.id=pod"]);
    let (topics, said) = cluster.tidegate(&["topics", "ensure", "--node", "pod-0"]);
    assert!(topics, "{said}");
    let ports: [SocketAddr; 3] = [(); 3].map(|()| SocketAddr::from(([127, 0, 0, 1], free_port())));
    let [client, admin, monitor] = ports;
    let sets = [
        "node.id=pod".to_owned(),
        "node.ids=1".to_owned(),
        format!("listen.client={client}"),
        format!("listen.admin={admin}"),
        format!("listen.monitor={monitor}"),
        format!("redis.urls=[redis://{}]", redis.address()),
        format!("kafka.brokers=[{}]", kafka.address()),
        cluster.postgres_by(postgres.address()),
    ];
    cluster.set_for(0, &sets.each_ref().map(String::as_str));
    [&redis, &postgres, &kafka].into_iter().for_each(ServiceProxy::close);
    let begun = cluster.begin(0);
    let mut probe = None;
    for (proxy, named) in [(&redis, "redis.urls"), (&postgres, "postgres"), (&kafka, "kafka.brokers")] {
        for port in [admin, monitor] {
            eventually_within(ATTEMPT_TIMEOUT, named, || {
                let (status, said) = get(port, "/readyz");
                assert_eq!((status, &said["state"]), (503, &Value::from("starting")), "{said}");
                said["waitsFor"].as_str().is_some_and(|what| what.contains(named)).then_some(())
            });
        }
        assert_eq!(get(monitor, "/livez").0, 200, "the process is alive and must not be killed");
        assert_eq!(get(monitor, "/healthz").0, 503);
        let (status, said) = get(admin, "/v1/nodes");
        assert_eq!((status, &said["name"]), (503, &Value::from("OVERLOADED")), "{said}");
        assert!(TcpStream::connect(client).is_err(), "clients go elsewhere");
        probe = Some(kept_open(monitor));
        proxy.open();
    }
    cluster.has(0, begun.serves());
    let closed = probe.expect("one was made").read(&mut [0; 64]);
    assert_eq!(closed.ok(), Some(0), "the probe has to reconnect to the node itself");
    eventually("the node is ready", || (get(monitor, "/readyz").0 == 200).then_some(()));
    assert_eq!(get(admin, "/healthz").1["node"], "pod-0", "the id is kept while waiting");
    cluster.all_owned();
    let mut ann = cluster.login(0, Wire::Tcp, "ann");
    assert_eq!(send_until_acked(&mut ann, "bob", "m1").0, 1);
}

#[test]
fn permanent_start_error_ends_the_process_with_its_cure() {
    let cluster = Cluster::prepare(1, &["listen.client=127.0.0.1:0", "listen.admin=127.0.0.1:0"]);
    let (at, of) = cluster.setting("postgres.url=").rsplit_once('/').expect("a database");
    let nobody = format!("postgres.url={at}/not_{of}");
    for (set, cure) in
        [(nobody.as_str(), "see postgres.url"), ("kafka.partitions=5", "set kafka.partitions = 4")]
    {
        let (fine, said) = cluster.tidegate(&["serve", "--set", "node.id=n1", "--set", set]);
        assert!(!fine && said.contains(cure), "{said}");
    }
}
