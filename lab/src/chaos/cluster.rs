//! Several nodes over one Kafka, one Redis and one Postgres, each with a proxy in front of it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use rand::{RngExt as _, rngs::StdRng};
use tidegate::{
    auth,
    bus::{ensure_topics, topic_plans},
    config::Config,
};

use super::{
    process::{Clock, Process},
    servers::Servers,
    world::World,
};
use crate::{checker::HistoryEvent, cluster_sets::cluster_sets, ports::free_port, proxy::Proxy};

/// Number of nodes.
const NODES: usize = 3;

/// Partitions of the log.
pub(super) const PARTITIONS: usize = 6;

/// Text in the log of a node that ends because the others took it for dead.
const RETIRED: &str = "was retired";

/// A node, and the proxies on its connections.
pub(super) struct Node {
    pub(super) process: Process,
    /// Proxy in front of its client port.
    pub(super) client_proxy: Proxy,
    /// Proxy in front of its link, for the other nodes.
    pub(super) link: Proxy,
    /// Proxies between the node and its servers.
    pub(super) redis: Proxy,
    pub(super) postgres: Proxy,
    /// One proxy for each broker.
    pub(super) kafka: Vec<Proxy>,
    log: PathBuf,
    /// Offset in the log at which the present run begins.
    since: usize,
}

impl Node {
    /// Returns whether this run ended, or ends, because the other nodes took it for dead.
    fn is_retired(&self) -> anyhow::Result<bool> {
        let log = fs::read(&self.log)?;
        let run = String::from_utf8_lossy(log.get(self.since..).unwrap_or_default());
        Ok(run.contains(RETIRED))
    }
}

/// The nodes and their servers.
pub(super) struct Cluster {
    pub(super) nodes: Vec<Node>,
    pub(super) servers: Servers,
    /// Nodes that ended by themselves because the others had taken them for dead.
    pub(super) retired: u64,
    /// Clock of all nodes, if it can be shifted.
    pub(super) clock: Option<Clock>,
    /// Name of the database of the nodes.
    pub(super) database: String,
    sets: Vec<String>,
    key: Vec<u8>,
}

impl Cluster {
    /// Creates the database and the topics, and starts the nodes with these further settings.
    pub(super) async fn start(
        binary: &Path,
        list: &Path,
        directory: &Path,
        clock: Option<Clock>,
        more: &[&str],
        rng: &mut StdRng,
    ) -> anyhow::Result<Self> {
        let servers = Servers::read(list)?;
        let name = format!("chaos_{}_{}", std::process::id(), rng.random_range(0..1_000_000));
        let (key, secret) = (directory.join("token.key"), directory.join("link.secret"));
        auth::create_key(&secret)?;
        servers.execute(&format!("CREATE DATABASE {name}")).await?;
        let database = format!("postgres://{}@{}/{name}", servers.user, servers.postgres.address);
        let mut sets = cluster_sets(&name, [&key, &secret], &servers.brokers(), &database);
        sets.push(format!("kafka.replication={}", servers.kafka.len()));
        sets.push(format!("kafka.partitions={PARTITIONS}"));
        sets.extend(more.iter().map(|set| (*set).to_owned()));
        let key = auth::create_key(&key)?;
        let names: Vec<String> = (0..NODES).map(World::node).collect();
        let kafka = Config::load(None, &sets)?.kafka;
        ensure_topics(&kafka, &topic_plans(&kafka, &names)).await?;
        let mut cluster = Self { nodes: Vec::new(), servers, retired: 0, clock, database: name, sets, key };
        for id in &names {
            let node = cluster.add(binary, directory, id).await.with_context(|| id.clone())?;
            cluster.nodes.push(node);
        }
        Ok(cluster)
    }

