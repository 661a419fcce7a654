//! Nodes of several versions: when the ledger's rules are switched, and an older node that comes back too late.

use std::time::Duration;

use tidegate_protocol::{
    Code,
    codec::Wire,
    machine::ledger::{LEDGER_NEWEST, MODES_RULES},
};

use super::{Client, Cluster, ServerBody, ask, eventually, history, send_until_acked};
use crate::support::{WAIT_MAX, becomes, code, eventually_within, let_time_pass};

const USERS: usize = 8;

/// Longest time until nodes that agree have switched, of which they need 5 s of agreement.
const SWITCH_TIMEOUT: Duration = Duration::from_secs(18);

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

/// Waits until all partitions have switched to a version of the rules.
fn switched(cluster: &Cluster, version: u32) {
    let what = format!("all partitions are switched to {version}");
    eventually_within(SWITCH_TIMEOUT, &what, || (under(cluster, version) == 4).then_some(()));
}

/// Replaces a node by one with these settings.
fn replace(cluster: &mut Cluster, nth: usize, sets: &[&str]) {
    assert_eq!(cluster.stop(nth), Some(0));
    cluster.set_for(nth, sets);
    cluster.restart(nth);
}

/// Returns a client of the user whose message [`edit`] edits, on one of the three nodes.
fn writer(cluster: &Cluster, n: usize) -> Client {
    cluster.login(n % 3, Wire::Tcp, &format!("writer-{n}"))
}

/// Edits the first message of each writer; returns the seqs of the edits, or why they are refused.
fn edit(cluster: &Cluster, id: &str) -> Vec<Result<u64, Code>> {
    let edit = |n: usize| {
        let place = format!("d:reader-{n}:writer-{n}");
        match writer(cluster, n).ask(ask::edit(&place, 1, id, "better")) {
            ServerBody::SendAck(ack) => Ok(ack.seq),
            ServerBody::Error(error) => Err(code(error.code)),
            other => panic!("no answer to an edit: {other:?}"),
        }
    };
    (0..USERS).map(edit).collect()
}

/// Repeats the edits, as clients do, until each has this seq.
fn edits_are_accepted(cluster: &Cluster, id: &str, seq: u64) {
    let is_accepted = |found: &Vec<Result<u64, Code>>| found.iter().all(|it| *it == Ok(seq));
    becomes(WAIT_MAX, "all edits are accepted", || edit(cluster, id), is_accepted);
}

#[test]
fn rules_switch_step_by_step_as_older_nodes_are_replaced() {
    const FORMER: u32 = MODES_RULES - 1;
    let mut cluster = Cluster::prepare(3, &["log.rules_settle_ms=5000"]);
    for (nth, known) in [(1, MODES_RULES), (2, FORMER)] {
        cluster.set_for(nth, &[&format!("fault.rules_max={known}")]);
    }
    cluster.start_nodes(0..3);
    cluster.all_owned();
    cluster.all_linked();
    say(&cluster, &[0, 1, 2], 1..=2);
    for n in 0..USERS {
        assert_eq!(send_until_acked(&mut writer(&cluster, n), &format!("reader-{n}"), "m1").0, 1);
    }
    let_them_agree();
    switched(&cluster, FORMER);
    let refused = edit(&cluster, "e1");
    assert!(
        refused.iter().all(|it| *it == Err(Code::NotYet)),
        "a live node does not know edits: {refused:?}"
    );
    assert_eq!(under(&cluster, FORMER), 4, "a live node does not know the next rules");

    replace(&mut cluster, 2, &[]);
    switched(&cluster, MODES_RULES);
    edits_are_accepted(&cluster, "e1", 2);
    say(&cluster, &[0, 1, 2], 3..=4);
    assert_eq!(under(&cluster, MODES_RULES), 4, "a live node does not know the newest rules");

    replace(&mut cluster, 1, &[]);
    switched(&cluster, LEDGER_NEWEST);
    edits_are_accepted(&cluster, "e2", 3);
    say(&cluster, &[0, 1, 2], 5..=6);

    // An operator restores the former version.
    replace(&mut cluster, 1, &[&format!("fault.rules_max={}", LEDGER_NEWEST - 1)]);
    cluster.node(1).metric_becomes("ledger_rules_unknown", f64::from(LEDGER_NEWEST));
    cluster.all_owned();
    let complaints = || cluster.node(1).stderr().matches("RULES_UNKNOWN").count();
    let before = complaints();
    assert!(before > 0);
    // The node serves its clients, and owns no partition again.
    say(&cluster, &[0, 1, 2], 7..=8);
    renewals(&cluster, 2);
    assert_eq!(cluster.node(1).metric("partitions_owned"), 0.0);
    assert_eq!(complaints(), before, "the node reports it once");
    for n in 0..USERS {
        let mut client: Client = cluster.login(1, Wire::Tcp, &format!("user-{n}"));
        let expected: Vec<_> = (1..=8).map(|nth| (nth, format!("m{nth}"))).collect();
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
