//! Measurements of the Kafka client on the metrics page.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tidegate::bus::partition_of;
use tidegate_protocol::{Code, codec::Wire, id::ConversationId};

use crate::support::{Cluster, OwnKafka, ServiceProxy, ask, eventually, send};

/// Longer than the client's report interval: nothing else resets the values meanwhile.
const REPORT_TIME: Duration = Duration::from_millis(2_500);

/// Waits until all these metrics are above zero and stay there.
fn stay_above_zero(cluster: &Cluster, names: &[&str]) {
    let mut since = None;
    eventually(&format!("{names:?} are above zero from one report to the next"), || {
        let all = names.iter().all(|name| cluster.node(0).metric(name) > 0.0);
        since = all.then(|| since.unwrap_or_else(Instant::now));
        since.is_some_and(|since| since.elapsed() > REPORT_TIME).then_some(())
    });
}

#[test]
fn kafka_latency_queues_and_lag_are_measured() {
    let kafka = OwnKafka::start();
    let brokers = format!("kafka.brokers=[{}]", kafka.address());
    let cluster = Cluster::start(1, &[&brokers, "timing.reply_ms=3000"]);
    let mut ann = cluster.login(0, Wire::Tcp, "ann");
    let mut number = 0;
    eventually("the time to Kafka", || {
        number += 1;
        assert_eq!(ann.text("bob", &format!("m{number}"), "hi"), number);
        (cluster.node(0).metric("kafka_rtt_seconds") > 0.0).then_some(())
    });
    cluster.node(0).metric_becomes("kafka_append_queue_bytes", 0.0);
    cluster.node(0).metric_becomes("kafka_lag_records", 0.0);

    kafka.freeze(true);
    let waiting = ann.say(ask::send(send("bob", "waits", "hi")));
    stay_above_zero(&cluster, &["kafka_append_queue_bytes"]);
    assert_eq!(ann.expect_error(waiting), Code::Unknown);
    kafka.freeze(false);
    cluster.node(0).metric_becomes("kafka_append_queue_bytes", 0.0);

    let held = cluster.hold_archive();
    // The owner waits for the archive after the first one, and reads no more.
    let mut late = |id: &str| {
        let said = ann.say(ask::send(send("bob", id, "hi")));
        assert_eq!(ann.expect_error(said), Code::Unknown);
    };
    late("read");
    late("unread");
    stay_above_zero(&cluster, &["kafka_lag_records", "kafka_read_ahead_bytes"]);
    drop(held);
    for name in ["kafka_lag_records", "kafka_read_ahead_bytes"] {
        cluster.node(0).metric_becomes(name, 0.0);
    }
}

/// Returns the row of a node, as the first node lists it.
fn row(cluster: &Cluster, node: &str) -> Value {
    let said: Value = serde_json::from_str(&cluster.node(0).http("GET", "/v1/nodes", "")).expect("JSON");
    let mut rows = said["nodes"].as_array().expect("a list").iter();
    rows.rfind(|row| row["node"] == node).expect("the node is listed").clone()
}

/// Returns what `tidegate nodes` prints for a node in the column LAG.
fn printed_lag(cluster: &Cluster, node: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(["nodes", "--admin", &cluster.node(0).addresses.admin.to_string()]);
    let table = String::from_utf8(command.output().expect("the binary runs").stdout).expect("text");
    let at = table.find("LAG").expect("a column");
    let line = table.lines().find(|line| line.starts_with(node)).expect("a row");
    line[at..].split("  ").next().expect("a cell").to_owned()
}

#[test]
fn node_topic_lag_is_reported_and_returns_to_zero() {
    const MESSAGES: u64 = 6;
    let proxy = ServiceProxy::to_service("postgres");
    let mut cluster = Cluster::prepare(2, &["limits.small_group_max=4"]);
    let by_way = cluster.postgres_by(proxy.address());
    cluster.set_for(1, &[&by_way]);
    cluster.start_nodes(0..2);
    cluster.all_owned();
    cluster.all_shared();
    cluster.all_linked();
    let lag = || {
        let said = row(&cluster, "n2")["nodeTopic"].clone();
        let field = |name: &str| said[name].as_u64();
        let (position, end) = (field("position")?, field("end")?);
        assert_eq!(field("behindRecords"), Some(end - position), "{said}");
        Some((position, end - position, field("behindMs")?))
    };
    eventually("nothing waits", || matches!(lag()?, (_, 0, 0)).then_some(()));
    // A group that the other node owns, and that n2 has to read once it is large.
    let owns = eventually("n1 lists its partitions", || {
        let owns = row(&cluster, "n1")["owns"].as_array().expect("a list").clone();
        (owns.len() == 2).then_some(owns)
    });
    let is_there = |id: &String| {
        let group = ConversationId::parse(&format!("g:{id}")).expect("a valid id");
        owns.contains(&json!(partition_of(&group, 4)))
    };
    let id = (0..).map(|n| format!("crowd{n}")).find(is_there).expect("a group for each partition");
    let group = cluster.node(0).group(&id, &["ann", "bob"].map(str::to_owned));
    let (mut ann, _bob) = (cluster.login(0, Wire::Tcp, "ann"), cluster.login(1, Wire::Tcp, "bob"));
    proxy.hang();
    cluster.node(0).change_members(&id, &json!({"add": ["cat", "dan", "eve", "fay", "gil"]}));
    for nth in 1..=MESSAGES {
        ann.text(&group, &format!("m{nth}"), "hi");
    }
    eventually("the node reports its lag", || {
        let (_, records, ms) = lag()?;
        (records >= MESSAGES && ms > 0).then_some(())
    });
    let of = |name: &str| cluster.node(1).metric(name);
    eventually("the lag is a metric", || {
        (of("node_topic_lag_records") >= MESSAGES as f64 && of("node_topic_lag_seconds") > 0.0).then_some(())
    });
    assert_ne!(printed_lag(&cluster, "n2"), "0");
    assert_eq!(cluster.node(0).metric("node_topic_lag_records"), 0.0, "the other node has no lag");
    proxy.open();
    for name in ["node_topic_lag_records", "node_topic_lag_seconds"] {
        cluster.node(1).metric_becomes(name, 0.0);
    }
    eventually("nothing waits", || {
        let (position, records, ms) = lag()?;
        (position >= MESSAGES && records == 0 && ms == 0).then_some(())
    });
    assert_eq!(printed_lag(&cluster, "n2"), "0");
}
