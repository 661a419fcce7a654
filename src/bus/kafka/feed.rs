//! Consumer of the node's own topic: one partition, assigned directly and read from its end, never through a consumer
//! group (flaws S26, S28).

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use bytes::Bytes;
use rdkafka::{
    ClientConfig, Message as _, Offset, TopicPartitionList,
    config::FromClientConfigAndContext as _,
    consumer::{BaseConsumer, Consumer as _},
    error::{KafkaError, KafkaResult, RDKafkaErrorCode},
};
use tokio::sync::mpsc;

use super::{
    super::{NodeEvent, NodeFeed, TopicId},
    KafkaRefusal,
    client::BROKER_TIMEOUT,
    context::{Context, ReaderRole},
    feed_position::{FeedPosition, PendingEvent},
};
use crate::{metrics::Metrics, supervised};

type Client = BaseConsumer<Context<ReaderRole>>;

const FEED_POLL_TIMEOUT: Duration = Duration::from_millis(100);

/// Delay between attempts to find the end of the topic after its position was lost.
const SEEK_RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// Capacity of the event channel to the node. Further records wait in the library's bounded queue, then in Kafka.
const QUEUED_EVENTS_MAX: usize = 16;

/// Largest number of records in one event.
const EVENT_RECORDS_MAX: usize = 256;

/// Delay between queries for the end of the topic, from which the lag is measured.
const END_REFRESH_INTERVAL: Duration = Duration::from_secs(1);

struct Feed {
    client: Arc<Client>,
    topic: String,
    /// Record key of this run of the node; records with other keys are skipped.
    key: [u8; 8],
    /// Next expected offset; a higher one means that records were lost.
    next: i64,
    id: Option<TopicId>,
    position: Arc<FeedPosition>,
}

/// Event read from the topic, with its position.
struct FeedItem {
    event: NodeEvent,
    at: PendingEvent,
}

/// Records collected for one event.
struct EventBuilder {
    records: Vec<Bytes>,
    at: PendingEvent,
}

pub(super) struct KafkaFeed {
    events: mpsc::Receiver<NodeEvent>,
    /// Whether the node is still processing the last returned event.
    is_processing: bool,
    position: Arc<FeedPosition>,
}

/// Opens the topic at its end and completes a first fetch. Blocks the thread.
pub(super) fn open(
    mut config: ClientConfig,
    topic: &str,
    boot: u64,
    metrics: &Metrics,
    position: Arc<FeedPosition>,
) -> Result<KafkaFeed, KafkaRefusal> {
    config.set("enable.partition.eof", "true");
    let client = Arc::new(Client::from_config_and_context(&config, Context::new(ReaderRole, metrics))?);
    let (topic, key) = (topic.to_owned(), boot.to_be_bytes());
    let mut feed =
        Feed { client: Arc::clone(&client), topic, key, next: 0, id: None, position: Arc::clone(&position) };
    let topic = feed.topic.clone();
    let missing = |error: KafkaError| {
        KafkaRefusal::unavailable(format!(
            "node topic {topic}: {error}; create it with `tidegate topics ensure --node ID`"
        ))
    };
    let end = feed.client.fetch_watermarks(&feed.topic, 0, BROKER_TIMEOUT).map_err(missing)?.1;
    feed.assign_from(end)?;
    let (sender, events) = mpsc::channel(QUEUED_EVENTS_MAX);
    let first = feed.first_fetch().map_err(missing)?;
    spawn("tidegate-node-topic", move || feed.run(&sender, first))?;
    let (measured, metrics) = (Arc::clone(&position), metrics.clone());
    spawn("tidegate-node-topic-end", move || measure_lag(&client, &topic, &measured, &metrics))?;
    Ok(KafkaFeed { events, is_processing: false, position })
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), KafkaRefusal> {
    let spawned = supervised::spawn_thread(name, work);
    spawned.map(drop).map_err(|error| KafkaRefusal::permanent(format!("failed to start a thread: {error}")))
}

/// Polls the end of the topic and updates the lag metrics.
///
/// Runs on its own thread, because the reading thread blocks while the node stalls. The library's cached end is as old
/// as its last fetch, and it fetches nothing while its queue is full.
fn measure_lag(client: &Client, topic: &str, position: &FeedPosition, metrics: &Metrics) {
    while !position.has_ended() {
        let end = client.fetch_watermarks(topic, 0, BROKER_TIMEOUT);
        if let Err(error) = &end {
            tracing::debug!(%error, topic, "failed to query the end of the node topic; lag unknown");
        }
        position.set_end(end.ok().map(|(_, end)| end));
        if let Some(lag) = position.lag() {
            metrics.node_topic_lag.set(lag.behind() as f64);
        }
        metrics.node_topic_lag_seconds.set(position.behind_ms() as f64 / 1e3);
        let until = Instant::now() + END_REFRESH_INTERVAL;
        while Instant::now() < until && !position.has_ended() {
            thread::sleep(FEED_POLL_TIMEOUT);
        }
    }
}

impl Feed {
    fn assign_from(&mut self, from: i64) -> KafkaResult<()> {
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(&self.topic, 0, Offset::Offset(from))?;
        self.client.assign(&list)?;
        self.next = from;
        self.position.reset_to_end(from);
        Ok(())
    }

