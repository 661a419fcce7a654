//! Rolling restarts under load: one node after the other drains and comes back, and clients notice no more than a move.
//!
//! Each client writes to its neighbour, one message after the other, so the n-th message has seq n in its ack, in the
//! push, and in the archive at the end. One of ten clients ignores `goAway`. With `--next` the nodes alternate between
//! two versions.

mod client;
mod spread;
mod stalls;
mod verdict;
mod versions;

use std::{
    collections::{BTreeSet, HashSet},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use parking_lot::Mutex;
use rand::{SeedableRng as _, rngs::StdRng};
use rustix::process::Signal;
use serde_json::Value;
use tidegate::{
    cli::{
        assign::Assigned,
        http::{Connection, RESPONSE_TIMEOUT},
    },
    config::Config,
    node::LAST_STEPS_MAX,
    store::PostgresStore,
};
use tidegate_protocol::machine::drain;
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use self::{
    client::{Noted, Shared, name},
    spread::Spread,
    stalls::Stalls,
    verdict::{Turn, verdict},
    versions::Versions,
};
use super::{
    Args, binary,
    cluster::{Cluster, PARTITIONS},
    world::direct,
};
use crate::{
    checker::{History, HistoryEvent},
    rows,
};

/// Default number of clients.
const CLIENTS: usize = 1_500;
/// Default number of messages a second, of all clients together.
const RATE: u32 = 300;
/// Concurrent logins at the beginning.
const LOGINS: usize = 100;
/// Time from the end of a restart to the next one.
const RESTART_INTERVAL: Duration = Duration::from_secs(3);
/// How long a server is frozen during a drain.
const FREEZE_TIME: Duration = Duration::from_secs(4);
/// Time for all clients to log in, to come back, or to have everything.
const CLIENTS_TIMEOUT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Settings of the nodes: thousands of clients log in at once, from one address.
const SETS: &[&str] =
    &["limits.conns_per_ip=0", "timing.handshake_ms=30000", "trace.per_second=0", versions::SETTLE];

/// Fault during a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum With {
    /// Another node is killed.
    Kill,
    /// Redis is frozen for 4 s.
    Redis,
    /// Kafka is frozen for 4 s.
    Kafka,
}

/// Starts the nodes, restarts them `turns` times under load, and judges.
///
/// # Errors
/// Fails when a promise is broken, or when the cluster does not come to rest.
pub(super) async fn run(args: &Args, list: &Path, turns: usize, directory: &Path) -> anyhow::Result<()> {
    let seed = args.seed.unwrap_or_else(|| rand::random_range(0..1_000_000));
    let mut rng = StdRng::seed_from_u64(seed);
    let mut cluster = Box::pin(Cluster::start(&binary(args)?, list, directory, None, SETS, &mut rng)).await?;
    let clients = args.clients.unwrap_or(CLIENTS);
    let rate = args.rate.unwrap_or(RATE);
    let shared = Arc::new(Shared::new(clients, rate, cluster.key().to_vec()));
    refresh(&shared, &cluster);
    all_named(&cluster, &shared).await?;
    until("all partitions have owners", async || {
        owned(&cluster).await.is_ok_and(|owned| owned >= PARTITIONS)
    })
    .await?;
    let began = Instant::now();
    let mut people = JoinSet::new();
    for index in 0..clients {
        people.spawn(client::run(Arc::clone(&shared), index));
        if index % LOGINS == LOGINS - 1 {
            until("the clients log in", async || shared.online() + LOGINS > index).await?;
        }
    }
    until("the clients log in", async || shared.online() == clients).await?;
    println!(
        "seed {seed}: {clients} clients logged in within {:.1} s, a tenth of them deaf; {rate} messages a second",
        began.elapsed().as_secs_f64()
    );
    let spread = Spread::of(&cluster, clients).await?;
    println!("connections after the logins: {spread}");
    // The first logins of thousands of clients are judged by another test.
    *shared.noted() = Noted::default();
    let mut versions = Versions::begin(args, &cluster, turns).await?;
    let mut all = Vec::new();
    sleep(RESTART_INTERVAL).await;
    for turn in 0..turns {
        // The first restart goes as planned, as most do. The seed decides which later one meets which fault.
        let of_seed = usize::try_from(seed % 64).unwrap_or(0);
        let kinds = args.with.len().max(1);
        let spoiled = args.with.get((turn / 3 + of_seed) % kinds).copied().filter(|_| turn % 3 == 1);
        let nth = turn % cluster.nodes.len();
        if let Some(versions) = &mut versions {
            versions.turn(&mut cluster, nth, turn);
        }
        let mut turn = Box::pin(restart(&mut cluster, &shared, nth, spoiled)).await?;
        if let Some(versions) = &mut versions {
            turn.back_as = Some(versions.note(&cluster, nth).await?);
        }
        turn.print();
        all.push(turn);
    }
    if let Some(versions) = &versions {
        versions.settle(&cluster).await?;
        sleep(RESTART_INTERVAL).await;
    }
    // A node that comes back has no clients, and none are moved to it, so this is printed and not judged.
    println!("connections after the last restart: {}", Spread::of(&cluster, clients).await?);
    shared.quiet.store(true, Ordering::Release);
    let rested = until("everybody has everything", async || shared.lacking() == 0).await;
    drop(people);
    cluster.stop(&mut rng).await?;
    rested.with_context(|| format!("{} clients lack something", shared.lacking()))?;
    let stored = Box::pin(stored(cluster.sets(), clients)).await?;
    verdict(&shared, &spread, &all, &stored)?;
    // The database of a failed run is kept.
    cluster.servers.drop_database(&cluster.database).await
}

