//! Rolling restarts under load: one node after the other leaves and comes back, and no client may notice more than a move.
//!
//! Each client writes to its neighbour, one message after the other, so the n-th message has to be seq n wherever it is
//! seen: in its ack, in the push, and in the archive at the end. One of ten clients is deaf to `goAway`. With `--next` the
//! nodes are of two versions by turns.

mod client;
mod spread;
mod stalls;
mod versions;

use std::{
    collections::{BTreeSet, HashSet},
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use rand::{SeedableRng as _, rngs::StdRng};
use rustix::process::Signal;
use serde_json::Value;
use tidegate_protocol::machine::drain::{self, Plan};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use self::{
    client::{Noted, Shared, conversation, name},
    spread::Spread,
    stalls::Stalls,
    versions::Versions,
};
use super::{
    Args, binary,
    cluster::{Cluster, PARTITIONS},
    drain::{PACE_MAX, PACE_OVER, busiest},
    rows,
};
use crate::{
    checker::{Event, History},
    cli::{assign::Assigned, bench::admin::Admin},
    config::Config,
    node::LAST_STEPS,
    store::PostgresStore,
};

/// Clients unless another number is asked for.
const CLIENTS: usize = 1_500;
/// Messages a second, all clients together.
const RATE: u32 = 300;
/// Logins under way at the beginning.
const LOGINS: usize = 100;
/// From a restart to the next one.
const CALM: Duration = Duration::from_secs(3);
/// How long a server stands still that breaks during a drain.
const BROKEN: Duration = Duration::from_secs(4);
/// How long everybody may take to log in, to come back, and to have everything.
const PATIENCE: Duration = Duration::from_secs(120);
const TICK: Duration = Duration::from_millis(50);
/// Clients that all were kept from running for so long arrive at once, whatever the plan.
const STALL_MAX: Duration = Duration::from_millis(500);

/// Of the nodes. Logins of thousands at once, from one address.
const SETS: &[&str] =
    &["limits.conns_per_ip=0", "timing.handshake_ms=30000", "trace.per_second=0", versions::SETTLE];

/// What else goes wrong while a node leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum With {
    /// Another node is killed.
    Kill,
    /// Redis stands still for 4 s.
    Redis,
    /// Kafka stands still for 4 s.
    Kafka,
}

/// What one restart was like.
struct Turn {
    node: usize,
    plan: Plan,
    /// From the signal to the end of the process.
    took: Duration,
    /// The same as the configuration says, at most.
    longest: Duration,
    /// Logins elsewhere in that time, as soon as they were done.
    arrivals: Vec<Duration>,
    /// The longest login of that time, and when it was done, since the signal.
    login: (Duration, Duration),
    code: Option<i32>,
    spoiled: Option<With>,
    /// For how long the clients were kept from running.
    stall: Duration,
    /// What it came back as, where that is another program by turns.
    back_as: Option<String>,
}

/// Starts the nodes, restarts them so many times under load, and judges.
///
/// # Errors
/// A broken promise is one, and so is a cluster that does not come to rest.
pub(super) async fn run(args: &Args, list: &Path, turns: usize, directory: &Path) -> anyhow::Result<()> {
    let seed = args.seed.unwrap_or_else(|| rand::random_range(0..1_000_000));
    let mut rng = StdRng::seed_from_u64(seed);
    let mut cluster =
        Box::pin(Cluster::start(&binary(args)?, list, directory, (None, SETS), &mut rng)).await?;
    let clients = args.clients.unwrap_or(CLIENTS);
    let rate = args.rate.unwrap_or(RATE);
    let shared = Arc::new(Shared::new(clients, rate, cluster.key().to_vec()));
    refresh(&shared, &cluster);
    all_named(&cluster, &shared).await?;
    until("all partitions have owners", || owned(&cluster).is_ok_and(|owned| owned >= PARTITIONS)).await?;
    let began = Instant::now();
    let mut people = JoinSet::new();
    for index in 0..clients {
        people.spawn(client::run(Arc::clone(&shared), index));
        if index % LOGINS == LOGINS - 1 {
            until("the clients log in", || shared.online() + LOGINS > index).await?;
        }
    }
    until("the clients log in", || shared.online() == clients).await?;
    println!(
        "seed {seed}: {clients} clients logged in within {:.1} s, a tenth of them deaf; {rate} messages a second",
        began.elapsed().as_secs_f64()
    );
    let spread = Spread::of(&cluster, clients).await?;
    println!("connections after the logins: {spread}");
    // What was seen while thousands came in at once is another test.
    *shared.noted() = Noted::default();
    let mut versions = Versions::begin(args, &cluster, turns)?;
    let mut all = Vec::new();
    for turn in 0..turns {
        sleep(CALM).await;
        // The first restart goes as planned, as most do. Which one is spoiled by what differs by seed.
        let of_seed = usize::try_from(seed % 64).unwrap_or(0);
        let kinds = args.with.len().max(1);
        let spoiled = args.with.get((turn / 3 + of_seed) % kinds).copied().filter(|_| turn % 3 == 1);
        let nth = turn % cluster.nodes.len();
        if let Some(versions) = &mut versions {
            versions.turn(&mut cluster, nth, turn);
        }
        let mut turn = Box::pin(restart(&mut cluster, &shared, nth, spoiled)).await?;
        turn.back_as = versions.as_mut().map(|versions| versions.note(&cluster, nth)).transpose()?;
        turn.print();
        all.push(turn);
    }
    if let Some(versions) = &versions {
        versions.settle(&cluster).await?;
    }
    sleep(CALM).await;
    // A node that comes back has nobody, and nobody is moved to it: that is told and not judged.
    println!("connections after the last restart: {}", Spread::of(&cluster, clients).await?);
    shared.quiet.store(true, Ordering::Release);
    let rested = until("everybody has everything", || shared.lacking() == 0).await;
    drop(people);
    cluster.stop(&mut rng).await?;
    rested.with_context(|| format!("{} clients lack something", shared.lacking()))?;
    let stored = stored(cluster.sets(), clients).await?;
    verdict(&shared, &spread, &all, &stored)
}

