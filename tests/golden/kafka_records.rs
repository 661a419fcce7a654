//! Records on Kafka: of the log, of node topics and of events, with their keys and headers.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use prost::Message as _;
use rdkafka::{
    ClientConfig, Message as _, Offset, TopicPartitionList,
    consumer::{BaseConsumer, Consumer as _},
    message::{Header, Headers as _, OwnedHeaders},
    producer::{FutureProducer, FutureRecord},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tidegate_protocol::{
    content::Content,
    id::{MsgId, UserId},
    pb,
    record::{Body, Record, body_hash},
};

use crate::{
    convert::{blur_text, hex, lacks, unhex, with_unknown_field},
    folder::{Folder, versions},
    meaning,
    support::{Cluster, eventually_within},
};

pub(crate) const FILE: &str = "kafka.json";

/// Topics of a cluster, by the ends of their names, with their partitions.
const TOPICS: [(&str, i32); 4] = [("log", 4), ("node.n1", 1), ("node.n2", 1), ("events", 8)];

const KAFKA_TIMEOUT: Duration = Duration::from_secs(20);

/// Time for an event about the device of a killed node: its lease has to expire, and then its rows are swept. That takes about
/// 10 s on a quiet machine.
const SWEEP_TIME_MAX: Duration = Duration::from_secs(30);

/// Record with its topic, partition and offset.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Golden {
    /// `log`, `events`, or `node.` and the node.
    pub(crate) topic: String,
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    key: Option<String>,
    headers: Vec<(String, String)>,
    value: String,
    pub(crate) means: Value,
}

/// Describes the value of a record of that topic.
fn means(topic: &str, value: &[u8]) -> Value {
    match topic {
        "log" => meaning::record(&Record::decode(Bytes::copy_from_slice(value)).expect("a record")),
        "events" => serde_json::from_slice(value).expect("JSON"),
        _ => meaning::fan_out(&pb::FanOut::decode(value).expect("a record of a node topic")),
    }
}

fn consumer(cluster: &Cluster) -> BaseConsumer {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", cluster.brokers()).set("group.id", "none");
    config.set("enable.partition.eof", "true").create().expect("a consumer")
}

fn full_name(cluster: &Cluster, topic: &str) -> String {
    format!("{}.{topic}", cluster.name())
}

/// Returns the number of records in each partition of a topic.
pub(crate) fn ends(cluster: &Cluster, topic: &str) -> Vec<i64> {
    let (_, partitions) = TOPICS.iter().find(|(name, _)| *name == topic).expect("a topic of ours");
    let (consumer, name) = (consumer(cluster), full_name(cluster, topic));
    let end =
        |partition| consumer.fetch_watermarks(&name, partition, KAFKA_TIMEOUT).expect("Kafka answers").1;
    (0..*partitions).map(end).collect()
}

/// Reads all records of the cluster.
pub(crate) fn dump(cluster: &Cluster) -> Vec<Golden> {
    TOPICS.iter().flat_map(|(topic, _)| dump_topic(cluster, topic)).collect()
}

/// Reads all records of a topic.
fn dump_topic(cluster: &Cluster, topic: &str) -> Vec<Golden> {
    let mut records = Vec::new();
    for (partition, end) in (0..).zip(ends(cluster, topic)) {
        let consumer = consumer(cluster);
        let mut list = TopicPartitionList::new();
        let place = list.add_partition_offset(&full_name(cluster, topic), partition, Offset::Beginning);
        place.expect("a partition");
        consumer.assign(&list).expect("an assignment");
        let mut next = 0;
        while next < end {
            let record = consumer.poll(KAFKA_TIMEOUT).expect("the record exists").expect("a record");
            next = record.offset() + 1;
            let value = record.payload().expect("a value");
            let headers = record.headers().map(|all| all.iter().collect()).unwrap_or_default();
            let header = |it: Header<'_, &[u8]>| {
                (it.key.to_owned(), String::from_utf8_lossy(it.value.expect("a value")).into_owned())
            };
            records.push(Golden {
                topic: topic.to_owned(),
                partition,
                offset: record.offset(),
                key: record.key().map(hex),
                headers: Vec::<Header<'_, &[u8]>>::into_iter(headers).map(header).collect(),
                value: hex(value),
                means: means(topic, value),
            });
        }
    }
    records
}

/// Restores the log: each record in its partition, at its offset.
pub(crate) fn restore_log(cluster: &Cluster, records: &[Golden]) {
    let log: Vec<&Golden> = records.iter().filter(|it| it.topic == "log").collect();
    let offsets: Vec<i64> = log.iter().map(|it| it.offset).collect();
    assert_eq!(append(cluster, &log), offsets);
}

/// Appends records to their partitions of the log; returns the offsets.
fn append(cluster: &Cluster, records: &[&Golden]) -> Vec<i64> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", cluster.brokers()).set("enable.idempotence", "true");
    let producer: FutureProducer = config.create().expect("a producer");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut offsets = Vec::new();
        for it in records {
            let headers = it.headers.iter().fold(OwnedHeaders::new(), |headers, (key, value)| {
                headers.insert(Header { key, value: Some(value.as_str()) })
            });
            let (topic, value) = (full_name(cluster, "log"), unhex(&it.value));
            let key = it.key.as_deref().map(unhex);
            let mut record =
                FutureRecord::to(&topic).partition(it.partition).payload(&value).headers(headers);
            record.key = key.as_ref();
            let placed = producer.send(record, KAFKA_TIMEOUT).await.expect("Kafka accepts the record");
            offsets.push(placed.offset);
        }
        offsets
    })
}

