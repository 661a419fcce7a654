//! What the Kafka client measures is on the page of metrics.

use std::time::{Duration, Instant};

use tidegate_protocol::{Code, codec::Wire};

use crate::support::{Cluster, OwnKafka, ask, eventually, send};

/// Longer than the client takes between two reports: nothing else sets it back meanwhile.
const REPORTS: Duration = Duration::from_millis(2_500);

/// Waits until all of them are above zero and stay there.
fn stay_above_zero(cluster: &Cluster, names: &[&str]) {
    let mut since = None;
    eventually(&format!("{names:?} are above zero from one report to the next"), || {
        let all = names.iter().all(|name| cluster.node(0).metric(name) > 0.0);
        since = all.then(|| since.unwrap_or_else(Instant::now));
        since.is_some_and(|since| since.elapsed() > REPORTS).then_some(())
    });
}

#[test]
fn the_time_to_kafka_what_waits_for_it_and_what_is_not_read_yet_are_measured() {
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

    kafka.stand_still(true);
    let waiting = ann.say(ask::send(send("bob", "waits", "hi")));
    stay_above_zero(&cluster, &["kafka_append_queue_bytes"]);
    assert_eq!(ann.expect_error(waiting), Code::Unknown);
    kafka.stand_still(false);
    cluster.node(0).metric_becomes("kafka_append_queue_bytes", 0.0);

    let held = cluster.hold_archive();
    // Its owner waits for the archive behind the first, and reads no more.
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
