//! The composition root: builds the ports, starts shards, owner, door and admin port, and stops them in order.
//!
//! The only file that names adapters.

use std::{
    fs, io,
    net::SocketAddr,
    path::Path,
    sync::{Arc, OnceLock},
    thread::{self, JoinHandle},
    time::{Duration, Instant, SystemTime},
};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use tidegate_protocol::{
    Code, Time,
    id::NodeId,
    machine::{chain::ChainLimits, drain::Outcome, session, window::WindowLimits},
};
use tokio::sync::watch;

use crate::{
    accept::{Acceptor, Stopper},
    api::{self, Api},
    auth::{self, Verifier},
    budget::{self, Admission, Pressure},
    bus::{Bus, EmbeddedBus, LocalBus, LocalBusConfig, TopicId},
    chat::{
        admin::{Admin, Pending},
        deliver::Outbound,
        owner,
        recall::Recaller,
        retention::{self, Keep},
        send::{self, Intake},
    },
    config::Config,
    directory::Directory,
    drain::Drainer,
    embedded::{BrokenDisk, Disk, Engine, EngineConfig, RealDisk},
    link::LocalLink,
    mail::{Mail, ShardHandle, ShardHandles},
    metrics::{self, Metrics},
    net::{sockopt, upgrade},
    ports::Ports,
    room::Rooms,
    routes::{Leases, MemoryRoutes, NodeBoot},
    scratch::MemoryScratch,
    shard::{self, Caps, Shard},
    store::{EmbeddedStore, MemoryStore, Store},
};

/// How often memory is looked at.
const MEMORY_TICK: Duration = Duration::from_millis(500);

/// How often the parts of the node are looked at.
const PARTS_TICK: Duration = Duration::from_millis(250);

/// How long stopping may take before it goes on regardless.
const STOP_DEADLINE: Duration = Duration::from_secs(5);

/// The file in the data directory that tells where a running node listens.
pub const NODE_FILE: &str = "node.json";

/// Where a running node is; also the content of [`NODE_FILE`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Addresses {
    /// The client port.
    pub client: SocketAddr,
    /// The admin port.
    pub admin: SocketAddr,
    /// The process.
    pub pid: u32,
}

