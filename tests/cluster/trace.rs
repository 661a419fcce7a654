//! The steps of a message are found on all nodes by its id, in order, and in the headers of the log.

use std::{collections::BTreeMap, process::Command, time::Duration};

use rdkafka::{
    ClientConfig, Message as _, Offset, TopicPartitionList,
    consumer::{BaseConsumer, Consumer as _},
    message::Headers as _,
};
use serde_json::Value;
use tidegate_protocol::{codec::Wire, pb};

use crate::support::{Cluster, eventually, send};

const TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

/// Returns what `tidegate trace` prints, asked of one node, which collects from the other.
fn traced(cluster: &Cluster, words: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.arg("trace").args(words);
    command.arg("--admin").arg(cluster.node(0).addresses.admin.to_string());
    let output = command.output().expect("the binary runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Returns the headers of the records of the log, by record.
fn headers(cluster: &Cluster) -> Vec<BTreeMap<String, String>> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", cluster.brokers()).set("group.id", "none");
    let consumer: BaseConsumer = config.create().expect("a consumer");
    let mut all = TopicPartitionList::new();
    for partition in 0..4 {
        all.add_partition_offset(cluster.topic(), partition, Offset::Beginning).expect("a partition");
    }
    consumer.assign(&all).expect("an assignment");
    let mut found = Vec::new();
    eventually("the records of the log", || {
        let record = consumer.poll(Duration::from_millis(100))?.expect("a record");
        found.push(record.headers().map_or_else(BTreeMap::new, |headers| {
            let text = |value: Option<&[u8]>| String::from_utf8_lossy(value.unwrap_or_default()).into_owned();
            headers.iter().map(|header| (header.key.to_owned(), text(header.value))).collect()
        }));
        (found.len() == 2).then_some(())
    });
    found
}

#[test]
fn traced_message_is_followed_from_sender_to_receivers_ack() {
    let cluster = Cluster::start(2, &["trace.per_second=0"]);
    let (mut ann, mut bob) = (cluster.login(0, Wire::Tcp, "ann"), cluster.login(1, Wire::WsText, "bob"));
    ann.text("bob", "m1", "an untraced message");
    let seq = bob_got(&mut bob);
    bob.ack("d:ann:bob", seq);
    assert!(traced(&cluster, &["m1"]).starts_with("no steps recorded for m1"));
    assert!(traced(&cluster, &["m2"]).starts_with("no steps recorded for m2"));
    ann.send(pb::Send { traceparent: TRACEPARENT.into(), ..send("bob", "m2", "this secret") });
    let seq = bob_got(&mut bob);
    bob.ack("d:ann:bob", seq);

    let steps = eventually("the ack, and the archive after it", || {
        let said = traced(&cluster, &["m2", "--json"]);
        let steps: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        ["acked", "archived"].iter().all(|it| steps.iter().any(|step| step["step"] == *it)).then_some(steps)
    });
    assert!(steps.iter().all(|step| step["trace"] == TRACE), "{steps:?}");
    let of = |name: &str| -> &Value {
        steps.iter().find(|step| step["step"] == name).unwrap_or_else(|| panic!("no {name}: {steps:?}"))
    };
    assert_eq!((&of("received")["node"], &of("received")["user"]), (&"n1".into(), &"ann".into()));
    assert_eq!(of("appended")["node"], "n1");
    assert_eq!((&of("decided")["seq"], &of("archived")["seq"]), (&2.into(), &2.into()));
    assert_eq!(of("decided")["node"], of("archived")["node"], "the owner decides and archives");
    assert_eq!((&of("pushed")["node"], &of("pushed")["user"]), (&"n2".into(), &"bob".into()));
    assert_eq!((&of("acked")["node"], &of("acked")["device"]), (&"n2".into(), &"phone".into()));
    let on_n1 = |name: &str| steps.iter().any(|step| step["step"] == name && step["node"] == "n1");
    assert!(on_n1("answered"), "{steps:?}");
    assert!(!steps.iter().any(|step| step.to_string().contains("this secret")), "no content");
    let shown = traced(&cluster, &["m2"]);
    assert!(shown.starts_with(&format!("m2 in d:ann:bob, seq 2, trace {TRACE}\n")), "{shown}");

    let headers = headers(&cluster);
    let whole: Vec<_> = headers.iter().filter(|headers| !headers.is_empty()).collect();
    let expected = [("conversation", "d:ann:bob"), ("msg_id", "m2"), ("traceparent", TRACEPARENT)];
    let expected: BTreeMap<_, _> = expected.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    assert_eq!(whole, [&expected], "only the traced message has headers");
}

fn bob_got(bob: &mut crate::support::Client) -> u64 {
    bob.expect_push().seq
}