    /// Reads until the broker reports the end of the topic; returns the records that arrived before it.
    fn first_fetch(&mut self) -> KafkaResult<Option<FeedItem>> {
        let until = Instant::now() + BROKER_TIMEOUT;
        let mut first = EventBuilder::from(self.next);
        while Instant::now() < until {
            match self.client.poll(FEED_POLL_TIMEOUT) {
                None => continue,
                Some(Err(KafkaError::PartitionEOF(_))) => {
                    self.id = self.client.context().topic_id(&self.topic);
                    return Ok(first.build());
                }
                Some(Err(error)) => return Err(error),
                Some(Ok(message)) => {
                    let (offset, record) = (message.offset(), self.own_record(&message));
                    drop(message);
                    self.next = offset + 1;
                    first.add(record);
                }
            }
        }
        Err(KafkaError::MessageConsumption(RDKafkaErrorCode::OperationTimedOut))
    }

    /// Returns the message's bytes and time in ms, or `None` if it is for another run of the node.
    fn own_record(&self, message: &impl rdkafka::Message) -> Option<(Bytes, Option<i64>)> {
        let is_own = message.key() == Some(&self.key[..]);
        let bytes = || Bytes::copy_from_slice(message.payload().unwrap_or_default());
        is_own.then(|| (bytes(), message.timestamp().to_millis()))
    }

    fn run(mut self, sender: &mpsc::Sender<NodeEvent>, first: Option<FeedItem>) {
        let mut items: Vec<FeedItem> = first.into_iter().collect();
        while !self.position.has_ended() {
            self.position.add_read(self.next, items.iter().map(|it| it.at));
            for FeedItem { event, .. } in items.drain(..) {
                if sender.blocking_send(event).is_err() {
                    return;
                }
            }
            self.collect(&mut items);
        }
    }

    /// Collects the available records, with a gap wherever records were lost.
    fn collect(&mut self, items: &mut Vec<FeedItem>) {
        let (mut batch, mut wait) = (EventBuilder::from(self.next), FEED_POLL_TIMEOUT);
        let is_lost = loop {
            if batch.records.len() >= EVENT_RECORDS_MAX {
                break false;
            }
            let (offset, record) = match self.client.poll(wait) {
                None => break self.was_recreated(),
                Some(Ok(message)) => (message.offset(), self.own_record(&message)),
                Some(Err(KafkaError::PartitionEOF(_))) => continue,
                Some(Err(error)) => break self.is_position_lost(&error),
            };
            wait = Duration::ZERO;
            if offset > self.next {
                let topic = &self.topic;
                tracing::warn!(offset, topic, "records of the node topic were lost; members get `Behind`");
                let complete = std::mem::replace(&mut batch, EventBuilder::from(offset));
                items.extend(complete.build().into_iter().chain([FeedItem::gap(self.next)]));
            }
            self.next = offset + 1;
            batch.add(record);
        };
        items.extend(batch.build());
        if is_lost {
            self.seek_to_end();
            items.push(FeedItem::gap(self.next));
        }
    }

    /// Logs the error and returns whether it means that the read position no longer exists.
    fn is_position_lost(&self, error: &KafkaError) -> bool {
        use RDKafkaErrorCode as Code;
        tracing::warn!(%error, topic = self.topic, "failed to read the node topic");
        let code = error.rdkafka_error_code();
        matches!(code, Some(Code::AutoOffsetReset | Code::OffsetOutOfRange | Code::LogTruncation))
    }

    /// Returns whether the topic was deleted and recreated, once for each time.
    fn was_recreated(&mut self) -> bool {
        let id = self.client.context().topic_id(&self.topic);
        std::mem::replace(&mut self.id, id) != id
    }

    fn seek_to_end(&mut self) {
        while !self.position.has_ended() {
            let end = self.client.fetch_watermarks(&self.topic, 0, BROKER_TIMEOUT);
            match end.and_then(|(_, end)| self.assign_from(end)) {
                Ok(()) => {
                    // Prevents a second gap: the new id and the error arrive in either order.
                    self.id = self.client.context().topic_id(&self.topic);
                    return;
                }
                Err(error) => {
                    let topic = &self.topic;
                    tracing::warn!(%error, topic, "failed to find the end of the node topic; retrying")
                }
            }
            thread::sleep(SEEK_RETRY_INTERVAL);
        }
    }
}

impl FeedItem {
    fn gap(from: i64) -> Self {
        Self { event: NodeEvent::Gap, at: PendingEvent { from, since_ms: None } }
    }
}

impl EventBuilder {
    fn from(from: i64) -> Self {
        Self { records: Vec::new(), at: PendingEvent { from, since_ms: None } }
    }

    fn add(&mut self, own: Option<(Bytes, Option<i64>)>) {
        if let Some((record, time)) = own {
            self.records.push(record);
            self.at.since_ms = self.at.since_ms.or(time);
        }
    }

    fn build(self) -> Option<FeedItem> {
        let Self { records, at } = self;
        (!records.is_empty()).then(|| FeedItem { event: NodeEvent::Records(records), at })
    }
}

#[async_trait]
impl NodeFeed for KafkaFeed {
    async fn next(&mut self) -> Option<NodeEvent> {
        // Asking for the next event means that the last one was processed.
        if std::mem::take(&mut self.is_processing) {
            self.position.complete_oldest();
        }
        let event = self.events.recv().await.filter(|_| !self.position.has_ended());
        self.is_processing = event.is_some();
        event
    }
}

impl Drop for KafkaFeed {
    fn drop(&mut self) {
        self.position.end();
    }
}
