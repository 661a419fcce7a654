//! Log reader: one Kafka consumer with explicitly assigned offsets, and one queue per partition, bounded by the
//! library.

use std::{
    collections::VecDeque,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
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
    client::BROKER_TIMEOUT,
    context::{Context, ReaderRole},
};
use crate::{metrics::Metrics, supervised};

pub(super) type Client = BaseConsumer<Context<ReaderRole>>;

/// Time after which the polling thread notices that the reader was dropped.
const READER_POLL_TIMEOUT: Duration = Duration::from_millis(100);

/// Time in which the library delivers its pending log lines, which carry the topic ids.
const LOG_DELIVERY_DELAY: Duration = Duration::from_millis(5);

/// Delay before a query is repeated because metadata lags.
const QUERY_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Consumer of the log, for the partitions that this node owns.
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
    /// Queue of fetched records. It also keeps the library's topic structures alive, without which the library forgets
    /// the topic's id. Recreated with each start, since a topic that was unavailable gets new structures.
    queue: Option<PartitionQueue<Context<ReaderRole>>>,
    /// Error that follows the records already returned.
    error: Option<KafkaError>,
    /// Lower bound of the next offset from the queue; `None` if nothing is fetched.
    next: Option<u64>,
    /// Records taken from the queue and not returned yet.
    unread: VecDeque<LogRecord>,
    /// First offset of the partition, as last known.
    first: u64,
    /// End offset of the partition, as last known.
    end: u64,
}

/// Result of one attempt to read from the fetched records.
enum ReadStep {
    Records(Batch),
    Empty,
    /// Offset that the library can't fetch; `true` if the log is known to have been replaced.
    OffsetLost(bool),
}

impl Reader {
    /// Opens the topic, which must have `count` partitions. Blocks the thread.
    pub(super) fn open(
        config: &ClientConfig,
        topic: &str,
        count: u32,
        metrics: &Metrics,
    ) -> Result<Arc<Self>, KafkaRefusal> {
        let client = Arc::new(Client::from_config_and_context(config, Context::new(ReaderRole, metrics))?);
        let partitions =
            (0..count).map(|number| Partition::new(&client, topic, number)).collect::<Result<_, _>>()?;
        let reader =
            Arc::new(Self { client, topic: topic.to_owned(), partitions, closed: AtomicBool::new(false) });
        let weak = Arc::downgrade(&reader);
        // This poll serves metadata, errors and statistics; records go to the partition queues.
        let poll = move || {
            while let Some(reader) = weak.upgrade() {
                reader.poll_events(READER_POLL_TIMEOUT);
            }
        };
        supervised::spawn_thread("tidegate-kafka", poll)
            .map_err(|error| KafkaRefusal::permanent(format!("failed to start a thread: {error}")))?;
        reader.check_topic(count)?;
        // The polling thread receives the id along with the metadata just queried.
        let begun = Instant::now();
        while reader.topic_id().is_none() {
            if begun.elapsed() > BROKER_TIMEOUT {
                let why = "the brokers report no topic ids; upgrade them to Apache Kafka 2.8 or later";
                return Err(KafkaRefusal::permanent(why));
            }
            thread::sleep(LOG_DELIVERY_DELAY);
        }
        Ok(reader)
    }

    fn poll_events(&self, timeout: Duration) {
        if let Some(Err(error)) = self.client.poll(timeout) {
            tracing::debug!(%error, "log reader error");
        }
    }

    fn check_topic(&self, count: u32) -> Result<(), KafkaRefusal> {
        let topic = &self.topic;
        let metadata = self
            .client
            .fetch_metadata(Some(topic), BROKER_TIMEOUT)
            .map_err(|error| KafkaRefusal::unavailable(format!("no reply from kafka.brokers: {error}")))?;
        let found = metadata.topics().first();
        if let Some(error) = found.and_then(|found| found.error()) {
            let code = RDKafkaErrorCode::from(error);
            if code == RDKafkaErrorCode::TopicAuthorizationFailed {
                return Err(KafkaRefusal::permanent(format!(
                    "topic {topic}: {code}; allow the user of kafka.sasl_username to read it"
                )));
            }
            return Err(KafkaRefusal::unavailable(format!(
                "topic {topic}: {code}; create it with `tidegate topics ensure`"
            )));
        }
        match found.map_or(0, |found| found.partitions().len()) {
            found if found == count as usize => Ok(()),
            found => Err(KafkaRefusal::permanent(super::topics::wrong_count(topic, found, count))),
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

    /// Allows or stops reading the partition.
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
            // Registers before reading, so that a record arriving in between still wakes this task.
            changed.as_mut().enable();
            match self.try_read(partition, from, max_records, max_bytes)? {
                ReadStep::Records(batch) => return Ok(batch),
                ReadStep::Empty => changed.await,
                ReadStep::OffsetLost(is_replaced) => {
                    let bounds = self.bounds(number).await?;
                    if is_replaced || from < bounds.first || from > bounds.next {
                        return Err(ReadError::OutOfRange(bounds));
                    }
                    // The offset exists; the replica that reported it missing lagged.
                    return Err(ReadError::Unavailable("partition moved to another broker".to_owned()));
                }
            }
        }
    }

