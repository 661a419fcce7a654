//! Composition root: builds the ports, starts the shards, owners, client listener and admin port, and stops them in
//! order.
//!
//! Only this module and its children name adapters; the ports are built in `node/ports.rs`.

use std::{
    fs, io,
    net::TcpListener,
    path::PathBuf,
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use futures_util::future::join_all;
use socket2::Socket;
use tidegate_protocol::{Code, machine::drain::DrainOutcome};
use tokio::sync::watch;

mod access;
mod api_ports;
mod certificates;
mod files;
mod first_bytes;
mod ids;
pub mod import;
pub mod keys;
mod lease_task;
mod load;
mod memory;
mod node_file;
mod ports;
mod reload;
mod settings;
mod startup_wait;

pub(crate) use self::files::problems as file_problems;
use self::{
    access::AdminFiles,
    api_ports::{ApiPort, serve_apis},
    first_bytes::{AcceptLimits, start_acceptor},
    ports::{BuiltPorts, FailureWatch},
    reload::{LiveParts, LiveShardParts},
};
pub use self::{
    ids::all as leased_ids,
    node_file::{Addresses, NODE_FILE},
    reload::Reloader,
};
use crate::{
    accept::{AcceptScreen, Stopper},
    api::{
        Api,
        console::Console,
        conversations::{ApiReads, KeptTimes},
        dev::DevTools,
        http_server::ApiThread,
        observe::event_stream::EventStreams,
        reload::Reload,
        stats::StatsFeed,
    },
    auth::Verifier,
    broker::{self, Broker, NodeAnnouncement, Parts, RunningTasks},
    budget::Admission,
    config::{self, Config},
    drain::Drainer,
    hooks::{HookSet, Hooks},
    lease,
    link::{GrpcLink, Listener},
    live::Live,
    mail::Mail,
    metrics::{self, MetricsPage},
    net::sockopt,
    partition::owner,
    private,
    shard::{Driver, DriverQueue},
    supervised,
};

/// Interval at which the parts of the node are checked.
const PARTS_CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Interval at which parts that are stopping are polled.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Time for a stop without a drain to close the connections and end the threads.
const STOP_DEADLINE: Duration = Duration::from_secs(5);

/// Time for pending calls to end.
const CALLS_END_MAX: Duration = Duration::from_secs(1);

/// Longest time from the end of a drain, at the latest its deadline, to the end of the process.
///
/// The time limits of the broker, routes and events, and calls are added up.
pub const LAST_STEPS_MAX: Duration =
    broker::STOP_MAX.saturating_add(lease::LEAVING_MAX).saturating_add(CALLS_END_MAX);

/// Thread of a shard or of the client listener.
type Thread = JoinHandle<io::Result<()>>;

/// Running node.
pub struct Node {
    /// Addresses on which the node listens.
    pub addresses: Addresses,
    /// Whether messages survive the process.
    pub durable: bool,
    /// Secret of HS256 tokens, for those of development; empty if only other keys verify tokens.
    pub token_key: Vec<u8>,
    services: tokio::runtime::Runtime,
    acceptor: (Stopper, Thread),
    running: RunningBroker,
    /// Task that renews the lease, and the reason for which it ended the node.
    lease: (tokio::task::JoinHandle<()>, FailureWatch),
    node_file: PathBuf,
    failure: FailureWatch,
    drainer: Arc<Drainer>,
    reloader: Arc<Reloader>,
    /// Thread of the admin and monitor ports, which serve until the end of a stop.
    apis: ApiThread,
}

/// Broker whose shards and tasks run, and which peers can call.
struct RunningBroker {
    broker: Arc<Broker>,
    shards: Vec<Thread>,
    tasks: RunningTasks,
    /// Listener for peers; dropping it closes their connections.
    listener: Option<Listener>,
}

/// Listening sockets of a node. The client socket is only bound: it listens once the node can accept clients.
struct ListenSockets {
    client: Socket,
    admin: ApiPort,
    monitor: Option<ApiPort>,
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
        let given = |file: &PathBuf| {
            let file = Some(file).filter(|file| !file.as_os_str().is_empty());
            file.map(std::path::absolute).transpose()
        };
        let addresses = Addresses {
            client: client.local_addr()?.as_socket().context("listen.client is no address")?,
            admin: admin.local_addr()?,
            monitor: monitor.as_ref().map(TcpListener::local_addr).transpose()?,
            pid: std::process::id(),
            has_secret: !config.auth.key_file.as_os_str().is_empty()
                || !config.auth.has_other_keys()
                || config.is_development(),
            admin_certificate: given(&config.admin.tls_cert)?,
            key_file: given(&config.auth.key_file)?,
        };
        let tls = certificates::of_admin(&config.admin)?;
        let monitor = monitor.map(|listener| (listener, tls.clone().filter(|_| config.admin.tls_monitor)));
        Ok((Self { client, admin: (admin, tls), monitor }, addresses))
    }
}