impl Shared {
    fn new(clients: usize, rate: u32, key: Vec<u8>) -> Self {
        let zeros = || (0..clients).map(|_| AtomicU64::new(0)).collect();
        Self {
            key,
            clients,
            pace: Duration::from_secs_f64(clients as f64 / f64::from(rate.max(1))),
            doors: Mutex::default(),
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

    /// Clients that have not got what was acked to their neighbour.
    fn lacking(&self) -> usize {
        let lacks = |index: &usize| {
            let sender = (*index + self.clients - 1) % self.clients;
            self.got[*index].load(Ordering::Acquire) < self.acked[sender].load(Ordering::Acquire)
        };
        (0..self.clients).filter(lacks).count()
    }
}

/// Waits until it is so.
async fn until(what: &str, mut is_so: impl FnMut() -> bool) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        if Instant::now() > deadline {
            bail!("in vain: {what}");
        }
        sleep(TICK).await;
    }
    Ok(())
}

/// Tells the clients where the nodes are.
fn refresh(shared: &Shared, cluster: &Cluster) {
    *shared.doors() = cluster.nodes.iter().map(|node| node.process.client).collect();
}

/// One node leaves and comes back; meanwhile something breaks, if that is wanted.
async fn restart(
    cluster: &mut Cluster,
    shared: &Shared,
    nth: usize,
    spoiled: Option<With>,
) -> anyhow::Result<Turn> {
    let conns = conns(cluster, nth)?;
    let settings = Config::load(None, cluster.sets())?.drain_settings();
    let plan = drain::plan(conns, &settings);
    {
        let mut noted = shared.noted();
        noted.arrivals.clear();
        noted.login = Default::default();
    }
    let (from, stalls) = (shared.began.elapsed(), Stalls::watch());
    let process = &mut cluster.nodes[nth].process;
    process.signal(Signal::TERM)?;
    if let Some(what) = spoiled {
        sleep(plan.window / 4).await;
        spoil(cluster, what, nth).await?;
    }
    let status = timeout(PATIENCE, cluster.nodes[nth].process.exit()).await;
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
    until("everybody is logged in again", || shared.online() == shared.clients).await?;
    // A process that was kept from running is late by that.
    let longest = settings.deadline + LAST_STEPS + stall;
    let code = status.code();
    Ok(Turn { node: nth, plan, took, longest, arrivals, login, code, spoiled, stall, back_as: None })
}

/// Breaks something else while a node leaves, and mends it.
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
            sleep(BROKEN).await;
            server.signal(Signal::CONT)
        }
    }
}

fn conns(cluster: &Cluster, nth: usize) -> anyhow::Result<usize> {
    number(cluster, nth, "conns")
}

/// Partitions that some node owns.
fn owned(cluster: &Cluster) -> anyhow::Result<usize> {
    (0..cluster.nodes.len()).map(|nth| number(cluster, nth, "owns")).sum()
}

/// What a node says of itself.
fn number(cluster: &Cluster, nth: usize, key: &str) -> anyhow::Result<usize> {
    let said = ask(cluster, nth, "/readyz?verbose")?;
    Ok(usize::try_from(said[key].as_u64().with_context(|| format!("no {key}"))?)?)
}

/// What a node says of itself to the others.
fn about(cluster: &Cluster, nth: usize) -> anyhow::Result<Value> {
    let said = ask(cluster, nth, "/v1/nodes")?;
    let mut nodes = said["nodes"].as_array().into_iter().flatten();
    nodes.find(|node| node["self"] == true).cloned().context("a node does not know itself")
}