    fn try_read(
        &self,
        partition: &Partition,
        from: u64,
        max_records: usize,
        max_bytes: usize,
    ) -> Result<ReadStep, ReadError> {
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
            partition.start(state, &self.client, &self.topic, from).map_err(unavailable)?;
        }
        let mut records = Vec::new();
        let mut bytes = 0;
        loop {
            let next = match state.error.take() {
                Some(error) => Some(Err(error)),
                None => state.unread.pop_front().map(Ok).or_else(|| partition.poll(state)),
            };
            let record = match next {
                Some(Ok(record)) if record.offset < from => continue,
                Some(Ok(record)) => record,
                // Return the records first, and the error with the next read.
                Some(Err(error)) if !records.is_empty() => {
                    state.error = Some(error);
                    break;
                }
                Some(Err(error)) => {
                    state.next = None;
                    return classify(&error);
                }
                None => break,
            };
            bytes += record.bytes.len();
            if !records.is_empty() && (records.len() >= max_records || bytes > max_bytes) {
                state.unread.push_front(record);
                break;
            }
            records.push(record);
        }
        let Some(last) = records.last() else { return Ok(ReadStep::Empty) };
        let next = last.offset + 1;
        state.next = Some(next);
        state.end = state.end.max(next);
        let topic =
            self.topic_id().ok_or_else(|| ReadError::Unavailable("no broker has replied yet".to_owned()))?;
        let bounds = Bounds { topic, first: state.first.min(from), next: state.end };
        Ok(ReadStep::Records(Batch { bounds, records }))
    }

    pub(super) async fn bounds(self: &Arc<Self>, number: u32) -> Result<Bounds, ReadError> {
        let partition = self.partition(number).ok_or_else(no_partition)?;
        let reader = Arc::clone(self);
        let fetched =
            supervised::spawn_blocking("the query of log bounds", move || reader.fetch_bounds(number)).await;
        let bounds =
            fetched.map_err(|error| ReadError::Unavailable(error.to_string()))?.map_err(unavailable)?;
        let mut state = partition.lock();
        (state.first, state.end) = (bounds.first, bounds.next);
        Ok(bounds)
    }

    fn fetch_bounds(&self, number: u32) -> Result<Bounds, KafkaError> {
        // The id comes first: if the topic is replaced in between, the old id comes with bounds that it never had.
        let (first, next) = retry_query(BROKER_TIMEOUT, |left| {
            self.client.fetch_metadata(Some(&self.topic), left)?;
            self.poll_events(LOG_DELIVERY_DELAY);
            self.client.fetch_watermarks(&self.topic, number as i32, left)
        })?;
        let topic = self.topic_id().ok_or(KafkaError::MetadataFetch(RDKafkaErrorCode::UnknownTopicId))?;
        Ok(Bounds { topic, first: first.max(0) as u64, next: next.max(0) as u64 })
    }
}

/// Repeats a query about a partition while the metadata lacks it or its leader; the query gets the remaining time. The
/// library returns these errors at once. But the topic had the partition when the reader opened it, and a broker that
/// starts or was frozen may report it late. Blocks the thread.
fn retry_query<T>(
    within: Duration,
    mut query: impl FnMut(Duration) -> Result<T, KafkaError>,
) -> Result<T, KafkaError> {
    use RDKafkaErrorCode::{LeaderNotAvailable, UnknownPartition};
    let begun = Instant::now();
    let mut left = within;
    loop {
        match query(left) {
            Err(KafkaError::MetadataFetch(UnknownPartition | LeaderNotAvailable))
                if begun.elapsed() + QUERY_RETRY_INTERVAL < within =>
            {
                thread::sleep(QUERY_RETRY_INTERVAL);
            }
            done => return done,
        }
        left = within.saturating_sub(begun.elapsed()).max(QUERY_RETRY_INTERVAL);
    }
}

