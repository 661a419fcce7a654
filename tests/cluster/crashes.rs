//! kill -9, and a freeze, under load: users of that node connect elsewhere at once, or are reported offline once;
//! repeated crashes leave nothing behind.

use std::{
    collections::BTreeSet,
    env,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::{RwLock, RwLockWriteGuard};
use rustix::process::Signal;
use serde_json::Value;
use tidegate::auth;
use tidegate_protocol::{codec::Wire, pb};

use crate::{
    events::Listener,
    history,
    reaper::online,
    send_until_acked,
    support::{
        Client, Cluster, ServerBody, Stopwatch, WAIT_MAX, ask, eventually, hello, let_time_pass,
        let_time_pass_since, send, shown_in_two_runs, text_of,
    },
};

/// Time between two messages of a writer.
const SEND_INTERVAL: Duration = Duration::from_millis(30);
/// Time until a partition has an owner again after two crashes: a member that dies while it joins is awaited until that
/// join ends, which is when the one before it was missed, and only then its own session begins to run out. The rest is
/// the 2 s of any other takeover.
const TWO_SESSIONS_TIME: Duration = Duration::from_secs(6 + 6 + 2);
/// Position of a writer without a node.
const NOWHERE: usize = usize::MAX;

/// Sessions of the first node that wait to move a position, and those in a transaction that sends nothing more.
const MOVES: &str = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
    AND application_name = 'first' AND wait_event_type = 'Lock' AND query LIKE '%UPDATE partitions%'";
const STUCK: &str = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
    AND state = 'idle in transaction' AND clock_timestamp() - state_change > interval '200 ms'";

#[test]
fn s10_owner_frozen_during_an_archive_is_cut_off() {
    // The server ends a session that stalls for this long. The default of 1 s is less than the first check may take on
    // a busy machine.
    let mut cluster = Cluster::prepare(2, &["postgres.stalled_ms=2500"]);
    let named = format!("postgres.url={}?application_name=first", cluster.setting("postgres.url="));
    // One connection for archives.
    cluster.set_for(0, &[&named, "postgres.pool_max=2"]);
    cluster.start_nodes(0..2);
    cluster.all_shared();
    let mut clients: Vec<Client> =
        (0..8).map(|n| cluster.login(1, Wire::Tcp, &format!("user-{n}"))).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.text(&format!("peer-{n}"), "m1", "m1"), 1);
    }
    let held = cluster.hold_archive();
    for (n, client) in clients.iter_mut().enumerate() {
        client.say(ask::send(send(&format!("peer-{n}"), "m2", "m2")));
    }
    eventually("an owner of the first node waits", || (cluster.number(MOVES) > 0).then_some(()));
    cluster.node(0).signal(Signal::STOP);
    drop(held);
    eventually("the archive is stuck in its transaction", || (cluster.number(STUCK) > 0).then_some(()));
    for (n, client) in clients.iter_mut().enumerate() {
        assert_eq!(send_until_acked(client, &format!("peer-{n}"), "m2").0, 2);
    }
    cluster.node(0).signal(Signal::CONT);
    for nth in 3..=6 {
        for (n, client) in clients.iter_mut().enumerate() {
            assert_eq!(send_until_acked(client, &format!("peer-{n}"), &format!("m{nth}")).0, nth);
        }
    }
    for (n, client) in clients.iter_mut().enumerate() {
        let expected: Vec<_> = (1..=6).map(|nth| (nth, format!("m{nth}"))).collect();
        assert_eq!(history(client, &format!("d:peer-{n}:user-{n}")), expected);
    }
}

/// State that the writers share.
struct Shared {
    key: Vec<u8>,
    /// Client addresses, `None` while a node is down. Locked for as long as a login takes, so that no crash interrupts
    /// one.
    addresses: RwLock<Vec<Option<SocketAddr>>>,
    /// No new message is written any more.
    quiet: AtomicBool,
    /// Number of acked messages by writer.
    acked: Vec<AtomicU64>,
    /// Node of each writer.
    at: Vec<AtomicUsize>,
    /// The test has ended, and its nodes with it.
    over: AtomicBool,
    /// The node that no longer answers: its writers go elsewhere and abandon their connections.
    frozen: AtomicUsize,
}

/// Writers, each a thread: one message after the other to an offline user, resent until acked.
struct Writers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

fn writer(n: usize) -> String {
    format!("user-{n}")
}

