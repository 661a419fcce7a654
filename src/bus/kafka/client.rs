//! Configuration of the Kafka clients: the properties that the promises of the log require, and the operator's
//! settings.

use std::{io, path::Path, time::Duration};

use rdkafka::config::{ClientConfig, RDKafkaLogLevel};

use super::KafkaRefusal;
use crate::{config::KafkaConfig, private};

/// Timeout of a query to the brokers.
pub(super) const BROKER_TIMEOUT: Duration = Duration::from_secs(5);

/// Kafka cluster that a client connects to: that of the log, or that of the node topics.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Cluster {
    Log,
    Nodes,
}

/// Returns the properties common to all clients: brokers, identity and security.
pub(super) fn common(kafka: &KafkaConfig, cluster: Cluster) -> Result<ClientConfig, KafkaRefusal> {
    let mut config = ClientConfig::new();
    let brokers = match cluster {
        Cluster::Nodes if !kafka.node_brokers.is_empty() => &kafka.node_brokers,
        _ => &kafka.brokers,
    };
    config.set("bootstrap.servers", brokers.join(","));
    config.set("client.id", "tidegate");
    config.set("socket.nagle.disable", "true");
    config.set("reconnect.backoff.max.ms", "1000");
    // Producers request auto-creation by default, and topics created that way have one replica.
    config.set("allow.auto.create.topics", "false");
    // The metrics describe the log; statistics of node topics would overwrite them.
    config.set("statistics.interval.ms", if cluster == Cluster::Log { "1000" } else { "0" });
    // The library logs topic ids at debug level only (see `context`).
    config.set("debug", "topic").set_log_level(RDKafkaLogLevel::Debug);
    config.set("security.protocol", &kafka.security);
    if kafka.security.starts_with("sasl") {
        let file = &kafka.sasl_password_file;
        let password = private::read(file).and_then(|it| {
            String::from_utf8(it).map_err(|_| io::Error::other("it is not UTF-8; write the password as text"))
        });
        let password = password.map_err(|error| unreadable_file("kafka.sasl_password_file", file, &error))?;
        config.set("sasl.mechanism", &kafka.sasl_mechanism).set("sasl.username", &kafka.sasl_username);
        config.set("sasl.password", password.trim_end_matches(['\r', '\n']));
    }
    if !kafka.key_file.as_os_str().is_empty() {
        private::check(&kafka.key_file)
            .map_err(|error| unreadable_file("kafka.key_file", &kafka.key_file, &error))?;
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
    // The operator's properties come last. They can't override those that the functions below set.
    for (name, value) in kafka.pairs() {
        config.set(name, value);
    }
    Ok(config)
}

fn unreadable_file(key: &str, file: &Path, error: &io::Error) -> KafkaRefusal {
    KafkaRefusal::permanent(private::unusable(key, file, error))
}

/// Returns the properties of a producer that writes each record once, in order, to all in-sync replicas, or reports an
/// error. It does not wait to fill batches.
pub(super) fn producer(kafka: &KafkaConfig, cluster: Cluster) -> Result<ClientConfig, KafkaRefusal> {
    let mut config = common(kafka, cluster)?;
    config.set("enable.idempotence", "true").set("acks", "all");
    if !kafka.pairs().any(|(name, _)| name == "linger.ms") {
        config.set("linger.ms", "0");
    }
    config.set("message.timeout.ms", kafka.delivery_ms.to_string());
    config.set("message.max.bytes", (kafka.record_bytes_max + RECORD_OVERHEAD_BYTES).to_string());
    // Twice the appender's own limit, which therefore refuses first, before any record of a batch is handed over.
    config.set("queue.buffering.max.kbytes", (2 * kafka.append_bytes_max / 1024).to_string());
    config.set("queue.buffering.max.messages", (2 * super::append::UNCONFIRMED_RECORDS_MAX).to_string());
    config.set("topic.metadata.refresh.fast.interval.ms", "100").set("retry.backoff.ms", "50");
    if cluster == Cluster::Nodes {
        // A missing topic means that its node no longer exists.
        config.set("topic.metadata.propagation.max.ms", "1000");
    }
    Ok(config)
}

/// Generous limit on the bytes that Kafka's format adds to a record.
pub(super) const RECORD_OVERHEAD_BYTES: usize = 1_024;

/// Returns the properties of a consumer that reads from explicit offsets, reports missing ones as errors and never
/// commits.
pub(super) fn reader(kafka: &KafkaConfig, cluster: Cluster) -> Result<ClientConfig, KafkaRefusal> {
    let mut config = common(kafka, cluster)?;
    // The library requires a group name, but no client joins this group.
    config.set("group.id", format!("{}.readers", kafka.group));
    never_commit(&mut config);
    config.set("auto.offset.reset", "error");
    let bytes = kafka.read_ahead_bytes.max(kafka.record_bytes_max + RECORD_OVERHEAD_BYTES);
    config.set("queued.max.messages.kbytes", (bytes / 1024).max(1).to_string());
    config.set("fetch.message.max.bytes", bytes.min(1 << 20).to_string());
    config.set("fetch.max.bytes", (16 << 20).max(bytes).to_string());
    config.set("receive.message.max.bytes", ((16 << 20).max(bytes) + (1 << 20)).to_string());
    // A newly assigned partition waits for the fetch request in flight, so keep that wait short.
    if !kafka.pairs().any(|(name, _)| name == "fetch.wait.max.ms") {
        config.set("fetch.wait.max.ms", "100");
    }
    config.set("fetch.queue.backoff.ms", "10").set("fetch.error.backoff.ms", "100");
    config.set("retry.backoff.ms", "50").set("topic.metadata.refresh.fast.interval.ms", "100");
    Ok(config)
}

/// Returns the properties of a member of the owners group, which is assigned partitions but reads none.
pub(super) fn member(kafka: &KafkaConfig) -> Result<ClientConfig, KafkaRefusal> {
    let mut config = common(kafka, Cluster::Log)?;
    config.set("group.id", &kafka.group);
    never_commit(&mut config);
    config.set("partition.assignment.strategy", "cooperative-sticky");
    config.set("session.timeout.ms", kafka.session_ms.to_string());
    // A planned take-over takes one heartbeat of each node, or two if the releasing node stays in the group.
    config.set("heartbeat.interval.ms", (kafka.session_ms / 30).clamp(100, 200).to_string());
    config.set("max.poll.interval.ms", (kafka.revoke_ms * 2 + kafka.session_ms).max(60_000).to_string());
    config.set("auto.offset.reset", "latest");
    config.set("statistics.interval.ms", "0");
    config.set("queued.max.messages.kbytes", "1").set("fetch.message.max.bytes", "1024");
    // Debug lines for every partition would delay the group's own events.
    config.remove("debug");
    Ok(config)
}

fn never_commit(config: &mut ClientConfig) {
    config.set("enable.auto.commit", "false").set("enable.auto.offset.store", "false");
}
