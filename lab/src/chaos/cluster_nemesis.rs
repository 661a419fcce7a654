//! Faults of a cluster: one at a time, each kind once before any is repeated, and healed before the next.

use std::{
    ops::Range,
    slice,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use rand::{RngExt as _, rngs::StdRng, seq::SliceRandom as _};
use rustix::process::Signal;

use super::{
    cluster::{Cluster, Node},
    nemesis::{Spoil, pause, record_fault, spoil},
    world::World,
};
use crate::{
    checker::HistoryEvent,
    proxy::{Mode, Proxy},
};

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Kill -9 of a node, and its return.
    Kill,
    /// SIGTERM to a node, and its return.
    Leave,
    /// SIGSTOP of a node, for less than the lease, or for longer than the session of an owner.
    Stop,
    LongStop,
    /// A jump of a node's wall clock, and back.
    Clock,
    /// Redis is emptied, restarted empty, restarted with an old dump, or hangs.
    RedisFlush,
    RedisKill,
    RedisBack,
    RedisHang,
    /// Postgres is shut down, killed -9 with all its processes, loses its connections, or hangs for some nodes.
    PostgresStop,
    PostgresCrash,
    PostgresCut,
    PostgresHang,
    /// A broker freezes, is killed -9, or is shut down, so that its leaders move. Two of three are killed, so that
    /// there is no controller, or shut down, so that there are too few replicas. The active controller freezes or is
    /// killed, so that another one is elected. All brokers hang for some nodes.
    KafkaStop,
    KafkaKill,
    KafkaLeave,
    KafkaTwo,
    KafkaController,
    KafkaHang,
    /// The network between clients and a node, between nodes, or between nodes and one kind of server.
    Clients,
    Peers,
    Ways,
}

const ALL: [Fault; 22] = [
    Fault::Kill,
    Fault::Leave,
    Fault::Stop,
    Fault::LongStop,
    Fault::Clock,
    Fault::RedisFlush,
    Fault::RedisKill,
    Fault::RedisBack,
    Fault::RedisHang,
    Fault::PostgresStop,
    Fault::PostgresCrash,
    Fault::PostgresCut,
    Fault::PostgresHang,
    Fault::KafkaStop,
    Fault::KafkaKill,
    Fault::KafkaLeave,
    Fault::KafkaTwo,
    Fault::KafkaController,
    Fault::KafkaHang,
    Fault::Clients,
    Fault::Peers,
    Fault::Ways,
];

impl Fault {
    fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Leave => "leave",
            Self::Stop => "stop",
            Self::LongStop => "long-stop",
            Self::Clock => "clock",
            Self::RedisFlush => "redis-flush",
            Self::RedisKill => "redis-kill",
            Self::RedisBack => "redis-back",
            Self::RedisHang => "redis-hang",
            Self::PostgresStop => "postgres-stop",
            Self::PostgresCrash => "postgres-crash",
            Self::PostgresCut => "postgres-cut",
            Self::PostgresHang => "postgres-hang",
            Self::KafkaStop => "kafka-stop",
            Self::KafkaKill => "kafka-kill",
            Self::KafkaLeave => "kafka-leave",
            Self::KafkaTwo => "kafka-two",
            Self::KafkaController => "kafka-controller",
            Self::KafkaHang => "kafka-hang",
            Self::Clients => "clients",
            Self::Peers => "peers",
            Self::Ways => "ways",
        }
    }

    /// Returns the name, with the node for a fault of one node.
    fn full_name(self, nth: usize) -> String {
        match self {
            Self::Kill | Self::Leave | Self::Stop | Self::LongStop | Self::Clock | Self::Clients => {
                format!("{}:{}", self.name(), World::node(nth))
            }
            _ => self.name().to_owned(),
        }
    }

    /// Returns the index of its count in a result: nodes, servers, networks.
    fn column(self) -> usize {
        match self {
            Self::Kill | Self::Leave | Self::Stop | Self::LongStop | Self::Clock => 0,
            Self::Clients | Self::Peers | Self::Ways => 2,
            _ => 1,
        }
    }

    fn can_strike(self, cluster: &Cluster) -> bool {
        match self {
            Self::Clock => cluster.clock.is_some(),
            Self::KafkaLeave | Self::KafkaTwo | Self::KafkaController => cluster.servers.kafka.len() > 2,
            _ => true,
        }
    }
}

/// Duration of faults: at most 10 s, depending on their kind, or up to a minute for some.
#[derive(Clone, Copy)]
struct Pace {
    long: bool,
}

/// Share of the faults that last longer where `--long` allows it, and their duration.
const LONG_SHARE: f64 = 0.4;
const LONG_MS: Range<u64> = 10_000..60_000;