impl Writers {
    /// Starts `count` writers, the n-th on the n-th of three nodes; after losing their node, those with `comes_back`
    /// reconnect to another.
    fn start(cluster: &Cluster, count: usize, comes_back: fn(usize) -> bool) -> Self {
        let shared = Arc::new(Shared {
            key: auth::load_key(cluster.node(0).data()).expect("a key"),
            addresses: RwLock::new((0..3).map(|nth| Some(cluster.node(nth).address())).collect()),
            quiet: AtomicBool::new(false),
            acked: (0..count).map(|_| AtomicU64::new(0)).collect(),
            at: (0..count).map(|_| AtomicUsize::new(NOWHERE)).collect(),
            over: AtomicBool::new(false),
            frozen: AtomicUsize::new(NOWHERE),
        });
        let spawn = |n| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.write(n, comes_back(n)))
        };
        let threads = (0..count).map(spawn).collect();
        Self { shared, threads }
    }

    /// Kills a node while the writers use it.
    fn kill(&self, cluster: &mut Cluster, nth: usize) {
        let mut addresses = self.addresses();
        addresses[nth] = None;
        cluster.kill(nth);
    }

    /// Freezes a node while the writers use it.
    fn freeze(&self, cluster: &Cluster, nth: usize) {
        let mut addresses = self.addresses();
        addresses[nth] = None;
        cluster.node(nth).signal(Signal::STOP);
        self.shared.frozen.store(nth, Ordering::Release);
    }

    /// Lets the writers use a node again.
    fn open(&self, cluster: &Cluster, nth: usize) {
        self.addresses()[nth] = Some(cluster.node(nth).address());
    }

    fn addresses(&self) -> RwLockWriteGuard<'_, Vec<Option<SocketAddr>>> {
        self.shared.addresses.write()
    }

    /// Returns the writers that are on a node.
    fn on_node(&self) -> Vec<usize> {
        let is_there = |n: &usize| self.shared.at[*n].load(Ordering::Acquire) != NOWHERE;
        (0..self.threads.len()).filter(is_there).collect()
    }

    /// Waits until each of these writers has three more acks.
    fn write_on(&self, who: &[usize]) {
        let acked = |n: &usize| self.shared.acked[*n].load(Ordering::Acquire);
        let before: Vec<u64> = who.iter().map(acked).collect();
        for (n, before) in who.iter().zip(before) {
            eventually(&format!("{} writes on", writer(*n)), || (acked(n) >= before + 3).then_some(()));
        }
    }

    /// Lets all writers finish and disconnect; returns the number of acked messages of each.
    fn stop(mut self) -> Vec<u64> {
        self.shared.quiet.store(true, Ordering::Release);
        self.threads.drain(..).for_each(|thread| thread.join().expect("a writer"));
        self.shared.acked.iter().map(|acked| acked.load(Ordering::Acquire)).collect()
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Release);
    }
}

impl Shared {
    fn write(&self, n: usize, comes_back: bool) {
        let (mut client, mut left) = (self.log_in(n, n), Vec::new());
        let (mut number, mut attempt) = (1, 0);
        while attempt > 0 || !self.quiet.load(Ordering::Acquire) {
            let msg_id = format!("m{number}");
            let sent = pb::Send { attempt, ..send(&format!("peer-{n}"), &msg_id, &msg_id) };
            let id = client.say(ask::send(sent));
            match self.answer(n, &mut client, id) {
                Some(ServerBody::SendAck(ack)) => {
                    assert_eq!(ack.seq, number, "{} {msg_id}", writer(n));
                    self.acked[n].store(number, Ordering::Release);
                    (number, attempt) = (number + 1, 0);
                    client.inbox.clear();
                    client.listen(SEND_INTERVAL);
                }
                Some(ServerBody::Error(error)) => {
                    assert!(error.temporary, "{error:?}");
                    client.back_off(error.retry_after_ms);
                    attempt += 1;
                }
                None => {
                    self.at[n].store(NOWHERE, Ordering::Release);
                    if !comes_back || self.over.load(Ordering::Acquire) {
                        return;
                    }
                    attempt += 1;
                    left.push(std::mem::replace(&mut client, self.log_in(n, n + 1)));
                }
                other => panic!("no answer to a send: {other:?}"),
            }
        }
    }

