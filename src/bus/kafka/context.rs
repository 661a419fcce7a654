//! What the client library calls back: log lines, errors, statistics; the ids of topics are among its log lines.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use rdkafka::{
    ClientContext, Statistics,
    config::RDKafkaLogLevel,
    consumer::ConsumerContext,
    error::{KafkaError, RDKafkaErrorCode},
};

use super::super::TopicId;
use crate::metrics::Metrics;

/// The context of a client, with what is particular to its kind in `role`.
pub(super) struct Context<R> {
    pub(super) role: R,
    metrics: Metrics,
    topics: Mutex<HashMap<String, TopicId>>,
}

/// A client that reads, or asks only.
pub(super) struct Reading;

impl<R> Context<R> {
    pub(super) fn new(role: R, metrics: &Metrics) -> Self {
        Self { role, metrics: metrics.clone(), topics: Mutex::default() }
    }

    /// The id of a topic that this client uses; none before its first answer from a broker.
    pub(super) fn topic_id(&self, topic: &str) -> Option<TopicId> {
        self.topics.lock().unwrap_or_else(PoisonError::into_inner).get(topic).copied()
    }
}

/// The library has topic ids, but no call for them that its Rust interface offers. It says, at debug level `topic`, when
/// a topic that it uses has another id than it knew, for the first time too: name and id. The library is linked at one
/// exact version, and no log is opened whose id was not heard.
fn told(line: &str) -> Option<(String, TopicId)> {
    let (_, rest) = line.split_once("Topic ")?;
    let (topic, ids) = rest.split_once(" changed id from ")?;
    let (_, id) = ids.split_once(" to ")?;
    let id: [u8; 16] = STANDARD_NO_PAD.decode(id.trim()).ok()?.try_into().ok()?;
    Some((topic.to_owned(), TopicId(u128::from_be_bytes(id))))
}

impl<R: Send + Sync> ClientContext for Context<R> {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        if let Some((topic, id)) = told(line) {
            let mut topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
            if topics.insert(topic.clone(), id).is_some_and(|before| before != id) {
                tracing::error!(topic, "the topic was deleted and made again");
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
        // The end of a node's topic, which its reader asks to be told of.
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::PartitionEOF) {
            return;
        }
        self.metrics.kafka_errors.increment(1);
        tracing::warn!(%error, reason, "the Kafka client reports an error");
    }

    fn stats(&self, stats: Statistics) {
        let rtt = stats.brokers.values().filter_map(|broker| broker.rtt.as_ref()).map(|rtt| rtt.p99).max();
        if stats.client_type == "producer" {
            self.metrics.kafka_queue.set(stats.msg_size as f64);
            self.metrics.kafka_rtt.set(rtt.unwrap_or(0) as f64 / 1e6);
            return;
        }
        let partitions = stats.topics.values().flat_map(|topic| topic.partitions.values());
        let (mut lag, mut ahead) = (0, 0);
        for partition in partitions {
            // The library's own lag is behind what was committed, and nothing ever is. Negative where nothing is fetched.
            if partition.app_offset >= 0 {
                lag += (partition.hi_offset - partition.app_offset).max(0);
            }
            ahead += partition.fetchq_size;
        }
        self.metrics.kafka_lag.set(lag as f64);
        self.metrics.kafka_read_ahead.set(ahead as f64);
    }
}

impl ConsumerContext for Context<Reading> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_topic_is_told_by_a_line_of_the_log() {
        let line = "[thrd:main]: Topic tidegate.log changed id from AAAAAAAAAAAAAAAAAAAAAA to AAAAAAAAAAAAAAAAAAAAAQ";
        assert_eq!(told(line), Some(("tidegate.log".to_owned(), TopicId(1))));
        for other in ["Topic a [0] Leader 1 Epoch 0", "Topic a changed id from b to c", ""] {
            assert_eq!(told(other), None, "{other}");
        }
    }

    #[test]
    fn the_end_of_a_topic_is_counted_as_no_error() {
        let (metrics, page) = crate::metrics::install();
        let context = Context::new(Reading, &metrics);
        let told = |code| {
            context.error(KafkaError::Global(code), "as the library says it");
            let page = page.render();
            let mut lines = page.lines();
            lines.find_map(|line| line.strip_prefix("tidegate_kafka_errors_total ")?.parse::<u64>().ok())
        };
        let before = told(RDKafkaErrorCode::PartitionEOF);
        assert_eq!(told(RDKafkaErrorCode::PartitionEOF), before);
        assert_eq!(told(RDKafkaErrorCode::AllBrokersDown), before.map(|count| count + 1));
    }
}