impl Pace {
    fn time(self, rng: &mut StdRng, ms: Range<u64>) -> Duration {
        let ms = if self.long && rng.random_bool(LONG_SHARE) { LONG_MS } else { ms };
        Duration::from_millis(rng.random_range(ms))
    }

    async fn wait(self, rng: &mut StdRng, ms: Range<u64>) {
        tokio::time::sleep(self.time(rng, ms)).await;
    }
}

/// Injects faults until `end`, and heals them all. Returns the number of faults of nodes, servers and networks.
pub(super) async fn run(
    world: &World,
    cluster: &mut Cluster,
    end: Instant,
    long: bool,
    rng: &mut StdRng,
) -> anyhow::Result<[u64; 3]> {
    let mut counts = [0; 3];
    let mut left: Vec<Fault> = Vec::new();
    cluster.servers.run_redis_command("SAVE").await?;
    while Instant::now() < end {
        pause(rng, 500..2_000).await;
        cluster.revive(world).await?;
        if left.is_empty() {
            left = ALL.into_iter().filter(|fault| fault.can_strike(cluster)).collect();
            left.shuffle(rng);
        }
        let Some(fault) = left.pop() else { continue };
        let began = Instant::now();
        let nth = rng.random_range(0..cluster.nodes.len());
        let name = fault.full_name(nth);
        record_fault(world, true, &name);
        strike(fault, nth, Pace { long }, world, cluster, rng).await.with_context(|| name.clone())?;
        record_fault(world, false, &name);
        eprintln!("chaos: {name} for {} ms", began.elapsed().as_millis());
        counts[fault.column()] += 1;
    }
    // A node that was frozen learns only now that it was retired.
    pause(rng, 2_000..2_001).await;
    cluster.revive(world).await?;
    Ok(counts)
}

async fn strike(
    fault: Fault,
    nth: usize,
    pace: Pace,
    world: &World,
    cluster: &mut Cluster,
    rng: &mut StdRng,
) -> anyhow::Result<()> {
    match fault {
        Fault::Kill | Fault::Leave => {
            let left = cluster.end(nth, fault == Fault::Leave).await?;
            world.admin.forget_address(nth);
            if !left {
                world.recorder.add(HistoryEvent::Down { node: &World::node(nth) });
            }
            pace.wait(rng, 0..3_000).await;
            cluster.come_back(world, nth).await?;
        }
        Fault::Stop | Fault::LongStop => {
            cluster.nodes[nth].process.signal(Signal::STOP)?;
            match fault {
                Fault::Stop => pause(rng, 300..4_000).await,
                _ => pace.wait(rng, 7_000..10_000).await,
            }
            cluster.nodes[nth].process.signal(Signal::CONT)?;
        }
        Fault::Clock => {
            let step = rng.random_range(1..CLOCK_STEP_MAX);
            cluster.nodes[nth].process.set_clock(if rng.random() { step } else { -step })?;
            pace.wait(rng, 2_000..10_000).await;
            cluster.nodes[nth].process.set_clock(0)?;
        }
        Fault::RedisFlush | Fault::RedisKill | Fault::RedisBack => redis(fault, pace, cluster, rng).await?,
        Fault::RedisHang => hang(cluster, pace, rng, 0.7, |node| slice::from_ref(&node.redis)).await,
        Fault::PostgresStop | Fault::PostgresCrash | Fault::PostgresCut => {
            postgres(fault, pace, cluster, rng).await?;
        }
        Fault::PostgresHang => hang(cluster, pace, rng, 0.4, |node| slice::from_ref(&node.postgres)).await,
        Fault::KafkaHang => hang(cluster, pace, rng, 0.4, |node| &node.kafka).await,
        Fault::KafkaStop
        | Fault::KafkaKill
        | Fault::KafkaLeave
        | Fault::KafkaTwo
        | Fault::KafkaController => {
            kafka(fault, pace, cluster, rng).await?;
        }
        Fault::Clients => {
            let spoil = spoil(rng);
            spoiled(&[&cluster.nodes[nth].client_proxy], spoil, pace, rng).await;
        }
        Fault::Peers => {
            let links: Vec<&Proxy> = cluster.nodes.iter().map(|node| &node.link).collect();
            let spoil = spoil(rng);
            spoiled(&links, spoil, pace, rng).await;
        }
        Fault::Ways => {
            let (server, way) = SERVERS[rng.random_range(0..SERVERS.len())];
            let ways: Vec<&Proxy> = cluster.nodes.iter().flat_map(way).collect();
            let spoil = spoil(rng);
            eprintln!("chaos: {} on the ways to {server}", spoil.name);
            spoiled(&ways, spoil, pace, rng).await;
        }
    }
    Ok(())
}

