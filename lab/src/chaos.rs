//! `tidegate-lab chaos`: runs the real binary under kill -9 and a bad network with dozens of clients, then the checker.
//!
//! The node runs with its embedded store. Clients on all four wires, most users on two devices, connect through
//! [`crate::proxy::Proxy`]. They send, retry and reconnect, while groups change through the admin API. Everything but
//! the timing follows from the seed. At the end everything is healed, and each client sends a marker to each of its
//! conversations and to its live room. When all is quiet the node ends, and the log is read from its directory, not through the node.
//!
//! Clients sync after each login and pull what they miss; at the end each makes sure that it has everything. With
//! `--cluster` there are three nodes over real servers, which break as well ([`cluster_nemesis`]); clients go from node
//! to node, and the log is read from Postgres. [`crate::checker`] describes what is judged.

mod admin;
mod client;
mod cluster;
mod cluster_nemesis;
mod drain;
mod edits;
mod groups;
mod library;
mod nemesis;
mod presence;
mod process;
mod record;
mod rolling;
mod servers;
mod stream;
mod taken;
mod topic;
mod webhook;
mod workload;
mod world;

use std::{
    fs::{self, OpenOptions},
    io::{BufWriter, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde_json::{Map, Value, json};
use tidegate::{auth, config::Config, store::PostgresStore};
use time::OffsetDateTime;

use self::{
    cluster::Cluster,
    library::Libraries,
    process::{Clock, Process},
    record::Recorder,
    servers::Servers,
    stream::StreamReader,
    topic::TopicReader,
    webhook::{ReceiverFaults, WEBHOOK_SETS, WebhookReceiver},
    workload::{FeedConsumers, Workload},
    world::World,
};
use crate::{
    checker::{self, Budget, CheckReport, History},
    node_binary, node_store,
    proxy::Proxy,
    rows,
};

/// Arguments of `tidegate-lab chaos`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// How long clients talk while things break
    #[arg(long, default_value_t = 120)]
    seconds: u64,
    /// Seed of everything but the timing; by default another one each time
    #[arg(long)]
    seed: Option<u64>,
    /// Users; two of three have two devices [default: 24; 12 with --cluster]
    #[arg(long)]
    users: Option<usize>,
    /// Messages a second, all clients together [default: 600; 100 with --cluster]
    #[arg(long)]
    rate: Option<u32>,
    /// Commit that the result names
    #[arg(long, default_value = "-")]
    commit: String,
    /// File of JSON lines to which the result is appended, e.g. docs/results/chaos.jsonl
    #[arg(long, conflicts_with_all = ["drain", "rolling"])]
    result: Option<PathBuf>,
    /// File for the history as JSON lines
    #[arg(long)]
    history: Option<PathBuf>,
    /// Program of the node; by default `tidegate` in the folder of this program
    #[arg(long, value_name = "PROGRAM")]
    binary: Option<PathBuf>,
    /// Only drain a node with this many clients under load, and check that no ack is lost
    #[arg(long, value_name = "CLIENTS", conflicts_with_all = ["history", "seconds"])]
    drain: Option<usize>,
    /// Three nodes over the servers in this list, which `cargo xtask chaos --cluster` starts and writes
    #[arg(long, value_name = "FILE", conflicts_with = "drain")]
    cluster: Option<PathBuf>,
    /// Only restart the nodes of the cluster one after the other, this many times, under load
    #[arg(long, value_name = "RESTARTS", requires = "cluster", conflicts_with_all = ["history", "seconds", "users", "long"])]
    rolling: Option<usize>,
    /// Clients of a rolling restart [default: 1500]
    #[arg(long, requires = "rolling")]
    clients: Option<usize>,
    /// Another version of the program: each restarted node comes back as the other of the two
    #[arg(long, value_name = "BINARY", requires = "rolling")]
    next: Option<PathBuf>,
    /// Fault in each third restart, while the node leaves; of several, another one each time
    #[arg(long, requires = "rolling", value_enum, value_delimiter = ',')]
    with: Vec<rolling::With>,
    /// Faults of up to a minute, not 10 s, and more kinds of them
    #[arg(long, requires = "cluster")]
    long: bool,
    /// The library libfaketimeMT.so.1, which shifts the clocks of nodes
    #[arg(long, value_name = "FILE", requires = "long")]
    faketime: Option<PathBuf>,
    /// Command of an adapter whose client library takes part; may be repeated
    #[arg(long = "adapter", value_name = "COMMAND", conflicts_with_all = ["drain", "rolling"])]
    adapters: Vec<String>,
    /// Devices of each adapter, instead of as many of the lab's own clients
    #[arg(long, value_name = "DEVICES", requires = "adapters", default_value_t = 4)]
    adapter_devices: usize,
    /// Directory for the node's data, which is kept; by default a temporary one, removed after a clean run
    #[arg(long)]
    directory: Option<PathBuf>,
}

impl Args {
    /// Returns the number of users, and of messages a second.
    fn load(&self) -> (usize, u32) {
        let (users, rate) = if self.cluster.is_some() { (12, 100) } else { (24, 600) };
        (self.users.unwrap_or(users), self.rate.unwrap_or(rate))
    }
}

/// Settings of the nodes. They are tighter than the defaults, so that a frozen client gets pushes again, falls behind
/// and is closed as slow, and so that the newest rules of the ledger, by which the checker judges, are soon in force.
const SETS: &[&str] = &["timing.ack_timeout_ms=700", "limits.window_max=48", "log.rules_settle_ms=5000"];

/// File of a run's directory that says why the run failed.
pub const REASON: &str = "failure.txt";

/// Runs chaos, checks the history, and prints a row of `docs/results/`.
///
/// # Errors
/// Fails when a promise is broken, or when the run does not come to rest; the reason is in [`REASON`], too.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let seed = args.seed.unwrap_or_else(|| rand::random_range(0..1_000_000));
    let directory = match &args.directory {
        Some(directory) => directory.clone(),
        None => std::env::temp_dir().join(format!("tidegate-chaos-{}-{seed}", std::process::id())),
    };
    if directory.join("store").exists() {
        bail!("{} has a store already; chaos begins with an empty one", directory.display());
    }
    fs::create_dir_all(&directory)?;
    run_in(args, seed, &directory).inspect_err(|error| {
        // The error is printed as well: this file is for a report that has no room for a log.
        drop(fs::write(directory.join(REASON), format!("{error:#}")));
    })
}

