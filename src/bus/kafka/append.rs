//! Appending: a batch goes to the producer as a whole, and its answer is what all of its records came to.

use std::{
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use bytes::Bytes;
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
use crate::metrics::Metrics;

/// Records that wait for Kafka, at most.
pub(super) const RECORDS_MAX: usize = 1 << 17;

/// Between two looks whether a producer is in nobody else's hands.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

pub(super) struct Producing;

type Client = ThreadedProducer<Context<Producing>>;

/// One producer, with a bound in bytes and a deadline of its own.
pub(super) struct Appender {
    config: ClientConfig,
    metrics: Metrics,
    /// Made anew after an error that the library calls fatal.
    client: RwLock<Arc<Client>>,
    waiting: Arc<Waiting>,
    bytes_max: usize,
    record_bytes_max: usize,
    /// Later than this the answer is *unknown*, while the producer goes on trying.
    deadline: Duration,
}

/// What was handed over and not answered.
#[derive(Default)]
struct Waiting {
    bytes: AtomicUsize,
    records: AtomicUsize,
}

/// One partition, as an appender sees it.
#[derive(Default)]
pub(super) struct Lane {
    /// Records that Kafka has not answered for.
    in_flight: AtomicU64,
    /// An answer did not come in time, and none has come since.
    stalled: AtomicBool,
}

/// Where a batch goes.
pub(super) struct Target<'a> {
    pub(super) topic: &'a str,
    pub(super) partition: i32,
    pub(super) key: Option<[u8; 8]>,
    pub(super) lane: &'a Arc<Lane>,
}

/// One batch on its way; shared by its records.
pub(super) struct Pending {
    waiting: Arc<Waiting>,
    lane: Arc<Lane>,
    state: Mutex<State>,
}

struct State {
    left: usize,
    placed: Option<Appended>,
    problems: Vec<KafkaError>,
    tell: Option<oneshot::Sender<Result<Appended, AppendError>>>,
}

impl Pending {
    /// One record has come to its end.
    fn note(&self, bytes: usize, outcome: Result<u64, KafkaError>) {
        self.waiting.bytes.fetch_sub(bytes, Ordering::SeqCst);
        self.waiting.records.fetch_sub(1, Ordering::SeqCst);
        self.lane.in_flight.fetch_sub(1, Ordering::SeqCst);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.left = state.left.saturating_sub(1);
        match outcome {
            Ok(offset) => {
                self.lane.stalled.store(false, Ordering::SeqCst);
                let before = state.placed.unwrap_or(Appended { first: offset, last: offset });
                let placed = Appended { first: before.first.min(offset), last: before.last.max(offset) };
                state.placed = Some(placed);
            }
            Err(error) => state.problems.push(error),
        }
        if state.left > 0 {
            return;
        }
        let answer = match (state.placed, state.problems.first()) {
            (Some(placed), None) => Ok(placed),
            (None, Some(first)) if state.problems.iter().all(refuses) => {
                Err(AppendError::Rejected(first.to_string()))
            }
            (_, problem) => Err(AppendError::Unknown(problem.map(KafkaError::to_string).unwrap_or_default())),
        };
        if let Some(tell) = state.tell.take() {
            // Nobody waits any more: its deadline is over.
            drop(tell.send(answer));
        }
    }
}