    /// Returns the reply to that frame, `None` if the connection ends before, or its node is frozen.
    fn answer(&self, n: usize, client: &mut Client, id: u64) -> Option<ServerBody> {
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            if let Some(at) = client.inbox.iter().position(|frame| frame.id == id) {
                return client.inbox.remove(at)?.body;
            }
            let is_frozen = self.frozen.load(Ordering::Acquire) == self.at[n].load(Ordering::Acquire);
            if is_frozen || client.has_ended() {
                return None;
            }
            client.pump(Instant::now() + SEND_INTERVAL);
            assert!(Instant::now() < deadline, "no reply in time; the inbox has {:?}", client.inbox);
        }
    }

    /// Logs in on the first node from `from` on that is up.
    fn log_in(&self, n: usize, from: usize) -> Client {
        let addresses = self.addresses.read();
        let mut nodes = (from..from + addresses.len()).map(|at| at % addresses.len());
        let (at, address) = nodes.find_map(|at| Some((at, addresses[at]?))).expect("some node is up");
        let token = auth::sign(&self.key, &writer(n), None, Duration::from_secs(86_400));
        let began = Instant::now();
        let client = loop {
            let mut client = Client::connect(address, Wire::ALL[n % Wire::ALL.len()]);
            match client.ask(ask::hello(hello(&token, "phone"))) {
                ServerBody::Welcome(_) => break client,
                ServerBody::Error(error) if error.temporary && began.elapsed() < WAIT_MAX => {
                    client.back_off(error.retry_after_ms);
                }
                other => panic!("no welcome: {other:?}"),
            }
        };
        self.at[n].store(at, Ordering::Release);
        client
    }
}

/// Asserts that every acked message is stored once and in order, and nothing else.
fn assert_all_stored(cluster: &Cluster, nth: usize, acked: &[u64], comes_back: fn(usize) -> bool) {
    for (n, acked) in acked.iter().enumerate() {
        let mut reader = cluster.node(nth).login(Wire::Tcp, &writer(n), "desk");
        let place = format!("d:peer-{n}:{}", writer(n));
        let mut found = 0;
        loop {
            let page = eventually("a page", || reader.try_page(ask::after(&place, found, 1_000)));
            for push in &page.messages {
                found += 1;
                assert_eq!((push.seq, text_of(push)), (found, format!("m{found}").as_str()), "{place}");
            }
            if found >= page.complete_to {
                break;
            }
        }
        // The last message of a writer that did not come back may have been in flight.
        let under_way = u64::from(!comes_back(n));
        assert!((*acked..=*acked + under_way).contains(&found), "{place}: {found} of {acked}");
    }
}

#[test]
fn killed_node_loses_its_users_and_reports_each_offline_once() {
    let mut cluster = Cluster::start(3, &[]);
    let mut listener = Listener::start(&cluster);
    let names: Vec<String> = (0..24).map(writer).collect();
    // Half of the eight on n1 come back.
    let comes_back = |n: usize| !n.is_multiple_of(3) || n.is_multiple_of(2);
    let writers = Writers::start(&cluster, names.len(), comes_back);
    writers.write_on(&(0..names.len()).collect::<Vec<_>>());
    assert_eq!(online(&cluster, 2, &names), names);

    let (crash, watch) = (Instant::now(), Stopwatch::start());
    writers.kill(&mut cluster, 0);
    eventually("no writer waits for n1", || {
        let mut at = writers.shared.at.iter().map(|at| at.load(Ordering::Acquire));
        (at.all(|at| at != 0) && writers.on_node().len() == 20).then_some(())
    });
    // Independent of the lease of the dead node.
    assert!(watch.elapsed() < Duration::from_secs(5), "{:?}", watch.elapsed());
    let there: BTreeSet<String> = writers.on_node().into_iter().map(writer).collect();
    let back: Vec<String> = (0..24).step_by(6).map(writer).collect();
    assert!(back.iter().all(|name| there.contains(name)), "{there:?}");
    let left: Vec<String> = names.iter().filter(|name| !there.contains(*name)).cloned().collect();
    for nth in [1, 2] {
        assert_eq!(online(&cluster, nth, &back), back, "as n{} reports it", nth + 1);
    }
    let_time_pass_since(crash, "no user is reported offline before", Duration::from_secs(8));
    for nth in [1, 2] {
        eventually("presence is right", || {
            let seen: BTreeSet<String> = online(&cluster, nth, &names).into_iter().collect();
            (seen == there).then_some(())
        });
    }
    assert!(crash.elapsed() < Duration::from_secs(15), "{:?}", crash.elapsed());
    listener.all_left(&left, crash);
    writers.write_on(&writers.on_node());
    // No other user is reported offline, and none twice.
    listener.take(Duration::from_secs(1));
    let offline: Vec<&String> = names.iter().filter(|name| listener.offlines(name) > 0).collect();
    assert_eq!(offline, left.iter().collect::<Vec<_>>());
    assert_all_stored(&cluster, 1, &writers.stop(), comes_back);
    eventually("all left in the end", || listener.not_left(&names).is_empty().then_some(()));
    listener.take(Duration::from_secs(1));
    assert_eq!(listener.departed_twice(), BTreeSet::<String>::new());
}

