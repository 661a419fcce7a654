//! Shards without a node around them, driven turn by turn on the caller's thread: what they do is the same every time.
//!
//! The caller is the door, the owner and the clock. Used by `tests/shard.rs` and by `examples/counts.rs`.
#![allow(dead_code, unreachable_pub, reason = "each user takes a part of it")]

use std::{
    net::{SocketAddr, TcpListener},
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
    net::sockopt,
    ports::Ports,
    routes::{Leases, MemoryRoutes, NodeBoot},
    scratch::{ClockNumbers, MemoryScratch},
    shard::{Context, Shard},
    store::MemoryStore,
};
use tidegate_protocol::{
    Time,
    codec::PushFrame,
    content::Content,
    id::{ConversationId, NodeId, UserId},
};

const KEY: &[u8] = b"a key of thirty-two bytes, or so";

/// Shards that do nothing by themselves.
pub struct Lone {
    shards: Vec<Shard>,
    /// Their mailboxes.
    pub handles: Vec<ShardHandle>,
    /// Their clock; it stands still.
    pub now: Time,
    outlets: Outlets,
    listener: TcpListener,
    admission: Arc<Admission>,
    socket: config::Socket,
    events: Events,
    /// Memory ports answer at once, so nothing ever runs on it.
    _runtime: tokio::runtime::Runtime,
}

impl Lone {
    /// So many shards; `change` changes what the test is about.
    pub fn new(count: usize, change: impl FnOnce(&mut Context, &mut config::Socket)) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let handle = runtime.handle().clone();
        let _guard = handle.enter();
        // A broker that is never started: this is its log and its owner.
        let (broker, outlets) = Broker::assemble(parts());
        let mut context = broker.shard_context(ShardSettings::new(Verifier::hs256(KEY)));
        let mut socket = config::Socket::default();
        change(&mut context, &mut socket);
        let shards = broker.build_shards(&context, count).expect("a poll");
        Self {
            shards,
            handles: broker.shards().to_vec(),
            now: Time::from_millis(1_000),
            outlets,
            listener: TcpListener::bind(("127.0.0.1", 0)).expect("a free port"),
            admission: Admission::new(0, 0),
            socket,
            events: Events::with_capacity(1_024),
            _runtime: runtime,
        }
    }

    /// Lets the shards hear of so many sockets in a turn.
    pub fn hear_at_once(&mut self, sockets: usize) {
        self.events = Events::with_capacity(sockets);
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.listener.local_addr().expect("it listens")
    }

    /// A token of that user.
    pub fn token(&self, user: &str) -> String {
        auth::sign(KEY, user, None, Duration::from_secs(3_600))
    }

    /// Hands the connection that waits longest to a shard, as the door does.
    pub fn accept(&self, shard: usize) {
        let (stream, address) = self.listener.accept().expect("a client has connected");
        stream.set_nonblocking(true).expect("a socket takes options");
        let stream = TcpStream::from_std(stream);
        sockopt::tune(&stream, &self.socket).expect("a socket takes options");
        let Ok(seat) = self.admission.admit(address.ip()) else { panic!("there is no cap") };
        self.handles[shard].count_in();
        self.post(shard, Mail::Accepted(stream, address, seat));
    }

    /// Posts what fits.
    pub fn post(&self, shard: usize, mail: Mail) {
        assert!(self.handles[shard].try_post(mail), "the mailbox is full");
    }

    /// One turn of a shard; it sleeps for at most 100 ms when there is nothing to do.
    pub fn turn(&mut self, shard: usize) {
        let now = self.now;
        self.shards[shard].step(&mut self.events, || now).expect("polling works");
    }

    /// Answers the logins that wait, as the owner does: the users are in these groups. False = there is none.
    pub fn answer_logins(&mut self, shard: usize, groups: &[ConversationId]) -> bool {
        let Ok(logins) = self.outlets.logins.try_recv() else { return false };
        for (key, _) in logins {
            self.post(shard, Mail::Memberships(key, groups.to_vec()));
        }
        true
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

/// A message to the members of a group or room.
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
            1_763_712_000_000,
            &content.encode_to_vec(),
        )),
        origin: None,
        tracked: false,
    }
}

/// The same to one user.
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
            routes: Arc::new(MemoryRoutes::new(1_763_712_000_000, leases, || Time::ZERO)),
            scratch: Arc::new(MemoryScratch::new(1 << 20, || Time::ZERO)),
            link: Arc::new(LocalLink),
        },
    ));
    Parts {
        cluster,
        peering: Peering::Single,
        numbers: Arc::new(ClockNumbers::new(|| 1_763_712_000_000)),
        settings: Settings::new(500),
        metrics: metrics::install().0,
    }
}