/// Whether the error says that the record is not in the log, and that it never will be in this form.
fn refuses(error: &KafkaError) -> bool {
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

impl ProducerContext for Context<Producing> {
    type DeliveryOpaque = Arc<Pending>;

    fn delivery(&self, result: &DeliveryResult<'_>, pending: Arc<Pending>) {
        let (message, error) = match result {
            Ok(message) => (message, None),
            Err((error, message)) => (message, Some(error.clone())),
        };
        let offset = u64::try_from(message.offset()).map_err(|_| KafkaError::NoMessageReceived);
        pending.note(message.payload().map_or(0, <[u8]>::len), error.map_or(offset, Err));
    }
}

impl Appender {
    pub(super) fn new(
        config: ClientConfig,
        metrics: &Metrics,
        (bytes_max, record_bytes_max): (usize, usize),
        deadline: Duration,
    ) -> Result<Self, KafkaRefusal> {
        let client = RwLock::new(Arc::new(make(&config, metrics)?));
        let waiting = Arc::default();
        Ok(Self { config, metrics: metrics.clone(), client, waiting, bytes_max, record_bytes_max, deadline })
    }

    fn client(&self) -> Arc<Client> {
        Arc::clone(&self.client.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Everything is handed over before the first wait, so calls that are polled in turn keep their order.
    pub(super) async fn append(
        &self,
        target: Target<'_>,
        records: &[Bytes],
    ) -> Result<Appended, AppendError> {
        let bytes: usize = records.iter().map(Bytes::len).sum();
        self.admit(&target, records, bytes)?;
        let (tell, told) = oneshot::channel();
        let state = State { left: records.len(), placed: None, problems: Vec::new(), tell: Some(tell) };
        let (waiting, lane) = (Arc::clone(&self.waiting), Arc::clone(target.lane));
        let pending = Arc::new(Pending { waiting, lane, state: Mutex::new(state) });
        let lane = Arc::clone(target.lane);
        self.hand_over(target, records, &pending)?;
        drop(pending);
        match timeout(self.deadline, told).await {
            Ok(Ok(answer)) => {
                if answer.is_err() {
                    self.replace_if_fatal();
                }
                answer
            }
            Ok(Err(_)) => Err(AppendError::Unknown("the producer ended".to_owned())),
            Err(_) => {
                lane.stalled.store(true, Ordering::SeqCst);
                self.metrics.kafka_unknowns.increment(1);
                Err(AppendError::Unknown("Kafka did not answer in time".to_owned()))
            }
        }
    }

    /// Refuses before anything is handed over, so that these refusals leave nothing behind.
    fn admit(&self, target: &Target<'_>, records: &[Bytes], bytes: usize) -> Result<(), AppendError> {
        if records.iter().any(|record| record.len() > self.record_bytes_max) {
            let text = "a record is larger than kafka.record_bytes_max; send less, or raise it and the topic's max.message.bytes";
            return Err(AppendError::Rejected(text.to_owned()));
        }
        if bytes > self.bytes_max / 2 || records.len() > RECORDS_MAX / 2 {
            let text =
                "the batch is over half of kafka.append_bytes_max; append it in parts, or raise the limit";
            return Err(AppendError::Rejected(text.to_owned()));
        }
        // What still waits there probes; when it is given up, the next append does.
        if target.lane.stalled.load(Ordering::SeqCst) && target.lane.in_flight.load(Ordering::SeqCst) > 0 {
            return Err(AppendError::Unavailable("Kafka answers for nothing of that partition".to_owned()));
        }
        let count = records.len();
        let all_bytes = self.waiting.bytes.fetch_add(bytes, Ordering::SeqCst) + bytes;
        let all_records = self.waiting.records.fetch_add(count, Ordering::SeqCst) + count;
        if all_bytes > self.bytes_max || all_records > RECORDS_MAX {
            self.waiting.bytes.fetch_sub(bytes, Ordering::SeqCst);
            self.waiting.records.fetch_sub(count, Ordering::SeqCst);
            return Err(AppendError::Unavailable("too much waits for Kafka already".to_owned()));
        }
        target.lane.in_flight.fetch_add(count as u64, Ordering::SeqCst);
        Ok(())
    }

    fn hand_over(
        &self,
        target: Target<'_>,
        records: &[Bytes],
        pending: &Arc<Pending>,
    ) -> Result<(), AppendError> {
        let client = self.client();
        let mut failed = None;
        for record in records {
            // Those behind one that was not taken would stand in its place.
            let error = match &failed {
                Some(error) => KafkaError::clone(error),
                None => {
                    let to = BaseRecord::with_opaque_to(target.topic, Arc::clone(pending));
                    let mut to = to.partition(target.partition).payload(&record[..]);
                    to.key = target.key.as_ref().map(|key| &key[..]);
                    to.headers = headers(record);
                    let Err((error, _)) = client.send(to) else { continue };
                    error
                }
            };
            failed.get_or_insert_with(|| error.clone());
            pending.note(record.len(), Err(error));
        }
        let first_failed = failed.as_ref().filter(|_| {
            let state = pending.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.problems.len() == records.len()
        });
        match first_failed {
            Some(error) if refuses(error) => Err(AppendError::Rejected(error.to_string())),
            // Nothing at all was taken.
            Some(error) => {
                self.replace_if_fatal();
                Err(AppendError::Unavailable(error.to_string()))
            }
            None => Ok(()),
        }
    }

    /// After a fatal error a producer takes nothing any more; what it had is answered for by now.
    fn replace_if_fatal(&self) {
        let broken = self.client();
        let Some((code, reason)) = broken.client().fatal_error() else { return };
        let mut client = self.client.write().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&client, &broken) {
            return;
        }
        tracing::error!(%code, reason, "the producer ended; there is a new one");
        match make(&self.config, &self.metrics) {
            Ok(fresh) => *client = Arc::new(fresh),
            Err(error) => tracing::error!(%error, "and a new one could not be made"),
        }
    }

    /// Waits until everything is answered for; false when something still is not. Blocks.
    pub(super) fn flush(&self, within: Duration) -> bool {
        self.client().flush(within).is_ok() && self.waiting.records.load(Ordering::SeqCst) == 0
    }
}

/// What tools of Kafka see of a traced record beside its bytes: the trace, in the form of the W3C, and the message's ids. The
/// others have no headers.
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

/// The producer ends when its polling thread has, and that waits by the wall clock: for an hour where it was put back by an
/// hour. So it ends on a thread that nobody waits for.
impl Drop for Appender {
    fn drop(&mut self) {
        let client = self.client();
        let ending = thread::Builder::new().name("tidegate-kafka".to_owned()).spawn(move || {
            // Ours is the last one, then.
            while Arc::strong_count(&client) > 1 {
                thread::park_timeout(LOOK_AGAIN);
            }
        });
        if let Err(error) = ending {
            tracing::debug!(%error, "a producer ends where it is dropped");
        }
    }
}

fn make(config: &ClientConfig, metrics: &Metrics) -> Result<Client, KafkaRefusal> {
    Ok(Client::from_config_and_context(config, Context::new(Producing, metrics))?)
}