/// Runs chaos with this directory.
fn run_in(args: &Args, seed: u64, directory: &Path) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    if let Some(clients) = args.drain {
        runtime.block_on(drain::run(&binary(args)?, directory, clients, args.load().1))?;
        return remove(args, directory);
    }
    if let (Some(turns), Some(list)) = (args.rolling, &args.cluster) {
        runtime.block_on(Box::pin(rolling::run(args, list, turns, directory)))?;
        return remove(args, directory);
    }
    eprintln!("chaos: seed {seed}, {} s, data in {}", args.seconds, directory.display());
    let run = runtime.block_on(async {
        match &args.cluster {
            Some(list) => Box::pin(drive_cluster(args, list, seed, directory)).await,
            None => Box::pin(drive_node(args, seed, directory)).await,
        }
    })?;
    runtime.shutdown_timeout(Duration::from_secs(1));
    if let Some(file) = &args.history {
        write_history(&run.history, file)?;
    }
    let report = checker::check(&run.history, Budget::default());
    let row = result(args, seed, &report, &run);
    println!("{row}");
    if let Some(file) = &args.result {
        append(&row, file)?;
    }
    if !report.is_clean() {
        write_history(&run.history, &directory.join("history.jsonl"))?;
    }
    report
        .judge()
        .with_context(|| format!("seed {seed}; the data and the history are in {}", directory.display()))?;
    if let (Some(list), Some(database)) = (&args.cluster, &run.database) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(Servers::read(list)?.drop_database(database))?;
    }
    remove(args, directory)
}