fn ask(cluster: &Cluster, nth: usize, path: &str) -> anyhow::Result<Value> {
    let admin = cluster.nodes[nth].process.admin.to_string();
    let (_, body) = Admin::connect(&admin)?.request("GET", path, "")?;
    Ok(serde_json::from_str(&body)?)
}

/// Waits until every node sends clients to all of them.
async fn all_named(cluster: &Cluster, shared: &Shared) -> anyhow::Result<()> {
    let token = crate::auth::sign(&shared.key, &name(0), None, Duration::from_secs(3_600));
    for node in &cluster.nodes {
        let door = [node.process.client.to_string()];
        let deadline = Instant::now() + PATIENCE;
        loop {
            let said = Assigned::ask(&door, &token, "?count=16").await;
            let named: HashSet<String> =
                said.iter().flat_map(|it| &it.addresses).map(|it| it.address.clone()).collect();
            if cluster.nodes.iter().all(|node| named.contains(&node.process.client.to_string())) {
                break;
            }
            if Instant::now() > deadline {
                bail!("a node that is back is not given out: {named:?}");
            }
            sleep(TICK).await;
        }
    }
    Ok(())
}

impl Turn {
    /// How much faster than planned they came, where it was fastest; not judged in a second, when something broke, or when they
    /// could not run.
    fn pace(&self) -> Option<f64> {
        let over = self.plan.window.min(PACE_OVER);
        let mut arrivals = self.arrivals.clone();
        arrivals.sort_unstable();
        let most = busiest(&arrivals, over) as f64;
        let judged = over >= Duration::from_secs(1) && self.spoiled.is_none() && self.stall < STALL_MAX;
        judged.then(|| most / over.as_secs_f64() / f64::from(self.plan.rate.max(1)))
    }

    fn print(&self) {
        let spoiled = self.spoiled.map(|it| format!("; meanwhile: {it:?}")).unwrap_or_default();
        let pace = self.pace().map_or("not judged".to_owned(), |pace| format!("{pace:.2} x plan"));
        let code = self.code.map_or("none".to_owned(), |code| code.to_string());
        let back = self.back_as.as_ref().map(|back| format!("; back as {back}")).unwrap_or_default();
        println!(
            "n{}: {} clients, planned {} a second over {:.1} s; {} arrivals elsewhere at {pace}, the longest login {} ms, done after {:.1} s, clients kept from running for up to {} ms; gone after {:.1} s, exit code {code}{spoiled}{back}",
            self.node + 1,
            self.plan.conns,
            self.plan.rate,
            self.plan.window.as_secs_f64(),
            self.arrivals.len(),
            self.login.0.as_millis(),
            self.login.1.as_secs_f64(),
            self.stall.as_millis(),
            self.took.as_secs_f64(),
        );
    }
}

/// What the archive has: per sender the numbers in the order of their seqs.
async fn stored(sets: &[String], clients: usize) -> anyhow::Result<Vec<Vec<(u64, u64)>>> {
    let config = Config::load(None, sets)?;
    let store = PostgresStore::open(&config.postgres).await.context("postgres")?;
    let names: Vec<String> = (0..clients).map(name).collect();
    let users: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    let mut history = History::default();
    rows::read(&store, &users, &mut history).await?;
    let mut stored = vec![Vec::new(); clients];
    for stamped in &history.events {
        let Event::LogMessage { conv, cid, seq, .. } = stamped.event else { continue };
        let (conv, cid) = (history.name(conv), history.name(cid));
        let (index, number) = cid.split_once('-').context("an id that nobody sent")?;
        let (index, number): (usize, u64) = (index.parse()?, number.parse()?);
        if conv != conversation(&name(index), &name((index + 1) % clients)) {
            bail!("{cid} is in {conv}");
        }
        stored.get_mut(index).context("an id that nobody sent")?.push((seq, number));
    }
    Ok(stored)
}

