//! Builds the five ports of either profile: the place where adapters are named.

use std::{
    num::NonZeroU64,
    path::Path,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context as _, bail};
use tidegate_protocol::{Time, id::NodeId};
use tokio::{runtime::Handle, sync::watch};

use crate::{
    auth,
    bus::{
        Bus, EventSink, KafkaBus, KafkaEvents, KafkaRefusal, LocalBus, LocalBusConfig, NodeFeed, ReadError,
        TopicId, TopicState, compare_log,
    },
    cluster::{LagLimit, Lags, Peers},
    config::Config,
    embedded::{BrokenDisk, Disk, EmbeddedBus, EmbeddedStore, Engine, EngineConfig, RealDisk},
    event_publisher::Announcer,
    events::Events,
    link::{GrpcLink, Link, Listener, LocalLink, Settings},
    metrics::Metrics,
    ports::Ports,
    private, redis,
    routes::{AnnouncedRoutes, Leases, MemoryRoutes, NodeBoot, RedisRoutes, Routes, RoutesError},
    scratch::{ClockNumbers, Floors, MemoryScratch, Numbers, RedisNumbers, RedisScratch},
    store::{MemoryStore, OpenError, PostgresStore, Store},
    trace::Tracer,
};

/// Events that may wait to be told.
const EVENTS_BYTES: usize = 16 * 1024 * 1024;

/// What scratch may hold on one machine.
const SCRATCH_BYTES: usize = 64 * 1024 * 1024;

/// Says why once a part can't work any more; never, when it can't break.
pub(super) type Broken = watch::Receiver<Option<String>>;

/// The ports, and what only the composition does with them.
pub(super) struct Built {
    pub(super) ports: Ports,
    pub(super) broken: Broken,
    /// The calling end of the link to the peers; none in profile `single`.
    pub(super) link: Option<Arc<GrpcLink>>,
    /// Who numbers live rooms.
    pub(super) numbers: Arc<dyn Numbers>,
    /// Who tells the events.
    pub(super) announcer: Announcer,
    /// The node's own topic, read from its end on; none in profile `single`.
    pub(super) feed: Option<Box<dyn NodeFeed>>,
}

/// Numbers of a room that are reserved at once, at least (DESIGN 6.6).
const ROOM_BLOCK: NonZeroU64 = NonZeroU64::MIN.saturating_add(99);

/// What happened to messages, for whoever asks.
fn tracer(config: &Config) -> Arc<Tracer> {
    Arc::new(Tracer::new(config.trace.per_second(), config.trace.events_max))
}

/// How long leases last, on every node of a cluster.
pub(super) fn leases() -> Leases {
    Leases::default()
}

/// The wall clock, in ms since 1970.
pub(super) fn wall_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// The ports of the profile, connected.
///
/// # Errors
/// Names what is in the way, and its setting.
pub(super) async fn build(config: &Config, start: Instant, metrics: &Metrics) -> anyhow::Result<Built> {
    let me = NodeBoot { node: NodeId::new(&config.node.id)?, boot: rand::random() };
    match config.node.profile.as_str() {
        "cluster" => Box::pin(cluster(config, me, metrics)).await,
        _ => single(config, me, start, metrics),
    }
}

/// Whether it is a service that does not answer, or a topic that is not there yet: the same may succeed later.
pub(super) fn is_away(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        matches!(cause.downcast_ref(), Some(OpenError::Away(_)))
            || matches!(cause.downcast_ref(), Some(KafkaRefusal { is_away: true, .. }))
            || matches!(cause.downcast_ref(), Some(ReadError::Unavailable(_)))
            || cause.is::<RoutesError>()
    })
}

/// Routes that note who comes and goes, and who tells it.
fn announced(
    routes: Arc<dyn Routes>,
    (me, source): (&NodeBoot, &str),
    sink: Option<Arc<dyn EventSink>>,
    metrics: &Metrics,
) -> (Arc<dyn Routes>, Announcer) {
    let events = Arc::new(Events::new(format!("/tidegate/{source}"), me.boot, EVENTS_BYTES));
    let noting = AnnouncedRoutes::new(Arc::clone(&routes), Arc::clone(&events), me.clone());
    (Arc::new(noting), Announcer { events, routes, sink, metrics: metrics.clone() })
}