/// Results of a run that are judged.
struct Run {
    history: History,
    /// Number of faults of each kind.
    counts: [u64; 3],
    /// Faults of the receiver of webhooks.
    receiver: ReceiverFaults,
    /// Counts of the devices with a library; null without any.
    libraries: Value,
    /// The database of the nodes; `None` for a single node.
    database: Option<String>,
}

/// Removes the node's data after a clean run, unless an option named the directory.
fn remove(args: &Args, directory: &Path) -> anyhow::Result<()> {
    if args.directory.is_none() {
        fs::remove_dir_all(directory)?;
    }
    Ok(())
}

/// Returns the program of the nodes.
fn binary(args: &Args) -> anyhow::Result<PathBuf> {
    node_binary::find(args.binary.as_deref(), "--binary")
}

/// Runs a single node, and reads its log at the end.
async fn drive_node(args: &Args, seed: u64, directory: &Path) -> anyhow::Result<Run> {
    let binary = binary(args)?;
    let mut rng = StdRng::seed_from_u64(seed);
    let sets = [SETS, WEBHOOK_SETS].concat();
    let mut process = Process::start(&binary, directory, &sets).await?;
    let proxy = Arc::new(Proxy::start(process.client).await?);
    let key = auth::load_or_create_key(directory)?;
    let recorder = Arc::new(Recorder::new());
    let (users, rate) = args.load();
    let libraries = Libraries::start(&args.adapters, directory).await?;
    let (names, kills) = (libraries.names(), libraries.kills());
    let mut world = World::new(users, rate, vec![proxy.address], key, Arc::clone(&recorder));
    world.hand_over(libraries.len(), args.adapter_devices);
    let world = Arc::new(world);
    world.admin.set_address(0, process.admin);
    let webhook = WebhookReceiver::subscribed(seed, &world).await?;
    let receiver = Arc::clone(&webhook);
    let consumers = FeedConsumers { webhook, stream: StreamReader::begin(&world), topic: None };
    let mut workload = Workload::begin(&world, libraries, &mut rng).await?.with_consumers(consumers);
    let end = Instant::now() + Duration::from_secs(args.seconds);
    let counts = tokio::select! {
        counts = nemesis::run(&world, &proxy, &mut process, end, &mut rng) => counts?,
        why = world.failed() => return Err(why),
    };
    let rested = workload.rest(&world).await;
    // An acked message is on the disk in both cases.
    if rng.random() {
        process.kill().await?
    } else {
        process.stop().await?
    }
    drop(workload);
    process.check_log()?;
    rested?;
    let mut history = recorder.take();
    rows::read(&node_store::open(directory)?, &world.users(), &mut history).await?;
    library::name_messages(&mut history);
    let libraries = library::summary(&history, &names, &kills);
    let counts = [counts.kills, counts.cuts, counts.disks];
    Ok(Run { history, counts, receiver: receiver.faults(), libraries, database: None })
}