/// Prints what was seen, and fails when a promise was broken.
fn verdict(
    shared: &Shared,
    spread: &Spread,
    turns: &[Turn],
    stored: &[Vec<(u64, u64)>],
) -> anyhow::Result<()> {
    let (mut lost, mut doubled, mut misplaced, mut acked) = (0, 0, 0, 0);
    for (index, rows) in stored.iter().enumerate() {
        let last = shared.acked[index].load(Ordering::Acquire);
        let numbers: HashSet<u64> = rows.iter().map(|(_, number)| *number).collect();
        acked += last;
        lost += (1..=last).filter(|number| !numbers.contains(number)).count();
        doubled += rows.len() - numbers.len();
        misplaced += rows.iter().filter(|(seq, number)| seq != number).count();
    }
    let noted = shared.noted();
    let [pause, deaf] = noted.pause.map(|pause| pause.as_millis());
    println!(
        "{} restarts: {acked} acked, {lost} of them lost, {doubled} stored twice, {misplaced} out of order; {} pushes repeated; {} clients, up to {:.1} % from even at first",
        turns.len(),
        noted.repeated,
        shared.clients,
        100.0 * spread.off()
    );
    println!(
        "{} moves with both connections open, {} logins after a close; longest pause without a connection {pause} ms, of deaf clients {deaf} ms; slowest ack {} ms",
        noted.moves[0],
        noted.moves[1],
        noted.slowest.as_millis()
    );
    let mut broken = noted.broken.clone();
    broken.extend(spread.judge());
    if lost + doubled + misplaced > 0 {
        broken.push(format!("{lost} lost, {doubled} stored twice, {misplaced} out of order"));
    }
    for turn in turns {
        if turn.pace().is_some_and(|pace| pace > PACE_MAX) {
            broken.push(format!(
                "n{}: clients arrived at {:.2} x the plan",
                turn.node + 1,
                turn.pace().unwrap_or(0.0)
            ));
        }
        // What breaks meanwhile may have it cut clients, and may not keep it from ending in time and saying so.
        let fine = if turn.spoiled.is_some() { &[Some(0), Some(3)][..] } else { &[Some(0)] };
        if !fine.contains(&turn.code) {
            broken.push(format!("n{}: exit code {:?}", turn.node + 1, turn.code));
        }
        if turn.took > turn.longest {
            broken.push(format!(
                "n{}: gone after {:.1} s, not within {:.1} s",
                turn.node + 1,
                turn.took.as_secs_f64(),
                turn.longest.as_secs_f64()
            ));
        }
    }
    if !broken.is_empty() {
        let more = broken.len();
        broken.truncate(20);
        bail!("the rolling restart broke {more} promises:\n  {}", broken.join("\n  "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(arrivals: Vec<Duration>, code: i32) -> Turn {
        let settings = Config::default().drain_settings();
        let plan = drain::plan(5_000, &settings);
        Turn {
            node: 0,
            plan,
            took: Duration::from_secs(40),
            longest: settings.deadline,
            arrivals,
            login: Default::default(),
            code: Some(code),
            spoiled: None,
            stall: Duration::ZERO,
            back_as: None,
        }
    }

    /// As planned: 5,000 over 30 s.
    fn even() -> Vec<Duration> {
        (0..5_000).map(|n| Duration::from_millis(6) * n).collect()
    }

    fn fails(turns: &[Turn], change: impl FnOnce(&Shared, &mut Vec<Vec<(u64, u64)>>)) -> bool {
        let shared = Shared::new(3, 1, Vec::new());
        shared.acked.iter().for_each(|acked| acked.store(2, Ordering::Release));
        let mut stored = vec![vec![(1, 1), (2, 2)]; 3];
        change(&shared, &mut stored);
        verdict(&shared, &Spread(vec![1; 3]), turns, &stored).is_err()
    }

    #[test]
    fn each_broken_promise_of_a_rolling_restart_fails() {
        let fine = || [turn(even(), 0)];
        assert!(!fails(&fine(), |_, _| {}));
        assert!(!fails(&fine(), |_, stored| stored[1].push((3, 3))), "stored, and the ack was on its way");
        assert!(fails(&fine(), |_, stored| _ = stored[1].pop()), "lost");
        assert!(fails(&fine(), |_, stored| stored[1].push((3, 2))), "twice");
        assert!(fails(&fine(), |_, stored| stored[1] = vec![(1, 2), (2, 1)]), "out of order");
        assert!(fails(&fine(), |shared, _| shared.noted().broken.push("a push".into())));
        assert!(fails(&[turn(even(), 3)], |_, _| {}), "cut");
        let spoiled = |code| Turn { spoiled: Some(With::Redis), ..turn(even(), code) };
        assert!(!fails(&[spoiled(3)], |_, _| {}), "that may happen when Redis is away");
        assert!(fails(&[spoiled(101)], |_, _| {}), "that may not");
        assert!(fails(&[Turn { took: Duration::from_secs(51), ..spoiled(0) }], |_, _| {}), "too late");
        let storm = even().into_iter().map(|at| at / 2).collect();
        assert!(fails(&[turn(storm, 0)], |_, _| {}), "twice as fast as planned");
        let uneven = |conns| verdict(&Shared::new(0, 1, Vec::new()), &Spread(conns), &fine(), &[]).is_err();
        assert!(!uneven(vec![5_400, 4_800, 4_800]));
        assert!(uneven(vec![6_000, 4_500, 4_500]));
    }
}
