//! Node of the world: a broker with its shards on pipes and its lease, in a runtime that runs only in its turns.

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::Waker,
    time::Duration,
};

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng, seq::SliceRandom as _};
use tidegate::{
    auth::Verifier,
    broker::{Broker, NodeAnnouncement, Parts, Peering, RunningTasks, Settings, ShardSettings},
    budget::Admission,
    bus::Bus,
    cluster::Cluster,
    drain::Drainer,
    fault::{self, FaultPlan, Faulty, Gate, Rates},
    ingest::admin::Admin,
    lease,
    link::Link,
    mail::Mail,
    metrics,
    partition::{owner, retention, rules},
    ports::Ports,
    routes::{Leases, MemoryRoutes, NodeBoot, Routes},
    scratch::{ClockNumbers, MemoryScratch, Numbers, Scratch},
    shard::{
        Context, Now, Shard,
        newcomer::{Newcomer, NewcomerQueue},
    },
    store::{MemoryStore, Store},
};
use tidegate_protocol::{
    Code, Time,
    id::NodeId,
    machine::{drain, ledger::LEDGER_NEWEST, session::SessionLimits, window::WindowLimits},
};
use tokio::{runtime::Runtime, task::yield_now, time::Instant};

use crate::{
    bus::{NodeBus, SharedLog},
    deck::Deck,
    link::Network,
    pipes::{self, ClientEnd, Pipes, ShardEnd},
};

/// Key of the tokens.
pub(crate) const KEY: &[u8] = b"a key of thirty-two bytes, or so";

/// Most members of a small group: some groups of the world are large.
const SMALL_GROUP_MAX: usize = 5;

/// Wall clock at the start of the world, in ms since 1970.
pub(crate) const WALL_START_MS: u64 = 1_763_712_000_000;

/// Faults per thousand calls of a port, while things break.
const RATES: Rates = Rates { fail: 5, lose_answer: 5, delay: 100 };

/// Interval of retention.
const RETENTION_INTERVAL: Duration = Duration::from_millis(400);

thread_local! {
    /// Wall clock of the node that has its turn.
    static WALL_MS: Cell<u64> = const { Cell::new(WALL_START_MS) };
    /// Wall clock of the store. By the real one, its time would pass more slowly than that of the nodes, and the entries
    /// of the guard would be read again more or less often, as the machine is fast.
    static STORE_MS: Cell<u64> = const { Cell::new(WALL_START_MS) };
}

/// How long all nodes must have agreed before the rules are switched.
const RULES_SETTLE_TIME: Duration = Duration::from_secs(2);

/// Drain of a node with few clients.
const DRAIN: drain::Settings = drain::Settings {
    lb_delay: Duration::from_millis(500),
    spread: Duration::from_secs(2),
    max_rate: 1_000,
    flush: Duration::from_secs(2),
    deadline: Duration::from_secs(10),
};

/// Services that all nodes share.
pub(crate) struct Services {
    pub(crate) deck: Deck,
    pub(crate) log: SharedLog,
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) routes: Arc<MemoryRoutes>,
    pub(crate) scratch: Arc<dyn Scratch>,
    pub(crate) numbers: Arc<dyn Numbers>,
    pub(crate) network: Network,
    /// Time since the start of the world, in ms.
    pub(crate) clock: Arc<AtomicU64>,
    /// Whether owners answer before they archive.
    pub(crate) answers_first: bool,
}

/// Running node. Dropping it is a crash: all that it does ends at once.
pub(crate) struct Node {
    pub(crate) me: NodeBoot,
    pub(crate) broker: Arc<Broker>,
    bus: Arc<NodeBus>,
    network: Network,
    plans: Vec<Arc<FaultPlan>>,
    shards: Vec<(Shard<Pipes>, Pipes)>,
    newcomers: Vec<NewcomerQueue<ShardEnd>>,
    admission: Arc<Admission>,
    rng: StdRng,
    /// Time of the world at the start of the node, and at its last turn.
    born: Duration,
    at: Duration,
    /// Time until which the node gets no turns.
    pub(crate) frozen_until: Duration,
    /// Deviation of the wall clock, in ms.
    pub(crate) wall_offset_ms: i64,
    drainer: Arc<Drainer>,
    /// Whether the run was retired by its peers, or has left as planned; then it must be dropped.
    has_ended: Arc<AtomicBool>,
    /// Taken by the planned stop.
    tasks: Option<RunningTasks>,
    /// Dropped last: its tasks hold parts of the others.
    runtime: Runtime,
}