/// A running node.
pub struct Node {
    /// Where it listens.
    pub addresses: Addresses,
    /// Whether messages outlive the process.
    pub durable: bool,
    /// The key of development tokens.
    pub token_key: Vec<u8>,
    services: tokio::runtime::Runtime,
    door: (Stopper, JoinHandle<io::Result<()>>),
    shards: Vec<(ShardHandle, JoinHandle<io::Result<()>>)>,
    /// What must not end while the node runs.
    tasks: [(&'static str, tokio::task::JoinHandle<()>); 2],
    node_file: std::path::PathBuf,
    broken: Broken,
    drainer: Arc<Drainer>,
}

impl Node {
    /// Builds and starts everything; when this returns, clients are served.
    ///
    /// # Errors
    /// Names what is in the way: an address in use, a data directory that can't be written, a bad key file.
    pub fn start(config: &Config) -> anyhow::Result<Self> {
        let start = Instant::now();
        let admission = admission(config)?;
        let services = services_runtime().context("the services runtime could not start")?;
        let token_key = auth::load_or_create_key(&config.node.data)
            .with_context(|| format!("the data directory {} can't be used", config.node.data.display()))?;
        let door = sockopt::listen(config.listen.client, config.listen.backlog)
            .with_context(|| format!("listen.client {} can't be used", config.listen.client))?;
        let admin_door = sockopt::listen(config.listen.admin, 128)
            .with_context(|| format!("listen.admin {} can't be used", config.listen.admin))?;
        let addresses = Addresses {
            client: door.local_addr()?,
            admin: admin_door.local_addr()?,
            pid: std::process::id(),
        };
        let (metrics, rendered) = metrics::install();
        let (ports, broken) = single(config, start)?;
        let ports = Arc::new(ports);
        let (intake, outlets) = Intake::new(config.limits.intake_bytes_max);
        let (directory, handles, pending) =
            (Arc::new(Directory::default()), ShardHandles::default(), Arc::new(Pending::default()));
        let admin = Admin::new(ports.me.clone(), Arc::clone(&intake), Arc::clone(&pending));
        let base = Shared {
            config,
            ports: &ports,
            intake: &intake,
            directory: &directory,
            handles: &handles,
            admin: &admin,
        }
        .context(&token_key, services.handle().clone(), metrics.clone());
        let shards = start_shards(&base, &handles, shard_count(config), start)?;
        let outbound = || {
            Outbound::new(
                ports.me.clone(),
                Arc::clone(&directory),
                Arc::clone(&handles),
                Arc::clone(&pending),
            )
        };
        let append = send::append_all(outlets.records, Arc::clone(&intake), Arc::clone(&ports), outbound());
        let settings = owner_settings(config)?;
        let own = owner::own_all(Arc::clone(&ports), outlets.logins, outbound(), settings, metrics.clone());
        let tasks = [("the way to the log", services.spawn(append)), ("the owner", services.spawn(own))];
        let handle_list: Vec<ShardHandle> = shards.iter().map(|(handle, _)| handle.clone()).collect();
        let limit = budget::memory_limit(config.limits.memory_bytes);
        let watched = (Arc::clone(&admission), Arc::clone(&intake));
        let with_sockets = config.limits.memory_counts_sockets;
        services.spawn(watch_memory(watched, handle_list.clone(), metrics.clone(), limit, with_sockets));
        let hands = (Arc::clone(&admission), Arc::clone(&intake));
        let drainer =
            Drainer::new(config.drain_settings(), start, handle_list.clone(), hands, metrics.clone());
        services.spawn(Arc::clone(&drainer).run());
        let (acceptor, stopper) =
            Acceptor::new(door, Arc::clone(&admission), handle_list, config.socket.clone(), metrics)?;
        let door = (stopper, thread::Builder::new().name("tidegate-accept".into()).spawn(|| acceptor.run())?);
        let api = Api {
            admin,
            ports: Arc::clone(&ports),
            admission,
            metrics: rendered,
            drainer: Arc::clone(&drainer),
        };
        serve_api(&services, admin_door, api)?;
        let node_file = config.node.data.join(NODE_FILE);
        write_node_file(&node_file, &addresses)?;
        let durable = ports.bus.state().durable;
        Ok(Self { addresses, durable, token_key, services, door, shards, tasks, node_file, broken, drainer })
    }

    /// Runs a future on the services runtime.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.services.block_on(future)
    }

    /// Waits until a part of the node is broken, and says which: then the process must end, because what is left of it
    /// would look healthy.
    pub async fn broken(&self) -> String {
        let mut tick = tokio::time::interval(PARTS_TICK);
        loop {
            tick.tick().await;
            if let Some(why) = self.broken.borrow().clone() {
                return why;
            }
            let shards = self.shards.iter().any(|(_, thread)| thread.is_finished()).then_some("a shard");
            let door = self.door.1.is_finished().then_some("the door");
            let task = self.tasks.iter().find(|(_, task)| task.is_finished()).map(|(name, _)| *name);
            if let Some(part) = shards.or(door).or(task) {
                return format!("{part} ended by itself; the log above says why");
            }
        }
    }

    /// Runs a future on the services runtime beside everything else, for as long as the node lives.
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.services.spawn(future);
    }

    /// The way to have the node leave gently; then [`Self::wait`].
    pub fn drainer(&self) -> &Arc<Drainer> {
        &self.drainer
    }

    /// Serves until a drain has nobody left, stops, and says how it went.
    ///
    /// # Errors
    /// Says which part of the node broke; the rest of it was stopped at once.
    pub fn wait(self) -> Result<Outcome, String> {
        let drainer = Arc::clone(&self.drainer);
        let broken = self.services.block_on(async {
            tokio::select! {
                () = drainer.emptied() => None,
                why = self.broken() => Some(why),
            }
        });
        if let Some(why) = broken {
            self.stop();
            return Err(why);
        }
        self.take_down(|| drainer.flush_is_over());
        Ok(drainer.finish())
    }

    /// Stops without a drain: no newcomers, every client told `DRAINING` at once, then the threads end.
    pub fn stop(self) {
        let deadline = Instant::now() + STOP_DEADLINE;
        self.take_down(|| Instant::now() >= deadline);
    }

    fn take_down(self, is_over: impl Fn() -> bool) {
        self.door.0.stop();
        if let Err(error) = fs::remove_file(&self.node_file) {
            tracing::debug!(%error, "the node file was gone already");
        }
        for (handle, _) in &self.shards {
            // A shard that ended by itself has no clients to tell.
            handle.post_blocking(Mail::Stop(Code::Draining)).ok();
        }
        let threads = self.shards.into_iter().map(|(_, thread)| thread).chain([self.door.1]);
        for thread in threads {
            while !thread.is_finished() && !is_over() {
                thread::park_timeout(Duration::from_millis(5));
            }
            if thread.is_finished()
                && let Ok(Err(error)) = thread.join()
            {
                tracing::error!(%error, "a thread ended with an error");
            }
        }
        self.services.shutdown_timeout(Duration::from_secs(1));
    }
}