/// The key that tokens are signed with: a file that all nodes share, or one of the data directory's own.
///
/// # Errors
/// Says which file is in the way, and how to make one.
pub(super) fn token_key(config: &Config) -> anyhow::Result<Vec<u8>> {
    let shared: &Path = &config.auth.key_file;
    if shared.as_os_str().is_empty() {
        if config.node.profile == "cluster" {
            bail!(
                "auth.key_file: needed in node.profile = `cluster`, or a token of one node is no good at the others; make \
                 one file for all of them with `openssl rand -hex 32`, mode 600"
            );
        }
        return auth::load_or_create_key(&config.node.data)
            .with_context(|| format!("the data directory {} can't be used", config.node.data.display()));
    }
    auth::read_key(shared).with_context(|| {
        format!(
            "auth.key_file {} can't be used; make one for all nodes with `openssl rand -hex 32`, mode 600",
            shared.display()
        )
    })
}

/// Checks the files with secrets that are read later, some of them only once services answer.
///
/// # Errors
/// Names the setting of a file that can't be read, or that every account may read.
pub(super) fn check_secrets(config: &Config) -> anyhow::Result<()> {
    let files = [
        ("link.secret_file", &config.link.secret_file),
        ("link.tls_key", &config.link.tls_key),
        ("redis.password_file", &config.redis.password_file),
        ("postgres.password_file", &config.postgres.password_file),
        ("kafka.sasl_password_file", &config.kafka.sasl_password_file),
        ("kafka.key_file", &config.kafka.key_file),
    ];
    for (key, file) in files.into_iter().filter(|(_, file)| !file.as_os_str().is_empty()) {
        private::check(file).with_context(|| format!("{key} {}", file.display()))?;
    }
    Ok(())
}

/// Profile `single`: all five ports in this process, the log and the store on its disk unless `node.store` says memory.
fn single(config: &Config, me: NodeBoot, start: Instant, metrics: &Metrics) -> anyhow::Result<Built> {
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
    let (bus, store, broken): (Arc<dyn Bus>, Arc<dyn Store>, Broken) = if config.node.store == "memory" {
        (Arc::new(LocalBus::new(log)), Arc::new(MemoryStore::default()), watch::channel(None).1)
    } else {
        let fault = &config.fault.disk_file;
        let disk: Arc<dyn Disk> = if fault.as_os_str().is_empty() {
            Arc::new(RealDisk)
        } else {
            tracing::warn!(file = %fault.display(), "fault.disk_file is set: the disk fails as that file says");
            Arc::new(BrokenDisk::new(fault.clone()))
        };
        let engine = Arc::new(Engine::open(EngineConfig {
            path: config.node.data.join("store"),
            partitions: log.partitions,
            free_bytes_min: config.limits.disk_free_min_bytes,
            disk,
        })?);
        let bus = EmbeddedBus::new(Arc::clone(&engine), log);
        let broken = engine.fatal();
        (Arc::new(bus), Arc::new(EmbeddedStore::new(engine)), broken)
    };
    let routes = Arc::new(MemoryRoutes::new(wall_ms(), leases(), now));
    let (routes, announcer) = announced(routes, (&me, &config.node.id), None, metrics);
    let ports = Ports {
        me,
        bus,
        store,
        routes,
        scratch: Arc::new(MemoryScratch::new(SCRATCH_BYTES, now)),
        link: Arc::new(LocalLink),
        owned: Arc::default(),
        peers: Arc::default(),
        trace: tracer(config),
        events: Arc::clone(&announcer.events),
    };
    let numbers = Arc::new(ClockNumbers::new(wall_ms));
    Ok(Built { ports, broken, link: None, numbers, announcer, feed: None })
}

