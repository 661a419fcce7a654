//! The composition root: builds the ports, starts shards, owner, door and admin port, and stops them in order.
//!
//! With `node/ports.rs` the only place that names adapters.

use std::{
    fs,
    io::{self, Write as _},
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use socket2::Socket;
use tidegate_protocol::{Code, machine::drain::Outcome};
use tokio::sync::watch;

mod announcement;
mod ids;
pub mod import;
mod memory;
mod ports;
mod settings;
mod startup_wait;
mod tasks;

pub use self::ids::all as leased_ids;
use self::{
    announcement::Said,
    ports::{Broken, Built},
    settings::{Shared, admission, owner_settings, shard_count},
    tasks::{Floor, Running},
};
use crate::{
    accept::{Acceptor, Stopper},
    api::{self, Api},
    assign::Assigner,
    config::{self, Config},
    directory::Directory,
    drain::Drainer,
    ingest::{
        admin::{Admin, Pending},
        intake::Intake,
    },
    lease,
    link::Listener,
    mail::{Mail, ShardHandle, ShardHandles},
    metrics,
    net::sockopt,
    ports::Ports,
    private,
    shard::{self, Shard},
};

/// How often the parts of the node are looked at.
const PARTS_TICK: Duration = Duration::from_millis(250);

/// Between two looks at a part that is to end.
const PARTS_POLL: Duration = Duration::from_millis(5);

/// How long stopping may take before it goes on regardless.
const STOP_DEADLINE: Duration = Duration::from_secs(5);

/// How long the owners may take to archive and tell what they have, and to leave.
const GIVE_UP_MAX: Duration = Duration::from_secs(3);

/// How long the log may take to confirm what was handed over.
const CLOSE_MAX: Duration = Duration::from_secs(1);

/// How long calls that are still out may take to end.
const CALLS_MAX: Duration = Duration::from_secs(1);

/// From the end of a drain, which is its deadline at the latest, to that of the process, where each port takes all its time:
/// the owners, what waits for topics of nodes, the log, the routes and events, and calls.
pub const LAST_STEPS: Duration = GIVE_UP_MAX
    .saturating_add(CLOSE_MAX)
    .saturating_add(CLOSE_MAX)
    .saturating_add(lease::LEAVING_MAX)
    .saturating_add(CALLS_MAX);

/// The file in the data directory that tells where a running node listens.
pub const NODE_FILE: &str = "node.json";

/// Where a running node is; also the content of [`NODE_FILE`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Addresses {
    /// The client port.
    pub client: SocketAddr,
    /// The admin port.
    pub admin: SocketAddr,
    /// The port for probes and metrics, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub monitor: Option<SocketAddr>,
    /// The process.
    pub pid: u32,
    /// The token key that it shares with others; none = `token.key` of its data directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
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
    running: Running,
    /// Ends only with the reason why the node must.
    lease: (tokio::task::JoinHandle<()>, Broken),
    node_file: PathBuf,
    broken: Broken,
    drainer: Arc<Drainer>,
    ports: Arc<Ports>,
    /// Peers are cut when it is dropped.
    _listener: Option<Listener>,
}

/// The ports that are listened on; that for clients only once there is somebody to let them in.
struct Doors {
    client: Socket,
    admin: TcpListener,
    monitor: Option<TcpListener>,
}

impl Doors {
    fn open(config: &Config) -> anyhow::Result<(Self, Addresses)> {
        let client = sockopt::bind(config.listen.client)
            .with_context(|| format!("listen.client {} can't be used", config.listen.client))?;
        let admin = sockopt::listen(config.listen.admin, 128)
            .with_context(|| format!("listen.admin {} can't be used", config.listen.admin))?;
        let monitor = config.listen.monitor_address();
        let monitor = monitor.map(|address| {
            sockopt::listen(address, 128).with_context(|| format!("listen.monitor {address} can't be used"))
        });
        let monitor = monitor.transpose()?;
        let shared = Some(&config.auth.key_file).filter(|file| !file.as_os_str().is_empty());
        let addresses = Addresses {
            client: client.local_addr()?.as_socket().context("listen.client is no address")?,
            admin: admin.local_addr()?,
            monitor: monitor.as_ref().map(TcpListener::local_addr).transpose()?,
            pid: std::process::id(),
            key_file: shared.map(std::path::absolute).transpose()?,
        };
        Ok((Self { client, admin, monitor }, addresses))
    }
}

