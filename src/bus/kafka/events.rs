//! `EventSink` adapter for Kafka, with its own producers, so that events never delay an append.

use std::time::Duration;

use async_trait::async_trait;
use parking_lot::RwLock;
use rdkafka::{
    ClientConfig,
    config::FromClientConfigAndContext as _,
    error::{KafkaError, RDKafkaErrorCode},
    message::{Header, OwnedHeaders},
    producer::{FutureProducer, FutureRecord, Producer as _},
};

use super::{
    super::{AppendError, EventRecord, EventSink},
    KafkaRefusal,
    client::{self, BROKER_TIMEOUT, Cluster},
    context::Context,
};
use crate::{config::KafkaConfig, metrics::Metrics, supervised};

/// Content type of each record's value, in CloudEvents' structured mode for Kafka.
const CONTENT_TYPE: &str = "application/cloudevents+json; charset=UTF-8";

struct EventsRole;

type Client = FutureProducer<Context<EventsRole>>;

/// Longest time for which a producer tries to publish an event of the topic of messages, which is repeated after that: a
/// partition without a leader must not occupy a request for long.
const MESSAGE_DELIVERY_MS_MAX: u64 = 5_000;

/// Publisher of CloudEvents to a topic on Kafka.
pub struct KafkaEvents {
    topic: String,
    config: ClientConfig,
    metrics: Metrics,
    /// Producer in use, replaced after an error that the library reports as fatal; `None` only during the drop.
    producer: RwLock<Option<Client>>,
}

/// Topic to be opened.
struct Wanted {
    topic: String,
    config: ClientConfig,
    /// Least number of partitions.
    partitions: u32,
    /// Setting that names the topic.
    setting: &'static str,
}

impl KafkaEvents {
    /// Opens the configured topic of node events; returns `None` if none is configured.
    ///
    /// # Errors
    /// No broker answers, or the topic does not exist.
    pub async fn connect(kafka: &KafkaConfig, metrics: &Metrics) -> Result<Option<Self>, KafkaRefusal> {
        if kafka.event_topic.is_empty() {
            return Ok(None);
        }
        let mut config = client::producer(kafka, Cluster::Log)?;
        // Chooses the same partition for a user as the Java clients do by default.
        config.set("partitioner", "murmur2_random").set("linger.ms", "5");
        let (topic, setting) = (kafka.event_topic.clone(), "kafka.event_topic");
        open(Wanted { topic, config, partitions: 1, setting }, metrics).await.map(Some)
    }

    /// Opens the configured topic of messages, to which the owner of a partition of the log publishes in the partition of the
    /// same number; returns `None` if none is configured.
    ///
    /// # Errors
    /// No broker answers, the topic does not exist, or it has fewer partitions than the log.
    pub async fn connect_messages(
        kafka: &KafkaConfig,
        metrics: &Metrics,
    ) -> Result<Option<Self>, KafkaRefusal> {
        if kafka.message_topic.is_empty() {
            return Ok(None);
        }
        let mut config = client::producer(kafka, Cluster::Log)?;
        let delivery_ms = kafka.delivery_ms.min(MESSAGE_DELIVERY_MS_MAX);
        config.set("message.timeout.ms", delivery_ms.to_string());
        config.set("message.max.bytes", kafka.message_event_bytes_max().to_string());
        let (topic, partitions, setting) =
            (kafka.message_topic.clone(), kafka.partitions, "kafka.message_topic");
        open(Wanted { topic, config, partitions, setting }, metrics).await.map(Some)
    }

    /// Replaces the producer after a fatal error, which ends all that it had.
    fn replace_if_fatal(&self) {
        let mut producer = self.producer.write();
        let fatal = producer.as_ref().and_then(|it| it.client().fatal_error());
        let Some((code, reason)) = fatal else { return };
        tracing::error!(%code, reason, topic = self.topic, "Kafka producer of events failed; replacing it");
        match make(&self.config, &self.metrics) {
            Ok(fresh) => *producer = Some(fresh),
            Err(error) => tracing::error!(%error, "failed to replace the Kafka producer of events"),
        }
    }
}

