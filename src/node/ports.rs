//! Builder of the five ports for either profile, from the adapters that this module names.

use std::{
    num::NonZeroU64,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow, bail};
use tidegate_protocol::{Time, id::NodeId};
use tokio::sync::watch;

use crate::{
    auth,
    broker::{Broker, Peering},
    bus::{
        Bus, EventSink, KafkaBus, KafkaEvents, KafkaRefusal, LocalBus, LocalBusConfig, ReadError, TopicId,
        TopicState, compare_log,
    },
    clock::wall_ms,
    cluster::{Cluster, LagLimit, Lags, Peers},
    config::Config,
    embedded::{BrokenDisk, Disk, EmbeddedBus, EmbeddedStore, Engine, EngineConfig, RealDisk},
    event_publisher::EventPublisher,
    events::{AnnouncedRoutes, Events},
    figures::Figures,
    link::{GrpcLink, Link, Listener, LocalLink, Settings},
    metrics::Metrics,
    ports::Ports,
    private, redis,
    routes::{Leases, MemoryRoutes, NodeBoot, RedisRoutes, Routes, RoutesError},
    scratch::{ClockNumbers, Floors, MemoryScratch, Numbers, RedisNumbers, RedisScratch},
    store::{MemoryStore, PostgresOpenError, PostgresStore, Store},
    storms::StormBoard,
    supervised,
    trace::Tracer,
    webhooks::FeedTopic,
};

/// Most bytes of events that wait to be published.
const EVENT_QUEUE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Most bytes in the scratch store of profile `single`.
const SCRATCH_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Receives the reason once a part has failed permanently; stays `None` for a part that can't fail.
pub(super) type FailureWatch = watch::Receiver<Option<String>>;

/// Ports of a node and the state around them, with the handles that only the composition root uses.
pub(super) struct BuiltPorts {
    pub(super) cluster: Cluster,
    /// Failure of the embedded store.
    pub(super) failure: FailureWatch,
    /// Calling side of the link to peers; `None` in profile `single`.
    pub(super) link: Option<Arc<GrpcLink>>,
    /// Numbering of live rooms.
    pub(super) numbers: Arc<dyn Numbers>,
    /// Publishers of events.
    pub(super) publishers: Publishers,
    /// Exchange with other nodes, by profile.
    pub(super) peering: Peering,
}

/// Publishers of events.
pub(super) struct Publishers {
    node_events: EventPublisher,
    /// Publishers of the feed to topics.
    topics: Vec<FeedTopic>,
}

impl Publishers {
    /// Starts the publishers. Must run in the services runtime.
    pub(super) fn start(self) {
        supervised::spawn("the publisher of events", self.node_events.run());
        for topic in self.topics {
            supervised::spawn("a topic of the feed", topic.run());
        }
    }
}

/// Fewest numbers of a live room that are reserved in one block (ADR 9).
const ROOM_BLOCK_NUMBERS: NonZeroU64 = NonZeroU64::MIN.saturating_add(99);

/// Builds the recorder of message steps.
fn tracer(config: &Config) -> Arc<Tracer> {
    Arc::new(Tracer::new(config.trace.per_second(), config.trace.events_max))
}

/// Builds the board of the storms of groups.
fn storms(config: &Config) -> StormBoard {
    let board = StormBoard::new(config.storm.rule(), config.storm.memory_bytes);
    board.set_rule(config.storm.rule(), config.storm.action());
    board.set_room_threshold(config.storm.room_threshold);
    board
}

/// Returns the lease times, which are the same on every node of a cluster.
pub(super) fn leases() -> Leases {
    Leases::default()
}

/// Builds and connects the ports of the configured profile.
///
/// # Errors
/// A service is unavailable or a setting is invalid; the error names the setting.
pub(super) async fn build(config: &Config, start: Instant, metrics: &Metrics) -> anyhow::Result<BuiltPorts> {
    let me = NodeBoot { node: NodeId::new(&config.node.id)?, boot: rand::random() };
    match config.node.profile.as_str() {
        "cluster" => Box::pin(clustered(config, me, metrics)).await,
        _ => single(config, me, start, metrics),
    }
}

/// Returns whether the error is temporary: a service does not answer, or a topic does not exist yet.
pub(super) fn is_unavailable(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        matches!(cause.downcast_ref(), Some(PostgresOpenError::Unavailable(_)))
            || matches!(cause.downcast_ref(), Some(KafkaRefusal { is_unavailable: true, .. }))
            || matches!(cause.downcast_ref(), Some(ReadError::Unavailable(_)))
            || cause.is::<RoutesError>()
    })
}

/// Wraps the routes so that they record online and offline events and count moves, and builds the publisher of the events.
fn with_events(
    routes: Arc<dyn Routes>,
    me: &NodeBoot,
    source: &str,
    sink: Option<Arc<dyn EventSink>>,
    figures: &Arc<Figures>,
    metrics: &Metrics,
) -> (Arc<dyn Routes>, EventPublisher) {
    let events = Arc::new(Events::new(format!("/tidegate/{source}"), me.boot, EVENT_QUEUE_BYTES_MAX));
    let recording = AnnouncedRoutes::new(Arc::clone(&routes), Arc::clone(&events), me.clone())
        .counting(Arc::clone(figures));
    (Arc::new(recording), EventPublisher { events, routes, sink, metrics: metrics.clone() })
}

