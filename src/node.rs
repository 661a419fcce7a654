//! Composition root: builds the ports, starts the shards, owners, client listener and admin port, and stops them in
//! order.
//!
//! Only this module and its children name adapters; the ports are built in `node/ports.rs`.

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
    announcement::NodeAnnouncement,
    ports::{BuiltPorts, FailureWatch},
    settings::{ShardDependencies, admission, owner_settings, shard_count},
    tasks::{Broker, RunningTasks},
};
use crate::{
    accept::{Acceptor, Stopper},
    api::{self, Api},
    assign::Assigner,
    config::{self, Config},
    delivery::pending::Pending,
    directory::Directory,
    drain::Drainer,
    ingest::{admin::Admin, intake::Intake},
    lease,
    link::Listener,
    mail::{Mail, ShardHandle, ShardHandles},
    metrics,
    net::sockopt,
    ports::Ports,
    private,
    shard::{self, Shard},
};

/// Interval at which the parts of the node are checked.
const PARTS_CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Interval at which parts that are stopping are polled.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Time for a stop without a drain to close the connections and end the threads.
const STOP_DEADLINE: Duration = Duration::from_secs(5);

/// Time for the owners to archive, publish and release their partitions.
const RELEASE_MAX: Duration = Duration::from_secs(3);

/// Time for the log, and for node topics, to confirm pending appends.
const APPENDS_FLUSH_MAX: Duration = Duration::from_secs(1);

/// Time for pending calls to end.
const CALLS_END_MAX: Duration = Duration::from_secs(1);

/// Longest time from the end of a drain, at the latest its deadline, to the end of the process.
///
/// It adds the time limits of the owners, node topics, the log, routes and events, and calls.
pub const LAST_STEPS: Duration = RELEASE_MAX
    .saturating_add(APPENDS_FLUSH_MAX)
    .saturating_add(APPENDS_FLUSH_MAX)
    .saturating_add(lease::LEAVING_MAX)
    .saturating_add(CALLS_END_MAX);

/// File in the data directory with the addresses of a running node.
pub const NODE_FILE: &str = "node.json";

/// Addresses and process of a running node; also the content of [`NODE_FILE`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Addresses {
    /// Client port.
    pub client: SocketAddr,
    /// Admin port.
    pub admin: SocketAddr,
    /// Port for probes and metrics, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub monitor: Option<SocketAddr>,
    /// Process id.
    pub pid: u32,
    /// Token key shared with other nodes; `None` if it is `token.key` in the data directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
}

/// Running node.
pub struct Node {
    /// Addresses on which the node listens.
    pub addresses: Addresses,
    /// Whether messages survive the process.
    pub durable: bool,
    /// Key of development tokens.
    pub token_key: Vec<u8>,
    services: tokio::runtime::Runtime,
    acceptor: (Stopper, JoinHandle<io::Result<()>>),
    shards: Vec<(ShardHandle, JoinHandle<io::Result<()>>)>,
    running: RunningTasks,
    /// Task that renews the lease, and the reason for which it ended the node.
    lease: (tokio::task::JoinHandle<()>, FailureWatch),
    node_file: PathBuf,
    failure: FailureWatch,
    drainer: Arc<Drainer>,
    ports: Arc<Ports>,
    /// Listener for peers; dropping it closes their connections.
    _listener: Option<Listener>,
}

/// Listening sockets of a node. The client socket is only bound: it listens once the node can accept clients.
struct ListenSockets {
    client: Socket,
    admin: TcpListener,
    monitor: Option<TcpListener>,
}

