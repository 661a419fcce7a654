//! `Bus` over Apache Kafka: the log of a cluster (`docs/adr/0008-kafka.md` says how each promise is kept).

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use bytes::Bytes;
use rdkafka::{config::FromClientConfigAndContext as _, consumer::Consumer as _, error::KafkaError};

use self::{
    append::{Appender, Lane, Target},
    client::Cluster,
    context::{Context, Reading},
    feed_position::Place,
    group::Member,
    read::{ANSWER, Reader, no_partition},
};
use super::{AppendError, Appended, Batch, Bounds, Bus, BusState, NodeFeed, Ownership, ReadError};
use crate::{
    config::Kafka,
    metrics::Metrics,
    routes::{NodeBoot, TopicLag},
};

mod append;
mod client;
mod context;
mod events;
mod feed;
mod feed_position;
mod group;
mod read;
mod topics;

pub use events::KafkaEvents;
pub use topics::{TopicPlan, TopicState, compare_log, ensure_topics, topic_plans};

/// Why the log on Kafka can't be used; the text names the cure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct KafkaRefusal {
    /// In words.
    pub why: String,
    /// No broker answered, or a topic is not there yet: the same may succeed later.
    pub is_away: bool,
}

impl KafkaRefusal {
    fn wrong(why: impl Into<String>) -> Self {
        Self { why: why.into(), is_away: false }
    }

    fn away(why: impl Into<String>) -> Self {
        Self { why: why.into(), is_away: true }
    }
}

impl From<KafkaError> for KafkaRefusal {
    fn from(error: KafkaError) -> Self {
        // A setting that the library refuses stays refused.
        let is_away = !matches!(error, KafkaError::ClientConfig(..) | KafkaError::ClientCreation(_));
        Self { why: format!("Kafka: {error}"), is_away }
    }
}

/// Topics that are not there are asked for again after this.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// The log of a cluster, and the topics of its nodes.
pub struct KafkaBus {
    kafka: Kafka,
    metrics: Metrics,
    reader: Arc<Reader>,
    log: Arc<Appender>,
    lanes: Vec<Arc<Lane>>,
    nodes: Arc<Appender>,
    known: Mutex<Known>,
    /// Asks for what is there; joins and reads nothing.
    asking: Arc<read::Client>,
    group: tokio::sync::Mutex<Option<Arc<Member>>>,
    /// Where this node is in its own topic.
    feed: Mutex<Arc<Place>>,
    closed: AtomicBool,
}

/// The node topics that are there.
#[derive(Default)]
struct Known {
    topics: HashMap<String, Arc<Lane>>,
    asked: Option<Instant>,
}

impl KafkaBus {
    /// Opens the log of the settings; later than `answer_within` an append is [`AppendError::Unknown`].
    ///
    /// # Errors
    /// No broker answers, the topic is missing or has another number of partitions, the library refuses a setting.
    pub async fn connect(
        kafka: &Kafka,
        answer_within: Duration,
        metrics: &Metrics,
    ) -> Result<Self, KafkaRefusal> {
        let (settings, counted) = (kafka.clone(), metrics.clone());
        let opened = tokio::task::spawn_blocking(move || Self::open(settings, answer_within, &counted));
        opened.await.map_err(|error| KafkaRefusal::wrong(format!("the log could not be opened: {error}")))?
    }

    fn open(kafka: Kafka, answer_within: Duration, metrics: &Metrics) -> Result<Self, KafkaRefusal> {
        let reader =
            Reader::open(&client::reader(&kafka, Cluster::Log)?, &kafka.topic, kafka.partitions, metrics)?;
        let bounds = (kafka.append_bytes_max, kafka.record_bytes_max);
        let appender = |cluster| -> Result<_, KafkaRefusal> {
            let config = client::producer(&kafka, cluster)?;
            Ok(Arc::new(Appender::new(config, metrics, bounds, answer_within)?))
        };
        let mut asking = client::common(&kafka, Cluster::Nodes)?;
        asking.set("statistics.interval.ms", "0").remove("debug");
        let asking = read::Client::from_config_and_context(&asking, Context::new(Reading, metrics))?;
        Ok(Self {
            reader,
            log: appender(Cluster::Log)?,
            lanes: (0..kafka.partitions).map(|_| Arc::default()).collect(),
            nodes: appender(Cluster::Nodes)?,
            known: Mutex::default(),
            asking: Arc::new(asking),
            group: tokio::sync::Mutex::default(),
            feed: Mutex::default(),
            closed: AtomicBool::new(false),
            metrics: metrics.clone(),
            kafka,
        })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn feed(&self) -> MutexGuard<'_, Arc<Place>> {
        self.feed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_open(&self) -> bool {
        !self.closed.load(Ordering::SeqCst)
    }

    fn check_open(&self) -> Result<(), AppendError> {
        match self.is_open() {
            true => Ok(()),
            false => Err(AppendError::Rejected("the bus is closed; connect to another node".to_owned())),
        }
    }

    /// The lane of a node's topic; none when there is no such topic. A producer must not be asked: it would make it.
    async fn lane_of(&self, topic: &str) -> Result<Option<Arc<Lane>>, AppendError> {
        {
            let known = self.known();
            let lane = known.topics.get(topic).cloned();
            if lane.is_some() || known.asked.is_some_and(|asked| asked.elapsed() < ASK_AGAIN) {
                return Ok(lane);
            }
        }
        let asking = Arc::clone(&self.asking);
        let prefix = self.kafka.topic_of("");
        let names = tokio::task::spawn_blocking(move || -> Result<Vec<String>, KafkaRefusal> {
            let metadata = asking.fetch_metadata(None, ANSWER)?;
            // What it has to say meanwhile.
            drop(asking.poll(Duration::from_millis(1)));
            let names = metadata.topics().iter().filter(|topic| topic.error().is_none());
            Ok(names.map(|topic| topic.name().to_owned()).filter(|name| name.starts_with(&prefix)).collect())
        });
        let names = match names.await {
            Ok(Ok(names)) => names,
            Ok(Err(error)) => return Err(AppendError::Unavailable(error.to_string())),
            Err(error) => return Err(AppendError::Unavailable(error.to_string())),
        };
        let mut known = self.known();
        known.asked = Some(Instant::now());
        known.topics.retain(|topic, _| names.contains(topic));
        for name in names {
            known.topics.entry(name).or_default();
        }
        Ok(known.topics.get(topic).cloned())
    }
}

#[async_trait]
impl Bus for KafkaBus {
    fn partitions(&self) -> u32 {
        self.kafka.partitions
    }

