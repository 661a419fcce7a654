//! Kafka appender: hands a batch to the producer as a whole and returns one outcome for all of its records.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use rdkafka::{
    ClientConfig, Message as _,
    config::FromClientConfigAndContext as _,
    error::{KafkaError, RDKafkaErrorCode},
    message::{Header, OwnedHeaders},
    producer::{BaseRecord, DeliveryResult, Producer as _, ProducerContext, ThreadedProducer},
};
use tidegate_protocol::{
    record::{Body, Record},
    trace::TraceContext,
};
use tokio::{sync::oneshot, time::timeout};

use super::{
    super::{AppendError, Appended},
    KafkaRefusal,
    context::Context,
};
use crate::{metrics::Metrics, supervised};

/// Limit on unconfirmed records of one producer; an append above it is refused.
pub(super) const UNCONFIRMED_RECORDS_MAX: usize = 1 << 17;

/// Delay between checks whether a dropped appender holds the last reference to its producer.
const LAST_REFERENCE_POLL_INTERVAL: Duration = Duration::from_millis(10);

pub(super) struct ProducerRole;

type Client = ThreadedProducer<Context<ProducerRole>>;

/// Kafka producer with its own limit in bytes and its own deadline.
pub(super) struct Appender {
    config: ClientConfig,
    metrics: Metrics,
    /// Producer in use; replaced after an error that the library reports as fatal.
    client: RwLock<Arc<Client>>,
    unconfirmed: Arc<Unconfirmed>,
    bytes_max: usize,
    record_bytes_max: usize,
    /// Time after which an append returns *unknown*; the producer keeps trying.
    deadline: Duration,
}

/// Size of everything handed to the producer and not yet confirmed.
#[derive(Default)]
struct Unconfirmed {
    bytes: AtomicUsize,
    records: AtomicUsize,
}

/// Append state of one partition: in-flight records, and whether it is stalled.
#[derive(Default)]
pub(super) struct AppendState {
    /// Number of records that Kafka has not confirmed.
    in_flight: AtomicU64,
    /// Whether an append has timed out and no confirmation has arrived since.
    stalled: AtomicBool,
}

/// Destination of a batch.
pub(super) struct Target<'a> {
    pub(super) topic: &'a str,
    pub(super) partition: i32,
    pub(super) key: Option<[u8; 8]>,
    pub(super) append_state: &'a Arc<AppendState>,
}

/// Batch handed to the producer, shared by its records until each has an outcome.
pub(super) struct InFlightBatch {
    unconfirmed: Arc<Unconfirmed>,
    append_state: Arc<AppendState>,
    state: Mutex<State>,
}

struct State {
    records_left: usize,
    appended: Option<Appended>,
    errors: Vec<KafkaError>,
    reply: Option<oneshot::Sender<Result<Appended, AppendError>>>,
}

impl InFlightBatch {
    /// Records the outcome of one record, and replies after the last one.
    fn complete_record(&self, bytes: usize, outcome: Result<u64, KafkaError>) {
        self.unconfirmed.bytes.fetch_sub(bytes, Ordering::SeqCst);
        self.unconfirmed.records.fetch_sub(1, Ordering::SeqCst);
        self.append_state.in_flight.fetch_sub(1, Ordering::SeqCst);
        let mut state = self.state.lock();
        state.records_left = state.records_left.saturating_sub(1);
        match outcome {
            Ok(offset) => {
                self.append_state.stalled.store(false, Ordering::SeqCst);
                let before = state.appended.unwrap_or(Appended { first: offset, last: offset });
                let appended = Appended { first: before.first.min(offset), last: before.last.max(offset) };
                state.appended = Some(appended);
            }
            Err(error) => state.errors.push(error),
        }
        if state.records_left > 0 {
            return;
        }
        let outcome = match (state.appended, state.errors.first()) {
            (Some(appended), None) => Ok(appended),
            (None, Some(first)) if state.errors.iter().all(is_rejection) => {
                Err(AppendError::Rejected(first.to_string()))
            }
            (_, error) => Err(AppendError::Unknown(error.map(KafkaError::to_string).unwrap_or_default())),
        };
        if let Some(reply) = state.reply.take() {
            // The caller may have timed out.
            drop(reply.send(outcome));
        }
    }
}