impl Partition {
    fn new(client: &Arc<Client>, topic: &str, number: u32) -> Result<Self, KafkaRefusal> {
        let number = number as i32;
        let queue = client.split_partition_queue(topic, number);
        if queue.is_none() {
            let why = format!("{topic} is not a valid topic name; change kafka.topic");
            return Err(KafkaRefusal::permanent(why));
        }
        let unread = VecDeque::new();
        let state = State { owned: false, queue, error: None, next: None, unread, first: 0, end: 0 };
        Ok(Self { number, state: Mutex::new(state), changed: Arc::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Starts fetching at offset `from`.
    fn start(
        &self,
        state: &mut State,
        client: &Arc<Client>,
        topic: &str,
        from: u64,
    ) -> Result<(), KafkaError> {
        let mut list = TopicPartitionList::new();
        let offset =
            i64::try_from(from).map_err(|_| KafkaError::OffsetFetch(RDKafkaErrorCode::InvalidArgument))?;
        list.add_partition_offset(topic, self.number, Offset::Offset(offset))?;
        // Dropping a queue also silences its successor, so drop the old one before creating the new one.
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

    /// Stops fetching; the library drops the records that it has fetched.
    fn stop(&self, state: &mut State, client: &Client, topic: &str) {
        state.unread.clear();
        (state.next, state.error) = (None, None);
        let mut list = TopicPartitionList::new();
        list.add_partition(topic, self.number);
        if client.assignment().is_ok_and(|now| now.find_partition(topic, self.number).is_some())
            && let Err(error) = client.incremental_unassign(&list)
        {
            tracing::warn!(%error, partition = self.number, "failed to stop fetching a partition");
        }
    }

    /// Returns the next record or error in the queue, without waiting.
    fn poll(&self, state: &State) -> Option<Result<LogRecord, KafkaError>> {
        let message = match state.queue.as_ref()?.poll(Duration::ZERO)? {
            Ok(message) => message,
            Err(error) => return Some(Err(error)),
        };
        // A record without a payload is not Tidegate's; the owner gets it anyway and quarantines it.
        let bytes = Bytes::copy_from_slice(message.payload().unwrap_or_default());
        Some(Ok(LogRecord { offset: message.offset().max(0) as u64, bytes }))
    }
}

fn classify(error: &KafkaError) -> Result<ReadStep, ReadError> {
    match error.rdkafka_error_code() {
        Some(RDKafkaErrorCode::LogTruncation) => Ok(ReadStep::OffsetLost(true)),
        Some(RDKafkaErrorCode::AutoOffsetReset | RDKafkaErrorCode::OffsetOutOfRange) => {
            Ok(ReadStep::OffsetLost(false))
        }
        _ => Err(ReadError::Unavailable(error.to_string())),
    }
}

fn unavailable(error: KafkaError) -> ReadError {
    ReadError::Unavailable(error.to_string())
}

pub(super) fn no_partition() -> ReadError {
    ReadError::Unavailable("no such partition".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_is_repeated_only_while_metadata_lags() {
        use RDKafkaErrorCode::{LeaderNotAvailable, UnknownPartition, UnknownTopic};
        let run = |within: Duration, errors: &[RDKafkaErrorCode]| {
            let mut calls = 0;
            let done = retry_query(within, |left| {
                assert!(left > Duration::ZERO && left <= within.max(QUERY_RETRY_INTERVAL));
                calls += 1;
                errors.get(calls - 1).map_or(Ok(()), |code| Err(KafkaError::MetadataFetch(*code)))
            });
            (done.map_err(|error| error.rdkafka_error_code()), calls)
        };
        assert_eq!(run(BROKER_TIMEOUT, &[UnknownPartition, LeaderNotAvailable]), (Ok(()), 3));
        assert_eq!(run(BROKER_TIMEOUT, &[UnknownTopic]), (Err(Some(UnknownTopic)), 1));
        let short = QUERY_RETRY_INTERVAL / 2;
        assert_eq!(run(short, &[UnknownPartition]), (Err(Some(UnknownPartition)), 1));
    }
}