/// Runs several nodes, and reads the log from Postgres at the end.
async fn drive_cluster(args: &Args, list: &Path, seed: u64, directory: &Path) -> anyhow::Result<Run> {
    let mut rng = StdRng::seed_from_u64(seed);
    let clock = args.faketime.clone().map(Clock);
    let topic = format!("chaos_{}_{seed}.messages", std::process::id());
    let topic_set = format!("kafka.message_topic={topic}");
    let sets = [SETS, WEBHOOK_SETS, &[&topic_set]].concat();
    let mut cluster =
        Box::pin(Cluster::start(&binary(args)?, list, directory, clock, &sets, &mut rng)).await?;
    cluster.servers.recover_quickly().await;
    let recorder = Arc::new(Recorder::new());
    let client_addresses = cluster.nodes.iter().map(|node| node.client_proxy.address).collect();
    let (users, rate) = args.load();
    let libraries = Libraries::start(&args.adapters, directory).await?;
    let (names, kills) = (libraries.names(), libraries.kills());
    let mut world = World::new(users, rate, client_addresses, cluster.key().to_vec(), Arc::clone(&recorder));
    world.hand_over(libraries.len(), args.adapter_devices);
    let world = Arc::new(world);
    for (nth, node) in cluster.nodes.iter().enumerate() {
        world.admin.set_address(nth, node.process.admin);
    }
    let webhook = WebhookReceiver::subscribed(seed, &world).await?;
    let topic = TopicReader::begin(&world, &cluster.servers.brokers(), &topic)?;
    let receiver = Arc::clone(&webhook);
    let consumers = FeedConsumers { webhook, stream: StreamReader::begin(&world), topic: Some(topic) };
    let mut workload = Workload::begin(&world, libraries, &mut rng).await?.with_consumers(consumers);
    let end = Instant::now() + Duration::from_secs(args.seconds);
    let counts = tokio::select! {
        counts = cluster_nemesis::run(&world, &mut cluster, end, args.long, &mut rng) => counts?,
        why = world.failed() => return Err(why),
    };
    let rested = workload.rest(&world).await;
    drop(workload);
    cluster.stop(&mut rng).await?;
    let mut history = recorder.take();
    if let Err(why) = rested {
        let file = directory.join("history.jsonl");
        write_history(&history, &file)?;
        return Err(why.context(format!("seed {seed}; what was seen until then is in {}", file.display())));
    }
    let config = Config::load(None, cluster.sets())?;
    let store = PostgresStore::open(&config.postgres).await.context("postgres")?;
    rows::read(&store, &world.users(), &mut history).await?;
    library::name_messages(&mut history);
    let libraries = library::summary(&history, &names, &kills);
    let (receiver, database) = (receiver.faults(), Some(cluster.database));
    Ok(Run { history, counts, receiver, libraries, database })
}

/// Returns a row of `docs/results/`.
fn result(args: &Args, seed: u64, report: &CheckReport, run: &Run) -> Value {
    let verdict = if report.is_clean() { "clean".to_owned() } else { format!("BROKEN {:?}", report.broken) };
    let (kind, faults) = match (&args.cluster, args.long) {
        (None, _) => ("node", ["kills", "cuts", "disks"]),
        (Some(_), false) => ("cluster-short", ["nodes", "servers", "networks"]),
        (Some(_), true) => ("cluster-long", ["nodes", "servers", "networks"]),
    };
    let faults: Map<String, Value> =
        faults.iter().zip(&run.counts).map(|(name, count)| ((*name).to_owned(), json!(count))).collect();
    let mut row = json!({
        "date": OffsetDateTime::now_utc().date().to_string(),
        "commit": args.commit,
        "kind": kind,
        "seed": seed,
        "seconds": args.seconds,
        "sent": report.sent,
        "acked": report.acked,
        "checked": report.rows + report.pushes,
        "faults": faults,
        "verdict": verdict,
        "rows": report.rows,
        "pushes": report.pushes,
        "repeated": report.repeated,
        "delivered": report.delivered,
        "delivered_again": report.delivered_again,
        "delivered_by": report.delivered_by,
        "receiver": run.receiver,
        "pulled": report.pulled,
        "reads": report.reads,
        "states": report.states,
        "recovery_ms": report.longest_recovery_ns / 1_000_000,
    });
    if !run.libraries.is_null() {
        row["libraries"] = run.libraries.clone();
    }
    row
}

/// Appends a row to a file of JSON lines.
fn append(row: &Value, file: &Path) -> anyhow::Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(file)?;
    Ok(writeln!(file, "{row}")?)
}

fn write_history(history: &History, file: &Path) -> anyhow::Result<()> {
    let mut out = BufWriter::new(fs::File::create(file).with_context(|| file.display().to_string())?);
    for event in &history.events {
        writeln!(out, "{}", history.line(event)?)?;
    }
    Ok(out.flush()?)
}