/// Profile `cluster`: the log on Kafka, routes and scratch over one client of Redis, the store on Postgres, gRPC between
/// nodes.
async fn cluster(config: &Config, me: NodeBoot, metrics: &Metrics) -> anyhow::Result<Built> {
    let answer_within = Duration::from_millis(config.timing.reply_ms);
    let store = Arc::new(PostgresStore::open(&config.postgres).await?);
    let bus = KafkaBus::connect(&config.kafka, answer_within, metrics).await?;
    let sink = KafkaEvents::connect(&config.kafka, metrics).await?;
    let sink = sink.map(|sink| Arc::new(sink) as Arc<dyn EventSink>);
    // Before anybody can know of this run.
    let feed = bus.consume_node(&me).await.context("the node's topic on Kafka")?;
    let client = Arc::new(redis::Client::new(&config.redis)?);
    let settings = link_settings(config)?;
    let numbers = RedisNumbers::over(Arc::clone(&client), Arc::clone(&store) as Arc<dyn Floors>, ROOM_BLOCK);
    let link = Arc::new(GrpcLink::new(me.clone(), settings, rand::random(), metrics.clone()));
    let limit = LagLimit::of(Duration::from_millis(config.kafka.retention_ms), config.kafka.retention_bytes);
    let routes = Arc::new(RedisRoutes::over(Arc::clone(&client), leases()));
    let (routes, announcer) = announced(routes, (&me, &config.kafka.topic), sink, metrics);
    let ports = Ports {
        me,
        bus: Arc::new(bus),
        store,
        routes,
        scratch: Arc::new(RedisScratch::over(client)),
        link: Arc::clone(&link) as Arc<dyn Link>,
        owned: Arc::default(),
        peers: Arc::new(Peers::new(Lags::new(config.kafka.partitions, limit))),
        trace: tracer(config),
        events: Arc::clone(&announcer.events),
    };
    if config.log.answers_first().is_some() {
        ports.owned.ahead().allow();
        warn_of_few_copies(config).await;
    }
    // A partition that can't go on is given up; the node is of use as long as one can.
    let broken = watch::channel(None).1;
    let numbers = Arc::new(numbers);
    Ok(Built { ports, broken, link: Some(link), numbers, announcer, feed: Some(feed) })
}

/// Says what may be lost of what is acked before it is archived: by the settings, and by the topic as it is.
async fn warn_of_few_copies(config: &Config) {
    if let Some(why) = config.log.one_copy(config.kafka.replication) {
        tracing::warn!("log.allow_one_copy is set: acked messages may be lost. {why}");
    }
    match compare_log(&config.kafka).await {
        Ok(TopicState::Differs(how)) => {
            tracing::warn!(
                "log.answer = `decided` counts on the copies of the log's topic, and it is not as set: {how}"
            );
        }
        Ok(_) => {}
        Err(error) => {
            tracing::warn!(%error, "log.answer = `decided` counts on the copies of the log's topic, which can't be looked at");
        }
    }
}

/// Has peers reach `end`, which is what this node does for them; in profile `single` there are none.
///
/// # Errors
/// The address can't be listened on, the secret or a certificate can't be used.
pub(super) fn listen(
    runtime: &Handle,
    config: &Config,
    me: &NodeBoot,
    end: Arc<dyn Link>,
    metrics: &Metrics,
) -> anyhow::Result<Option<Listener>> {
    if config.node.profile != "cluster" {
        return Ok(None);
    }
    let _guard = runtime.enter();
    let listener =
        Listener::bind(config.link.listen, me.clone(), end, link_settings(config)?, metrics.clone())
            .with_context(|| format!("link.listen {} can't be used", config.link.listen))?;
    Ok(Some(listener))
}

/// Where peers reach the node: what is advertised, else where it listens; nowhere in profile `single`.
pub(super) fn peer_address(config: &Config, listener: Option<&Listener>) -> String {
    match listener {
        Some(listener) if config.link.advertise.is_empty() => listener.address().to_string(),
        Some(_) => config.link.advertised(),
        None => String::new(),
    }
}

fn link_settings(config: &Config) -> anyhow::Result<Settings> {
    Settings::read(&config.link).map_err(|why| anyhow::anyhow!("link: {why}"))
}
