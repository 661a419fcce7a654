//! `Bus` adapter for Apache Kafka, the log of a cluster. `docs/internals/adr/0008-kafka.md` explains how each promise is kept.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use rdkafka::{config::FromClientConfigAndContext as _, consumer::Consumer as _, error::KafkaError};

use self::{
    append::{AppendState, Appender, Target},
    client::{BROKER_TIMEOUT, Cluster},
    context::{Context, ReaderRole},
    feed_position::FeedPosition,
    group::Member,
    read::{Reader, no_partition},
};
use super::{AppendError, Appended, Batch, Bounds, Bus, BusState, NodeFeed, Ownership, ReadError};
use crate::{
    config::KafkaConfig,
    metrics::Metrics,
    routes::{NodeBoot, TopicLag},
    supervised,
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

/// Reason why the log on Kafka can't be used; the text names the cure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct KafkaRefusal {
    /// Reason and cure, as shown to operators.
    pub why: String,
    /// Whether a retry may succeed: no broker answered, or a topic does not exist yet.
    pub is_unavailable: bool,
}

impl KafkaRefusal {
    fn permanent(why: impl Into<String>) -> Self {
        Self { why: why.into(), is_unavailable: false }
    }

    fn unavailable(why: impl Into<String>) -> Self {
        Self { why: why.into(), is_unavailable: true }
    }
}

impl From<KafkaError> for KafkaRefusal {
    fn from(error: KafkaError) -> Self {
        // Retrying does not help when the library rejects a setting.
        let is_unavailable = !matches!(error, KafkaError::ClientConfig(..) | KafkaError::ClientCreation(_));
        Self { why: format!("Kafka: {error}"), is_unavailable }
    }
}

/// Least time between two queries for the existing node topics.
const NODE_TOPICS_REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// Log of a cluster and topics of its nodes, on Kafka.
pub struct KafkaBus {
    kafka: KafkaConfig,
    metrics: Metrics,
    reader: Arc<Reader>,
    log: Arc<Appender>,
    log_append_states: Vec<Arc<AppendState>>,
    nodes: Arc<Appender>,
    node_topics: Mutex<NodeTopics>,
    /// Client for metadata queries; joins no group and reads nothing.
    metadata_client: Arc<read::Client>,
    group: tokio::sync::Mutex<Option<Arc<Member>>>,
    /// Position of this node in its own topic.
    feed: Mutex<Arc<FeedPosition>>,
    closed: AtomicBool,
}

/// Node topics that exist, as of the last metadata query.
#[derive(Default)]
struct NodeTopics {
    topics: HashMap<String, Arc<AppendState>>,
    refreshed: Option<Instant>,
}

impl KafkaBus {
    /// Opens the configured log. An append not confirmed within `answer_within` is [`AppendError::Unknown`].
    ///
    /// # Errors
    /// No broker answers, the topic is missing or has another number of partitions, or the library rejects a setting.
    pub async fn connect(
        kafka: &KafkaConfig,
        answer_within: Duration,
        metrics: &Metrics,
    ) -> Result<Self, KafkaRefusal> {
        let (settings, counted) = (kafka.clone(), metrics.clone());
        let opened = supervised::spawn_blocking("the opening of the log", move || {
            Self::open(settings, answer_within, &counted)
        });
        opened.await.map_err(|error| KafkaRefusal::permanent(format!("failed to open the log: {error}")))?
    }

    fn open(kafka: KafkaConfig, answer_within: Duration, metrics: &Metrics) -> Result<Self, KafkaRefusal> {
        let reader =
            Reader::open(&client::reader(&kafka, Cluster::Log)?, &kafka.topic, kafka.partitions, metrics)?;
        let (bytes_max, record_bytes_max) = (kafka.append_bytes_max, kafka.record_bytes_max);
        let appender = |cluster| -> Result<_, KafkaRefusal> {
            let config = client::producer(&kafka, cluster)?;
            Ok(Arc::new(Appender::new(config, metrics, bytes_max, record_bytes_max, answer_within)?))
        };
        let mut config = client::common(&kafka, Cluster::Nodes)?;
        config.set("statistics.interval.ms", "0").remove("debug");
        let context = Context::new(ReaderRole, metrics);
        let metadata_client = read::Client::from_config_and_context(&config, context)?;
        Ok(Self {
            reader,
            log: appender(Cluster::Log)?,
            log_append_states: (0..kafka.partitions).map(|_| Arc::default()).collect(),
            nodes: appender(Cluster::Nodes)?,
            node_topics: Mutex::default(),
            metadata_client: Arc::new(metadata_client),
            group: tokio::sync::Mutex::default(),
            feed: Mutex::default(),
            closed: AtomicBool::new(false),
            metrics: metrics.clone(),
            kafka,
        })
    }

