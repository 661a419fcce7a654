//! Shards without a node around them, driven turn by turn on the caller's thread, so that each run is the same.
//!
//! The caller is the listener, the owner and the clock. Used by `tests/shard.rs` over two transports, and by
//! `examples/counts.rs` over sockets.
#![allow(dead_code, unreachable_pub, reason = "each user takes a part of it")]

use std::{
    net::{IpAddr, SocketAddr, TcpListener},
    sync::Arc,
    time::Duration,
};

use mio::{Events, net::TcpStream};
use prost::Message as _;
use tidegate::{
    auth::{self, Verifier},
    broker::{Broker, Parts, Peering, Settings, ShardSettings},
    budget::Admission,
    bus::{LocalBus, LocalBusConfig, TopicId},
    cluster::Cluster,
    config,
    ingest::intake::Outlets,
    link::LocalLink,
    mail::{Audience, Delivery, Item, Mail, ShardHandle},
    metrics,
    net::{sockopt, tcp::Arrival},
    ports::Ports,
    routes::{Leases, MemoryRoutes, NodeBoot},
    scratch::{ClockNumbers, MemoryScratch},
    shard::{
        self, Context, Driver, Now,
        newcomer::{Newcomer, NewcomerQueue},
    },
    store::MemoryStore,
};
use tidegate_protocol::{
    Time,
    codec::PushFrame,
    content::Content,
    id::{ConversationId, NodeId, UserId},
    record::Record,
};

/// Events in a turn, unless a test takes fewer.
const EVENTS_MAX: usize = 1_024;

/// Wall clock of all turns, in ms since 1970.
const WALL_CLOCK_MS: u64 = 1_763_712_000_000;

/// Key that verifies the tokens of [`ManualShards::token`].
pub const KEY: &[u8] = b"a key of thirty-two bytes, or so";

/// Transport of manual shards, with the shards that it drives.
pub trait Transport {
    /// Connection that no shard has yet.
    type Arrival;

    /// Opens a transport without shards.
    fn open(socket: config::SocketConfig) -> Self;

    /// Adds a shard, and returns the queue of its new connections.
    fn add_shard(&mut self, context: Context) -> NewcomerQueue<Self::Arrival>;

    /// Accepts the connection that has waited longest.
    fn accept(&mut self) -> (Self::Arrival, SocketAddr);

    /// Runs one turn of a shard, with at most `events_max` events.
    fn turn(&mut self, shard: usize, now: Now, events_max: usize);
}

/// Sockets of this machine, with a poll for each shard.
pub struct Sockets {
    drivers: Vec<Driver>,
    listener: TcpListener,
    socket: config::SocketConfig,
    events: Events,
}

impl Transport for Sockets {
    type Arrival = Arrival;

    fn open(socket: config::SocketConfig) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        Self { drivers: Vec::new(), listener, socket, events: Events::with_capacity(EVENTS_MAX) }
    }

    fn add_shard(&mut self, context: Context) -> NewcomerQueue<Arrival> {
        let (driver, newcomers) = shard::build(context).expect("a poll");
        self.drivers.push(driver);
        newcomers
    }

    fn accept(&mut self) -> (Arrival, SocketAddr) {
        let (stream, address) = self.listener.accept().expect("a client has connected");
        stream.set_nonblocking(true).expect("a socket takes options");
        let stream = TcpStream::from_std(stream);
        sockopt::tune(&stream, &self.socket).expect("a socket takes options");
        (Arrival { stream, tls: None }, address)
    }

    /// Sleeps for at most 100 ms when there is nothing to do.
    fn turn(&mut self, shard: usize, now: Now, events_max: usize) {
        if self.events.capacity() != events_max {
            self.events = Events::with_capacity(events_max);
        }
        let driver = &mut self.drivers[shard];
        driver.wait(&mut self.events).expect("polling works");
        driver.turn(&self.events, now);
    }
}

/// Shards that run only when the test calls [`Self::turn`].
pub struct ManualShards<T: Transport> {
    /// Transport of the shards.
    pub transport: T,
    newcomers: Vec<NewcomerQueue<T::Arrival>>,
    /// Mailboxes of the shards.
    pub handles: Vec<ShardHandle>,
    /// Time of the next turn; only the test advances it.
    pub now: Time,
    outlets: Outlets,
    admission: Arc<Admission>,
    /// Largest number of events in a turn.
    events_max: usize,
    /// Memory ports answer at once, so nothing runs on it but what [`Self::settle`] waits for.
    runtime: tokio::runtime::Runtime,
}