impl ListenSockets {
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
    /// Builds and starts all parts; when this returns, clients are served. Waits indefinitely for services of a
    /// cluster that do not answer; `waits` is true while nothing else is under way, so that the process may end.
    ///
    /// # Errors
    /// The node can't start: an address is in use, the data directory can't be written, or a key file is invalid.
    pub fn start(config: &Config, waits: &watch::Sender<bool>) -> anyhow::Result<Self> {
        let start = Instant::now();
        let admission = admission(config)?;
        let services = services_runtime().context("the services runtime could not start")?;
        let token_key = secure_files(config)?;
        let ((sockets, addresses), (metrics, rendered)) = (ListenSockets::open(config)?, metrics::install());
        let parts = startup_wait::parts(config, start, &sockets, (&metrics, &rendered), waits);
        let (config, claim, built) = services.block_on(parts)?;
        let (config, BuiltPorts { ports, failure, link, numbers, event_publisher, feed }) = (&config, built);
        let ports = Arc::new(ports);
        services.spawn(event_publisher.run());
        let (intake, outlets) = Intake::new(config.limits.intake_bytes_max);
        let (directory, handles, pending) =
            (Arc::new(Directory::default()), ShardHandles::default(), Arc::new(Pending::default()));
        let admin = Admin::new(ports.me.clone(), Arc::clone(&intake), Arc::clone(&pending));
        let mut broker = Broker::new(&ports, &directory, &handles, pending, &metrics);
        let unlogged = broker.start_unlogged(services.handle(), numbers, feed, config.limits.small_group_max);
        let assigner = assigner(config, &ports);
        let dependencies = ShardDependencies {
            config,
            ports: &ports,
            intake: &intake,
            directory: &directory,
            handles: &handles,
            admin: &admin,
            unlogged: &unlogged,
            assigner: &assigner,
        };
        let base = dependencies.context(&token_key, services.handle().clone(), metrics.clone());
        let shards = start_shards(&base, &handles, shard_count(config), start)?;
        let settings = owner_settings(config)?;
        let rules = settings.rules;
        let (listener, running) = {
            let _guard = services.enter();
            (broker.listen(services.handle(), config)?, broker.start((&intake, outlets), settings))
        };
        let handle_list: Vec<ShardHandle> = shards.iter().map(|(handle, _)| handle.clone()).collect();
        let throttled = (Arc::clone(&admission), Arc::clone(&intake));
        services.spawn(memory::watch(throttled, handle_list.clone(), metrics.clone(), &config.limits));
        let drained = (Arc::clone(&admission), Arc::clone(&intake), Arc::clone(&assigner));
        let drainer =
            Drainer::new(config.drain_settings(), start, handle_list.clone(), drained, metrics.clone());
        services.spawn(Arc::clone(&drainer).run());
        let public = (client_addresses(config, &addresses), ports::peer_address(config, listener.as_ref()));
        let notice = NodeAnnouncement::new(&assigner, public, (&admission, &drainer), &ports, rules);
        let client = start_listening(sockets.client, &config.listen)?;
        let lease = services.block_on(notice.hold(link, handle_list.clone(), claim.as_ref(), &metrics))?;
        let (acceptor, stopper) =
            Acceptor::new(client, Arc::clone(&admission), handle_list, config.socket.clone(), metrics)?;
        let thread = thread::Builder::new().name("tidegate-accept".into()).spawn(|| acceptor.run())?;
        let (to_read, to_drain) = (Arc::clone(&ports), Arc::clone(&drainer));
        let api = Api { admin, ports: to_read, assigner, admission, metrics: rendered, drainer: to_drain };
        serve_apis(&services, (sockets.admin, sockets.monitor), api)?;
        let node_file = write_node_file(&config.node.data, &addresses)?;
        Ok(Self {
            addresses,
            durable: ports.bus.state().durable,
            token_key,
            services,
            acceptor: (stopper, thread),
            shards,
            running,
            lease,
            node_file,
            failure,
            drainer,
            ports,
            _listener: listener,
        })
    }

    /// Returns the name of the node, which is configured or leased.
    pub fn id(&self) -> &str {
        self.ports.me.node.as_str()
    }

    /// Runs a future on the services runtime.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.services.block_on(future)
    }

    /// Waits until a part of the node breaks, and returns why. The process must end then, because the other parts
    /// would look healthy.
    pub async fn broken(&self) -> String {
        let mut tick = tokio::time::interval(PARTS_CHECK_INTERVAL);
        loop {
            tick.tick().await;
            if let Some(why) =
                [&self.failure, &self.lease.1].into_iter().find_map(|part| part.borrow().clone())
            {
                return why;
            }
            let shards = self.shards.iter().any(|(_, thread)| thread.is_finished()).then_some("a shard");
            let acceptor = self.acceptor.1.is_finished().then_some("the acceptor");
            let task = self.running.tasks.iter().find(|(_, task)| task.is_finished()).map(|(name, _)| *name);
            if let Some(part) = shards.or(acceptor).or(task) {
                return format!("{part} ended unexpectedly; see the log above for the reason");
            }
        }
    }

    /// Runs a future in the background on the services runtime, for as long as the node runs.
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.services.spawn(future);
    }

    /// Returns the drainer, which begins a planned stop; [`Self::wait`] awaits its end.
    pub fn drainer(&self) -> &Arc<Drainer> {
        &self.drainer
    }

    /// Serves until a drain completes, then stops and returns the outcome.
    ///
    /// # Errors
    /// A part of the node broke, and the rest was stopped at once; the error names the part.
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
        self.shut_down(|| drainer.flush_is_over());
        Ok(drainer.finish())
    }

    /// Stops without a drain: accepts no more clients, closes all with `DRAINING` at once, then ends the threads.
    pub fn stop(self) {
        let deadline = Instant::now() + STOP_DEADLINE;
        self.shut_down(|| Instant::now() >= deadline);
    }

    fn shut_down(self, is_over: impl Fn() -> bool) {
        self.acceptor.0.stop();
        if let Err(error) = fs::remove_file(&self.node_file) {
            tracing::debug!(%error, "node file already removed");
        }
        self.services.block_on(async {
            let over = async {
                while !is_over() {
                    tokio::time::sleep(STOP_POLL_INTERVAL).await;
                }
            };
            // A shard that has ended has no clients to close; one with a full mailbox delays the stop only until the
            // deadline.
            let posted =
                join_all(self.shards.iter().map(|(handle, _)| handle.post(Mail::Stop(Code::Draining))));
            tokio::select! {
                biased;
                _ = posted => {}
                () = over => tracing::warn!("shard mailbox full; stopping without closing its clients in order"),
            }
        });
        let threads = self.shards.into_iter().map(|(_, thread)| thread).chain([self.acceptor.1]);
        for thread in threads {
            while !thread.is_finished() && !is_over() {
                thread::park_timeout(STOP_POLL_INTERVAL);
            }
            if thread.is_finished()
                && let Ok(Err(error)) = thread.join()
            {
                tracing::error!(%error, "thread ended with an error");
            }
        }
        // All appends are done. The owners archive, publish and release now, so that other nodes take over at once.
        self.running.shutdown.cancel();
        let [_, (_, owners)] = self.running.tasks;
        self.services.block_on(async {
            if tokio::time::timeout(RELEASE_MAX, owners).await.is_err() {
                tracing::warn!(
                    "partitions not released in time; other nodes take them over after the session timeout"
                );
            }
            if let Some(publisher) = &self.running.group_publisher {
                publisher.settle(APPENDS_FLUSH_MAX).await;
            }
            if let Err(error) = self.ports.bus.close(APPENDS_FLUSH_MAX).await {
                tracing::warn!(%error, "log not closed cleanly; the last appends may be unconfirmed");
            }
        });
        // The routes of the last connections are removed already, or else here.
        self.lease.0.abort();
        self.services.block_on(lease::leave(&self.ports));
        self.services.shutdown_timeout(CALLS_END_MAX);
    }
}

