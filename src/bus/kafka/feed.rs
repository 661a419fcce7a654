//! A node's own topic: one partition, read from its end by nobody else, never through a group (flaws S26, S28).

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
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

struct Feed {
    client: Client,
    topic: String,
    /// Only records with this key are for this run of the node.
    key: [u8; 8],
    /// The offset that comes next, unless something is lost.
    next: i64,
    id: Option<TopicId>,
    over: Arc<AtomicBool>,
}

pub(super) struct KafkaFeed {
    events: mpsc::Receiver<NodeEvent>,
    over: Arc<AtomicBool>,
}

/// Opens the topic at its end, and finishes a first fetch. Blocks.
pub(super) fn open(
    mut config: ClientConfig,
    topic: &str,
    boot: u64,
    metrics: &Metrics,
    over: Arc<AtomicBool>,
) -> Result<KafkaFeed, KafkaRefusal> {
    config.set("enable.partition.eof", "true");
    let client = Client::from_config_and_context(&config, Context::new(Reading, metrics))?;
    let topic = topic.to_owned();
    let mut feed =
        Feed { client, topic, key: boot.to_be_bytes(), next: 0, id: None, over: Arc::clone(&over) };
    let topic = feed.topic.clone();
    let missing = |error: KafkaError| {
        KafkaRefusal(format!(
            "the node's topic {topic}: {error}; `tidegate topics ensure --node ID` makes it"
        ))
    };
    let end = feed.client.fetch_watermarks(&feed.topic, 0, ANSWER).map_err(missing)?.1;
    feed.begin(end)?;
    let (tell, events) = mpsc::channel(BATCHES);
    let first = feed.first_fetch().map_err(missing)?;
    thread::Builder::new()
        .name("tidegate-node-topic".to_owned())
        .spawn(move || feed.run(&tell, first))
        .map_err(|error| KafkaRefusal(format!("a thread could not be started: {error}")))?;
    Ok(KafkaFeed { events, over })
}

impl Feed {
    fn begin(&mut self, from: i64) -> KafkaResult<()> {
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(&self.topic, 0, Offset::Offset(from))?;
        self.client.assign(&list)?;
        self.next = from;
        Ok(())
    }

    /// Until the broker says that there is nothing more, or something came already.
    fn first_fetch(&mut self) -> KafkaResult<Vec<Bytes>> {
        let until = Instant::now() + ANSWER;
        let mut records = Vec::new();
        while Instant::now() < until {
            match self.client.poll(TICK) {
                None => continue,
                Some(Err(KafkaError::PartitionEOF(_))) => {
                    self.id = self.client.context().topic_id(&self.topic);
                    return Ok(records);
                }
                Some(Err(error)) => return Err(error),
                Some(Ok(message)) => {
                    let (offset, record) = (message.offset(), self.mine(&message));
                    drop(message);
                    self.next = offset + 1;
                    records.extend(record);
                }
            }
        }
        Err(KafkaError::MessageConsumption(RDKafkaErrorCode::OperationTimedOut))
    }

    fn mine(&self, message: &impl rdkafka::Message) -> Option<Bytes> {
        let mine = message.key() == Some(&self.key[..]);
        mine.then(|| Bytes::copy_from_slice(message.payload().unwrap_or_default()))
    }

    fn run(mut self, tell: &mpsc::Sender<NodeEvent>, first: Vec<Bytes>) {
        let mut events = Vec::new();
        put(&mut events, first);
        while !self.over.load(Ordering::SeqCst) {
            for event in events.drain(..) {
                // Nobody listens any more.
                if tell.blocking_send(event).is_err() {
                    return;
                }
            }
            self.collect(&mut events);
        }
    }

    /// What is there, with a gap in the place of what is not.
    fn collect(&mut self, events: &mut Vec<NodeEvent>) {
        let (mut records, mut wait) = (Vec::new(), TICK);
        let lost = loop {
            if records.len() >= BATCH {
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
                put(events, std::mem::take(&mut records));
                events.push(NodeEvent::Gap);
            }
            self.next = offset + 1;
            records.extend(mine);
        };
        put(events, records);
        if lost {
            self.find_the_end();
            events.push(NodeEvent::Gap);
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
        while !self.over.load(Ordering::SeqCst) {
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

fn put(events: &mut Vec<NodeEvent>, records: Vec<Bytes>) {
    if !records.is_empty() {
        events.push(NodeEvent::Records(records));
    }
}

#[async_trait]
impl NodeFeed for KafkaFeed {
    async fn next(&mut self) -> Option<NodeEvent> {
        let event = self.events.recv().await;
        event.filter(|_| !self.over.load(Ordering::SeqCst))
    }
}

impl Drop for KafkaFeed {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
    }
}
