//! A node that comes while a service is away: it waits, says for what, and serves by itself when all are there.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use serde_json::Value;
use tidegate_protocol::codec::Wire;

use crate::{
    send_until_acked,
    support::{Cluster, Way, eventually, eventually_within, free_port, http},
};

/// How long a try may take: tables are made, and the client of Kafka waits for an answer of its own.
const TRY: Duration = Duration::from_secs(40);

/// A port that will answer soon: what it says of that path, with the status.
fn asked(port: SocketAddr, path: &str) -> (u16, Value) {
    eventually("the port is open", || TcpStream::connect(port).ok());
    let (status, said) = http::ask(port, "GET", path, "");
    (status, serde_json::from_str(&said).unwrap_or(Value::Null))
}

/// A probe that keeps its connection: it has asked once.
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
fn a_node_that_comes_while_redis_postgres_and_kafka_are_away_waits_says_so_and_serves_by_itself() {
    let [redis, postgres, kafka] = ["redis7", "postgres", "kafka"].map(Way::to_service);
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
    [&redis, &postgres, &kafka].into_iter().for_each(Way::close);
    let begun = cluster.begin(0);
    let mut probe = None;
    for (way, named) in [(&redis, "redis.urls"), (&postgres, "postgres"), (&kafka, "kafka.brokers")] {
        for port in [admin, monitor] {
            eventually_within(TRY, named, || {
                let (status, said) = asked(port, "/readyz");
                assert_eq!((status, &said["state"]), (503, &Value::from("starting")), "{said}");
                said["waitsFor"].as_str().is_some_and(|what| what.contains(named)).then_some(())
            });
        }
        assert_eq!(asked(monitor, "/livez").0, 200, "nobody is to kill it");
        assert_eq!(asked(monitor, "/healthz").0, 503);
        let (status, said) = asked(admin, "/v1/nodes");
        assert_eq!((status, &said["name"]), (503, &Value::from("OVERLOADED")), "{said}");
        assert!(TcpStream::connect(client).is_err(), "clients go elsewhere");
        probe = Some(kept_open(monitor));
        way.open();
    }
    cluster.has(0, begun.serves());
    let closed = probe.expect("one was made").read(&mut [0; 64]);
    assert_eq!(closed.ok(), Some(0), "it is to ask the node itself");
    eventually("it is ready", || (asked(monitor, "/readyz").0 == 200).then_some(()));
    assert_eq!(asked(admin, "/healthz").1["node"], "pod-0", "the id was not lost by waiting");
    cluster.all_owned();
    let mut ann = cluster.login(0, Wire::Tcp, "ann");
    assert_eq!(send_until_acked(&mut ann, "bob", "m1").0, 1);
}

#[test]
fn what_time_does_not_mend_ends_the_start_with_its_cure() {
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