impl Node {
    /// Builds and starts everything; when this returns, clients are served. Services of a cluster that do not answer are waited for, without
    /// an end; `waits` is true while there is nothing else to do, and the process may end.
    ///
    /// # Errors
    /// Names what is in the way: an address in use, a data directory that can't be written, a bad key file.
    pub fn start(config: &Config, waits: &watch::Sender<bool>) -> anyhow::Result<Self> {
        let start = Instant::now();
        let admission = admission(config)?;
        let services = services_runtime().context("the services runtime could not start")?;
        let token_key = closed_files(config)?;
        let ((doors, addresses), (metrics, rendered)) = (Doors::open(config)?, metrics::install());
        let parts = startup_wait::parts(config, start, &doors, (&metrics, &rendered), waits);
        let (config, claim, built) = services.block_on(parts)?;
        let (config, Built { ports, broken, link, numbers, announcer, feed }) = (&config, built);
        let ports = Arc::new(ports);
        services.spawn(announcer.run());
        let (intake, outlets) = Intake::new(config.limits.intake_bytes_max);
        let (directory, handles, pending) =
            (Arc::new(Directory::default()), ShardHandles::default(), Arc::new(Pending::default()));
        let admin = Admin::new(ports.me.clone(), Arc::clone(&intake), Arc::clone(&pending));
        let mut floor = Floor::new(&ports, &directory, &handles, pending, &metrics);
        let beside = floor.beside_the_log(services.handle(), numbers, feed, config.limits.small_group_max);
        let assigner = assigner(config, &ports);
        let shared = Shared {
            config,
            ports: &ports,
            intake: &intake,
            directory: &directory,
            handles: &handles,
            admin: &admin,
            beside: &beside,
            assigner: &assigner,
        };
        let base = shared.context(&token_key, services.handle().clone(), metrics.clone());
        let shards = start_shards(&base, &handles, shard_count(config), start)?;
        let settings = owner_settings(config)?;
        let rules = settings.rules;
        let (listener, running) = {
            let _guard = services.enter();
            (floor.listen(services.handle(), config)?, floor.start((&intake, outlets), settings))
        };
        let handle_list: Vec<ShardHandle> = shards.iter().map(|(handle, _)| handle.clone()).collect();
        let hands = (Arc::clone(&admission), Arc::clone(&intake));
        services.spawn(memory::watch(hands.clone(), handle_list.clone(), metrics.clone(), &config.limits));
        let leavers = (Arc::clone(&admission), Arc::clone(&intake), Arc::clone(&assigner));
        let drainer =
            Drainer::new(config.drain_settings(), start, handle_list.clone(), leavers, metrics.clone());
        services.spawn(Arc::clone(&drainer).run());
        let places = (client_addresses(config, &addresses), ports::peer_address(config, listener.as_ref()));
        let said = Said::new(&assigner, places, (&admission, &drainer), &ports, rules);
        let client = listening(doors.client, &config.listen)?;
        let lease = services.block_on(said.hold(link, handle_list.clone(), claim.as_ref(), &metrics))?;
        let (acceptor, stopper) =
            Acceptor::new(client, Arc::clone(&admission), handle_list, config.socket.clone(), metrics)?;
        let door = (stopper, thread::Builder::new().name("tidegate-accept".into()).spawn(|| acceptor.run())?);
        let (seen, leaving) = (Arc::clone(&ports), Arc::clone(&drainer));
        let api = Api { admin, ports: seen, assigner, admission, metrics: rendered, drainer: leaving };
        serve_apis(&services, (doors.admin, doors.monitor), api)?;
        let node_file = write_node_file(&config.node.data, &addresses)?;
        Ok(Self {
            addresses,
            durable: ports.bus.state().durable,
            token_key,
            services,
            door,
            shards,
            running,
            lease,
            node_file,
            broken,
            drainer,
            ports,
            _listener: listener,
        })
    }