async fn open(mut wanted: Wanted, metrics: &Metrics) -> Result<KafkaEvents, KafkaRefusal> {
    wanted.config.set("statistics.interval.ms", "0").remove("debug");
    let metrics = metrics.clone();
    let opened = supervised::spawn_blocking("the opening of a topic of events", move || {
        let Wanted { topic, config, partitions, setting } = wanted;
        let producer = make(&config, &metrics)?;
        // Lists all topics: a producer that asks for a single one creates it if the brokers allow that.
        let metadata = producer.client().fetch_metadata(None, BROKER_TIMEOUT)?;
        let found = metadata.topics().iter().find(|it| it.name() == topic && it.error().is_none());
        let Some(found) = found.map(|it| it.partitions().len()) else {
            return Err(KafkaRefusal::unavailable(format!(
                "topic {topic} does not exist: create it with `tidegate topics ensure`, or set {setting} to an empty string"
            )));
        };
        if found < partitions as usize {
            return Err(KafkaRefusal::permanent(format!(
                "{topic} has {found} partitions, fewer than the {partitions} of the log: add some with kafka-topics.sh --alter \
                 --topic {topic} --partitions {partitions}, or name a new topic in {setting}"
            )));
        }
        Ok(KafkaEvents { topic, config, metrics, producer: RwLock::new(Some(producer)) })
    });
    opened
        .await
        .map_err(|error| KafkaRefusal::permanent(format!("failed to open a topic of events: {error}")))?
}

fn make(config: &ClientConfig, metrics: &Metrics) -> Result<Client, KafkaRefusal> {
    Ok(Client::from_config_and_context(config, Context::new(EventsRole, metrics))?)
}

#[async_trait]
impl EventSink for KafkaEvents {
    async fn publish(&self, events: Vec<EventRecord>) -> Result<(), AppendError> {
        let Some(producer) = self.producer.read().clone() else { return Ok(()) };
        let mut sent = Vec::with_capacity(events.len());
        let mut problem = None;
        for EventRecord { key, partition, json } in &events {
            let headers =
                OwnedHeaders::new().insert(Header { key: "content-type", value: Some(CONTENT_TYPE) });
            let mut record = FutureRecord::to(&self.topic).key(key.as_str()).payload(json).headers(headers);
            record.partition = partition.and_then(|it| i32::try_from(it).ok());
            match producer.send_result(record) {
                Ok(future) => sent.push(future),
                // Stop: sending the rest would reorder them before this event.
                Err((error, _)) => {
                    problem = Some(error);
                    break;
                }
            }
        }
        for future in sent {
            match future.await {
                Ok(Ok(_)) => {}
                Ok(Err((error, _))) => problem = Some(problem.unwrap_or(error)),
                Err(_) => problem = Some(problem.unwrap_or(KafkaError::Canceled)),
            }
        }
        match problem {
            None => Ok(()),
            Some(error) if is_too_large(&error) => Err(AppendError::Rejected(error.to_string())),
            Some(error) => {
                self.replace_if_fatal();
                Err(AppendError::Unknown(error.to_string()))
            }
        }
    }
}

/// Returns whether the event exceeds the topic's size limit. Only then is a retry useless: an operator can fix any
/// other failure.
fn is_too_large(error: &KafkaError) -> bool {
    matches!(error.rdkafka_error_code(), Some(RDKafkaErrorCode::MessageSizeTooLarge))
}

/// Drops the producer on a detached thread, since its polling thread waits by the wall clock.
impl Drop for KafkaEvents {
    fn drop(&mut self) {
        let Some(producer) = self.producer.get_mut().take() else { return };
        let dropping = supervised::spawn_thread("tidegate-events", move || {
            // Gives the last events a chance to be sent.
            drop(producer.flush(Duration::from_millis(500)));
        });
        if let Err(error) = dropping {
            tracing::debug!(%error, "no thread for dropping the event producer; dropped inline");
        }
    }
}