impl RunningBroker {
    /// Composes the broker, runs its shards on threads, and listens for peers. Must run in the services runtime;
    /// `start` is the time base of the shards. Returns the queues of the shards, and their parts that a reload changes.
    fn start(
        parts: Parts,
        config: &Config,
        verifier: Arc<Verifier>,
        hooks: Arc<Hooks>,
        owners: owner::Settings,
        link: Option<&GrpcLink>,
        start: Instant,
    ) -> anyhow::Result<(Self, Vec<DriverQueue>, LiveShardParts)> {
        let metrics = parts.metrics.clone();
        let (broker, outlets) = Broker::assemble(parts);
        let context = broker.shard_context(settings::shards(config, verifier, hooks, start)?);
        let live = LiveShardParts::of(&context);
        let shards = broker.build_shards(&context, settings::shard_count(config));
        let (drivers, newcomers): (Vec<Driver>, _) =
            shards.context("a shard could not start")?.into_iter().unzip();
        let run = |(index, driver): (usize, Driver)| {
            supervised::spawn_thread(format!("tidegate-shard-{index}"), move || driver.run(start))
        };
        let shards = drivers.into_iter().enumerate().map(run).collect::<io::Result<_>>()?;
        let listener = ports::listen(config, &broker, link, &metrics)?;
        let tasks = broker.start(outlets, Some(owners));
        Ok((Self { broker, shards, tasks, listener }, newcomers, live))
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
        let admission = settings::admission(config)?;
        let loaded = config;
        let services = services_runtime().context("the services runtime could not start")?;
        let token_key = secure_files(config)?;
        let ((sockets, addresses), (metrics, rendered)) = (ListenSockets::open(config)?, metrics::install());
        let files = AdminFiles::open(config, &metrics)?;
        let parts = startup_wait::parts(config, start, &sockets, &metrics, &rendered, waits);
        let (config, claim, built) = services.block_on(parts)?;
        let (config, runtime) = (&config, services.handle().clone());
        let _guard = runtime.enter();
        let BuiltPorts { cluster, failure, link, numbers, publishers, peering } = built;
        publishers.start();
        let settings = settings::broker(config, &addresses, cluster.events.source());
        let (durable, cluster) = (cluster.ports.bus.state().durable, Arc::new(cluster));
        let verifier = keys::verifier(config, &token_key, &metrics)?;
        let hooks = Arc::new(Hooks::default());
        hooks.replace(HookSet::new(&config.hooks, config.limits.content_bytes_max, &metrics)?);
        let owners = settings::owners(config)?;
        let cache = Arc::clone(&owners.cache);
        let clients = certificates::of_clients(&config.tls)?;
        let watched =
            certificates::watched_ports(clients.as_ref(), sockets.admin.1.as_ref(), link.as_deref());
        certificates::watch(watched, metrics.clone());
        let parts = Parts { cluster, peering, numbers, settings, metrics: metrics.clone() };
        let (running, newcomers, shards) =
            RunningBroker::start(parts, config, verifier, hooks, owners, link.as_deref(), start)?;
        let broker = &running.broker;
        let memory = memory::watch(&admission, broker, cache, metrics.clone(), &config.limits);
        supervised::spawn("the memory watch", memory);
        supervised::spawn("the load watch", load::watch(broker, config, shards.rules(), start));
        let drainer = broker.start_drainer(config.drain_settings(), start, &admission);
        services.block_on(broker.connections.load_revocations()).context("the revocations can't be read")?;
        services.block_on(broker.cluster.load_guard());
        let client = start_listening(sockets.client, &config.listen)?;
        let announcement = announcement(config, &addresses, &running, &admission, &drainer)?;
        let lease = services.block_on(lease_task::hold(announcement, link, claim.as_ref()))?;
        let first_bytes = Arc::new(Live::new(settings::first_bytes_policy(config)));
        let policy = Arc::clone(&first_bytes);
        let (bans, evidence) = (Arc::clone(&broker.cluster.bans), Arc::clone(&broker.cluster.evidence));
        settings::set_evidence(config, &broker.cluster);
        files.record(config, &broker.cluster)?;
        let limits =
            AcceptLimits { admission: Arc::clone(&admission), screen: AcceptScreen { bans, evidence } };
        let acceptor = start_acceptor(config, client, limits, newcomers, policy, clients, metrics)?;
        let gate = files.gate(config, broker, Arc::clone(shards.rules()));
        let (cluster, drain) = (Arc::clone(&broker.cluster), Arc::clone(&drainer));
        let (admitting, webhooks) = (Arc::clone(&admission), Arc::clone(&broker.webhooks));
        let parts =
            LiveParts { shards, admission: admitting, first_bytes, drainer: drain, gate, cluster, webhooks };
        let reloader = Reloader::new(loaded, parts);
        let api = api(config, &token_key, broker, admission, &drainer, rendered, &reloader)?;
        let apis = serve_apis(sockets.admin, sockets.monitor, api)?;
        let node_file = node_file::write(&config.node.data, &addresses)?;
        Ok(Self {
            addresses,
            durable,
            token_key,
            services,
            acceptor,
            running,
            lease,
            node_file,
            failure,
            drainer,
            reloader,
            apis,
        })
    }