/// Starts to listen on the bound client socket.
fn start_listening(client: Socket, config: &config::Listen) -> anyhow::Result<TcpListener> {
    client
        .listen(config.backlog)
        .with_context(|| format!("listen.client {} can't be used", config.client))?;
    Ok(client.into())
}

/// Builds the assigner, which sends clients to nodes.
fn assigner(config: &Config, ports: &Arc<Ports>) -> Arc<Assigner> {
    let ttl = Duration::from_millis(config.assign.ttl_ms);
    Arc::new(Assigner::new(Arc::clone(ports), settings::node_description(&config.assign), ttl))
}

/// Returns the addresses at which clients reach the node.
fn client_addresses(config: &Config, addresses: &Addresses) -> Vec<String> {
    match config.assign.addresses.as_slice() {
        // A wildcard address can't be connected to: clients keep to the address that they know.
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
        anyhow::bail!("the shards of this node are already started");
    }
    let mut shards = Vec::new();
    for (index, (shard, handle)) in built.into_iter().enumerate() {
        let thread =
            thread::Builder::new().name(format!("tidegate-shard-{index}")).spawn(move || shard.run(start))?;
        shards.push((handle, thread));
    }
    Ok(shards)
}

/// Serves the admin port, and the port for probes if there is one.
fn serve_apis(
    services: &tokio::runtime::Runtime,
    (admin, monitor): (TcpListener, Option<TcpListener>),
    api: Api,
) -> io::Result<()> {
    if let Some(monitor) = monitor {
        serve_api(services, monitor, api.clone(), "monitor", api::monitor::serve)?;
    }
    serve_api(services, admin, api, "admin", api::serve)
}

fn serve_api<S: Future<Output = io::Result<()>> + Send + 'static>(
    services: &tokio::runtime::Runtime,
    listener: TcpListener,
    api: Api,
    name: &'static str,
    serve: impl FnOnce(tokio::net::TcpListener, Api) -> S,
) -> io::Result<()> {
    let _guard = services.enter();
    let serving = serve(tokio::net::TcpListener::from_std(listener)?, api);
    services.spawn(async move {
        if let Err(error) = serving.await {
            tracing::error!(%error, name, "API port stopped serving");
        }
    });
    Ok(())
}

/// Creates the data directory or restricts an existing one to this account, checks the files with secrets, and
/// returns the token key.
fn secure_files(config: &Config) -> anyhow::Result<Vec<u8>> {
    let data = &config.node.data;
    let was_open = private::enter(data)
        .with_context(|| format!("the data directory {} can't be used", data.display()))?;
    if was_open {
        tracing::warn!(data = %data.display(), "data directory was open to other accounts; its mode is 700 now");
    }
    ports::check_secrets(config)?;
    ports::token_key(config)
}

/// Writes the node file under another name and renames it, so that readers never see half of it.
fn write_node_file(data: &Path, addresses: &Addresses) -> anyhow::Result<PathBuf> {
    let path = data.join(NODE_FILE);
    let draft = path.with_extension("tmp");
    let mut file = private::options().create(true).truncate(true).open(&draft)?;
    file.write_all(&serde_json::to_vec(addresses)?)?;
    fs::rename(&draft, &path).with_context(|| format!("{} can't be written", path.display()))?;
    Ok(path)
}
