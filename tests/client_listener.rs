//! The client listener alone: the options of an accepted socket, and the shard that gets it.

#[path = "support/mod.rs"]
mod support;

use std::{
    net::{SocketAddr, TcpStream},
    sync::atomic::Ordering,
    task::Waker,
    time::Duration,
};

use socket2::SockRef;
use support::{Client, eventually};
use tidegate::{
    accept::{Acceptor, Stopper},
    budget::Admission,
    config,
    mail::{self, Mailbox},
    metrics,
    net::{sockopt, tcp::Arrival},
    shard::newcomer::{self, NEWCOMERS_MAX, Newcomers},
};
use tidegate_protocol::{Code, codec::Wire};

/// Client listener whose shards only store the connections they get.
struct TestListener {
    address: SocketAddr,
    mailboxes: Vec<Mailbox>,
    newcomers: Vec<Newcomers<Arrival>>,
    stopper: Stopper,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl TestListener {
    /// Opens a listener with one shard for each number, which is its count of existing connections.
    fn open(conns: &[usize], socket: config::SocketConfig) -> Self {
        Self::with_queues_of(NEWCOMERS_MAX, conns, socket)
    }

    /// Opens a listener whose shards queue at most `newcomers_max` connections each.
    fn with_queues_of(newcomers_max: usize, conns: &[usize], socket: config::SocketConfig) -> Self {
        let listener = sockopt::listen(([127, 0, 0, 1], 0).into(), 128).expect("a free port");
        let address = listener.local_addr().expect("it listens");
        let (mut shards, mut mailboxes, mut queues) = (Vec::new(), Vec::new(), Vec::new());
        for count in conns {
            let (shard, mailbox) = mail::mailbox(Waker::noop().clone(), 1 << 20);
            (0..*count).for_each(|_| shard.count_in());
            let (queue, newcomers) = newcomer::newcomer_queue(shard, newcomers_max);
            shards.push(queue);
            mailboxes.push(mailbox);
            queues.push(newcomers);
        }
        let (metrics, _) = metrics::install();
        let (acceptor, stopper) =
            Acceptor::new(listener, Admission::new(0, 0), shards, None, Default::default(), socket, metrics)
                .expect("a poll");
        let thread = std::thread::spawn(move || acceptor.run().expect("polling works"));
        Self { address, mailboxes, newcomers: queues, stopper, thread: Some(thread) }
    }

    /// Returns the next connection that a shard got.
    fn next(&mut self, shard: usize) -> mio::net::TcpStream {
        eventually("a connection", || Some(self.newcomers[shard].try_recv().ok()?.arrival.stream))
    }
}

impl Drop for TestListener {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the acceptor ends without a panic");
        }
    }
}

#[test]
fn accepted_socket_has_the_configured_options() {
    let wished = config::SocketConfig {
        send_buffer_bytes: 40_000,
        notsent_lowat_bytes: 9_000,
        user_timeout_ms: 7_000,
    };
    for wished in [config::SocketConfig::default(), wished] {
        let mut listener = TestListener::open(&[0], wished.clone());
        let _client = TcpStream::connect(listener.address).expect("it accepts");
        let stream = listener.next(0);
        let socket = SockRef::from(&stream);
        assert!(socket.tcp_nodelay().expect("an option"));
        let buffer = socket.send_buffer_size().expect("an option");
        assert_eq!(buffer, 2 * wished.send_buffer_bytes, "the kernel doubles it");
        let lowat = socket.tcp_notsent_lowat().expect("an option");
        assert_eq!(lowat, wished.notsent_lowat_bytes);
        let timeout = socket.tcp_user_timeout().expect("an option");
        assert_eq!(timeout, Some(Duration::from_millis(wished.user_timeout_ms)));
        assert!(socket.nonblocking().expect("a flag"));
    }
}

#[test]
fn disabled_options_are_left_to_the_kernel() {
    let off = config::SocketConfig { send_buffer_bytes: 0, notsent_lowat_bytes: 0, user_timeout_ms: 0 };
    let mut listener = TestListener::open(&[0], off);
    let client = TcpStream::connect(listener.address).expect("it accepts");
    let stream = listener.next(0);
    let (ours, theirs) = (SockRef::from(&stream), SockRef::from(&client));
    assert!(ours.tcp_nodelay().expect("an option"));
    // Asked for 0 bytes, the kernel sets 4,608.
    assert!(ours.send_buffer_size().expect("an option") > 8_192);
    let lowat = |socket: &SockRef<'_>| socket.tcp_notsent_lowat().expect("an option");
    assert_eq!(lowat(&ours), lowat(&theirs));
    assert_eq!(ours.tcp_user_timeout().expect("an option"), None);
}

#[test]
fn connections_are_spread_evenly_over_the_shards() {
    // A shard with more connections gets none until the others have caught up.
    for (before, given) in [([0, 0, 0], [10, 10, 10]), ([9, 0, 0], [4, 13, 13]), ([50, 0, 0], [0, 15, 15])] {
        let listener = TestListener::open(&before, config::SocketConfig::default());
        let _clients: Vec<TcpStream> =
            (0..30).map(|_| TcpStream::connect(listener.address).expect("it accepts")).collect();
        let counts = || -> Vec<usize> {
            let conns = listener.mailboxes.iter().map(|it| it.conns.load(Ordering::Relaxed));
            conns.zip(before).map(|(now, before)| now - before).collect()
        };
        eventually("all connections are accepted", || (counts().iter().sum::<usize>() == 30).then_some(()));
        assert_eq!(counts(), given, "the shards had {before:?}");
    }
}

#[test]
fn busy_shard_delays_no_connection_and_full_shards_refuse() {
    let mut listener = TestListener::with_queues_of(2, &[0, 100], config::SocketConfig::default());
    // The first shard takes nothing from its queue; after two connections the second gets the others.
    let _waiting: Vec<TcpStream> =
        (0..4).map(|_| TcpStream::connect(listener.address).expect("it accepts")).collect();
    let counts = |listener: &TestListener| -> Vec<usize> {
        listener.mailboxes.iter().map(|it| it.conns.load(Ordering::Relaxed)).collect()
    };
    eventually("all are queued", || (counts(&listener) == [2, 102]).then_some(()));
    let mut refused = Client::connect(listener.address, Wire::JsonLine);
    assert_eq!(refused.expect_close(), Code::Overloaded);
    assert_eq!(counts(&listener), [2, 102], "a refused connection is not counted");
    drop(listener.next(0));
    let _next = TcpStream::connect(listener.address).expect("it accepts");
    eventually("the shard gets connections again", || (counts(&listener) == [3, 102]).then_some(()));
}
