//! Callbacks of the Kafka client library: log lines, errors and statistics. Topic ids are parsed from the log lines.

use std::collections::HashMap;

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use parking_lot::Mutex;
use rdkafka::{
    ClientContext, Statistics,
    config::RDKafkaLogLevel,
    consumer::ConsumerContext,
    error::{KafkaError, RDKafkaErrorCode},
};

use super::super::TopicId;
use crate::metrics::Metrics;

/// Callback context of a client; `role` holds what is specific to its kind.
pub(super) struct Context<R> {
    pub(super) role: R,
    metrics: Metrics,
    topics: Mutex<HashMap<String, TopicId>>,
}

/// Role of a client that reads records or only queries metadata.
pub(super) struct ReaderRole;

impl<R> Context<R> {
    pub(super) fn new(role: R, metrics: &Metrics) -> Self {
        Self { role, metrics: metrics.clone(), topics: Mutex::default() }
    }

    /// Returns the id of a topic that this client uses; `None` before the first reply of a broker.
    pub(super) fn topic_id(&self, topic: &str) -> Option<TopicId> {
        self.topics.lock().get(topic).copied()
    }
}

/// Parses a topic's name and new id from a log line of the library.
///
/// The library knows topic ids, but its Rust interface exposes none. At debug level `topic` it logs each change of the
/// id of a topic in use, including the first. The library is pinned to one version, and a log whose id did not arrive
/// is not opened.
fn parse_topic_id(line: &str) -> Option<(String, TopicId)> {
    let (_, rest) = line.split_once("Topic ")?;
    let (topic, ids) = rest.split_once(" changed id from ")?;
    let (_, id) = ids.split_once(" to ")?;
    let id: [u8; 16] = STANDARD_NO_PAD.decode(id.trim()).ok()?.try_into().ok()?;
    Some((topic.to_owned(), TopicId(u128::from_be_bytes(id))))
}

impl<R: Send + Sync> ClientContext for Context<R> {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        if let Some((topic, id)) = parse_topic_id(line) {
            let mut topics = self.topics.lock();
            if topics.insert(topic.clone(), id).is_some_and(|before| before != id) {
                tracing::error!(topic, "Kafka topic was deleted and recreated");
            }
            return;
        }
        match level {
            RDKafkaLogLevel::Debug => tracing::trace!(facility, line, "kafka"),
            RDKafkaLogLevel::Info | RDKafkaLogLevel::Notice => tracing::debug!(facility, line, "kafka"),
            RDKafkaLogLevel::Warning => tracing::info!(facility, line, "kafka"),
            _ => tracing::warn!(facility, line, "kafka"),
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        // Not an error: the node topic's reader enables this end-of-partition event.
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::PartitionEOF) {
            return;
        }
        self.metrics.kafka_errors.increment(1);
        tracing::warn!(%error, reason, "Kafka client error");
    }

    fn stats(&self, stats: Statistics) {
        let rtt = stats.brokers.values().filter_map(|broker| broker.rtt.as_ref()).map(|rtt| rtt.p99).max();
        if stats.client_type == "producer" {
            self.metrics.kafka_queue.set(stats.msg_size as f64);
            self.metrics.kafka_rtt.set(rtt.unwrap_or(0) as f64 / 1e6);
            return;
        }
        let partitions = stats.topics.values().flat_map(|topic| topic.partitions.values());
        let (mut lag, mut read_ahead) = (0, 0);
        for partition in partitions {
            // The library's own lag counts from the committed offset, and nothing is ever committed. The offset is
            // negative for partitions that are not fetched.
            if partition.app_offset >= 0 {
                lag += (partition.hi_offset - partition.app_offset).max(0);
            }
            read_ahead += partition.fetchq_size;
        }
        self.metrics.kafka_lag.set(lag as f64);
        self.metrics.kafka_read_ahead.set(read_ahead as f64);
    }
}

impl ConsumerContext for Context<ReaderRole> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topic_id_is_parsed_from_a_log_line() {
        let line = "[thrd:main]: Topic tidegate.log changed id from AAAAAAAAAAAAAAAAAAAAAA to AAAAAAAAAAAAAAAAAAAAAQ";
        assert_eq!(parse_topic_id(line), Some(("tidegate.log".to_owned(), TopicId(1))));
        for other in ["Topic a [0] Leader 1 Epoch 0", "Topic a changed id from b to c", ""] {
            assert_eq!(parse_topic_id(other), None, "{other}");
        }
    }

    #[test]
    fn end_of_partition_is_not_counted_as_an_error() {
        let (metrics, page) = crate::metrics::install();
        let context = Context::new(ReaderRole, &metrics);
        let error_count = |code| {
            context.error(KafkaError::Global(code), "reason given by the library");
            let page = page.render();
            let mut lines = page.lines();
            lines.find_map(|line| line.strip_prefix("tidegate_kafka_errors_total ")?.parse::<u64>().ok())
        };
        let before = error_count(RDKafkaErrorCode::PartitionEOF);
        assert_eq!(error_count(RDKafkaErrorCode::PartitionEOF), before);
        assert_eq!(error_count(RDKafkaErrorCode::AllBrokersDown), before.map(|count| count + 1));
    }
}