    /// Its name: the configured one, or one that it has leased.
    pub fn id(&self) -> &str {
        self.ports.me.node.as_str()
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
            if let Some(why) =
                [&self.broken, &self.lease.1].into_iter().find_map(|part| part.borrow().clone())
            {
                return why;
            }
            let shards = self.shards.iter().any(|(_, thread)| thread.is_finished()).then_some("a shard");
            let door = self.door.1.is_finished().then_some("the door");
            let task = self.running.tasks.iter().find(|(_, task)| task.is_finished()).map(|(name, _)| *name);
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
        self.services.block_on(async {
            let over = async {
                while !is_over() {
                    tokio::time::sleep(PARTS_POLL).await;
                }
            };
            // A shard that ended by itself has no clients to tell; one that takes no mail is not waited for beyond the time.
            let told =
                join_all(self.shards.iter().map(|(handle, _)| handle.post(Mail::Stop(Code::Draining))));
            tokio::select! {
                biased;
                _ = told => {}
                () = over => tracing::warn!("a shard did not take the order to stop"),
            }
        });
        let threads = self.shards.into_iter().map(|(_, thread)| thread).chain([self.door.1]);
        for thread in threads {
            while !thread.is_finished() && !is_over() {
                thread::park_timeout(PARTS_POLL);
            }
            if thread.is_finished()
                && let Ok(Err(error)) = thread.join()
            {
                tracing::error!(%error, "a thread ended with an error");
            }
        }
        // Nobody appends any more. What is owned is archived, told and given up, so that others go on at once.
        self.running.leaving.cancel();
        let [_, (_, owners)] = self.running.tasks;
        self.services.block_on(async {
            if tokio::time::timeout(GIVE_UP_MAX, owners).await.is_err() {
                tracing::warn!(
                    "the partitions were not given up in time; others take them over after a while"
                );
            }
            if let Some(spread) = &self.running.spread {
                spread.settle(CLOSE_MAX).await;
            }
            if let Err(error) = self.ports.bus.close(CLOSE_MAX).await {
                tracing::warn!(%error, "the log was not closed in order");
            }
        });
        // The rows of the last conns are gone, or are swept here.
        self.lease.0.abort();
        self.services.block_on(lease::leave(&self.ports));
        self.services.shutdown_timeout(CALLS_MAX);
    }
}

/// The client port, from now on open.
fn listening(client: Socket, config: &config::Listen) -> anyhow::Result<TcpListener> {
    client
        .listen(config.backlog)
        .with_context(|| format!("listen.client {} can't be used", config.client))?;
    Ok(client.into())
}

/// Who sends clients to nodes.
fn assigner(config: &Config, ports: &Arc<Ports>) -> Arc<Assigner> {
    let ttl = Duration::from_millis(config.assign.ttl_ms);
    Arc::new(Assigner::new(Arc::clone(ports), config.assign.about(), ttl))
}

/// Where clients reach the node.
fn client_addresses(config: &Config, addresses: &Addresses) -> Vec<String> {
    match config.assign.addresses.as_slice() {
        // Nobody can connect to "all addresses": clients stay with the one that they know.
        [] if addresses.client.ip().is_unspecified() => Vec::new(),
        [] => vec![addresses.client.to_string()],
        named => named.to_vec(),
    }
}

fn services_runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("tidegate-services")
        .enable_all()
        .build()
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

/// The admin port, and the one for probes if there is one.
fn serve_apis(
    services: &tokio::runtime::Runtime,
    (admin, monitor): (TcpListener, Option<TcpListener>),
    api: Api,
) -> io::Result<()> {
    if let Some(door) = monitor {
        serve_api(services, door, api.clone(), "monitor", api::monitor::serve)?;
    }
    serve_api(services, admin, api, "admin", api::serve)
}

fn serve_api<S: Future<Output = io::Result<()>> + Send + 'static>(
    services: &tokio::runtime::Runtime,
    door: TcpListener,
    api: Api,
    name: &'static str,
    serve: impl FnOnce(tokio::net::TcpListener, Api) -> S,
) -> io::Result<()> {
    let _guard = services.enter();
    let serving = serve(tokio::net::TcpListener::from_std(door)?, api);
    services.spawn(async move {
        if let Err(error) = serving.await {
            tracing::error!(%error, name, "a port of the API stopped");
        }
    });
    Ok(())
}

/// Creates the data directory, or closes one that is open to other accounts, and checks the files with secrets. Returns the token key.
fn closed_files(config: &Config) -> anyhow::Result<Vec<u8>> {
    let data = &config.node.data;
    let was_open = private::enter(data)
        .with_context(|| format!("the data directory {} can't be used", data.display()))?;
    if was_open {
        tracing::warn!(data = %data.display(), "data directory was open to other accounts; its mode is 700 now");
    }
    ports::check_secrets(config)?;
    ports::token_key(config)
}

/// Written under another name first, so that whoever waits for it never reads half of it.
fn write_node_file(data: &Path, addresses: &Addresses) -> anyhow::Result<PathBuf> {
    let path = data.join(NODE_FILE);
    let draft = path.with_extension("tmp");
    let mut file = private::options().create(true).truncate(true).open(&draft)?;
    file.write_all(&serde_json::to_vec(addresses)?)?;
    fs::rename(&draft, &path).with_context(|| format!("{} can't be written", path.display()))?;
    Ok(path)
}
