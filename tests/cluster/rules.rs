//! Nodes of two versions: when the ledger's rules are switched, and an older node that comes back too late.

use std::time::Duration;

use tidegate_protocol::{codec::Wire, machine::ledger::LEDGER_NEWEST};

use super::{Client, Cluster, eventually, history, send_until_acked};
use crate::support::let_time_pass;

const USERS: usize = 8;

/// Logs a user in to one of the nodes for each of many conversations, and sends the next messages there.
fn say(cluster: &Cluster, nodes: &[usize], nths: std::ops::RangeInclusive<u64>) {
    for n in 0..USERS {
        let mut client = cluster.login(nodes[n % nodes.len()], Wire::Tcp, &format!("user-{n}"));
        for nth in nths.clone() {
            assert_eq!(send_until_acked(&mut client, &format!("peer-{n}"), &format!("m{nth}")).0, nth);
        }
    }
}

/// Waits for `count` lease renewals of every node.
fn renewals(cluster: &Cluster, count: u64) {
    let beat = || {
        let said: serde_json::Value =
            serde_json::from_str(&cluster.node(0).http("GET", "/v1/nodes", "")).expect("JSON");
        let nodes = said["nodes"].as_array().expect("a list").clone();
        nodes.iter().find(|node| node["self"] == true).and_then(|node| node["beat"].as_u64()).expect("a beat")
    };
    for _ in 0..count {
        let before = beat();
        eventually("the lease is renewed", || (beat() > before).then_some(()));
    }
}

/// Waits longer than nodes that agree need to switch: 5 s of agreement, checked every second.
fn let_them_agree() {
    let_time_pass("nodes that agree have switched by then", Duration::from_secs(8));
}

fn under(cluster: &Cluster, version: u32) -> i64 {
    cluster.number(&format!("SELECT count(*) FROM partitions WHERE ledger_version = {version}"))
}

#[test]
fn rules_switch_after_the_last_old_node_is_replaced() {
    let mut cluster = Cluster::prepare(3, &["log.rules_settle_ms=5000"]);
    cluster.set_for(2, &["fault.rules_max=1"]);
    cluster.start_nodes(0..3);
    cluster.all_owned();
    cluster.all_linked();
    say(&cluster, &[0, 1, 2], 1..=2);
    let_them_agree();
    assert_eq!(under(&cluster, 1), 4, "a live node does not know the next rules");

    assert_eq!(cluster.stop(2), Some(0));
    cluster.set_for(2, &[]);
    cluster.restart(2);
    let_them_agree();
    eventually("all partitions are switched", || (under(&cluster, LEDGER_NEWEST) == 4).then_some(()));
    say(&cluster, &[0, 1, 2], 3..=4);

    // An operator restores the former version.
    assert_eq!(cluster.stop(1), Some(0));
    cluster.set_for(1, &["fault.rules_max=1"]);
    cluster.restart(1);
    cluster.node(1).metric_becomes("ledger_rules_unknown", f64::from(LEDGER_NEWEST));
    cluster.all_owned();
    let complaints = || cluster.node(1).stderr().matches("RULES_UNKNOWN").count();
    let before = complaints();
    assert!(before > 0);
    // The node serves its clients, and owns no partition again.
    say(&cluster, &[0, 1, 2], 5..=6);
    renewals(&cluster, 2);
    assert_eq!(cluster.node(1).metric("partitions_owned"), 0.0);
    assert_eq!(complaints(), before, "the node reports it once");
    for n in 0..USERS {
        let mut client: Client = cluster.login(1, Wire::Tcp, &format!("user-{n}"));
        let expected: Vec<_> = (1..=6).map(|nth| (nth, format!("m{nth}"))).collect();
        assert_eq!(history(&mut client, &format!("d:peer-{n}:user-{n}")), expected);
    }
}

#[test]
fn node_whose_operator_waits_delays_the_rules_of_all() {
    let mut cluster = Cluster::prepare(2, &["log.rules_settle_ms=5000"]);
    cluster.set_for(1, &["log.rules=1"]);
    cluster.start_nodes(0..2);
    cluster.all_owned();
    cluster.all_linked();
    let_them_agree();
    assert_eq!(under(&cluster, 1), 4);
    assert_eq!(cluster.stop(1), Some(0));
    cluster.set_for(1, &[]);
    cluster.restart(1);
    let_them_agree();
    eventually("all partitions are switched", || (under(&cluster, LEDGER_NEWEST) == 4).then_some(()));
    // The node supports the new rules, and its operator may wait indefinitely: there is no rollback, and none is
    // needed.
    assert_eq!(cluster.stop(1), Some(0));
    cluster.set_for(1, &["log.rules=1"]);
    cluster.restart(1);
    cluster.all_shared();
    say(&cluster, &[0, 1], 1..=1);
}