/// Appends what a node would not: a message to the team by a non-member, for its owner to refuse.
pub(crate) fn append_refused(cluster: &Cluster, sender: &str, msg_id: &str, text: &str) {
    let log = dump(cluster);
    let other =
        log.iter().find(|it| it.means["message"]["conversation"] == "g:team").expect("the team has messages");
    let mut record = Record::decode(unhex(&other.value).into()).expect("a record");
    let Body::Message(message) = &mut record.body else { panic!("{:?}", other.means) };
    message.content = Content::text(text).encode_to_vec().into();
    message.body_hash = body_hash(&message.content);
    message.sender = UserId::new(sender).expect("an id");
    message.msg_id = MsgId::new(msg_id).expect("an id");
    let golden = Golden { value: hex(&record.encode()), headers: Vec::new(), ..other.clone() };
    append(cluster, &[&golden]);
}

/// Waits for an event of that kind and of that owner of a route, `node/boot/epoch`.
pub(crate) fn await_event(cluster: &Cluster, id: &str) {
    eventually_within(SWEEP_TIME_MAX, &format!("the event {id}"), || {
        dump_topic(cluster, "events").iter().any(|it| it.means["id"] == id).then_some(())
    });
}

#[test]
fn kafka_records_of_every_version_keep_their_meaning() {
    for folder in versions() {
        let records: Vec<Golden> = folder.json(FILE);
        for (topic, _) in TOPICS {
            assert!(
                records.iter().any(|it| it.topic == topic),
                "{} has no record in {topic}",
                folder.version
            );
        }
        for it in records {
            let what = format!("{} {} {} of {}", it.topic, it.partition, it.offset, folder.version);
            let value = unhex(&it.value);
            assert_eq!(means(&it.topic, &value), it.means, "{what}");
            if it.topic != "events" {
                let later = with_unknown_field(&value);
                assert_eq!(means(&it.topic, &later), it.means, "{what}, with a field of a later version");
            }
        }
    }
}

/// Returns the log records of each conversation, in order, without what differs between runs.
fn story(records: &[Golden]) -> BTreeMap<String, Vec<Value>> {
    let mut story: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for it in records.iter().filter(|it| it.topic == "log") {
        let kinds = ["message", "member", "recall", "prune"];
        let about = kinds.iter().find_map(|kind| it.means[kind]["conversation"].as_str());
        // Rules go to every partition that has an owner.
        let Some(conversation) = about else { continue };
        story.entry(conversation.to_owned()).or_default().push(shape(it));
    }
    story
}

fn shape(it: &Golden) -> Value {
    let headers: Vec<&str> = it.headers.iter().map(|(name, _)| name.as_str()).collect();
    let key = match it.topic.as_str() {
        "events" => it.key.clone(),
        // Run of a node, as eight bytes; absent in the log.
        _ => it.key.as_ref().map(|key| format!("{} digits", key.len())),
    };
    json!({"partition": it.partition, "key": key, "headers": headers, "means": blur(&it.means)})
}

fn blur(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let field = |(name, value): (&String, &Value)| match name.as_str() {
                "conn" | "request" | "receivedAt" | "time" | "boot" | "epoch" | "trace" | "traceparent"
                | "source" => (name.clone(), json!("#")),
                "content" | "bodyHash" => (name.clone(), value.clone()),
                _ => (name.clone(), blur(value)),
            };
            fields.iter().map(field).collect::<serde_json::Map<_, _>>().into()
        }
        Value::Array(items) => items.iter().map(blur).collect::<Vec<_>>().into(),
        Value::String(text) => blur_text(text).into(),
        other => other.clone(),
    }
}

/// Asserts that today's nodes appended the same records as those of a version.
pub(crate) fn compare(folder: &Folder, present: &[Golden], undecided: &[String]) {
    let mut golden: Vec<Golden> = folder.json(FILE);
    // The last messages of the golden log were left for a later owner.
    golden.retain(|it| !undecided.iter().any(|id| it.means["message"]["msgId"] == *id));
    assert!(golden.len() > 20, "{} records", golden.len());
    let (before, now) = (story(&golden), story(present));
    let missing = lacks(&json!(before), &json!(now));
    assert_eq!(missing, None, "{}: {now:#?}", folder.version);
    for it in golden.iter().filter(|it| it.topic != "log") {
        let form = shape(it);
        let is_same = |it: &&Golden| lacks(&form, &shape(it)).is_none();
        // The node that gets a record of a large group depends on timing.
        let is_kind = |other: &&Golden| other.topic == it.topic || it.topic.starts_with("node.");
        let found = present.iter().filter(is_kind).any(|other| is_same(&other));
        assert!(found, "{}: readers expect {form} in {}, none exists", folder.version, it.topic);
    }
}