#[test]
fn frozen_node_adds_and_publishes_nothing_when_it_wakes() {
    let mut cluster = Cluster::start(3, &[]);
    let mut listener = Listener::start(&cluster);
    let names: Vec<String> = (0..12).map(writer).collect();
    let writers = Writers::start(&cluster, names.len(), |_| true);
    let all: Vec<usize> = (0..names.len()).collect();
    writers.write_on(&all);
    let began = Instant::now();
    // Bytes in flight to n1 stay in its sockets.
    writers.freeze(&cluster, 0);
    let_time_pass_since(began, "its partitions are taken over", Duration::from_secs(8));
    writers.write_on(&all);
    assert!(writers.shared.at.iter().all(|at| at.load(Ordering::Acquire) != 0), "all writers left n1");
    let_time_pass_since(began, "its lease ends", Duration::from_secs(11));
    wait_for_runs(&cluster, 1, 2);
    cluster.node(0).signal(Signal::CONT);
    let code = cluster.exit(0);
    assert!(code.is_some_and(|code| code != 0), "a lost lease ends the node with an error: {code:?}");
    writers.write_on(&all);
    assert_eq!(online(&cluster, 1, &names), names);
    listener.take(Duration::from_secs(1));
    let offline: Vec<&String> = names.iter().filter(|name| listener.offlines(name) > 0).collect();
    assert_eq!(offline, Vec::<&String>::new(), "they moved");
    assert_all_stored(&cluster, 1, &writers.stop(), |_| true);
}

/// Waits until a node lists `count` runs: live ones, and dead ones that are not swept.
fn wait_for_runs(cluster: &Cluster, nth: usize, count: usize) {
    eventually(&format!("n{} lists {count} runs", nth + 1), || {
        let said: Value = serde_json::from_str(&cluster.node(nth).http("GET", "/v1/nodes", "")).ok()?;
        (said["nodes"].as_array()?.len() == count).then_some(())
    });
}

/// Returns the Redis keys that match a pattern.
fn keys(cluster: &Cluster, like: &str) -> Vec<String> {
    cluster.redis(&["KEYS", &format!("{{}}:{like}")])
}

/// Asserts that nothing is left when all clients are gone: no row, and no key without a time to live.
fn nothing_leaked(cluster: &Cluster) {
    eventually("no run has a row", || keys(cluster, "rows:*").is_empty().then_some(()));
    for key in keys(cluster, "route:*") {
        let fields: Vec<String> = cluster.redis(&["HKEYS", &key]);
        assert!(fields.iter().all(|field| field.starts_with('#')), "{key}: {fields:?}");
        let ends: i64 = cluster.redis(&["PTTL", &key]);
        // -2 is a key that has just expired.
        assert!(ends == -2 || (0..=60_000).contains(&ends), "{key} stays for {ends} ms");
    }
    let runs: Vec<String> = cluster.redis(&["SMEMBERS", "{}:runs:all"]);
    assert_eq!(runs.len(), 3, "{runs:?}");
    for key in keys(cluster, "*").into_iter().filter(|key| !key.ends_with(":runs:all")) {
        let ends: i64 = cluster.redis(&["PTTL", &key]);
        assert_ne!(ends, -1, "{key} has no time to live");
    }
}

