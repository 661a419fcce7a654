//! A node's own topic: one partition, read from its end by nobody else, never through a group (flaws S26, S28).

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
    context::{Context, Reading},
    feed_position::{Place, Waiting},
    read::ANSWER,
};
use crate::metrics::Metrics;

type Client = BaseConsumer<Context<Reading>>;

const TICK: Duration = Duration::from_millis(100);

/// Between two tries to find the end of a topic that was lost.
const RETRY: Duration = Duration::from_millis(500);

/// Batches that wait for the node, and records in each; what is behind waits in the library's bounded queue, then in Kafka.
const BATCHES: usize = 16;
const BATCH: usize = 256;

/// Between two questions for the end of the topic, beside the reading: what is measured is how far that is behind.
const LOOK: Duration = Duration::from_secs(1);

struct Feed {
    client: Arc<Client>,
    topic: String,
    /// Only records with this key are for this run of the node.
    key: [u8; 8],
    /// The offset that comes next, unless something is lost.
    next: i64,
    id: Option<TopicId>,
    place: Arc<Place>,
}

/// What was found in the topic, and where.
struct Found {
    event: NodeEvent,
    at: Waiting,
}

/// Records that become one event.
struct Collected {
    records: Vec<Bytes>,
    at: Waiting,
}

pub(super) struct KafkaFeed {
    events: mpsc::Receiver<NodeEvent>,
    /// Whether somebody has the event that was given out last.
    given: bool,
    place: Arc<Place>,
}

/// Opens the topic at its end, and finishes a first fetch. Blocks.
pub(super) fn open(
    mut config: ClientConfig,
    topic: &str,
    boot: u64,
    metrics: &Metrics,
    place: Arc<Place>,
) -> Result<KafkaFeed, KafkaRefusal> {
    config.set("enable.partition.eof", "true");
    let client = Arc::new(Client::from_config_and_context(&config, Context::new(Reading, metrics))?);
    let (topic, key) = (topic.to_owned(), boot.to_be_bytes());
    let mut feed =
        Feed { client: Arc::clone(&client), topic, key, next: 0, id: None, place: Arc::clone(&place) };
    let topic = feed.topic.clone();
    let missing = |error: KafkaError| {
        KafkaRefusal::away(format!(
            "the node's topic {topic}: {error}; `tidegate topics ensure --node ID` makes it"
        ))
    };
    let end = feed.client.fetch_watermarks(&feed.topic, 0, ANSWER).map_err(missing)?.1;
    feed.begin(end)?;
    let (tell, events) = mpsc::channel(BATCHES);
    let first = feed.first_fetch().map_err(missing)?;
    spawn("tidegate-node-topic", move || feed.run(&tell, first))?;
    let (measured, metrics) = (Arc::clone(&place), metrics.clone());
    spawn("tidegate-node-topic-end", move || measure(&client, &topic, &measured, &metrics))?;
    Ok(KafkaFeed { events, given: false, place })
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), KafkaRefusal> {
    let spawned = thread::Builder::new().name(name.to_owned()).spawn(work);
    spawned.map(drop).map_err(|error| KafkaRefusal::wrong(format!("a thread could not be started: {error}")))
}

/// Asks for the end of the topic again and again. Not the thread that reads: it waits for the node, which may stand still.
/// The library's own mark is as old as its last fetch, and with its queue full it fetches nothing.
fn measure(client: &Client, topic: &str, place: &Place, metrics: &Metrics) {
    while !place.is_over() {
        let end = client.fetch_watermarks(topic, 0, ANSWER);
        if let Err(error) = &end {
            tracing::debug!(%error, topic, "the end of the node's topic is not known");
        }
        place.heard(end.ok().map(|(_, end)| end));
        if let Some(lag) = place.lag() {
            metrics.node_topic_lag.set(lag.behind() as f64);
        }
        metrics.node_topic_lag_seconds.set(place.behind_ms() as f64 / 1e3);
        let until = Instant::now() + LOOK;
        while Instant::now() < until && !place.is_over() {
            thread::sleep(TICK);
        }
    }
}

impl Feed {
    fn begin(&mut self, from: i64) -> KafkaResult<()> {
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(&self.topic, 0, Offset::Offset(from))?;
        self.client.assign(&list)?;
        self.next = from;
        self.place.at_end(from);
        Ok(())
    }