    /// Returns the name of the node, which is configured or leased.
    pub fn id(&self) -> &str {
        self.running.broker.cluster.me.node.as_str()
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
            let panic = supervised::panics().borrow().first().cloned();
            let failure =
                || [&self.failure, &self.lease.1].into_iter().find_map(|part| part.borrow().clone());
            if let Some(why) = panic.or_else(failure) {
                return why;
            }
            let shards = self.running.shards.iter().any(JoinHandle::is_finished).then_some("a shard");
            let acceptor = self.acceptor.1.is_finished().then_some("the acceptor");
            let apis = self.apis.has_ended().then_some("the thread of the API ports");
            let lease = self.lease.0.is_finished().then_some("the lease");
            if let Some(part) = shards.or(acceptor).or(self.running.tasks.ended()).or(apis).or(lease) {
                return format!("{part} ended unexpectedly; see the log above for the reason");
            }
        }
    }

    /// Runs a future in the background on the services runtime, for as long as the node runs.
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        supervised::spawn_on(self.services.handle(), "background work", future);
    }

    /// Returns the drainer, which begins a planned stop; [`Self::wait`] awaits its end.
    pub fn drainer(&self) -> &Arc<Drainer> {
        &self.drainer
    }

    /// Returns the reloader of the configuration.
    pub fn reloader(&self) -> &Arc<Reloader> {
        &self.reloader
    }

    /// Serves until a drain completes, then stops and returns the outcome.
    ///
    /// # Errors
    /// A part of the node broke, and the rest was stopped at once; the error names the part.
    pub fn wait(self) -> Result<DrainOutcome, String> {
        let drainer = Arc::clone(&self.drainer);
        let broken = self.services.block_on(async {
            tokio::select! {
                () = drainer.emptied() => None,
                why = self.broken() => Some(why),
            }
        });
        if let Some(why) = broken {
            let is_lease_lost = self.lease.1.borrow().is_some();
            self.stop_with(if is_lease_lost { Code::LeaseLost } else { Code::Draining });
            return Err(why);
        }
        self.shut_down(Code::Draining, || drainer.flush_is_over());
        Ok(drainer.finish())
    }

    /// Stops without a drain: accepts no more clients, closes all with `DRAINING` at once, then ends the threads.
    pub fn stop(self) {
        self.stop_with(Code::Draining);
    }

    fn stop_with(self, code: Code) {
        let deadline = Instant::now() + STOP_DEADLINE;
        self.shut_down(code, || Instant::now() >= deadline);
    }

    fn shut_down(self, code: Code, is_over: impl Fn() -> bool) {
        let RunningBroker { broker, shards, tasks, listener: _listener } = self.running;
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
                join_all(broker.shards().iter().map(|handle| handle.post(Mail::Stop(code))));
            tokio::select! {
                biased;
                _ = posted => {}
                () = over => tracing::warn!("shard mailbox full; stopping without closing its clients in order"),
            }
        });
        let threads = shards.into_iter().chain([self.acceptor.1]);
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
        // All appends are done.
        let cluster = &broker.cluster;
        self.services.block_on(tasks.stop(&*cluster.ports.bus));
        // The routes of the last connections are removed already, or else here.
        self.services.block_on(async {
            self.lease.0.abort();
            // It may be in the middle of a renewal, which would take the end of the lease for a loss.
            self.lease.0.await.ok();
            lease::leave(cluster).await;
        });
        self.services.shutdown_timeout(CALLS_END_MAX);
    }
}