impl<T: Transport> ManualShards<T> {
    /// Creates `count` shards; `change` sets what the test is about.
    pub fn new(count: usize, change: impl FnOnce(&mut Context, &mut config::SocketConfig)) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let handle = runtime.handle().clone();
        let _guard = handle.enter();
        // A broker that is never started: this is its log and its owner.
        let (broker, outlets) = Broker::assemble(parts());
        let mut context = broker.shard_context(ShardSettings::new(Verifier::hs256(KEY)));
        let mut socket = config::SocketConfig::default();
        change(&mut context, &mut socket);
        let mut transport = T::open(socket);
        let add = |index| transport.add_shard(Context { index, ..context.clone() });
        let newcomers: Vec<NewcomerQueue<T::Arrival>> = (0..count).map(add).collect();
        let list: Vec<ShardHandle> = newcomers.iter().map(|it| it.shard().clone()).collect();
        assert!(context.handles.set(list.clone()).is_ok(), "set once");
        Self {
            transport,
            newcomers,
            handles: list,
            now: Time::from_millis(1_000),
            outlets,
            admission: Admission::new(0, 0),
            events_max: EVENTS_MAX,
            runtime,
        }
    }

    /// Sets the largest number of events in a turn.
    pub fn limit_events(&mut self, events_max: usize) {
        self.events_max = events_max;
    }

    /// Returns a token of the user.
    pub fn token(&self, user: &str) -> String {
        auth::sign(KEY, user, None, Duration::from_secs(3_600))
    }

    /// Returns a token of the user that has expired before the time of the turns.
    pub fn expired_token(&self, user: &str) -> String {
        auth::sign_until(KEY, user, None, 1_000)
    }

    /// Queues the connection that waits longest at a shard, as the listener does.
    pub fn accept(&mut self, shard: usize) {
        self.accept_from(shard, None);
    }

    /// Queues the connection that waits longest as one from `address`, if given.
    pub fn accept_from(&mut self, shard: usize, address: Option<IpAddr>) {
        let (arrival, mut peer) = self.transport.accept();
        peer.set_ip(address.unwrap_or(peer.ip()));
        let address = peer;
        let Ok(permit) = self.admission.admit(address.ip()) else { panic!("there is no cap") };
        let taken = self.newcomers[shard].offer(Newcomer { arrival, address, permit, certified_user: None });
        assert!(taken.is_ok(), "the queue is full");
    }

    /// Posts mail, which must fit.
    pub fn post(&self, shard: usize, mail: Mail) {
        assert!(self.handles[shard].try_post(mail), "the mailbox is full");
    }

    /// Runs the tasks of the shards until they wait for something else, such as requests that a limit let wait.
    pub fn settle(&self) {
        const STEPS: usize = 16;
        self.runtime.block_on(async {
            for _ in 0..STEPS {
                tokio::task::yield_now().await;
            }
        });
    }

    /// Runs one turn of a shard.
    pub fn turn(&mut self, shard: usize) {
        self.transport.turn(shard, Now { at: self.now, wall_ms: WALL_CLOCK_MS }, self.events_max);
    }

    /// Answers pending logins as the owner does, with these groups for each user. Returns false if none waits.
    pub fn answer_logins(&mut self, shard: usize, groups: &[ConversationId]) -> bool {
        let Ok(logins) = self.outlets.logins.try_recv() else { return false };
        for (key, _) in logins {
            self.post(shard, Mail::Memberships(key, groups.to_vec()));
        }
        true
    }

    /// Takes the messages that the shards have handed to the log, which gets none of them.
    pub fn take_sends(&mut self) -> Vec<Record> {
        std::iter::from_fn(|| self.outlets.records.try_recv().ok()).flatten().collect()
    }

    /// Waits for a login and answers it.
    pub fn admit(&mut self, shard: usize, groups: &[ConversationId]) {
        for _ in 0..100 {
            self.turn(shard);
            if self.answer_logins(shard, groups) {
                return self.turn(shard);
            }
        }
        panic!("no login came");
    }

    /// Posts a push, as the owner does.
    pub fn push(&self, shard: usize, push: Delivery) -> bool {
        self.handles[shard].try_post(Mail::Deliver(vec![Item::Push(push)]))
    }
}

impl ManualShards<Sockets> {
    /// Returns the address to which clients connect.
    pub fn address(&self) -> SocketAddr {
        self.transport.listener.local_addr().expect("it listens")
    }
}

/// Builds a push to the members of a group or room.
pub fn push(conversation: &ConversationId, seq: u64, text: &str) -> Delivery {
    let msg_id = format!("m-{seq:09}");
    let content = Content::text(text);
    Delivery {
        conversation: conversation.clone(),
        seq,
        audience: Audience::Members,
        frame: Arc::new(PushFrame::from_parts(
            conversation.as_str(),
            seq,
            "alice",
            &msg_id,
            WALL_CLOCK_MS,
            &content.encode_to_vec(),
            0,
        )),
        origin: None,
        tracked: false,
        class: 0,
    }
}

/// Builds a push to one user.
pub fn push_to(user: &str, conversation: &ConversationId, seq: u64, text: &str) -> Delivery {
    let user = UserId::new(user).expect("a good id");
    Delivery { audience: Audience::Users([user].into()), tracked: true, ..push(conversation, seq, text) }
}

fn parts() -> Parts {
    let leases = Leases { node: Duration::from_secs(10), interest: Duration::from_secs(60) };
    let log = LocalBusConfig {
        partitions: 1,
        topic: TopicId(1),
        max_records: 16,
        max_bytes: 1 << 16,
        node_max_records: 16,
        node_max_bytes: 1 << 16,
    };
    let me = NodeBoot { node: NodeId::new("n1").expect("a good id"), boot: 1 };
    let cluster = Arc::new(Cluster::new(
        me,
        Ports {
            bus: Arc::new(LocalBus::new(log)),
            store: Arc::new(MemoryStore::default()),
            routes: Arc::new(MemoryRoutes::new(WALL_CLOCK_MS, leases, || Time::ZERO)),
            scratch: Arc::new(MemoryScratch::new(1 << 20, || 0)),
            link: Arc::new(LocalLink),
        },
    ));
    Parts {
        cluster,
        peering: Peering::Single,
        numbers: Arc::new(ClockNumbers::new(|| WALL_CLOCK_MS)),
        settings: Settings::new(500),
        metrics: metrics::install().0,
    }
}
