//! The properties of each kind of client: what the promises of the log need of the library, and what the operator says.

use std::{io, path::Path};

use rdkafka::config::{ClientConfig, RDKafkaLogLevel};

use super::KafkaRefusal;
use crate::{config::Kafka, private};

/// Whose brokers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Cluster {
    Log,
    Nodes,
}

/// What every client says: where, and who it is.
pub(super) fn common(kafka: &Kafka, cluster: Cluster) -> Result<ClientConfig, KafkaRefusal> {
    let mut config = ClientConfig::new();
    let brokers = match cluster {
        Cluster::Nodes if !kafka.node_brokers.is_empty() => &kafka.node_brokers,
        _ => &kafka.brokers,
    };
    config.set("bootstrap.servers", brokers.join(","));
    config.set("client.id", "tidegate");
    config.set("socket.nagle.disable", "true");
    config.set("reconnect.backoff.max.ms", "1000");
    // Where the brokers would make topics, they would be of one copy. A producer asks for that unless it is told not to.
    config.set("allow.auto.create.topics", "false");
    // What is measured is the log: topics of nodes would say theirs in the same place.
    config.set("statistics.interval.ms", if cluster == Cluster::Log { "1000" } else { "0" });
    // Topic ids are told at that level (`context`).
    config.set("debug", "topic").set_log_level(RDKafkaLogLevel::Debug);
    config.set("security.protocol", &kafka.security);
    if kafka.security.starts_with("sasl") {
        let file = &kafka.sasl_password_file;
        let password = private::read(file).and_then(|it| String::from_utf8(it).map_err(io::Error::other));
        let password = password.map_err(|error| refused("kafka.sasl_password_file", file, &error))?;
        config.set("sasl.mechanism", &kafka.sasl_mechanism).set("sasl.username", &kafka.sasl_username);
        config.set("sasl.password", password.trim_end_matches(['\r', '\n']));
    }
    if !kafka.key_file.as_os_str().is_empty() {
        private::check(&kafka.key_file)
            .map_err(|error| refused("kafka.key_file", &kafka.key_file, &error))?;
    }
    let files = [
        ("ssl.ca.location", &kafka.ca_file),
        ("ssl.certificate.location", &kafka.cert_file),
        ("ssl.key.location", &kafka.key_file),
    ];
    for (name, path) in files {
        if let Some(path) = path.to_str().filter(|path| !path.is_empty()) {
            config.set(name, path);
        }
    }
    // Last: but none of the names below can be among them.
    for (name, value) in kafka.pairs() {
        config.set(name, value);
    }
    Ok(config)
}

fn refused(key: &str, file: &Path, error: &io::Error) -> KafkaRefusal {
    KafkaRefusal::wrong(format!("{key}: {}: {error}", file.display()))
}

/// Each record once and in order, on all copies in step, or an error; nobody waits for others to fill a batch.
pub(super) fn producer(kafka: &Kafka, cluster: Cluster) -> Result<ClientConfig, KafkaRefusal> {
    let mut config = common(kafka, cluster)?;
    config.set("enable.idempotence", "true").set("acks", "all");
    if !kafka.pairs().any(|(name, _)| name == "linger.ms") {
        config.set("linger.ms", "0");
    }
    config.set("message.timeout.ms", kafka.delivery_ms.to_string());
    config.set("message.max.bytes", (kafka.record_bytes_max + OVERHEAD).to_string());
    // Our own bound answers first, before anything of a batch is handed over.
    config.set("queue.buffering.max.kbytes", (2 * kafka.append_bytes_max / 1024).to_string());
    config.set("queue.buffering.max.messages", (2 * super::append::RECORDS_MAX).to_string());
    config.set("topic.metadata.refresh.fast.interval.ms", "100").set("retry.backoff.ms", "50");
    if cluster == Cluster::Nodes {
        // A topic that is not there is a node that is gone.
        config.set("topic.metadata.propagation.max.ms", "1000");
    }
    Ok(config)
}

/// What Kafka adds to a record at most, with room.
pub(super) const OVERHEAD: usize = 1_024;

/// Reads what it is told to, from where it is told to, and says so when that is not there. Nothing is ever committed.
pub(super) fn reader(kafka: &Kafka, cluster: Cluster) -> Result<ClientConfig, KafkaRefusal> {
    let mut config = common(kafka, cluster)?;
    // The library asks for a name; nobody joins that group.
    config.set("group.id", format!("{}.readers", kafka.group));
    never_commit(&mut config);
    config.set("auto.offset.reset", "error");
    let bytes = kafka.read_ahead_bytes.max(kafka.record_bytes_max + OVERHEAD);
    config.set("queued.max.messages.kbytes", (bytes / 1024).max(1).to_string());
    config.set("fetch.message.max.bytes", bytes.min(1 << 20).to_string());
    config.set("fetch.max.bytes", (16 << 20).max(bytes).to_string());
    config.set("receive.message.max.bytes", ((16 << 20).max(bytes) + (1 << 20)).to_string());
    // A partition that is new to the reader waits for the request that is under way: not for long.
    if !kafka.pairs().any(|(name, _)| name == "fetch.wait.max.ms") {
        config.set("fetch.wait.max.ms", "100");
    }
    config.set("fetch.queue.backoff.ms", "10").set("fetch.error.backoff.ms", "100");
    config.set("retry.backoff.ms", "50").set("topic.metadata.refresh.fast.interval.ms", "100");
    Ok(config)
}

/// Shares the partitions, and reads none of them.
pub(super) fn member(kafka: &Kafka) -> Result<ClientConfig, KafkaRefusal> {
    let mut config = common(kafka, Cluster::Log)?;
    config.set("group.id", &kafka.group);
    never_commit(&mut config);
    config.set("partition.assignment.strategy", "cooperative-sticky");
    config.set("session.timeout.ms", kafka.session_ms.to_string());
    // A planned take-over waits for a heartbeat of each node, twice where a partition moves from one that stays.
    config.set("heartbeat.interval.ms", (kafka.session_ms / 30).clamp(100, 200).to_string());
    config.set("max.poll.interval.ms", (kafka.revoke_ms * 2 + kafka.session_ms).max(60_000).to_string());
    config.set("auto.offset.reset", "latest");
    config.set("statistics.interval.ms", "0");
    config.set("queued.max.messages.kbytes", "1").set("fetch.message.max.bytes", "1024");
    // A line for each of its partitions and each of their states stood before what the group has to say.
    config.remove("debug");
    Ok(config)
}

fn never_commit(config: &mut ClientConfig) {
    config.set("enable.auto.commit", "false").set("enable.auto.offset.store", "false");
}