    fn state(&self) -> BusState {
        BusState { durable: true, refuses_all: false }
    }

    async fn append(&self, partition: u32, records: Vec<Bytes>) -> Result<Appended, AppendError> {
        self.check_open()?;
        let Some(lane) = self.lanes.get(partition as usize) else {
            return Err(AppendError::Rejected("there is no such partition".to_owned()));
        };
        if records.is_empty() {
            return Err(AppendError::Rejected("an append has at least one record".to_owned()));
        }
        let target = Target { topic: &self.kafka.topic, partition: partition as i32, key: None, lane };
        self.log.append(target, &records).await
    }

    async fn read(
        &self,
        partition: u32,
        from: u64,
        max_records: usize,
        max_bytes: usize,
    ) -> Result<Batch, ReadError> {
        self.reader.read(partition, from, max_records, max_bytes).await
    }

    async fn bounds(&self, partition: u32) -> Result<Bounds, ReadError> {
        self.reader.bounds(partition).await
    }

    /// The retention of the topic alone decides: a store that was put back to an older state needs what is behind it.
    async fn trim(&self, partition: u32, _: u64) -> Result<(), ReadError> {
        if self.reader.has(partition) { Ok(()) } else { Err(no_partition()) }
    }

    async fn join(&self, _: &NodeBoot) -> Result<Box<dyn Ownership>, ReadError> {
        let mut group = self.group.lock().await;
        if !self.is_open() {
            return Err(ReadError::Unavailable("the bus is closed".to_owned()));
        }
        if let Some(former) = group.take() {
            former.end();
            former.left().await;
        }
        let joined = client::member(&self.kafka).and_then(|config| {
            let within = Duration::from_millis(self.kafka.revoke_ms);
            group::join(&config, &self.reader, &self.kafka.topic, within, &self.metrics)
        });
        let (member, ownership) = joined.map_err(|error| ReadError::Unavailable(error.to_string()))?;
        *group = Some(member);
        Ok(ownership)
    }

    async fn publish_node(&self, to: &NodeBoot, records: Vec<Bytes>) -> Result<(), AppendError> {
        self.check_open()?;
        let topic = self.kafka.topic_of(to.node.as_str());
        // No topic: there is no such node any more.
        let Some(lane) = self.lane_of(&topic).await? else { return Ok(()) };
        if records.is_empty() {
            return Ok(());
        }
        let target = Target { topic: &topic, partition: 0, key: Some(to.boot.to_be_bytes()), lane: &lane };
        self.nodes.append(target, &records).await.map(drop)
    }

    async fn consume_node(&self, me: &NodeBoot) -> Result<Box<dyn NodeFeed>, ReadError> {
        if !self.is_open() {
            return Err(ReadError::Unavailable("the bus is closed".to_owned()));
        }
        let place = Arc::<Place>::default();
        std::mem::replace(&mut *self.feed(), Arc::clone(&place)).end();
        let unavailable = |error: KafkaRefusal| ReadError::Unavailable(error.to_string());
        let config = client::reader(&self.kafka, Cluster::Nodes).map_err(unavailable)?;
        let (topic, boot, metrics) = (self.kafka.topic_of(me.node.as_str()), me.boot, self.metrics.clone());
        let opened = tokio::task::spawn_blocking(move || feed::open(config, &topic, boot, &metrics, place));
        match opened.await {
            Ok(Ok(feed)) => Ok(Box::new(feed)),
            Ok(Err(error)) => Err(unavailable(error)),
            Err(error) => Err(ReadError::Unavailable(error.to_string())),
        }
    }

    fn node_lag(&self) -> Option<TopicLag> {
        self.feed().lag()
    }

    async fn close(&self, within: Duration) -> Result<(), AppendError> {
        self.closed.store(true, Ordering::SeqCst);
        self.feed().end();
        self.reader.close();
        let (log, nodes) = (Arc::clone(&self.log), Arc::clone(&self.nodes));
        let flushed = tokio::task::spawn_blocking(move || {
            let begun = Instant::now();
            let log = log.flush(within);
            nodes.flush(within.saturating_sub(begun.elapsed())) && log
        });
        if let Some(member) = self.group.lock().await.take() {
            member.end();
            // Else the group would miss this node for its session timeout before others get what it had.
            if tokio::time::timeout(within, member.left()).await.is_err() {
                tracing::warn!("the group of owners was not left in time");
            }
        }
        match flushed.await {
            Ok(true) => Ok(()),
            _ => Err(AppendError::Unknown("Kafka did not confirm what was appended last".to_owned())),
        }
    }
}
