//! `EventSink` adapter for Kafka, with its own producer, so that events never delay an append.

use std::time::Duration;

use async_trait::async_trait;
use rdkafka::{
    config::FromClientConfigAndContext as _,
    error::{KafkaError, RDKafkaErrorCode},
    message::{Header, OwnedHeaders},
    producer::{FutureProducer, FutureRecord, Producer as _},
};

use super::{
    super::{AppendError, EventSink},
    KafkaRefusal,
    client::{self, BROKER_TIMEOUT, Cluster},
    context::Context,
};
use crate::{config::KafkaConfig, metrics::Metrics, supervised};

/// Content type of each record's value, in CloudEvents' structured mode for Kafka.
const CONTENT_TYPE: &str = "application/cloudevents+json; charset=UTF-8";

struct EventsRole;

type Client = FutureProducer<Context<EventsRole>>;

/// Publisher of CloudEvents to the event topic on Kafka.
pub struct KafkaEvents {
    topic: String,
    /// Producer in use; `None` only during the drop.
    producer: Option<Client>,
}

impl KafkaEvents {
    /// Opens the configured event topic; returns `None` if none is configured.
    ///
    /// # Errors
    /// No broker answers, or the topic does not exist.
    pub async fn connect(kafka: &KafkaConfig, metrics: &Metrics) -> Result<Option<Self>, KafkaRefusal> {
        if kafka.event_topic.is_empty() {
            return Ok(None);
        }
        let mut config = client::producer(kafka, Cluster::Log)?;
        config.set("statistics.interval.ms", "0").remove("debug");
        // Chooses the same partition for a user as the Java clients do by default.
        config.set("partitioner", "murmur2_random").set("linger.ms", "5");
        let (topic, metrics) = (kafka.event_topic.clone(), metrics.clone());
        let opened = supervised::spawn_blocking(
            "the opening of the event topic",
            move || -> Result<Self, KafkaRefusal> {
                let producer = Client::from_config_and_context(&config, Context::new(EventsRole, &metrics))?;
                // Lists all topics: a producer that asks for a single one creates it if the brokers allow that.
                let metadata = producer.client().fetch_metadata(None, BROKER_TIMEOUT)?;
                let exists = metadata.topics().iter().any(|it| it.name() == topic && it.error().is_none());
                match exists {
                    true => Ok(Self { topic, producer: Some(producer) }),
                    false => Err(KafkaRefusal::unavailable(format!(
                        "event topic {topic} does not exist: create it with `tidegate topics ensure`, or set \
                     kafka.event_topic to an empty string"
                    ))),
                }
            },
        );
        let failed = |error: tokio::task::JoinError| {
            KafkaRefusal::permanent(format!("failed to open the event topic: {error}"))
        };
        opened.await.map_err(failed)?.map(Some)
    }
}

#[async_trait]
impl EventSink for KafkaEvents {
    async fn publish(&self, events: Vec<(String, Vec<u8>)>) -> Result<(), AppendError> {
        let Some(producer) = &self.producer else { return Ok(()) };
        let mut sent = Vec::with_capacity(events.len());
        let mut problem = None;
        for (key, event) in &events {
            let headers =
                OwnedHeaders::new().insert(Header { key: "content-type", value: Some(CONTENT_TYPE) });
            let record = FutureRecord::to(&self.topic).key(key.as_str()).payload(event).headers(headers);
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
            Some(error) => Err(AppendError::Unknown(error.to_string())),
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
        let Some(producer) = self.producer.take() else { return };
        let dropping = supervised::spawn_thread("tidegate-events", move || {
            // Gives the last events a chance to be sent.
            drop(producer.flush(Duration::from_millis(500)));
        });
        if let Err(error) = dropping {
            tracing::debug!(%error, "no thread for dropping the event producer; dropped inline");
        }
    }
}
