//! Nodes without configured names lease ids: no two share one, and a dead node's id is free when its lease has expired.

use std::time::{Duration, Instant};

use serde_json::Value;
use tidegate_protocol::codec::Wire;

use crate::{
    send_until_acked,
    support::{Cluster, eventually, let_time_pass_since, shown_in_two_runs, text_of},
};

/// Returns the id of a node.
fn id(cluster: &Cluster, nth: usize) -> String {
    let said: Value = serde_json::from_str(&cluster.node(nth).http("GET", "/healthz", "")).expect("JSON");
    said["node"].as_str().expect("a name").to_owned()
}

/// Returns the live nodes by id, as one node lists them.
fn live(cluster: &Cluster, nth: usize) -> Vec<String> {
    let said: Value = serde_json::from_str(&cluster.node(nth).http("GET", "/v1/nodes", "")).expect("JSON");
    let nodes = said["nodes"].as_array().expect("a list").iter().filter(|node| node["lease"] == "live");
    let mut names: Vec<String> =
        nodes.map(|node| node["node"].as_str().expect("a name").to_owned()).collect();
    names.sort();
    names
}

#[test]
fn dead_nodes_id_is_leased_again_after_its_lease_expired() {
    shown_in_two_runs(lease_id_of_dead_node);
}

fn lease_id_of_dead_node() -> Result<(), String> {
    let mut cluster = Cluster::prepare(4, &["node.ids=3", "node.id=pod"]);
    (0..4).for_each(|nth| cluster.set_for(nth, &["node.id=pod"]));
    cluster.restart(0);
    assert_eq!(id(&cluster, 0), "pod-0");
    cluster.restart(1);
    assert_eq!(id(&cluster, 1), "pod-1");
    let (mut ann, mut bob) = (cluster.login(1, Wire::Tcp, "ann"), cluster.login(1, Wire::Tcp, "bob"));
    assert_eq!(send_until_acked(&mut ann, "bob", "m1").0, 1);
    assert_eq!(text_of(&bob.expect_push()), "m1");
    // An unacked push would be resent, and end his connection after 20 s.
    bob.ack("d:ann:bob", 1);
    let crash = Instant::now();
    cluster.kill(0);
    // The dead node's lease is valid, so the next node gets another id.
    cluster.restart(2);
    let next = id(&cluster, 2);
    let took = crash.elapsed();
    if next == "pod-0" && took >= Duration::from_secs(7) {
        return Err(format!("n3 took {took:?} to start: the lease of the dead node may be over"));
    }
    assert_eq!(next, "pod-2", "after {took:?}");
    let_time_pass_since(crash, "some of the lease is over", Duration::from_secs(5));
    // From here on only the dead node's id is left.
    cluster.restart(3);
    assert_eq!(id(&cluster, 3), "pod-0");
    // The lease was renewed at most 3 s before the crash.
    assert!(crash.elapsed() > Duration::from_secs(7), "{:?}", crash.elapsed());
    eventually("three live", || (live(&cluster, 3) == ["pod-0", "pod-1", "pod-2"]).then_some(()));
    // A node with a leased id works as any other.
    cluster.all_owned();
    let mut cat = cluster.login(3, Wire::Tcp, "cat");
    assert_eq!(send_until_acked(&mut cat, "bob", "m1").0, 1);
    let push = bob.expect_push();
    assert_eq!((push.conversation.as_str(), text_of(&push)), ("d:bob:cat", "m1"));
    assert_eq!(cluster.stop(1), Some(0));
    cluster.restart(1);
    assert_eq!(id(&cluster, 1), "pod-1", "a planned stop frees the id at once");
    Ok(())
}
