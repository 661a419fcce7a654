//! What breaks in a cluster, and when: one fault at a time, each kind once before any comes again, healed before the next.

use std::time::{Duration, Instant};

use rand::{RngExt as _, rngs::StdRng, seq::SliceRandom as _};
use rustix::process::Signal;

use super::{
    cluster::{Cluster, Node},
    nemesis::{Spoil, pause, spoil, tell},
    proxy::{Mode, Proxy},
    world::World,
};

/// What can happen. None lasts longer than 10 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// A node: kill -9, and its return.
    Kill,
    /// SIGTERM, and its return.
    Leave,
    /// SIGSTOP for less than the lease, and for longer than the session of an owner.
    Stop,
    LongStop,
    /// Redis: emptied, restarted empty, restarted with an old dump, hung.
    RedisFlush,
    RedisKill,
    RedisBack,
    RedisHang,
    /// Postgres: shut down, crashed, its connections cut, hung for one node.
    PostgresStop,
    PostgresCrash,
    PostgresCut,
    PostgresHang,
    /// Kafka: stands still.
    KafkaStop,
    /// The network: between clients and a node, between nodes.
    Clients,
    Peers,
}

const ALL: [Fault; 15] = [
    Fault::Kill,
    Fault::Leave,
    Fault::Stop,
    Fault::LongStop,
    Fault::RedisFlush,
    Fault::RedisKill,
    Fault::RedisBack,
    Fault::RedisHang,
    Fault::PostgresStop,
    Fault::PostgresCrash,
    Fault::PostgresCut,
    Fault::PostgresHang,
    Fault::KafkaStop,
    Fault::Clients,
    Fault::Peers,
];

impl Fault {
    fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Leave => "leave",
            Self::Stop => "stop",
            Self::LongStop => "long-stop",
            Self::RedisFlush => "redis-flush",
            Self::RedisKill => "redis-kill",
            Self::RedisBack => "redis-back",
            Self::RedisHang => "redis-hang",
            Self::PostgresStop => "postgres-stop",
            Self::PostgresCrash => "postgres-crash",
            Self::PostgresCut => "postgres-cut",
            Self::PostgresHang => "postgres-hang",
            Self::KafkaStop => "kafka-stop",
            Self::Clients => "clients",
            Self::Peers => "peers",
        }
    }

    /// The column of the ledger: nodes, servers, networks.
    fn column(self) -> usize {
        match self {
            Self::Kill | Self::Leave | Self::Stop | Self::LongStop => 0,
            Self::Clients | Self::Peers => 2,
            _ => 1,
        }
    }
}

/// Breaks things until `end`; how many faults of nodes, of servers and of networks. All is healed when it returns.
pub(super) async fn run(
    world: &World,
    cluster: &mut Cluster,
    end: Instant,
    rng: &mut StdRng,
) -> anyhow::Result<[u64; 3]> {
    let mut counts = [0; 3];
    let mut left: Vec<Fault> = Vec::new();
    cluster.servers.tell_redis("SAVE").await?;
    while Instant::now() < end {
        pause(rng, 500..2_000).await;
        cluster.revive(world).await?;
        if left.is_empty() {
            left = ALL.to_vec();
            left.shuffle(rng);
        }
        let Some(fault) = left.pop() else { continue };
        let began = Instant::now();
        tell(world, true, fault.name());
        strike(fault, world, cluster, rng).await?;
        tell(world, false, fault.name());
        eprintln!("chaos: {} for {} ms", fault.name(), began.elapsed().as_millis());
        counts[fault.column()] += 1;
    }
    // A node that stood still hears only now that it is not wanted.
    pause(rng, 2_000..2_001).await;
    cluster.revive(world).await?;
    Ok(counts)
}

async fn strike(fault: Fault, world: &World, cluster: &mut Cluster, rng: &mut StdRng) -> anyhow::Result<()> {
    let nth = rng.random_range(0..cluster.nodes.len());
    match fault {
        Fault::Kill => {
            cluster.end(nth, false).await?;
            pause(rng, 0..3_000).await;
            cluster.come_back(world, nth).await?;
        }
        Fault::Leave => {
            cluster.end(nth, true).await?;
            pause(rng, 0..1_000).await;
            cluster.come_back(world, nth).await?;
        }
        Fault::Stop | Fault::LongStop => {
            let time = if fault == Fault::Stop { 300..4_000 } else { 7_000..10_000 };
            cluster.nodes[nth].process.signal(Signal::STOP)?;
            pause(rng, time).await;
            cluster.nodes[nth].process.signal(Signal::CONT)?;
        }
        Fault::RedisFlush => cluster.servers.tell_redis("FLUSHALL").await?,
        Fault::RedisKill | Fault::RedisBack => {
            let redis = &mut cluster.servers.redis;
            redis.end(Signal::KILL).await?;
            if fault == Fault::RedisKill {
                std::fs::remove_file(redis.file("dump.rdb")).ok();
            }
            pause(rng, 0..3_000).await;
            cluster.servers.begin_redis().await?;
        }
        Fault::RedisHang => hang(cluster, rng, 0.7, |node| &node.redis).await,
        Fault::PostgresStop | Fault::PostgresCrash => {
            let signal = if fault == Fault::PostgresStop { Signal::INT } else { Signal::QUIT };
            cluster.servers.postgres.end(signal).await?;
            pause(rng, 0..4_000).await;
            cluster.servers.begin_postgres().await?;
        }
        Fault::PostgresCut => {
            let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                       WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
            cluster.servers.execute(cut).await?;
        }
        Fault::PostgresHang => hang(cluster, rng, 0.4, |node| &node.postgres).await,
        Fault::KafkaStop => {
            cluster.servers.kafka.signal(Signal::STOP)?;
            pause(rng, 1_000..8_000).await;
            cluster.servers.kafka.signal(Signal::CONT)?;
        }
        Fault::Clients => {
            let spoil = spoil(rng);
            spoiled(&[&cluster.nodes[nth].door], &spoil, rng).await;
        }
        Fault::Peers => {
            let links: Vec<&Proxy> = cluster.nodes.iter().map(|node| &node.link).collect();
            let spoil = spoil(rng);
            spoiled(&links, &spoil, rng).await;
        }
    }
    Ok(())
}

/// For some of the nodes a server says nothing for a while.
async fn hang(cluster: &Cluster, rng: &mut StdRng, share: f64, way: impl Fn(&Node) -> &Proxy) {
    let chosen: Vec<&Proxy> = cluster.nodes.iter().filter(|_| rng.random_bool(share)).map(way).collect();
    let until = Instant::now() + Duration::from_millis(rng.random_range(300..6_000));
    while Instant::now() < until {
        // New connections meet the same.
        for proxy in &chosen {
            proxy.set(Mode::Freeze, || true);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for proxy in chosen {
        proxy.set(Mode::Pass, || true);
    }
}

async fn spoiled(proxies: &[&Proxy], spoil: &Spoil, rng: &mut StdRng) {
    for proxy in proxies {
        proxy.set(spoil.mode, || rng.random_bool(spoil.share));
    }
    tokio::time::sleep(spoil.time).await;
    for proxy in proxies {
        proxy.set(Mode::Pass, || true);
    }
}