    /// Until the broker says that there is nothing more, or something came already.
    fn first_fetch(&mut self) -> KafkaResult<Option<Found>> {
        let until = Instant::now() + ANSWER;
        let mut first = Collected::from(self.next);
        while Instant::now() < until {
            match self.client.poll(TICK) {
                None => continue,
                Some(Err(KafkaError::PartitionEOF(_))) => {
                    self.id = self.client.context().topic_id(&self.topic);
                    return Ok(first.found());
                }
                Some(Err(error)) => return Err(error),
                Some(Ok(message)) => {
                    let (offset, record) = (message.offset(), self.mine(&message));
                    drop(message);
                    self.next = offset + 1;
                    first.add(record);
                }
            }
        }
        Err(KafkaError::MessageConsumption(RDKafkaErrorCode::OperationTimedOut))
    }

    /// A record for this run of the node, and its time.
    fn mine(&self, message: &impl rdkafka::Message) -> Option<(Bytes, Option<i64>)> {
        let mine = message.key() == Some(&self.key[..]);
        let bytes = || Bytes::copy_from_slice(message.payload().unwrap_or_default());
        mine.then(|| (bytes(), message.timestamp().to_millis()))
    }

    fn run(mut self, tell: &mpsc::Sender<NodeEvent>, first: Option<Found>) {
        let mut found: Vec<Found> = first.into_iter().collect();
        while !self.place.is_over() {
            self.place.read(self.next, found.iter().map(|it| it.at));
            for Found { event, .. } in found.drain(..) {
                // Nobody listens any more.
                if tell.blocking_send(event).is_err() {
                    return;
                }
            }
            self.collect(&mut found);
        }
    }

    /// What is there, with a gap in the place of what is not.
    fn collect(&mut self, found: &mut Vec<Found>) {
        let (mut batch, mut wait) = (Collected::from(self.next), TICK);
        let lost = loop {
            if batch.records.len() >= BATCH {
                break false;
            }
            let (offset, mine) = match self.client.poll(wait) {
                None => break self.replaced(),
                Some(Ok(message)) => (message.offset(), self.mine(&message)),
                Some(Err(KafkaError::PartitionEOF(_))) => continue,
                Some(Err(error)) => break self.is_astray(&error),
            };
            wait = Duration::ZERO;
            if offset > self.next {
                tracing::warn!(offset, topic = self.topic, "records of the node's topic are gone");
                let whole = std::mem::replace(&mut batch, Collected::from(offset));
                found.extend(whole.found().into_iter().chain([Found::gap(self.next)]));
            }
            self.next = offset + 1;
            batch.add(mine);
        };
        found.extend(batch.found());
        if lost {
            self.find_the_end();
            found.push(Found::gap(self.next));
        }
    }

    fn is_astray(&self, error: &KafkaError) -> bool {
        use RDKafkaErrorCode as Code;
        tracing::warn!(%error, topic = self.topic, "the node's topic");
        let code = error.rdkafka_error_code();
        matches!(code, Some(Code::AutoOffsetReset | Code::OffsetOutOfRange | Code::LogTruncation))
    }

    /// Whether the topic was deleted and made again.
    fn replaced(&mut self) -> bool {
        let id = self.client.context().topic_id(&self.topic);
        std::mem::replace(&mut self.id, id) != id
    }

    fn find_the_end(&mut self) {
        while !self.place.is_over() {
            let end = self.client.fetch_watermarks(&self.topic, 0, ANSWER);
            match end.and_then(|(_, end)| self.begin(end)) {
                Ok(()) => {
                    // The gap is told once, whichever was heard first: the error or the new id.
                    self.id = self.client.context().topic_id(&self.topic);
                    return;
                }
                Err(error) => {
                    tracing::warn!(%error, topic = self.topic, "the end of the node's topic is not known")
                }
            }
            thread::sleep(RETRY);
        }
    }
}

impl Found {
    fn gap(from: i64) -> Self {
        Self { event: NodeEvent::Gap, at: Waiting { from, since_ms: None } }
    }
}

impl Collected {
    fn from(from: i64) -> Self {
        Self { records: Vec::new(), at: Waiting { from, since_ms: None } }
    }

    fn add(&mut self, mine: Option<(Bytes, Option<i64>)>) {
        if let Some((record, time)) = mine {
            self.records.push(record);
            self.at.since_ms = self.at.since_ms.or(time);
        }
    }

    fn found(self) -> Option<Found> {
        let Self { records, at } = self;
        (!records.is_empty()).then(|| Found { event: NodeEvent::Records(records), at })
    }
}

#[async_trait]
impl NodeFeed for KafkaFeed {
    async fn next(&mut self) -> Option<NodeEvent> {
        // Who asks for the next one is done with the last.
        if std::mem::take(&mut self.given) {
            self.place.done();
        }
        let event = self.events.recv().await.filter(|_| !self.place.is_over());
        self.given = event.is_some();
        event
    }
}

impl Drop for KafkaFeed {
    fn drop(&mut self) {
        self.place.end();
    }
}