impl Services {
    pub(crate) fn new(deck: Deck, seed: u64, partitions: usize, answers_first: bool) -> Self {
        let clock = Arc::new(AtomicU64::new(0));
        let now = |clock: &Arc<AtomicU64>| {
            let clock = Arc::clone(clock);
            move || Time::from_millis(clock.load(Ordering::Relaxed))
        };
        Self {
            deck,
            log: SharedLog::new(partitions),
            store: Arc::new(MemoryStore::with_clock(|| STORE_MS.get())),
            routes: Arc::new(MemoryRoutes::new(WALL_START_MS, Leases::default(), now(&clock))),
            scratch: Arc::new(MemoryScratch::new(1 << 20, || WALL_START_MS)),
            numbers: Arc::new(ClockNumbers::new(|| WALL_START_MS)),
            network: Network::new(seed, deck.latency_max()),
            clock,
            answers_first,
        }
    }

    fn settings(&self) -> Settings {
        Settings { intake_bytes_max: self.deck.intake_bytes_max(), ..Settings::new(SMALL_GROUP_MAX) }
    }
}

impl Node {
    /// Starts a run of the node `nth` at the time `at`, with two shards.
    pub(crate) fn start(services: &Services, nth: usize, boot: u64, seed: u64, at: Duration) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a valid value");
        let me = NodeBoot { node: NodeId::new(&format!("n{}", nth + 1)).expect("it is sound"), boot };
        let mut rng = StdRng::seed_from_u64(seed);
        let bus = services.log.node();
        let plans: Vec<Arc<FaultPlan>> = (0..4).map(|_| FaultPlan::seeded(rng.random(), RATES)).collect();
        plans[2].set_rates(services.deck.routes_rates(RATES));
        WALL_MS.set(WALL_START_MS);
        STORE_MS.set(WALL_START_MS + u64::try_from(at.as_millis()).unwrap_or(u64::MAX));
        let Assembled { broker, shards, newcomers, admission, drainer, has_ended, tasks } =
            runtime.block_on(assemble(services, &me, &bus, &plans));
        Self {
            me,
            broker,
            drainer,
            has_ended,
            tasks: Some(tasks),
            bus,
            network: services.network.clone(),
            plans,
            shards,
            newcomers,
            admission,
            rng,
            born: at,
            at,
            frozen_until: Duration::ZERO,
            wall_offset_ms: services.deck.clock_ahead(nth),
            runtime,
        }
    }

    /// Gives the node a turn at the time `now`: its timers, tasks and shards.
    pub(crate) fn turn(&mut self, now: Duration) {
        if now < self.frozen_until {
            return;
        }
        let elapsed = now - self.at;
        self.at = now;
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let wall_ms = (WALL_START_MS + millis(now)).saturating_add_signed(self.wall_offset_ms);
        WALL_MS.set(wall_ms);
        STORE_MS.set(WALL_START_MS + millis(now));
        let yields = self.rng.random_range(1..=8);
        self.runtime.block_on(async {
            tokio::time::advance(elapsed).await;
            for _ in 0..yields {
                yield_now().await;
            }
        });
        let _guard = self.runtime.enter();
        let at = Time::from_millis(millis(now - self.born));
        let mut order: Vec<usize> = (0..self.shards.len()).collect();
        order.shuffle(&mut self.rng);
        for nth in order {
            let (shard, pipes) = &mut self.shards[nth];
            let (ready, is_complete) = pipes.ready(self.rng.random_range(2..64));
            shard.turn(Now { at, wall_ms }, ready.into_iter(), || is_complete);
        }
    }

    /// Accepts a connection at one of the shards.
    pub(crate) fn accept(&mut self, rng: &mut StdRng) -> Option<ClientEnd> {
        let output_max = rng.random_range(1..=64) * 1_024;
        let (arrival, end) = pipes::connection(64 * 1_024, output_max);
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
        let permit = self.admission.admit(address.ip()).ok()?;
        let shard = rng.random_range(0..self.newcomers.len());
        self.newcomers[shard].offer(Newcomer { arrival, address, permit, certified_user: None }).ok()?;
        Some(end)
    }

    /// Begins a planned stop, as `Node::wait` carries it out: drain, end of the shards, of the tasks, and of the lease.
    pub(crate) fn leave(&mut self) {
        let Some(tasks) = self.tasks.take() else { return };
        // The drain takes the time of its signal from the clock of the node.
        let _guard = self.runtime.enter();
        self.drainer.signal();
        let (broker, drainer) = (Arc::clone(&self.broker), Arc::clone(&self.drainer));
        let has_ended = Arc::clone(&self.has_ended);
        self.runtime.spawn(async move {
            drainer.emptied().await;
            for shard in broker.shards() {
                shard.post(Mail::Stop(Code::Draining)).await.ok();
            }
            while broker.shards().iter().any(|shard| shard.conns() > 0) && !drainer.flush_is_over() {
                crate::pass(Duration::from_millis(20)).await;
            }
            tasks.stop(&*broker.cluster.ports.bus).await;
            lease::leave(&broker.cluster).await;
            has_ended.store(true, Ordering::Relaxed);
        });
    }

    /// Returns whether the node is leaving as planned.
    pub(crate) fn is_leaving(&self) -> bool {
        self.tasks.is_none()
    }

    /// Returns whether the run has ended, and must be dropped.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    /// Returns the access of administrators, and the runtime in which to use it.
    pub(crate) fn admin(&self) -> (Admin, tokio::runtime::Handle) {
        (self.broker.admin.clone(), self.runtime.handle().clone())
    }

    /// Returns the member number in the group of owners.
    pub(crate) fn member(&self) -> Option<u64> {
        self.bus.member()
    }

    /// Returns all member numbers that the run had in the group.
    pub(crate) fn members(&self) -> Vec<u64> {
        self.bus.members()
    }

    /// Keeps the answer to the next archive from its owner until the gate opens.
    pub(crate) fn hold_archive(&self, gate: Gate) {
        self.plans[1].plan("archive", fault::Fault::HoldAnswer(gate));
    }

    /// Keeps no further answer.
    pub(crate) fn forget_held_archive(&self) {
        self.plans[1].forget("archive");
    }

    /// Cuts the node off from the routes, or connects it again.
    pub(crate) fn set_routes_apart(&self, is_apart: bool) {
        let rates = if is_apart { Rates { fail: 1_000, ..Rates::default() } } else { RATES };
        self.plans[2].set_rates(rates);
    }

    /// Nothing fails any more.
    pub(crate) fn heal(&mut self) {
        self.plans.iter().for_each(|plan| plan.set_rates(Rates::default()));
        self.frozen_until = Duration::ZERO;
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.network.remove(&self.me);
    }
}