/// Kills each node in turn, as a real process that returns as a new run before its old one is swept. Ten crashes in
/// every run of the tests, or the number in the variable `CRASHES`; two hundred took seven minutes on two busy cores.
/// `tests/conformance/crashes.rs` has two hundred crashes of nodes that consist of routes only.
#[test]
fn crash_after_crash_leaves_no_row_and_reports_departures_once() {
    let crashes = env::var("CRASHES").map_or(10, |count| count.parse().expect("a number"));
    let mut cluster = Cluster::start(3, &[]);
    let mut listener = Listener::start(&cluster);
    let writers = Writers::start(&cluster, 12, |_| true);
    let all: Vec<usize> = (0..12).collect();
    writers.write_on(&all);
    let mut moved = Vec::new();
    for turn in 0..crashes {
        let nth = turn % 3;
        let guest = |n: usize| format!("guest-{turn}-{n}");
        let mut guests: Vec<Client> =
            (0..4).map(|n| cluster.login(nth, Wire::ALL[n % 4], &guest(n))).collect();
        for guest in &mut guests {
            assert!(matches!(guest.ask(ask::join("hall")), ServerBody::Done(_)));
        }
        // These clients are about to be let in.
        let early: Vec<Client> = (4..8)
            .map(|n| {
                let mut client = Client::connect(cluster.node(nth).address(), Wire::Tcp);
                client.say(ask::hello(hello(&cluster.node(nth).token(&guest(n)), "phone")));
                client
            })
            .collect();
        writers.kill(&mut cluster, nth);
        drop((guests, early));
        moved.push(cluster.login((nth + 1) % 3, Wire::Tcp, &guest(0)));
        cluster.restart(nth);
        writers.open(&cluster, nth);
        listener.take(Duration::from_millis(1));
    }
    let last = Instant::now();
    cluster.all_owned_within(TWO_SESSIONS_TIME);
    writers.write_on(&all);
    assert_all_stored(&cluster, 0, &writers.stop(), |_| true);
    drop(moved);
    let why = "the lease of the last one ends, and those who tell of it have their time";
    let_time_pass_since(last, why, Duration::from_secs(15));
    nothing_leaked(&cluster);
    (0..3).for_each(|nth| wait_for_runs(&cluster, nth, 3));
    let guests = (0..crashes).flat_map(|turn| (0..4).map(move |n| format!("guest-{turn}-{n}")));
    let guests: Vec<String> = guests.collect();
    let names: Vec<String> = all.iter().map(|n| writer(*n)).chain(guests.iter().cloned()).collect();
    eventually("all left in the end", || listener.not_left(&names).is_empty().then_some(()));
    for some in names.chunks(100) {
        assert_eq!(online(&cluster, 1, some), [""; 0]);
    }
    listener.take(Duration::from_secs(1));
    assert_eq!(listener.departed_twice(), BTreeSet::<String>::new());
    // A user who moved is not reported offline by the dead node.
    for name in &guests {
        assert_eq!(listener.offlines(name), 1, "{name}");
    }
}

#[test]
fn node_dying_as_it_joins_holds_its_share_one_more_session() {
    shown_in_two_runs(dies_again_as_it_joins);
}

fn dies_again_as_it_joins() -> Result<(), String> {
    let mut cluster = Cluster::start(3, &[]);
    cluster.all_shared();
    let first = Instant::now();
    cluster.kill(1);
    cluster.restart(1);
    // If the start was faster, the others, and this node with them, still wait for the dead one.
    let_time_pass_since(first, "the node is up", Duration::from_secs(3));
    let_time_pass("it is ready a moment before it asks to join", Duration::from_secs(1));
    let joins = cluster.node(1).metric("partitions_owned") == 0.0;
    let (second, watch) = (Instant::now(), Stopwatch::start());
    cluster.kill(1);
    let_time_pass_since(first, "what a single crash takes is over", Duration::from_secs(9));
    let owned: f64 = [0, 2].map(|nth| cluster.node(nth).metric("partitions_owned")).iter().sum();
    let in_time = second < first + Duration::from_secs(5) && first.elapsed() < Duration::from_secs(11);
    assert!(owned < 4.0 || !joins || !in_time, "the other nodes did not wait for the second crash");
    cluster.all_owned_within(TWO_SESSIONS_TIME);
    assert!(watch.elapsed() < TWO_SESSIONS_TIME, "{:?}", watch.elapsed());
    let mut writer = cluster.login(0, Wire::Tcp, "ann");
    for nth in 0..8 {
        assert_eq!(send_until_acked(&mut writer, &format!("peer-{nth}"), "m1").0, 1);
    }
    let what = || format!("it died as it joined: {joins}; in time: {in_time}; owned meanwhile: {owned} of 4");
    if joins && in_time { Ok(()) } else { Err(what()) }
}
