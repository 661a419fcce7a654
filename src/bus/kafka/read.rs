//! Reading the log: one consumer that is told what to read from where, a queue for each partition, bounded by the library.

use std::{
    collections::VecDeque,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use rdkafka::{
    ClientConfig, Message as _, Offset, TopicPartitionList,
    config::FromClientConfigAndContext as _,
    consumer::{BaseConsumer, Consumer as _, base_consumer::PartitionQueue},
    error::{KafkaError, RDKafkaErrorCode},
};
use tokio::sync::Notify;

use super::{
    super::{Batch, Bounds, LogRecord, ReadError, TopicId},
    KafkaRefusal,
    context::{Context, Reading},
};
use crate::metrics::Metrics;

pub(super) type Client = BaseConsumer<Context<Reading>>;

/// For a question to the brokers.
pub(super) const ANSWER: Duration = Duration::from_secs(5);

/// Between two looks at whether the reader is still wanted.
const TICK: Duration = Duration::from_millis(100);

/// What the library has to say is said when this has passed.
const SETTLE: Duration = Duration::from_millis(5);

/// The log, read from.
pub(super) struct Reader {
    client: Arc<Client>,
    topic: String,
    partitions: Vec<Partition>,
    closed: AtomicBool,
}

struct Partition {
    number: i32,
    state: Mutex<State>,
    changed: Arc<Notify>,
}

struct State {
    owned: bool,
    /// Holds the library's structures of the topic, too, without which it forgets the topic's id. Made anew with each
    /// start: those of a topic that was away are others.
    queue: Option<PartitionQueue<Context<Reading>>>,
    /// What is wrong behind what was returned.
    problem: Option<KafkaError>,
    /// What the queue brings next: no less than this; none when nothing is fetched.
    next: Option<u64>,
    /// Taken out of the queue, and not returned yet.
    held: VecDeque<LogRecord>,
    /// As far as it was heard.
    first: u64,
    end: u64,
}

/// What one look at a partition gave.
enum Looked {
    Records(Batch),
    Nothing,
    /// The library can't go on from there; true when the log is known to be another than was read before.
    Astray(bool),
}

impl Reader {
    /// Opens the topic, which must have that many partitions. Blocks.
    pub(super) fn open(
        config: &ClientConfig,
        topic: &str,
        count: u32,
        metrics: &Metrics,
    ) -> Result<Arc<Self>, KafkaRefusal> {
        let client = Arc::new(Client::from_config_and_context(config, Context::new(Reading, metrics))?);
        let partitions =
            (0..count).map(|number| Partition::new(&client, topic, number)).collect::<Result<_, _>>()?;
        let reader =
            Arc::new(Self { client, topic: topic.to_owned(), partitions, closed: AtomicBool::new(false) });
        let weak = Arc::downgrade(&reader);
        // What the brokers say of the topic, errors and statistics come here; records go to the queues.
        thread::Builder::new()
            .name("tidegate-kafka".to_owned())
            .spawn(move || {
                while let Some(reader) = weak.upgrade() {
                    reader.serve(TICK);
                }
            })
            .map_err(|error| KafkaRefusal::wrong(format!("a thread could not be started: {error}")))?;
        reader.check_topic(count)?;
        // It comes with that answer, by another thread.
        let begun = Instant::now();
        while reader.topic_id().is_none() {
            if begun.elapsed() > ANSWER {
                let why = "the brokers do not tell the ids of topics: Apache Kafka 2.8 or later is needed";
                return Err(KafkaRefusal::wrong(why));
            }
            thread::sleep(SETTLE);
        }
        Ok(reader)
    }

    fn serve(&self, time: Duration) {
        if let Some(Err(error)) = self.client.poll(time) {
            tracing::debug!(%error, "the reader of the log");
        }
    }

    fn check_topic(&self, count: u32) -> Result<(), KafkaRefusal> {
        let topic = &self.topic;
        let metadata = self
            .client
            .fetch_metadata(Some(topic), ANSWER)
            .map_err(|error| KafkaRefusal::away(format!("no broker of kafka.brokers answers: {error}")))?;
        let found = metadata.topics().first();
        if let Some(error) = found.and_then(|found| found.error()) {
            let code = RDKafkaErrorCode::from(error);
            if code == RDKafkaErrorCode::TopicAuthorizationFailed {
                return Err(KafkaRefusal::wrong(format!(
                    "the topic {topic}: {code}; see kafka.sasl_username"
                )));
            }
            return Err(KafkaRefusal::away(format!(
                "the topic {topic}: {code}; `tidegate topics ensure` makes it"
            )));
        }
        match found.map_or(0, |found| found.partitions().len()) {
            found if found == count as usize => Ok(()),
            found => Err(KafkaRefusal::wrong(super::topics::wrong_count(topic, found, count))),
        }
    }

    pub(super) fn topic_id(&self) -> Option<TopicId> {
        self.client.context().topic_id(&self.topic)
    }

    fn partition(&self, number: u32) -> Option<&Partition> {
        self.partitions.get(number as usize)
    }

    pub(super) fn has(&self, number: u32) -> bool {
        self.partition(number).is_some()
    }

    /// Lets the partition be read, or no more.
    pub(super) fn own(&self, number: u32, owned: bool) {
        let Some(partition) = self.partition(number) else { return };
        let mut state = partition.lock();
        state.owned = owned;
        if !owned {
            partition.stop(&mut state, &self.client, &self.topic);
        }
        drop(state);
        partition.changed.notify_waiters();
    }

    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        for number in (0..).take(self.partitions.len()) {
            self.own(number, false);
        }
    }

    pub(super) async fn read(
        self: &Arc<Self>,
        number: u32,
        from: u64,
        max_records: usize,
        max_bytes: usize,
    ) -> Result<Batch, ReadError> {
        let partition = self.partition(number).ok_or_else(no_partition)?;
        loop {
            let mut changed = pin!(partition.changed.notified());
            // Before the look, so that nothing comes between the look and the wait.
            changed.as_mut().enable();
            match self.look(partition, from, max_records, max_bytes)? {
                Looked::Records(batch) => return Ok(batch),
                Looked::Nothing => changed.await,
                Looked::Astray(surely) => {
                    let bounds = self.bounds(number).await?;
                    if surely || from < bounds.first || from > bounds.next {
                        return Err(ReadError::OutOfRange(bounds));
                    }
                    // A copy that lagged behind: it is there after all.
                    return Err(ReadError::Unavailable("the partition moved to another broker".to_owned()));
                }
            }
        }
    }

    fn look(
        &self,
        partition: &Partition,
        from: u64,
        max_records: usize,
        max_bytes: usize,
    ) -> Result<Looked, ReadError> {
        let mut guard = partition.lock();
        let state = &mut *guard;
        if self.closed.load(Ordering::SeqCst) {
            return Err(ReadError::Unavailable("the bus is closed".to_owned()));
        }
        if !state.owned {
            return Err(ReadError::NotOwner);
        }
        if state.next != Some(from) {
            partition.stop(state, &self.client, &self.topic);
            partition.go(state, &self.client, &self.topic, from).map_err(unavailable)?;
        }
        let mut records = Vec::new();
        let mut bytes = 0;
        loop {
            let next = match state.problem.take() {
                Some(problem) => Some(Err(problem)),
                None => state.held.pop_front().map(Ok).or_else(|| partition.take(state)),
            };
            let record = match next {
                Some(Ok(record)) if record.offset < from => continue,
                Some(Ok(record)) => record,
                // First what is there.
                Some(Err(error)) if !records.is_empty() => {
                    state.problem = Some(error);
                    break;
                }
                Some(Err(error)) => {
                    state.next = None;
                    return astray(&error);
                }
                None => break,
            };
            bytes += record.bytes.len();
            if !records.is_empty() && (records.len() >= max_records || bytes > max_bytes) {
                state.held.push_front(record);
                break;
            }
            records.push(record);
        }
        let Some(last) = records.last() else { return Ok(Looked::Nothing) };
        let next = last.offset + 1;
        state.next = Some(next);
        state.end = state.end.max(next);
        let topic =
            self.topic_id().ok_or_else(|| ReadError::Unavailable("no broker answered yet".to_owned()))?;
        let bounds = Bounds { topic, first: state.first.min(from), next: state.end };
        Ok(Looked::Records(Batch { bounds, records }))
    }

    pub(super) async fn bounds(self: &Arc<Self>, number: u32) -> Result<Bounds, ReadError> {
        let partition = self.partition(number).ok_or_else(no_partition)?;
        let reader = Arc::clone(self);
        let asked = tokio::task::spawn_blocking(move || reader.ask(number)).await;
        let bounds =
            asked.map_err(|error| ReadError::Unavailable(error.to_string()))?.map_err(unavailable)?;
        let mut state = partition.lock();
        (state.first, state.end) = (bounds.first, bounds.next);
        Ok(bounds)
    }

    fn ask(&self, number: u32) -> Result<Bounds, KafkaError> {
        // The id first: if the topic is replaced in between, these are bounds that the old one did not have.
        self.client.fetch_metadata(Some(&self.topic), ANSWER)?;
        self.serve(SETTLE);
        let (first, next) = self.client.fetch_watermarks(&self.topic, number as i32, ANSWER)?;
        let topic = self.topic_id().ok_or(KafkaError::MetadataFetch(RDKafkaErrorCode::UnknownTopicId))?;
        Ok(Bounds { topic, first: first.max(0) as u64, next: next.max(0) as u64 })
    }
}