/// Parts of a node that the world drives.
struct Assembled {
    broker: Arc<Broker>,
    shards: Vec<(Shard<Pipes>, Pipes)>,
    newcomers: Vec<NewcomerQueue<ShardEnd>>,
    admission: Arc<Admission>,
    drainer: Arc<Drainer>,
    has_ended: Arc<AtomicBool>,
    tasks: RunningTasks,
}

async fn assemble(
    services: &Services,
    me: &NodeBoot,
    bus: &Arc<NodeBus>,
    plans: &[Arc<FaultPlan>],
) -> Assembled {
    let link: Arc<dyn Link> = services.network.link(me.clone());
    let store: Arc<dyn Store> = Arc::clone(&services.store) as _;
    let cluster = Arc::new(Cluster::new(
        me.clone(),
        Ports {
            bus: Arc::new(Faulty::<dyn Bus>::new(Arc::clone(bus) as _, Arc::clone(&plans[0]))),
            store: Arc::new(Faulty::<dyn Store>::new(store, Arc::clone(&plans[1]))),
            routes: Arc::new(Faulty::<dyn Routes>::new(
                Arc::clone(&services.routes) as _,
                Arc::clone(&plans[2]),
            )),
            scratch: Arc::clone(&services.scratch),
            link,
        },
    ));
    if services.answers_first {
        cluster.owned.unarchived().allow();
    }
    let feed = bus.consume_node(me).await.expect("the log is in memory");
    let metrics = metrics::install().0;
    let (broker, outlets) = Broker::assemble(Parts {
        cluster,
        peering: Peering::Clustered(feed),
        numbers: Arc::clone(&services.numbers),
        settings: services.settings(),
        metrics: metrics.clone(),
    });
    services.network.serve(me, Arc::new(broker.peer()));
    let context = broker.shard_context(shard_settings());
    let (mut shards, mut newcomers) = (Vec::new(), Vec::new());
    for index in 0..2 {
        let pipes = Pipes::new();
        let (shard, queue) =
            Shard::new(Context { index, ..context.clone() }, pipes.clone(), Waker::noop().clone());
        shards.push((shard, pipes));
        newcomers.push(queue);
    }
    let handles = newcomers.iter().map(|queue: &NewcomerQueue<ShardEnd>| queue.shard().clone()).collect();
    assert!(context.handles.set(handles).is_ok(), "set once");
    let rules =
        rules::Settings { known: LEDGER_NEWEST, settle: RULES_SETTLE_TIME, ..rules::Settings::default() };
    let tasks = broker.start(outlets, Some(owner_settings(rules, services)));
    let admission = Admission::new(0, 0);
    let drainer = broker.start_drainer(DRAIN, Instant::now().into_std(), &admission);
    let announcement = NodeAnnouncement {
        broker: Arc::clone(&broker),
        client_addresses: Vec::new(),
        peer_address: me.node.to_string(),
        admission: Arc::clone(&admission),
        drainer: Arc::clone(&drainer),
        rules,
    };
    let mut lease = announcement.into_member(Leases::default().node, |_| {});
    lease.announce().await.expect("the run is new");
    let (name, has_ended) = (me.clone(), Arc::new(AtomicBool::new(false)));
    let ends = Arc::clone(&has_ended);
    tokio::spawn(async move {
        let why = lease.run().await;
        tracing::warn!(%name, why, "the run has ended");
        ends.store(true, Ordering::Relaxed);
    });
    Assembled { broker, shards, newcomers, admission, drainer, has_ended, tasks }
}

fn shard_settings() -> ShardSettings {
    // Tighter than the defaults, so that a client that stalls falls behind and gets pushes again.
    let limits = SessionLimits {
        window: WindowLimits {
            count_max: 48,
            ack_timeout: Duration::from_millis(700),
            ..WindowLimits::default()
        },
        ..SessionLimits::default()
    };
    // Edits are judged by the clock of the machine, which is not that of the world.
    ShardSettings { limits, edit_within: Duration::MAX, ..ShardSettings::new(Verifier::hs256(KEY)) }
}

fn owner_settings(rules: rules::Settings, services: &Services) -> owner::Settings {
    let retention = retention::Settings {
        node: services.deck.keep(),
        every: RETENTION_INTERVAL,
        keys: Duration::from_secs(86_400 * 30),
        feed: retention::FeedRetention { keep: Duration::from_secs(86_400), bytes_max: 1 << 30 },
        wall_ms: || WALL_MS.get(),
    };
    owner::Settings {
        small_group_max: SMALL_GROUP_MAX,
        retention,
        rules,
        answers_first: services.answers_first.then_some(Duration::from_secs(4)),
        cache: Arc::default(),
        panic_on_msg_id: String::new(),
    }
}