/// Reads the key that tokens are signed with: the shared file, or else that of the data directory, created at first
/// use. Returns an empty one if only other keys verify tokens.
///
/// # Errors
/// The key file is missing, unreadable or invalid; the text says how to create one.
pub(super) fn token_key(config: &Config) -> anyhow::Result<Vec<u8>> {
    let shared: &Path = &config.auth.key_file;
    if shared.as_os_str().is_empty() {
        if config.auth.has_other_keys() && !config.is_development() {
            return Ok(Vec::new());
        }
        if config.node.profile == "cluster" {
            bail!(
                "auth.key_file: needed with node.profile = `cluster`, or other nodes refuse a node's tokens; create one file for \
                 all nodes with `openssl rand -hex 32`, mode 600, or name keys in auth.key_files or auth.jwks_url"
            );
        }
        return auth::load_or_create_key(&config.node.data).with_context(|| {
            format!("the data directory {} (node.data) can't be used", config.node.data.display())
        });
    }
    auth::read_key(shared).map_err(|error| {
        let cure = "create one for all nodes with `openssl rand -hex 32`, mode 600";
        anyhow!(private::unusable("auth.key_file", shared, format!("{error}; {cure}")))
    })
}

/// Builds the ports of profile `single`: all in this process, log and store on its disk unless `node.store` is
/// `memory`.
fn single(config: &Config, me: NodeBoot, start: Instant, metrics: &Metrics) -> anyhow::Result<BuiltPorts> {
    let now = move || Time::from_millis(start.elapsed().as_millis() as u64);
    let topic = TopicId(rand::random());
    let log = LocalBusConfig {
        partitions: 1,
        topic,
        max_records: 1 << 20,
        max_bytes: 256 << 20,
        node_max_records: 4_096,
        node_max_bytes: 16 << 20,
    };
    let (bus, store, failure): (Arc<dyn Bus>, Arc<dyn Store>, FailureWatch) = if config.node.store == "memory"
    {
        let store = MemoryStore::default();
        let store = if config.events.feed { store } else { store.without_feed() };
        (Arc::new(LocalBus::new(log)), Arc::new(store), watch::channel(None).1)
    } else {
        let fault = &config.fault.disk_file;
        let disk: Arc<dyn Disk> = if fault.as_os_str().is_empty() {
            Arc::new(RealDisk)
        } else {
            tracing::warn!(file = %fault.display(), "fault.disk_file is set; disk failures are simulated");
            Arc::new(BrokenDisk::new(fault.clone()))
        };
        let engine = Arc::new(Engine::open(EngineConfig {
            path: config.node.data.join("store"),
            partitions: log.partitions,
            free_bytes_min: config.limits.disk_free_min_bytes,
            disk,
        })?);
        let bus = EmbeddedBus::new(Arc::clone(&engine), log);
        let failure = engine.fatal();
        let store = EmbeddedStore::new(engine);
        let store = if config.events.feed { store } else { store.without_feed() };
        (Arc::new(bus), Arc::new(store), failure)
    };
    let routes = Arc::new(MemoryRoutes::new(wall_ms(), leases(), now));
    let figures = Arc::default();
    let (routes, event_publisher) = with_events(routes, &me, &config.node.id, None, &figures, metrics);
    let ports = Ports {
        bus,
        store,
        routes,
        scratch: Arc::new(MemoryScratch::new(SCRATCH_BYTES_MAX, wall_ms)),
        link: Arc::new(LocalLink),
    };
    let (trace, storms) = (tracer(config), Arc::new(storms(config)));
    let events = Arc::clone(&event_publisher.events);
    let cluster = Cluster { trace, events, figures, storms, ..Cluster::new(me, ports) };
    let numbers = Arc::new(ClockNumbers::new(wall_ms));
    let publishers = Publishers { node_events: event_publisher, topics: Vec::new() };
    Ok(BuiltPorts { cluster, failure, link: None, numbers, publishers, peering: Peering::Single })
}