impl Partition {
    fn new(client: &Arc<Client>, topic: &str, number: u32) -> Result<Self, KafkaRefusal> {
        let number = number as i32;
        let queue = client.split_partition_queue(topic, number);
        if queue.is_none() {
            return Err(KafkaRefusal::wrong(format!("{topic} is no name of a topic")));
        }
        let held = VecDeque::new();
        let state = State { owned: false, queue, problem: None, next: None, held, first: 0, end: 0 };
        Ok(Self { number, state: Mutex::new(state), changed: Arc::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fetches from that offset on.
    fn go(&self, state: &mut State, client: &Arc<Client>, topic: &str, from: u64) -> Result<(), KafkaError> {
        let mut list = TopicPartitionList::new();
        let offset =
            i64::try_from(from).map_err(|_| KafkaError::OffsetFetch(RDKafkaErrorCode::InvalidArgument))?;
        list.add_partition_offset(topic, self.number, Offset::Offset(offset))?;
        // The end of the former queue silences the one behind it: first the one, then the other.
        state.queue = None;
        if let Some(mut queue) = client.split_partition_queue(topic, self.number) {
            let wake = Arc::clone(&self.changed);
            queue.set_nonempty_callback(move || wake.notify_waiters());
            state.queue = Some(queue);
        }
        client.incremental_assign(&list)?;
        state.next = Some(from);
        Ok(())
    }

    /// Fetches no more; the library drops what it has.
    fn stop(&self, state: &mut State, client: &Client, topic: &str) {
        state.held.clear();
        (state.next, state.problem) = (None, None);
        let mut list = TopicPartitionList::new();
        list.add_partition(topic, self.number);
        if client.assignment().is_ok_and(|now| now.find_partition(topic, self.number).is_some())
            && let Err(error) = client.incremental_unassign(&list)
        {
            tracing::warn!(%error, partition = self.number, "a partition is still fetched");
        }
    }

    /// The next thing in the queue.
    fn take(&self, state: &State) -> Option<Result<LogRecord, KafkaError>> {
        let message = match state.queue.as_ref()?.poll(Duration::ZERO)? {
            Ok(message) => message,
            Err(error) => return Some(Err(error)),
        };
        // A record without a body is none of ours; it is handed over all the same, to be quarantined.
        let bytes = Bytes::copy_from_slice(message.payload().unwrap_or_default());
        Some(Ok(LogRecord { offset: message.offset().max(0) as u64, bytes }))
    }
}

fn astray(error: &KafkaError) -> Result<Looked, ReadError> {
    match error.rdkafka_error_code() {
        Some(RDKafkaErrorCode::LogTruncation) => Ok(Looked::Astray(true)),
        Some(RDKafkaErrorCode::AutoOffsetReset | RDKafkaErrorCode::OffsetOutOfRange) => {
            Ok(Looked::Astray(false))
        }
        _ => Err(ReadError::Unavailable(error.to_string())),
    }
}

fn unavailable(error: KafkaError) -> ReadError {
    ReadError::Unavailable(error.to_string())
}

pub(super) fn no_partition() -> ReadError {
    ReadError::Unavailable("there is no such partition".to_owned())
}