/// Starts to listen on the bound client socket.
fn start_listening(client: Socket, config: &config::ListenConfig) -> anyhow::Result<TcpListener> {
    client
        .listen(config.backlog)
        .with_context(|| format!("listen.client {} can't be used", config.client))?;
    Ok(client.into())
}

/// Returns the sources of the node's announcement; clients can connect to its addresses by now.
fn announcement(
    config: &Config,
    addresses: &Addresses,
    RunningBroker { broker, listener, .. }: &RunningBroker,
    admission: &Arc<Admission>,
    drainer: &Arc<Drainer>,
) -> anyhow::Result<NodeAnnouncement> {
    let client_addresses = match config.assign.addresses.as_slice() {
        // A wildcard address can't be connected to: clients keep to the address that they know.
        [] if addresses.client.ip().is_unspecified() => Vec::new(),
        [] if config.is_encrypted() => {
            ["wss", "tls"].map(|scheme| format!("{scheme}://{}", addresses.client)).into()
        }
        [] => vec![addresses.client.to_string()],
        named => named.to_vec(),
    };
    let rules = settings::rules(config)?;
    broker.cluster.peers.set_own_rules(rules.announced());
    Ok(NodeAnnouncement {
        broker: Arc::clone(broker),
        client_addresses,
        peer_address: ports::peer_address(config, listener.as_ref()),
        admission: Arc::clone(admission),
        drainer: Arc::clone(drainer),
        rules,
    })
}

fn services_runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("tidegate-services")
        .enable_all()
        .build()
}

fn api(
    config: &Config,
    token_key: &[u8],
    broker: &Broker,
    admission: Arc<Admission>,
    drainer: &Arc<Drainer>,
    metrics: MetricsPage,
    reloader: &Arc<Reloader>,
) -> anyhow::Result<Api> {
    let console = Arc::new(Console::new(config));
    let (directory, ack_times) = (Arc::clone(broker.directory()), Arc::clone(&broker.ack_times));
    let counts = broker.metrics();
    let stats = StatsFeed::new(Arc::clone(&broker.cluster), metrics.clone(), counts, directory, ack_times);
    let store = &broker.cluster.ports.store;
    let event_streams = EventStreams::new(store, &broker.cluster.events, broker.metrics());
    let tools = || Arc::new(DevTools { token_key: token_key.to_vec(), cutter: broker.cutter() });
    Ok(Api {
        admin: broker.admin.clone(),
        cluster: Arc::clone(&broker.cluster),
        assigner: Arc::clone(&broker.assigner),
        admission,
        metrics,
        drainer: Arc::clone(drainer),
        messages: reloader.message_sender(config, broker)?,
        connections: Arc::clone(&broker.connections),
        token_lifetime: keys::token_lifetime(&config.auth),
        stats: Arc::new(stats),
        event_streams: Arc::new(event_streams),
        gate: Arc::clone(reloader.gate()),
        reads: Arc::new(ApiReads::new(broker.devices(), store, KeptTimes::of(config))),
        webhooks: Arc::clone(&broker.webhooks),
        rules: Arc::clone(reloader.rules()),
        load: Arc::clone(&broker.load),
        reload: Arc::clone(reloader) as Arc<dyn Reload>,
        dev: console.is_development.then(tools),
        console,
    })
}

/// Creates the data directory or restricts an existing one to this account, checks the files with secrets, and
/// returns the token key.
fn secure_files(config: &Config) -> anyhow::Result<Vec<u8>> {
    let data = &config.node.data;
    let was_open = private::enter(data)
        .with_context(|| format!("the data directory {} (node.data) can't be used", data.display()))?;
    if was_open {
        tracing::warn!(data = %data.display(), "data directory was open to other accounts; its mode is 700 now");
    }
    files::check(config)?;
    ports::token_key(config)
}