/// Function that returns the proxies between a node and one kind of server.
type Way = fn(&Node) -> &[Proxy];

/// Proxies between a node and each kind of server.
const SERVERS: [(&str, Way); 3] = [
    ("kafka", |node| &node.kafka),
    ("redis", |node| slice::from_ref(&node.redis)),
    ("postgres", |node| slice::from_ref(&node.postgres)),
];

/// Largest jump of a clock in seconds; tokens are valid for longer.
const CLOCK_STEP_MAX: i64 = 3_600;

async fn redis(fault: Fault, pace: Pace, cluster: &mut Cluster, rng: &mut StdRng) -> anyhow::Result<()> {
    if fault == Fault::RedisFlush {
        return cluster.servers.run_redis_command("FLUSHALL").await;
    }
    let redis = &mut cluster.servers.redis;
    redis.end(Signal::KILL).await?;
    if fault == Fault::RedisKill {
        std::fs::remove_file(redis.file("dump.rdb")).ok();
    }
    pace.wait(rng, 0..3_000).await;
    cluster.servers.begin_redis().await
}

async fn postgres(fault: Fault, pace: Pace, cluster: &mut Cluster, rng: &mut StdRng) -> anyhow::Result<()> {
    let servers = &mut cluster.servers;
    match fault {
        Fault::PostgresStop => servers.postgres.end(Signal::INT).await?,
        Fault::PostgresCrash => servers.postgres.crash().await?,
        _ => {
            let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                       WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
            return servers.execute(cut).await;
        }
    }
    pace.wait(rng, 0..4_000).await;
    servers.begin_postgres().await
}

async fn kafka(fault: Fault, pace: Pace, cluster: &mut Cluster, rng: &mut StdRng) -> anyhow::Result<()> {
    let servers = &mut cluster.servers;
    let mut nth = rng.random_range(0..servers.kafka.len());
    let mut kills = fault == Fault::KafkaKill;
    if fault == Fault::KafkaController {
        (nth, kills) = (servers.controller()?, rng.random());
        eprintln!(
            "chaos: broker {} is the controller, and is to {}",
            nth + 1,
            if kills { "die" } else { "stand still" }
        );
    }
    match fault {
        Fault::KafkaLeave => {
            servers.kafka[nth].end(Signal::TERM).await?;
            pace.wait(rng, 0..4_000).await;
            servers.begin_kafka(nth).await?;
        }
        Fault::KafkaTwo => {
            let two: Vec<usize> = (0..servers.kafka.len()).filter(|other| *other != nth).collect();
            // A broker that is shut down leaves the in-sync replicas before it ends, while two brokers can still vote
            // for that.
            let signal = if rng.random() { Signal::TERM } else { Signal::KILL };
            for nth in &two {
                servers.kafka[*nth].end(signal).await?;
            }
            pace.wait(rng, 11_000..20_000).await;
            for nth in two {
                servers.begin_kafka(nth).await?;
            }
        }
        _ if kills => {
            servers.kafka[nth].end(Signal::KILL).await?;
            pace.wait(rng, 0..2_000).await;
            servers.begin_kafka(nth).await?;
        }
        _ => {
            servers.kafka[nth].signal(Signal::STOP)?;
            // The other brokers need 2 s to vote.
            let least = if fault == Fault::KafkaController { 3_000 } else { 1_000 };
            pace.wait(rng, least..8_000).await;
            servers.kafka[nth].signal(Signal::CONT)?;
        }
    }
    Ok(())
}

/// Freezes the connections of some nodes to a server for a while.
async fn hang(cluster: &Cluster, pace: Pace, rng: &mut StdRng, share: f64, way: Way) {
    let chosen: Vec<&Proxy> = cluster.nodes.iter().filter(|_| rng.random_bool(share)).flat_map(way).collect();
    let until = Instant::now() + pace.time(rng, 300..6_000);
    while Instant::now() < until {
        // New connections have to freeze, too.
        for proxy in &chosen {
            proxy.set(Mode::Freeze, || true);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for proxy in chosen {
        proxy.set(Mode::Pass, || true);
    }
}

async fn spoiled(proxies: &[&Proxy], spoil: Spoil, pace: Pace, rng: &mut StdRng) {
    for proxy in proxies {
        proxy.set(spoil.mode, || rng.random_bool(spoil.share));
    }
    let is_cut = matches!(spoil.mode, Mode::Reset | Mode::Finish);
    let time = if is_cut { spoil.time } else { pace.time(rng, 200..2_000) };
    tokio::time::sleep(time).await;
    for proxy in proxies {
        proxy.set(Mode::Pass, || true);
    }
}