/// Returns whether the error means that the record is not in the log and never will be in this form.
fn is_rejection(error: &KafkaError) -> bool {
    use RDKafkaErrorCode as Code;
    let code = error.rdkafka_error_code();
    code.is_some_and(|code| {
        matches!(
            code,
            Code::MessageSizeTooLarge
                | Code::InvalidMessageSize
                | Code::InvalidRecord
                | Code::PolicyViolation
                | Code::TopicAuthorizationFailed
                | Code::ClusterAuthorizationFailed
                | Code::UnknownPartition
                | Code::UnknownTopic
                | Code::InvalidTopic
        )
    })
}

impl ProducerContext for Context<ProducerRole> {
    type DeliveryOpaque = Arc<InFlightBatch>;

    fn delivery(&self, result: &DeliveryResult<'_>, batch: Arc<InFlightBatch>) {
        let (message, error) = match result {
            Ok(message) => (message, None),
            Err((error, message)) => (message, Some(error.clone())),
        };
        let offset = u64::try_from(message.offset()).map_err(|_| KafkaError::NoMessageReceived);
        batch.complete_record(message.payload().map_or(0, <[u8]>::len), error.map_or(offset, Err));
    }
}

impl Appender {
    pub(super) fn new(
        config: ClientConfig,
        metrics: &Metrics,
        bytes_max: usize,
        record_bytes_max: usize,
        deadline: Duration,
    ) -> Result<Self, KafkaRefusal> {
        let client = RwLock::new(Arc::new(make(&config, metrics)?));
        let unconfirmed = Arc::default();
        let metrics = metrics.clone();
        Ok(Self { config, metrics, client, unconfirmed, bytes_max, record_bytes_max, deadline })
    }

    fn client(&self) -> Arc<Client> {
        Arc::clone(&self.client.read())
    }

    /// Appends a batch. All of it is handed over before the first await, so that calls polled in turn keep their order.
    pub(super) async fn append(
        &self,
        target: Target<'_>,
        records: &[Bytes],
    ) -> Result<Appended, AppendError> {
        let bytes: usize = records.iter().map(Bytes::len).sum();
        self.admit(&target, records, bytes)?;
        let (reply, outcome) = oneshot::channel();
        let state =
            State { records_left: records.len(), appended: None, errors: Vec::new(), reply: Some(reply) };
        let (unconfirmed, append_state) = (Arc::clone(&self.unconfirmed), Arc::clone(target.append_state));
        let batch = Arc::new(InFlightBatch { unconfirmed, append_state, state: Mutex::new(state) });
        let append_state = Arc::clone(target.append_state);
        self.hand_over(target, records, &batch)?;
        drop(batch);
        match timeout(self.deadline, outcome).await {
            Ok(Ok(outcome)) => {
                if outcome.is_err() {
                    self.replace_if_fatal();
                }
                outcome
            }
            Ok(Err(_)) => Err(AppendError::Unknown("producer stopped".to_owned())),
            Err(_) => {
                append_state.stalled.store(true, Ordering::SeqCst);
                self.metrics.kafka_unknowns.increment(1);
                Err(AppendError::Unknown("Kafka did not reply in time".to_owned()))
            }
        }
    }

    /// Checks the limits and counts the batch as unconfirmed, before anything is handed over: a refusal appends
    /// nothing.
    fn admit(&self, target: &Target<'_>, records: &[Bytes], bytes: usize) -> Result<(), AppendError> {
        if records.iter().any(|record| record.len() > self.record_bytes_max) {
            let text = "record exceeds kafka.record_bytes_max; send less, or raise it and the topic's \
                        max.message.bytes";
            return Err(AppendError::Rejected(text.to_owned()));
        }
        if bytes > self.bytes_max / 2 || records.len() > UNCONFIRMED_RECORDS_MAX / 2 {
            let text = "batch exceeds half of kafka.append_bytes_max; append it in parts, or raise the limit";
            return Err(AppendError::Rejected(text.to_owned()));
        }
        // The records in flight serve as probes. Once they have failed, the next append is the probe.
        let partition = target.append_state;
        if partition.stalled.load(Ordering::SeqCst) && partition.in_flight.load(Ordering::SeqCst) > 0 {
            return Err(AppendError::Unavailable("Kafka confirms nothing for this partition".to_owned()));
        }
        let count = records.len();
        let all_bytes = self.unconfirmed.bytes.fetch_add(bytes, Ordering::SeqCst) + bytes;
        let all_records = self.unconfirmed.records.fetch_add(count, Ordering::SeqCst) + count;
        if all_bytes > self.bytes_max || all_records > UNCONFIRMED_RECORDS_MAX {
            self.unconfirmed.bytes.fetch_sub(bytes, Ordering::SeqCst);
            self.unconfirmed.records.fetch_sub(count, Ordering::SeqCst);
            return Err(AppendError::Unavailable("too many unconfirmed appends to Kafka".to_owned()));
        }
        partition.in_flight.fetch_add(count as u64, Ordering::SeqCst);
        Ok(())
    }