/// What all shards of a node share.
struct Shared<'a> {
    config: &'a Config,
    ports: &'a Arc<Ports>,
    intake: &'a Arc<Intake>,
    directory: &'a Arc<Directory>,
    handles: &'a ShardHandles,
    admin: &'a Admin,
}

impl Shared<'_> {
    fn context(&self, token_key: &[u8], runtime: tokio::runtime::Handle, metrics: Metrics) -> shard::Context {
        let config = self.config;
        shard::Context {
            index: 0,
            node: self.ports.me.node.clone(),
            boot: self.ports.me.boot,
            limits: session_limits(config),
            small_group_max: config.limits.small_group_max,
            caps: Caps { control: config.limits.control_bytes_max, data: config.limits.outbox_bytes_max },
            mailbox_bytes: config.limits.mailbox_bytes_max,
            frame_deadline: Duration::from_millis(config.timing.frame_ms),
            write_deadline: Duration::from_millis(config.timing.write_ms),
            linger: Duration::from_millis(config.timing.linger_ms),
            upgrade: upgrade::Policy { origins: config.listen.origins.clone() },
            verifier: Arc::new(Verifier::hs256(token_key)),
            directory: Arc::clone(self.directory),
            handles: Arc::clone(self.handles),
            intake: Arc::clone(self.intake),
            ports: Arc::clone(self.ports),
            recaller: Recaller {
                admin: self.admin.clone(),
                within: Duration::from_millis(config.limits.recall_ms),
            },
            rooms: Arc::new(Rooms::default()),
            runtime,
            metrics,
            panic_on_msg_id: match config.fault.panic_in.as_str() {
                "shard" => config.fault.panic_on_msg_id_in("shard"),
                _ => config.fault.panic_on_msg_id_in("connection"),
            },
            panic_in_shard: config.fault.panic_in == "shard",
        }
    }
}

fn services_runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("tidegate-services")
        .enable_all()
        .build()
}

/// Refuses to start a node that could never let anybody in.
fn admission(config: &Config) -> anyhow::Result<Arc<Admission>> {
    let admission = Admission::new(config.limits.conns_max, config.limits.conns_per_ip);
    if admission.conns_max() == 0 {
        let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
        anyhow::bail!(
            "the limit of open files is {files}, which leaves none for clients beside the {} of the node itself: raise `ulimit -n`",
            budget::DESCRIPTORS_RESERVED
        );
    }
    Ok(admission)
}

fn owner_settings(config: &Config) -> anyhow::Result<owner::Settings> {
    let kept = &config.retention;
    let node = Keep::parse(&kept.messages).context("retention.messages: none, 1d, 7d, 30d or forever")?;
    let (every, keys) = (Duration::from_millis(kept.sweep_ms), Duration::from_secs(kept.keys_days * 86_400));
    let retention = retention::Settings { node, every, keys, wall_ms };
    Ok(owner::Settings {
        small_group_max: config.limits.small_group_max,
        retention,
        panic_on_msg_id: config.fault.panic_on_msg_id_in("owner"),
    })
}

/// The wall clock, in ms since 1970.
fn wall_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Says why once the store is broken; never, when it is in memory.
type Broken = watch::Receiver<Option<String>>;

/// Profile `single`: all five ports in this process, the log and the store on its disk unless `node.store` says memory.
fn single(config: &Config, start: Instant) -> anyhow::Result<(Ports, Broken)> {
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
    let leases = Leases { node: Duration::from_secs(10), interest: Duration::from_secs(60) };
    let ports = Ports {
        me: NodeBoot { node: NodeId::new(&config.node.id)?, boot: rand::random() },
        bus,
        store,
        routes: Arc::new(MemoryRoutes::new(wall_ms(), leases, now)),
        scratch: Arc::new(MemoryScratch::new(SCRATCH_BYTES, now)),
        link: Arc::new(LocalLink),
    };
    Ok((ports, broken))
}

/// What scratch may hold on one machine.
const SCRATCH_BYTES: usize = 64 * 1024 * 1024;

