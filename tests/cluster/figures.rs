//! The admin port of one node returns the figures of all nodes, and Redis has the windows of their groups.

use std::collections::BTreeMap;

use serde_json::Value;
use tidegate_protocol::{Code, codec::Wire};

use crate::support::{Cluster, StatsFollower, WAIT_MAX, ask, becomes, eventually, eventually_within, http};

/// Time of a second, and the moves in it: source, target and count.
type Row = (u64, Vec<(String, String, u64)>);

/// Clients that moved so far, by source and target; and the nodes that did not answer.
fn moved(cluster: &Cluster, nth: usize) -> (BTreeMap<(String, String), u64>, Value) {
    let (status, body) = http::ask(cluster.node(nth).admin(), "GET", "/v1/flows", "");
    assert_eq!(status, 200, "{body}");
    let body: Value = serde_json::from_str(&body).expect("JSON");
    let rows: Vec<Row> = serde_json::from_value(body["rows"].clone()).expect("rows");
    assert!(rows.is_sorted_by(|a, b| a.0 < b.0), "{rows:?}");
    let mut sums = BTreeMap::new();
    for (from, to, count) in rows.into_iter().flat_map(|(_, flows)| flows) {
        *sums.entry((from, to)).or_default() += count;
    }
    (sums, body["silent"].clone())
}

#[test]
fn one_node_shows_the_figures_of_all() {
    let mut cluster = Cluster::start(2, &[]);
    cluster.all_linked();
    // A node has its first row a second after its start.
    eventually("n2 has figures", || {
        let mut own = StatsFollower::open(cluster.node(1));
        own.expect("start");
        own.expect("past")["rows"].as_array().is_some_and(|rows| !rows.is_empty()).then_some(())
    });
    let mut follower = StatsFollower::open(cluster.node(0));
    let fields: Vec<String> =
        serde_json::from_value(follower.expect("start")["fields"].clone()).expect("names");
    let clients = 1 + fields.iter().position(|field| field == "clients").expect("a field");
    assert_eq!(follower.expect("past")["node"], "n1");
    let past = follower.expect_of("past", "n2");
    assert!(past["rows"].as_array().is_some_and(|rows| !rows.is_empty()), "{past}");
    // Ann moves, Bob stays, and a refusal is counted where it was given.
    let mut ann = cluster.login(0, Wire::Tcp, "ann");
    let mut bob = cluster.login(1, Wire::WsText, "bob");
    assert_eq!(bob.refused(ask::after("g:none", 0, 1)), Code::NotAMember);
    let moved_ann = cluster.login(1, Wire::Tcp, "ann");
    assert_eq!(ann.expect_close(), Code::Replaced);
    while follower.expect_of("now", "n2")["row"][clients] != 2 {}
    let codes = follower.expect_codes_of("n2");
    assert!(codes["rows"].to_string().contains("[2004,1]"), "{codes}");
    drop(moved_ann);
    let flow = |from: &str, to: &str| (from.to_owned(), to.to_owned());
    let expected = [(flow("", "n1"), 1), (flow("", "n2"), 1), (flow("n1", "n2"), 1), (flow("n2", ""), 1)];
    for nth in 0..2 {
        becomes(
            WAIT_MAX,
            "the flows of both",
            || moved(&cluster, nth),
            |now| *now == (expected.clone().into(), Value::Array(Vec::new())),
        );
    }
    // A peer that does not answer is named, and the stream goes on.
    cluster.kill(1);
    let (left, _) = eventually("n2 does not answer", || {
        let (sums, silent) = moved(&cluster, 0);
        (silent == serde_json::json!(["n2"])).then_some((sums, silent))
    });
    assert_eq!(left, [(flow("", "n1"), 1)].into(), "the figures of n2 are missing");
    for _ in 0..3 {
        follower.expect_of("now", "n1");
    }
    // Bob does not come back, and the node that removes his route counts him.
    eventually_within(2 * WAIT_MAX, "n2 has left", || {
        let (sums, silent) = moved(&cluster, 0);
        let left = [(flow("", "n1"), 1), (flow("n2", ""), 1)];
        (sums == left.into() && silent == serde_json::json!([])).then_some(())
    });
}

#[test]
fn windows_of_groups_are_mirrored_in_redis_by_each_owner() {
    let cluster = Cluster::start(2, &["storm.mirror=true"]);
    let members = ["ann", "bob"].map(str::to_owned);
    let groups: Vec<String> = (0..6).map(|n| cluster.node(0).group(&format!("g{n}"), &members)).collect();
    let (mut ann, mut bob) = (cluster.login(0, Wire::Tcp, "ann"), cluster.login(1, Wire::Tcp, "bob"));
    for (nth, group) in groups.iter().enumerate() {
        for n in 0..4 {
            ann.text(group, &format!("a{nth}-{n}"), "hi");
            bob.text(group, &format!("b{nth}-{n}"), "hi");
        }
    }
    for group in &groups {
        let key = format!("{}:storm:{{{group}}}", cluster.name());
        eventually("the window is in Redis", || (cluster.redis::<u64>(&["ZCARD", &key]) == 8).then_some(()));
        assert!((1..=300).contains(&cluster.redis::<i64>(&["TTL", &key])));
    }
    let skipped = |nth: usize| cluster.node(nth).metric("storm_mirror_skipped_total");
    assert_eq!((skipped(0), skipped(1)), (0.0, 0.0));
}