    async fn add(&self, binary: &Path, directory: &Path, id: &str) -> anyhow::Result<Node> {
        let data = directory.join(id);
        fs::create_dir_all(&data)?;
        let port = free_port()?;
        let link = Proxy::start(([127, 0, 0, 1], port).into()).await?;
        let redis = Proxy::start(self.servers.redis.address).await?;
        let postgres = Proxy::start(self.servers.postgres.address).await?;
        let mut kafka = Vec::new();
        for broker in &self.servers.kafka {
            let way = broker.ways.get(self.nodes.len()).context("no way to a broker is left")?;
            let proxy = Proxy::start_at(way.advertised, way.listens).await;
            kafka.push(proxy.with_context(|| format!("{} is to be a proxy's", way.advertised))?);
        }
        let brokers: Vec<String> = kafka.iter().map(|proxy| proxy.address.to_string()).collect();
        let own = [
            format!("node.id={id}"),
            format!("link.listen=127.0.0.1:{port}"),
            format!("link.advertise={}", link.address),
            format!("kafka.brokers=[{}]", brokers.join(",")),
            format!("redis.urls=[redis://{}]", redis.address),
            format!("postgres.url=postgres://{}@{}/{}", self.servers.user, postgres.address, self.database),
        ];
        let sets = [self.sets.as_slice(), &own].concat();
        let process = Process::start_by(binary, &data, &sets, self.clock.clone()).await?;
        let client_proxy = Proxy::start(process.client).await?;
        Ok(Node { process, client_proxy, link, redis, postgres, kafka, log: data.join("node.log"), since: 0 })
    }

    /// Returns the settings that all nodes share.
    pub(super) fn sets(&self) -> &[String] {
        &self.sets
    }

    /// Returns the key of tokens.
    pub(super) fn key(&self) -> &[u8] {
        &self.key
    }

    /// Returns the oldest version of the rules that a partition of the log is read by.
    pub(super) async fn oldest_rules(&self) -> anyhow::Result<u64> {
        let url = Config::load(None, &self.sets)?.postgres.url;
        let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await?;
        let connection = tokio::spawn(connection);
        let oldest = client.query_one("SELECT min(ledger_version)::bigint FROM partitions", &[]).await;
        connection.abort();
        Ok(oldest?.try_get::<_, i64>(0)?.cast_unsigned())
    }

    /// Starts a node that has ended, for clients that use no proxy.
    pub(super) async fn revive_plainly(&mut self, nth: usize) -> anyhow::Result<()> {
        let node = &mut self.nodes[nth];
        node.since = usize::try_from(fs::metadata(&node.log)?.len())?;
        node.process.restart().await
    }

    /// Starts a node that has ended, and points its proxy and the administrator to it.
    pub(super) async fn come_back(&mut self, world: &World, nth: usize) -> anyhow::Result<()> {
        self.revive_plainly(nth).await?;
        let node = &mut self.nodes[nth];
        node.client_proxy.set_target(node.process.client);
        world.admin.set_address(nth, node.process.admin);
        Ok(())
    }

    /// Starts nodes that ended by themselves, as a supervisor does. The only accepted reason is that the others took
    /// them for dead.
    pub(super) async fn revive(&mut self, world: &World) -> anyhow::Result<()> {
        for nth in 0..self.nodes.len() {
            let node = &mut self.nodes[nth];
            let Some(status) = node.process.status()? else { continue };
            if !node.is_retired()? {
                bail!("n{} ended by itself: {status}; see {}", nth + 1, node.log.display());
            }
            self.retired += 1;
            world.admin.forget_address(nth);
            world.recorder.add(HistoryEvent::Down { node: &World::node(nth) });
            self.come_back(world, nth).await?;
        }
        Ok(())
    }

    /// Ends a node, by SIGTERM or by SIGKILL; a node that was retired just before may end by itself. Returns whether it
    /// could hand over what it had.
    pub(super) async fn end(&mut self, nth: usize, gently: bool) -> anyhow::Result<bool> {
        let node = &mut self.nodes[nth];
        let ended = if gently { node.process.stop().await } else { node.process.kill().await };
        if ended.is_err() && node.is_retired()? {
            self.retired += 1;
            return Ok(false);
        }
        ended.map(|()| gently)
    }

    /// Ends all nodes, each by SIGTERM or SIGKILL: every acked message is in the store in both cases.
    pub(super) async fn stop(&mut self, rng: &mut StdRng) -> anyhow::Result<()> {
        for nth in 0..self.nodes.len() {
            self.end(nth, rng.random()).await?;
            self.nodes[nth].process.check_log()?;
        }
        eprintln!("chaos: {} nodes ended because they had been taken for dead", self.retired);
        Ok(())
    }
}