fn shard_count(config: &Config) -> usize {
    match config.node.shards {
        0 => thread::available_parallelism().map_or(1, |cores| cores.get()).min(crate::directory::SHARDS_MAX),
        shards => shards,
    }
}

fn start_shards(
    base: &shard::Context,
    handles: &OnceLock<Vec<ShardHandle>>,
    count: usize,
    start: Instant,
) -> anyhow::Result<Vec<(ShardHandle, JoinHandle<io::Result<()>>)>> {
    let built: Vec<(Shard, ShardHandle)> = (0..count)
        .map(|index| shard::build(shard::Context { index, ..base.clone() }))
        .collect::<io::Result<_>>()
        .context("a shard could not start")?;
    let list = built.iter().map(|(_, handle)| handle.clone()).collect();
    if handles.set(list).is_err() {
        anyhow::bail!("the shards of a node are started once");
    }
    let mut shards = Vec::new();
    for (index, (shard, handle)) in built.into_iter().enumerate() {
        let thread =
            thread::Builder::new().name(format!("tidegate-shard-{index}")).spawn(move || shard.run(start))?;
        shards.push((handle, thread));
    }
    Ok(shards)
}

fn session_limits(config: &Config) -> session::Limits {
    let (limits, timing) = (&config.limits, &config.timing);
    let ms = Duration::from_millis;
    let u32 = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let heartbeat = ms(timing.heartbeat_ms);
    session::Limits {
        handshake: ms(timing.handshake_ms),
        login_answer: ms(timing.handshake_ms),
        heartbeat,
        heartbeat_min: heartbeat.min(Duration::from_secs(5)),
        heartbeat_max: heartbeat.max(Duration::from_secs(300)),
        frame_bytes_max: u32(limits.frame_bytes_max),
        content_bytes_max: u32(limits.content_bytes_max),
        in_flight_max: limits.in_flight_max as usize,
        chain: ChainLimits {
            hold_max: limits.hold_max as usize,
            hold_bytes_max: limits.hold_bytes_max as usize,
            order_timeout: ms(timing.order_timeout_ms),
        },
        errors_max: u16::try_from(limits.errors_max).unwrap_or(u16::MAX),
        rooms_max: limits.rooms_max as usize,
        signal_bytes_max: u32(limits.signal_bytes_max),
        signals_per_second: limits.signals_per_second,
        reply_deadline: ms(timing.reply_ms),
        window: WindowLimits {
            count_max: limits.window_max,
            bytes_max: limits.window_bytes_max,
            ack_timeout: ms(timing.ack_timeout_ms),
            tries: u8::try_from(timing.ack_tries).unwrap_or(u8::MAX),
        },
        ..session::Limits::default()
    }
}

async fn watch_memory(
    (admission, intake): (Arc<Admission>, Arc<Intake>),
    shards: Vec<ShardHandle>,
    metrics: Metrics,
    limit: u64,
    with_sockets: bool,
) {
    let mut tick = tokio::time::interval(MEMORY_TICK);
    metrics.memory_limit.set(limit as f64);
    let mut before = Pressure::Fine;
    loop {
        tick.tick().await;
        let used = budget::memory_used(with_sockets);
        metrics.memory_used.set(used as f64);
        let pressure = admission.note_memory(used, limit);
        intake.note_memory(pressure == Pressure::Full);
        metrics.memory_checks.increment(1);
        if pressure != before {
            tracing::warn!(used, limit, ?pressure, "the memory pressure changed");
            before = pressure;
        }
        if pressure >= Pressure::Shed {
            for shard in &shards {
                if !shard.try_post(Mail::ShedMemory) {
                    tracing::warn!("a shard with a full mailbox could not be told that memory is short");
                }
            }
        }
    }
}

fn serve_api(services: &tokio::runtime::Runtime, door: std::net::TcpListener, api: Api) -> io::Result<()> {
    let _guard = services.enter();
    let listener = tokio::net::TcpListener::from_std(door)?;
    services.spawn(async move {
        if let Err(error) = api::serve(listener, api).await {
            tracing::error!(%error, "the admin port stopped");
        }
    });
    Ok(())
}

/// Written under another name first, so that whoever waits for it never reads half of it.
fn write_node_file(path: &Path, addresses: &Addresses) -> anyhow::Result<()> {
    let draft = path.with_extension("tmp");
    fs::write(&draft, serde_json::to_vec(addresses)?)?;
    fs::rename(&draft, path).with_context(|| format!("{} can't be written", path.display()))
}