/// Builds the ports of profile `cluster`: the log on Kafka, routes and scratch on one Redis client, the store on
/// Postgres, and gRPC between nodes.
async fn clustered(config: &Config, me: NodeBoot, metrics: &Metrics) -> anyhow::Result<BuiltPorts> {
    let answer_within = Duration::from_millis(config.timing.reply_ms);
    let store = PostgresStore::open(&config.postgres).await?;
    let store = Arc::new(if config.events.feed { store } else { store.without_feed() });
    let bus = KafkaBus::connect(&config.kafka, answer_within, metrics).await?;
    let sink = KafkaEvents::connect(&config.kafka, metrics).await?;
    let messages = KafkaEvents::connect_messages(&config.kafka, metrics).await?;
    let sink = sink.map(|sink| Arc::new(sink) as Arc<dyn EventSink>);
    // Opened before peers can discover this run, so that no record is missed.
    let feed = bus.consume_node(&me).await.context("the node's topic on Kafka")?;
    let client = Arc::new(redis::RedisClient::new(&config.redis)?);
    let settings = link_settings(config)?;
    let numbers =
        RedisNumbers::over(Arc::clone(&client), Arc::clone(&store) as Arc<dyn Floors>, ROOM_BLOCK_NUMBERS);
    let link = Arc::new(GrpcLink::new(me.clone(), settings, rand::random(), metrics.clone()));
    let limit = LagLimit::of(Duration::from_millis(config.kafka.retention_ms), config.kafka.retention_bytes);
    let routes = Arc::new(RedisRoutes::over(Arc::clone(&client), leases()));
    let figures = Arc::default();
    let (routes, event_publisher) = with_events(routes, &me, &config.kafka.topic, sink, &figures, metrics);
    let ports = Ports {
        bus: Arc::new(bus),
        store,
        routes,
        scratch: Arc::new(
            RedisScratch::over(client)
                .with_mirror(&config.redis, &config.storm.mirror_prefix)?
                .with_permits(&config.redis)?,
        ),
        link: Arc::clone(&link) as Arc<dyn Link>,
    };
    let peers = Arc::new(Peers::new(Lags::new(config.kafka.partitions, limit)));
    let trace = tracer(config);
    let storms =
        if config.storm.mirror { storms(config).with_mirror(metrics.clone()) } else { storms(config) };
    let storms = Arc::new(storms);
    let events = Arc::clone(&event_publisher.events);
    let cluster = Cluster { peers, trace, events, figures, storms, ..Cluster::new(me, ports) };
    if config.log.answers_first().is_some() {
        cluster.owned.unarchived().allow();
        warn_about_replication(config).await;
    }
    let topics = feed_topics(messages, event_publisher.sink.as_ref(), config, &cluster, metrics)?;
    let publishers = Publishers { node_events: event_publisher, topics };
    // A failed partition is released, and the node is useful while others work, so no failure of a port ends it.
    let failure = watch::channel(None).1;
    let numbers = Arc::new(numbers);
    Ok(BuiltPorts {
        cluster,
        failure,
        link: Some(link),
        numbers,
        publishers,
        peering: Peering::Clustered(feed),
    })
}

/// Builds the publishers of the feed to the topic of messages and to that of events.
fn feed_topics(
    messages: Option<KafkaEvents>,
    events: Option<&Arc<dyn EventSink>>,
    config: &Config,
    cluster: &Cluster,
    metrics: &Metrics,
) -> anyhow::Result<Vec<FeedTopic>> {
    let (source, partitions) = (cluster.events.source(), config.kafka.partitions);
    let ports = || (Arc::clone(&cluster.ports.store), Arc::clone(&cluster.owned));
    let mut topics = Vec::new();
    if let Some(sink) = messages {
        let (store, owned) = ports();
        topics.push(FeedTopic::messages(Arc::new(sink), source, partitions, store, owned, metrics)?);
    }
    if let Some(sink) = events.filter(|_| config.kafka.event_changes) {
        let (store, owned) = ports();
        topics.push(FeedTopic::changes(Arc::clone(sink), source, store, owned, metrics)?);
    }
    Ok(topics)
}

/// Warns if messages acked before the archive may be lost, because of the settings or of the existing topic.
async fn warn_about_replication(config: &Config) {
    if let Some(why) = config.log.low_replication(config.kafka.replication) {
        tracing::warn!(why, "log.allow_one_copy is set; acked messages may be lost");
    }
    match compare_log(&config.kafka).await {
        Ok(TopicState::Differs(how)) => {
            tracing::warn!(%how, "log topic differs from the settings; with log.answer = `decided`, acked messages may be lost");
        }
        Ok(_) => {}
        Err(error) => {
            tracing::warn!(%error, "log topic not checked; with log.answer = `decided`, acked messages depend on its replication");
        }
    }
}

/// Listens for peers and passes their calls to the broker; returns `None` in profile `single`, which has no peers. Must
/// run in a runtime.
///
/// # Errors
/// The address can't be listened on.
pub(super) fn listen(
    config: &Config,
    broker: &Broker,
    link: Option<&GrpcLink>,
    metrics: &Metrics,
) -> anyhow::Result<Option<Listener>> {
    let Some(link) = link else { return Ok(None) };
    let (me, end) = (broker.cluster.me.clone(), Arc::new(broker.peer()));
    let listener = Listener::bind(config.link.listen, me, end, link.settings().clone(), metrics.clone())
        .with_context(|| format!("link.listen {} can't be used", config.link.listen))?;
    Ok(Some(listener))
}

/// Returns the address at which peers reach the node: the advertised one, else the listen address; empty in profile
/// `single`.
pub(super) fn peer_address(config: &Config, listener: Option<&Listener>) -> String {
    match listener {
        Some(listener) if config.link.advertise.is_empty() => listener.address().to_string(),
        Some(_) => config.link.advertised(),
        None => String::new(),
    }
}

fn link_settings(config: &Config) -> anyhow::Result<Settings> {
    Settings::read(&config.link).map_err(|why| anyhow::anyhow!(why))
}
