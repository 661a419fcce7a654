//! Attack on one of three nodes: its author is banned on all of them, and other users go on.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use serde_json::{Value, json};
use tidegate_protocol::codec::Wire;

use super::{IN_FORCE_MAX, call, end_of};
use crate::support::{Client, Cluster, ServerBody, Stopwatch, ask, eventually, send};

const NODES: usize = 3;

/// Logs the attacker in at a node, and sends bytes that are no frame; returns the answer.
fn garble(cluster: &Cluster, nth: usize) -> String {
    let node = cluster.node(nth);
    let mut stream = TcpStream::connect(node.address()).expect("it accepts");
    let hello = json!({"version": 1, "token": node.token("mallory"), "device": format!("attack-{nth}")});
    let lines = format!("{}\n{{garbage}}\n", json!({"id": 1, "hello": hello}));
    stream.write_all(lines.as_bytes()).expect("it takes bytes");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok();
    String::from_utf8_lossy(&answer).into_owned()
}

/// Ends the writers at its end, also at that of a test that fails.
struct EndWriters<'a>(&'a AtomicBool);

impl Drop for EndWriters<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Writes messages at a node until `stop`; each of them is accepted. Returns their number.
fn write(cluster: &Cluster, nth: usize, stop: &AtomicBool) -> usize {
    let mut client = cluster.login(nth, Wire::Tcp, &format!("healthy-{nth}"));
    let mut accepted = 0;
    while !stop.load(Ordering::SeqCst) {
        let message = send("peer", &format!("m{accepted}"), "hi");
        match client.ask(ask::send(message)) {
            ServerBody::SendAck(_) => accepted += 1,
            other => panic!("a healthy user on node {nth}: {other:?}"),
        }
    }
    accepted
}

/// Returns the automatic ban of the attacker as a node has it.
fn is_banned(cluster: &Cluster, nth: usize) -> Option<()> {
    let (status, view) = call(cluster, nth, "GET", "/v1/subjects/user:mallory", &Value::Null);
    (status == 200 && view["banned"] == true && view["bans"][0]["by"] == "automatic").then_some(())
}

#[test]
fn attacker_on_one_node_is_banned_on_all_while_others_go_on() {
    let cluster = Cluster::start(NODES, &["evidence.loopback=true"]);
    cluster.all_linked();
    let mut elsewhere: Vec<Client> =
        (1..NODES).map(|nth| cluster.node(nth).login(Wire::Tcp, "mallory", &format!("desk-{nth}"))).collect();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let (cluster, stop) = (&cluster, &stop);
        let end_writers = EndWriters(stop);
        let writers: Vec<_> = (0..NODES).map(|nth| scope.spawn(move || write(cluster, nth, stop))).collect();
        for _ in 0..5 {
            assert!(garble(cluster, 0).contains("MALFORMED"));
        }
        // Five at once are just enough. The score falls meanwhile, so an attacker who was slower needs another one.
        let mut waited = Stopwatch::start();
        eventually("the node bans the attacker", || {
            if waited.elapsed() > Duration::from_secs(2) {
                garble(cluster, 0);
                waited = Stopwatch::start();
            }
            is_banned(cluster, 0)
        });
        let began = Stopwatch::start();
        for client in &mut elsewhere {
            assert_eq!(end_of(client, IN_FORCE_MAX).name, "KICKED");
        }
        for nth in 0..NODES {
            eventually("the ban is in force", || is_banned(cluster, nth));
        }
        assert!(began.elapsed() < IN_FORCE_MAX, "on all nodes after {:?}", began.elapsed());
        for nth in 0..NODES {
            assert!(garble(cluster, nth).contains("BANNED"), "node {nth}");
            let (_, network) = call(cluster, nth, "GET", "/v1/subjects/network:127.0.0.1", &Value::Null);
            assert_eq!(network["banned"], false, "healthy users are in it: {network}");
        }
        drop(end_writers);
        for writer in writers {
            assert!(writer.join().expect("a writer") > 0);
        }
    });
    // Also after the attack.
    for nth in 0..NODES {
        let mut client = cluster.login(nth, Wire::Tcp, &format!("healthy-{nth}"));
        client.send(send("peer", "after", "hi"));
    }
}
