//! `EventSink` adapter for Kafka, with its own producers, so that events never delay an append.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::RwLock;
use rdkafka::{
    ClientConfig,
    config::FromClientConfigAndContext as _,
    error::{KafkaError, RDKafkaErrorCode},
    message::{Header, OwnedHeaders},
    producer::{FutureProducer, FutureRecord, Producer as _, future_producer::DeliveryFuture},
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

/// Most bytes of a batch with several events of the topic of messages. A broker refuses a batch as a whole if it exceeds
/// `max.message.bytes`, so with larger ones an event would lose its content for its neighbours.
const MESSAGE_BATCH_BYTES: usize = 64 * 1024;

/// Publisher of CloudEvents to a topic on Kafka.
pub struct KafkaEvents {
    topic: String,
    config: ClientConfig,
    metrics: Metrics,
    /// Producer in use, replaced after an error that the library reports as fatal.
    producer: RwLock<Arc<EventProducer>>,
}

/// Producer that is dropped on a detached thread by its last user, since its polling thread waits by the wall clock.
struct EventProducer {
    /// `None` only during the drop.
    client: Option<Client>,
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
        let config = messages_config(kafka)?;
        let (topic, partitions, setting) =
            (kafka.message_topic.clone(), kafka.partitions, "kafka.message_topic");
        open(Wanted { topic, config, partitions, setting }, metrics).await.map(Some)
    }

    /// Replaces the producer after a fatal error, which ends all that it had.
    fn replace_if_fatal(&self) {
        let mut producer = self.producer.write();
        let fatal = producer.client.as_ref().and_then(|it| it.client().fatal_error());
        let Some((code, reason)) = fatal else { return };
        tracing::error!(%code, reason, topic = self.topic, "Kafka producer of events failed; replacing it");
        match make(&self.config, &self.metrics) {
            Ok(fresh) => *producer = Arc::new(EventProducer { client: Some(fresh) }),
            Err(error) => tracing::error!(%error, "failed to replace the Kafka producer of events"),
        }
    }
}

/// Returns the properties of the producer of the topic of messages.
fn messages_config(kafka: &KafkaConfig) -> Result<ClientConfig, KafkaRefusal> {
    let mut config = client::producer(kafka, Cluster::Log)?;
    let (event_bytes, delivery_ms) =
        (kafka.message_event_bytes_max(), kafka.delivery_ms.min(MESSAGE_DELIVERY_MS_MAX));
    // Two of the largest events fit, so that none waits for ever for room in the queue.
    let queue_bytes = (2 * kafka.append_bytes_max).max(2 * event_bytes);
    config.set("message.timeout.ms", delivery_ms.to_string());
    config.set("message.max.bytes", event_bytes.to_string());
    config.set("batch.size", MESSAGE_BATCH_BYTES.to_string());
    config.set("queue.buffering.max.kbytes", queue_bytes.div_ceil(1024).to_string());
    Ok(config)
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
                "topic {topic} does not exist, or this node may not describe it: create it with `tidegate topics ensure`, \
                 or allow the node Describe and Write, or set {setting} to an empty string"
            )));
        };
        if found < partitions as usize {
            return Err(KafkaRefusal::permanent(format!(
                "{topic} has {found} partitions, fewer than the {partitions} of the log: add some with kafka-topics.sh --alter \
                 --topic {topic} --partitions {partitions}, or name a new topic in {setting}"
            )));
        }
        let producer = RwLock::new(Arc::new(EventProducer { client: Some(producer) }));
        Ok(KafkaEvents { topic, config, metrics, producer })
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
        let producer = Arc::clone(&self.producer.read());
        let Some(client) = &producer.client else { return Ok(()) };
        let mut rest = events.as_slice();
        while !rest.is_empty() {
            let (sent, refused) = self.hand_over(client, rest);
            let count = sent.len();
            let mut problem = None;
            for future in sent {
                match future.await {
                    Ok(Ok(_)) => {}
                    Ok(Err((error, _))) => problem = Some(problem.unwrap_or(error)),
                    Err(_) => problem = Some(problem.unwrap_or(KafkaError::Canceled)),
                }
            }
            // The queue was full of what is confirmed now, so the rest fits.
            let has_room = count > 0 && refused.as_ref().is_none_or(is_queue_full);
            match problem.or(refused.filter(|_| !has_room)) {
                None => rest = &rest[count..],
                Some(error) if is_too_large(&error) => {
                    return Err(AppendError::Rejected(error.to_string()));
                }
                Some(error) => {
                    self.replace_if_fatal();
                    return Err(AppendError::Unknown(error.to_string()));
                }
            }
        }
        Ok(())
    }
}

impl KafkaEvents {
    /// Hands events to the producer, in order. Stops at the first one that it refuses: sending the rest would reorder them
    /// before this event.
    fn hand_over(
        &self,
        client: &Client,
        events: &[EventRecord],
    ) -> (Vec<DeliveryFuture>, Option<KafkaError>) {
        let mut sent = Vec::with_capacity(events.len());
        for EventRecord { key, partition, json } in events {
            let headers =
                OwnedHeaders::new().insert(Header { key: "content-type", value: Some(CONTENT_TYPE) });
            let mut record = FutureRecord::to(&self.topic).key(key.as_str()).payload(json).headers(headers);
            record.partition = partition.and_then(|it| i32::try_from(it).ok());
            match client.send_result(record) {
                Ok(future) => sent.push(future),
                Err((error, _)) => return (sent, Some(error)),
            }
        }
        (sent, None)
    }
}

/// Returns whether the producer holds as many bytes or events as it may.
fn is_queue_full(error: &KafkaError) -> bool {
    matches!(error.rdkafka_error_code(), Some(RDKafkaErrorCode::QueueFull))
}

/// Returns whether the event exceeds the topic's size limit. Only then is a retry useless: an operator can fix any
/// other failure.
fn is_too_large(error: &KafkaError) -> bool {
    matches!(error.rdkafka_error_code(), Some(RDKafkaErrorCode::MessageSizeTooLarge))
}

impl Drop for EventProducer {
    fn drop(&mut self) {
        let Some(client) = self.client.take() else { return };
        let dropping = supervised::spawn_thread("tidegate-events", move || {
            // Gives the last events a chance to be sent.
            drop(client.flush(Duration::from_millis(500)));
        });
        if let Err(error) = dropping {
            tracing::debug!(%error, "no thread for dropping the event producer; dropped inline");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_takes_two_events_of_the_topic_of_messages_and_batches_stay_small() {
        let kafka = KafkaConfig {
            record_bytes_max: 32 << 20,
            append_bytes_max: 64 << 20,
            message_topic: "tidegate.messages".to_owned(),
            ..KafkaConfig::default()
        };
        let config = messages_config(&kafka).unwrap();
        let number = |name: &str| config.get(name).unwrap().parse::<usize>().unwrap();
        assert_eq!(number("message.max.bytes"), kafka.message_event_bytes_max());
        assert!(number("queue.buffering.max.kbytes") * 1024 >= 2 * kafka.message_event_bytes_max());
        assert_eq!((number("batch.size"), number("message.timeout.ms")), (65_536, 5_000));
        let small = KafkaConfig { record_bytes_max: 96 * 1024, ..kafka };
        assert!(small.message_event_bytes_max() > MESSAGE_BATCH_BYTES);
    }
}