impl Shared {
    fn new(clients: usize, rate: u32, key: Vec<u8>) -> Self {
        let zeros = || (0..clients).map(|_| AtomicU64::new(0)).collect();
        Self {
            key,
            clients,
            pace: Duration::from_secs_f64(clients as f64 / f64::from(rate.max(1))),
            client_addresses: Mutex::default(),
            quiet: AtomicBool::new(false),
            acked: zeros(),
            got: zeros(),
            noted: Mutex::default(),
            online: (0..clients).map(|_| AtomicBool::new(false)).collect(),
            began: Instant::now(),
        }
    }

    fn online(&self) -> usize {
        self.online.iter().filter(|it| it.load(Ordering::Acquire)).count()
    }

    /// Returns the number of clients that lack a message which was acked to their neighbour.
    fn lacking(&self) -> usize {
        let lacks = |index: &usize| {
            let sender = (*index + self.clients - 1) % self.clients;
            self.got[*index].load(Ordering::Acquire) < self.acked[sender].load(Ordering::Acquire)
        };
        (0..self.clients).filter(lacks).count()
    }
}

/// Polls until a condition holds.
async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) -> anyhow::Result<()> {
    let deadline = Instant::now() + CLIENTS_TIMEOUT;
    while !is_so().await {
        if Instant::now() > deadline {
            bail!("in vain: {what}");
        }
        sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

/// Gives the clients the present addresses of the nodes.
fn refresh(shared: &Shared, cluster: &Cluster) {
    *shared.client_addresses() = cluster.nodes.iter().map(|node| node.process.client).collect();
}

/// Drains a node and starts it again, with a fault in between if there is one.
async fn restart(
    cluster: &mut Cluster,
    shared: &Shared,
    nth: usize,
    spoiled: Option<With>,
) -> anyhow::Result<Turn> {
    let conns = conns(cluster, nth).await?;
    let settings = Config::load(None, cluster.sets())?.drain_settings();
    let plan = drain::plan(conns, &settings);
    {
        let mut noted = shared.noted();
        noted.arrivals.clear();
        (noted.login, noted.slowest, noted.pause) = Default::default();
    }
    let (from, stalls) = (shared.began.elapsed(), Stalls::watch());
    let process = &mut cluster.nodes[nth].process;
    process.signal(Signal::TERM)?;
    if let Some(what) = spoiled {
        sleep(plan.window / 4).await;
        spoil(cluster, what, nth).await?;
    }
    let status = timeout(CLIENTS_TIMEOUT, cluster.nodes[nth].process.exit()).await;
    let status = status.context("the drain does not end")??;
    let took = shared.began.elapsed() - from;
    let stall = stalls.longest();
    let (arrivals, login) = {
        let noted = shared.noted();
        let arrivals = noted.arrivals.iter().map(|at| at.saturating_sub(from)).collect();
        (arrivals, (noted.login.0, noted.login.1.saturating_sub(from)))
    };
    cluster.revive_plainly(nth).await?;
    refresh(shared, cluster);
    all_named(cluster, shared).await?;
    until("everybody is logged in again", async || shared.online() == shared.clients).await?;
    // Partitions move back to the node.
    sleep(RESTART_INTERVAL).await;
    let (pause, slowest) = {
        let noted = shared.noted();
        (noted.pause, noted.slowest)
    };
    let ack = (slowest.0, slowest.1.saturating_sub(from));
    // A process that was not scheduled is late by that time.
    let longest = settings.deadline + LAST_STEPS_MAX + stall;
    let code = status.code();
    Ok(Turn {
        node: nth,
        plan,
        took,
        longest,
        arrivals,
        login,
        ack,
        pause,
        code,
        spoiled,
        stall,
        back_as: None,
    })
}

/// Injects another fault while a node drains, and heals it.
async fn spoil(cluster: &mut Cluster, what: With, leaving: usize) -> anyhow::Result<()> {
    match what {
        With::Kill => {
            let other = (leaving + 1) % cluster.nodes.len();
            cluster.nodes[other].process.kill().await?;
            cluster.revive_plainly(other).await
        }
        With::Redis | With::Kafka => {
            let servers = &cluster.servers;
            let server = if what == With::Redis { &servers.redis } else { &servers.kafka[0] };
            server.signal(Signal::STOP)?;
            sleep(FREEZE_TIME).await;
            server.signal(Signal::CONT)
        }
    }
}

async fn conns(cluster: &Cluster, nth: usize) -> anyhow::Result<usize> {
    number(cluster, nth, "conns").await
}

/// Returns the number of partitions that have an owner.
async fn owned(cluster: &Cluster) -> anyhow::Result<usize> {
    let mut owned = 0;
    for nth in 0..cluster.nodes.len() {
        owned += number(cluster, nth, "owns").await?;
    }
    Ok(owned)
}

/// Returns a number from a node's `/readyz`.
async fn number(cluster: &Cluster, nth: usize, key: &str) -> anyhow::Result<usize> {
    let said = ask(cluster, nth, "/readyz?verbose").await?;
    Ok(usize::try_from(said[key].as_u64().with_context(|| format!("no {key}"))?)?)
}

/// Returns a node's own entry in `/v1/nodes`.
async fn about(cluster: &Cluster, nth: usize) -> anyhow::Result<Value> {
    let said = ask(cluster, nth, "/v1/nodes").await?;
    let mut nodes = said["nodes"].as_array().into_iter().flatten();
    nodes.find(|node| node["self"] == true).cloned().context("a node does not know itself")
}

async fn ask(cluster: &Cluster, nth: usize, path: &str) -> anyhow::Result<Value> {
    let admin = cluster.nodes[nth].process.admin.to_string();
    let mut connection = Connection::open(&admin, RESPONSE_TIMEOUT).await?;
    let (_, body) = connection.request("GET", path, "").await?;
    Ok(serde_json::from_str(&body)?)
}

/// Waits until every node assigns clients to all nodes.
async fn all_named(cluster: &Cluster, shared: &Shared) -> anyhow::Result<()> {
    let token = tidegate::auth::sign(&shared.key, &name(0), None, Duration::from_secs(3_600));
    for node in &cluster.nodes {
        let address = [node.process.client.to_string()];
        let deadline = Instant::now() + CLIENTS_TIMEOUT;
        loop {
            let said = Assigned::ask(&address, &token, "?count=16").await;
            let named: HashSet<String> =
                said.iter().flat_map(|it| &it.addresses).map(|it| it.address.clone()).collect();
            if cluster.nodes.iter().all(|node| named.contains(&node.process.client.to_string())) {
                break;
            }
            if Instant::now() > deadline {
                bail!("a node that is back is not given out: {named:?}");
            }
            sleep(POLL_INTERVAL).await;
        }
    }
    Ok(())
}

/// Returns the seqs and numbers of the archived messages, by sender.
async fn stored(sets: &[String], clients: usize) -> anyhow::Result<Vec<Vec<(u64, u64)>>> {
    let config = Config::load(None, sets)?;
    let store = PostgresStore::open(&config.postgres).await.context("postgres")?;
    let names: Vec<String> = (0..clients).map(name).collect();
    let users: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    let mut history = History::default();
    rows::read(&store, &users, &mut history).await?;
    let mut stored = vec![Vec::new(); clients];
    for stamped in &history.events {
        let HistoryEvent::LogMessage { conv, cid, seq, .. } = stamped.event else { continue };
        let (conv, cid) = (history.name(conv), history.name(cid));
        let (index, number) = cid.split_once('-').context("an id that nobody sent")?;
        let (index, number): (usize, u64) = (index.parse()?, number.parse()?);
        if conv != direct(&name(index), &name((index + 1) % clients)) {
            bail!("{cid} is in {conv}");
        }
        stored.get_mut(index).context("an id that nobody sent")?.push((seq, number));
    }
    Ok(stored)
}