    fn hand_over(
        &self,
        target: Target<'_>,
        records: &[Bytes],
        batch: &Arc<InFlightBatch>,
    ) -> Result<(), AppendError> {
        let client = self.client();
        let mut failed = None;
        for record in records {
            // Stop at the first failure: a later record would take its position in the log.
            let error = match &failed {
                Some(error) => KafkaError::clone(error),
                None => {
                    let outgoing = BaseRecord::with_opaque_to(target.topic, Arc::clone(batch));
                    let mut outgoing = outgoing.partition(target.partition).payload(&record[..]);
                    outgoing.key = target.key.as_ref().map(|key| &key[..]);
                    outgoing.headers = headers(record);
                    let Err((error, _)) = client.send(outgoing) else { continue };
                    error
                }
            };
            failed.get_or_insert_with(|| error.clone());
            batch.complete_record(record.len(), Err(error));
        }
        let first_failed = failed.as_ref().filter(|_| {
            let state = batch.state.lock();
            state.errors.len() == records.len()
        });
        match first_failed {
            Some(error) if is_rejection(error) => Err(AppendError::Rejected(error.to_string())),
            // The producer accepted no record of the batch.
            Some(error) => {
                self.replace_if_fatal();
                Err(AppendError::Unavailable(error.to_string()))
            }
            None => Ok(()),
        }
    }

    /// Replaces the producer after a fatal error: it accepts no more records, and all of its records have an outcome.
    fn replace_if_fatal(&self) {
        let broken = self.client();
        let Some((code, reason)) = broken.client().fatal_error() else { return };
        let mut client = self.client.write();
        if !Arc::ptr_eq(&client, &broken) {
            return;
        }
        tracing::error!(%code, reason, "Kafka producer failed; replacing it");
        match make(&self.config, &self.metrics) {
            Ok(fresh) => *client = Arc::new(fresh),
            Err(error) => tracing::error!(%error, "failed to replace the Kafka producer"),
        }
    }

    /// Waits at most `within` until every record has an outcome, and returns whether that is so. Blocks the thread.
    pub(super) fn flush(&self, within: Duration) -> bool {
        self.client().flush(within).is_ok() && self.unconfirmed.records.load(Ordering::SeqCst) == 0
    }
}

/// Returns the headers of a traced record, for Kafka tools: the W3C trace context and the message's ids. `None` for an
/// untraced record.
fn headers(record: &Bytes) -> Option<OwnedHeaders> {
    let trace = TraceContext::of_record(record)?;
    let headers =
        OwnedHeaders::new().insert(Header { key: "traceparent", value: Some(trace.to_string().as_str()) });
    Some(match Record::decode(record.clone()) {
        Ok(Record { body: Body::Message(message), .. }) => headers
            .insert(Header { key: "msg_id", value: Some(message.msg_id.as_str()) })
            .insert(Header { key: "conversation", value: Some(message.conversation.as_str()) }),
        _ => headers,
    })
}

/// Drops the producer on a detached thread. Its polling thread waits by the wall clock, so the drop takes an hour if
/// the clock was set back by one.
impl Drop for Appender {
    fn drop(&mut self) {
        let client = self.client();
        let dropping = supervised::spawn_thread("tidegate-kafka", move || {
            // The last reference must be dropped on this thread.
            while Arc::strong_count(&client) > 1 {
                thread::park_timeout(LAST_REFERENCE_POLL_INTERVAL);
            }
        });
        if let Err(error) = dropping {
            tracing::debug!(%error, "no thread for dropping the Kafka producer; dropped inline");
        }
    }
}

fn make(config: &ClientConfig, metrics: &Metrics) -> Result<Client, KafkaRefusal> {
    Ok(Client::from_config_and_context(config, Context::new(ProducerRole, metrics))?)
}
