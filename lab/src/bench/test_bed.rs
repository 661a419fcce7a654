//! Test bed of a cluster scenario: topics, a database and keys of its own on running services.

use super::{
    child::{Launcher, Server},
    orders::Watched,
};
use crate::{cluster_sets::cluster_sets, ports::free_port};
use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};
use tidegate::cli::admin::AdminClient;
use tidegate::{
    auth,
    bus::{ensure_topics, topic_plans},
    config::Config,
};
use tokio::runtime::Runtime;
use tokio_postgres::NoTls;

/// Time for the nodes to share the partitions.
const ASSIGNMENT_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval between two polls. A node reports its partitions with each renewal of its lease, so two polls see two
/// reports.
const ASSIGNMENT_POLL_INTERVAL: Duration = Duration::from_millis(3_500);

/// Resources that the nodes of a run share. The database is removed on drop; topics stay.
pub(super) struct TestBed {
    /// Parsed settings that all nodes share.
    pub(super) config: Config,
    /// Runtime for clients of the services.
    pub(super) runtime: Runtime,
    settings: Vec<String>,
    key: PathBuf,
    name: String,
    /// Address of the database `postgres`.
    url: String,
    partitions: usize,
    /// Parsed list of services.
    services: Value,
}

impl TestBed {
    /// Creates a test bed for a number of nodes on the services of a list.
    pub(super) fn make(list: &Path, launcher: &Launcher, nodes: usize, partitions: u32) -> Result<Self> {
        let text =
            fs::read(list).with_context(|| format!("{}: run `cargo xtask services up`", list.display()))?;
        let said: Value = serde_json::from_slice(&text)?;
        let entry = |service: &str, key: &str| {
            said[service][key].as_str().with_context(|| format!("{}: no {service} {key}", list.display()))
        };
        let name = format!("bench_{}_{:x}", std::process::id(), rand::random::<u32>());
        let (user, address) = (entry("postgres", "user")?, entry("postgres", "address")?);
        let (key, secret) = (launcher.directory.join("key"), launcher.directory.join("secret"));
        for file in [&key, &secret] {
            fs::remove_file(file).ok();
            auth::create_key(file)?;
        }
        let database = format!("postgres://{user}@{address}/{name}");
        let mut settings = cluster_sets(&name, [&key, &secret], entry("kafka", "address")?, &database);
        settings.extend([
            "node.store=embedded".to_owned(),
            "kafka.replication=1".to_owned(),
            // A switch of the rules would be a record of its own among the counted ones.
            "log.rules=1".to_owned(),
            format!("kafka.partitions={partitions}"),
            format!("redis.urls=[{}]", entry("redis7", "url")?),
        ]);
        let config = Config::load(None, &[settings.clone(), launcher.settings.clone()].concat())?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let url = format!("postgres://{user}@{address}/postgres");
        runtime.block_on(async {
            execute(&url, &format!("CREATE DATABASE {name}")).await.context("postgres")?;
            let names: Vec<String> = (1..=nodes).map(|nth| format!("n{nth}")).collect();
            ensure_topics(&config.kafka, &topic_plans(&config.kafka, &names)).await.context("kafka")
        })?;
        let (partitions, services) = (partitions as usize, said);
        Ok(Self { config, runtime, settings, key, name, url, partitions, services })
    }

    /// Starts node n`nth`, the first time or again.
    pub(super) fn start(&self, launcher: &Launcher, nth: usize, more: &[String]) -> Result<Server> {
        let label = format!("{}-n{nth}", self.name);
        let data = launcher.directory.join(&label);
        fs::create_dir_all(&data)?;
        // A command that starts a node looks for the key here.
        fs::copy(&self.key, data.join("token.key"))?;
        let port = free_port()?;
        let own = [format!("node.id=n{nth}"), format!("link.listen=127.0.0.1:{port}")];
        let settings = [&self.settings[..], &own, more, &launcher.settings].concat();
        Launcher { settings, ..launcher.clone() }.tidegate(&label, 1)
    }

    /// Returns the processes whose CPU time is measured: the nodes, and services with a listed pid.
    pub(super) fn processes(&self, nodes: Vec<u32>) -> Vec<Watched> {
        let services = [("Kafka", "kafka"), ("Postgres", "postgres"), ("Redis", "redis7")];
        let listed = services.into_iter().filter_map(|(name, service)| {
            let pid = u32::try_from(self.services[service]["pid"].as_u64()?).ok()?;
            Some(Watched { name: name.to_owned(), pids: vec![pid] })
        });
        let name = if nodes.len() == 1 { "node" } else { "nodes" };
        [Watched { name: name.to_owned(), pids: nodes }].into_iter().chain(listed).collect()
    }

    /// Returns whether Kafka runs on the JVM of the tests, which starts early and compiles little.
    pub(super) fn has_jvm_of_tests(&self) -> bool {
        let words = self.services["kafka"]["command"].as_array();
        words.into_iter().flatten().any(|word| word == "-XX:TieredStopAtLevel=1")
    }

    /// Returns the key of tokens.
    pub(super) fn key(&self) -> Result<Vec<u8>> {
        Ok(auth::read_key(&self.key)?)
    }

    /// Waits until each partition has one owner, and each node owns something. Returns the number of partitions of each
    /// node.
    pub(super) fn settle(&self, servers: &[&Server]) -> Result<Vec<usize>> {
        let began = Instant::now();
        let mut before = Vec::new();
        loop {
            let now = owns(servers[0])?;
            let all: usize = now.iter().sum();
            let live = now.iter().filter(|count| **count > 0).count();
            if all == self.partitions && live == servers.len() && now == before {
                return Ok(now);
            }
            ensure!(began.elapsed() < ASSIGNMENT_TIMEOUT, "the nodes do not share the partitions: {now:?}");
            before = now;
            thread::sleep(ASSIGNMENT_POLL_INTERVAL);
        }
    }
}

impl Drop for TestBed {
    fn drop(&mut self) {
        let sql = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        if let Err(error) = self.runtime.block_on(execute(&self.url, &sql)) {
            eprintln!("{sql}: {error:#}");
        }
    }
}

/// Returns the number of partitions that each live node owns as this node reports it, ordered by name.
fn owns(server: &Server) -> Result<Vec<usize>> {
    let (status, body) = AdminClient::connect(&server.second)?.request("GET", "/v1/nodes", "")?;
    if status != 200 {
        bail!("GET /v1/nodes: {status} {body}");
    }
    let said: Value = serde_json::from_str(&body)?;
    let nodes = said["nodes"].as_array().context("no nodes")?;
    let live = nodes.iter().filter(|node| node["lease"] == "live");
    let mut counts: Vec<(String, usize)> =
        live.map(|node| (node["node"].to_string(), node["owns"].as_array().map_or(0, Vec::len))).collect();
    counts.sort();
    Ok(counts.into_iter().map(|(_, count)| count).collect())
}

async fn execute(url: &str, sql: &str) -> Result<()> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    let connection = tokio::spawn(connection);
    let done = client.batch_execute(sql).await.with_context(|| sql.to_owned());
    connection.abort();
    done
}