    fn node_topics(&self) -> MutexGuard<'_, NodeTopics> {
        self.node_topics.lock()
    }

    fn feed(&self) -> MutexGuard<'_, Arc<FeedPosition>> {
        self.feed.lock()
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

    /// Returns the append state of a node's topic, or `None` if there is no such topic. Must not ask a producer, which
    /// would create the topic.
    async fn append_state_of(&self, topic: &str) -> Result<Option<Arc<AppendState>>, AppendError> {
        {
            let node_topics = self.node_topics();
            let append_state = node_topics.topics.get(topic).cloned();
            let is_fresh = |refreshed: Instant| refreshed.elapsed() < NODE_TOPICS_REFRESH_INTERVAL;
            if append_state.is_some() || node_topics.refreshed.is_some_and(is_fresh) {
                return Ok(append_state);
            }
        }
        let client = Arc::clone(&self.metadata_client);
        let prefix = self.kafka.topic_of("");
        let names = supervised::spawn_blocking(
            "the query of topics",
            move || -> Result<Vec<String>, KafkaRefusal> {
                let metadata = client.fetch_metadata(None, BROKER_TIMEOUT)?;
                // Serves the client's callbacks; nothing else polls it.
                drop(client.poll(Duration::from_millis(1)));
                let names = metadata.topics().iter().filter(|topic| topic.error().is_none());
                Ok(names
                    .map(|topic| topic.name().to_owned())
                    .filter(|name| name.starts_with(&prefix))
                    .collect())
            },
        );
        let names = match names.await {
            Ok(Ok(names)) => names,
            Ok(Err(error)) => return Err(AppendError::Unavailable(error.to_string())),
            Err(error) => return Err(AppendError::Unavailable(error.to_string())),
        };
        let mut node_topics = self.node_topics();
        node_topics.refreshed = Some(Instant::now());
        node_topics.topics.retain(|topic, _| names.contains(topic));
        for name in names {
            node_topics.topics.entry(name).or_default();
        }
        Ok(node_topics.topics.get(topic).cloned())
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
        let Some(append_state) = self.log_append_states.get(partition as usize) else {
            return Err(AppendError::Rejected("no such partition".to_owned()));
        };
        if records.is_empty() {
            return Err(AppendError::Rejected("empty batch; append at least one record".to_owned()));
        }
        let topic = &self.kafka.topic;
        let target = Target { topic, partition: partition as i32, key: None, append_state };
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

    /// Does nothing: the topic's retention alone decides, since a store restored to an older state needs older records.
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
            former.wait_left().await;
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
        // No topic means that the node no longer exists.
        let Some(append_state) = self.append_state_of(&topic).await? else { return Ok(()) };
        if records.is_empty() {
            return Ok(());
        }
        let key = Some(to.boot.to_be_bytes());
        let target = Target { topic: &topic, partition: 0, key, append_state: &append_state };
        self.nodes.append(target, &records).await.map(drop)
    }

    async fn consume_node(&self, me: &NodeBoot) -> Result<Box<dyn NodeFeed>, ReadError> {
        if !self.is_open() {
            return Err(ReadError::Unavailable("the bus is closed".to_owned()));
        }
        let position = Arc::<FeedPosition>::default();
        std::mem::replace(&mut *self.feed(), Arc::clone(&position)).end();
        let unavailable = |error: KafkaRefusal| ReadError::Unavailable(error.to_string());
        let config = client::reader(&self.kafka, Cluster::Nodes).map_err(unavailable)?;
        let (topic, boot, metrics) = (self.kafka.topic_of(me.node.as_str()), me.boot, self.metrics.clone());
        let opened = supervised::spawn_blocking("the opening of the node topic", move || {
            feed::open(config, &topic, boot, &metrics, position)
        });
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
        let flushed = supervised::spawn_blocking("the flush of the log", move || {
            let begun = Instant::now();
            let log = log.flush(within);
            nodes.flush(within.saturating_sub(begun.elapsed())) && log
        });
        if let Some(member) = self.group.lock().await.take() {
            member.end();
            // Otherwise the group reassigns this node's partitions only after its session timeout.
            if tokio::time::timeout(within, member.wait_left()).await.is_err() {
                tracing::warn!("leaving the owners group timed out; partitions move after kafka.session_ms");
            }
        }
        match flushed.await {
            Ok(true) => Ok(()),
            _ => Err(AppendError::Unknown("Kafka did not confirm the last appends".to_owned())),
        }
    }
}
