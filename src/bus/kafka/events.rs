//! The topic of events on Kafka: a producer of its own, so that events never stand before an append.

use std::{thread, time::Duration};

use async_trait::async_trait;
use rdkafka::{
    config::FromClientConfigAndContext as _,
    error::{KafkaError, RDKafkaErrorCode},
    message::{Header, OwnedHeaders},
    producer::{FutureProducer, FutureRecord, Producer as _},
};
use tidegate_protocol::id::UserId;

use super::{
    super::{AppendError, EventSink},
    KafkaRefusal,
    client::{self, Cluster},
    context::Context,
    read::ANSWER,
};
use crate::{config::Kafka, metrics::Metrics};

/// What the value of each record is, as CloudEvents' structured mode on Kafka says it.
const CONTENT_TYPE: &str = "application/cloudevents+json; charset=UTF-8";

struct Telling;

type Client = FutureProducer<Context<Telling>>;

/// The topic of events.
pub struct KafkaEvents {
    topic: String,
    /// None only while it is dropped.
    producer: Option<Client>,
}

impl KafkaEvents {
    /// Opens the topic of the settings; none if they name none.
    ///
    /// # Errors
    /// No broker answers, or there is no such topic.
    pub async fn connect(kafka: &Kafka, metrics: &Metrics) -> Result<Option<Self>, KafkaRefusal> {
        if kafka.event_topic.is_empty() {
            return Ok(None);
        }
        let mut config = client::producer(kafka, Cluster::Log)?;
        config.set("statistics.interval.ms", "0").remove("debug");
        // The same partition for a user as other producers would choose.
        config.set("partitioner", "murmur2_random").set("linger.ms", "5");
        let (topic, metrics) = (kafka.event_topic.clone(), metrics.clone());
        let opened = tokio::task::spawn_blocking(move || -> Result<Self, KafkaRefusal> {
            let producer = Client::from_config_and_context(&config, Context::new(Telling, &metrics))?;
            // All of them: a producer that asks for one makes it where brokers allow that.
            let metadata = producer.client().fetch_metadata(None, ANSWER)?;
            let there = metadata.topics().iter().any(|it| it.name() == topic && it.error().is_none());
            match there {
                true => Ok(Self { topic, producer: Some(producer) }),
                false => Err(KafkaRefusal::away(format!(
                    "there is no topic {topic} for events: make it with `tidegate topics ensure`, or set \
                     kafka.event_topic to nothing"
                ))),
            }
        });
        let opened =
            opened.await.map_err(|error| KafkaRefusal::wrong(format!("the topic of events: {error}")))?;
        opened.map(Some)
    }
}

#[async_trait]
impl EventSink for KafkaEvents {
    async fn publish(&self, events: Vec<(UserId, Vec<u8>)>) -> Result<(), AppendError> {
        let Some(producer) = &self.producer else { return Ok(()) };
        let mut sent = Vec::with_capacity(events.len());
        let mut problem = None;
        for (user, event) in &events {
            let headers =
                OwnedHeaders::new().insert(Header { key: "content-type", value: Some(CONTENT_TYPE) });
            let record = FutureRecord::to(&self.topic).key(user.as_str()).payload(event).headers(headers);
            match producer.send_result(record) {
                Ok(future) => sent.push(future),
                // Those behind it would stand before it.
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

/// What never fits is not tried for ever; everything else an operator may mend.
fn is_too_large(error: &KafkaError) -> bool {
    matches!(error.rdkafka_error_code(), Some(RDKafkaErrorCode::MessageSizeTooLarge))
}

/// The producer ends when its polling thread has, and that waits by the wall clock: not here.
impl Drop for KafkaEvents {
    fn drop(&mut self) {
        let Some(producer) = self.producer.take() else { return };
        let ending = thread::Builder::new().name("tidegate-events".to_owned()).spawn(move || {
            // A moment for what was handed over last.
            drop(producer.flush(Duration::from_millis(500)));
        });
        if let Err(error) = ending {
            tracing::debug!(%error, "the producer of events ends where it is dropped");
        }
    }
}
