//! `tidegate-lab bench`: measures the figures that Tidegate promises, as ratios to raw baselines of the same run.
//!
//! Servers and load generators are processes of their own on different cores. A raw loop that makes only the system
//! calls of a scenario alternates with Tidegate, round by round, and medians are compared. Every delivery is verified
//! (content, order, count); CPU times are those of the scheduler.

mod admin;
mod c_program;
pub(crate) mod child;
mod credentials;
mod driver;
pub(crate) mod host;
mod kafka_baseline;
pub mod login_kind;
mod orders;
mod pattern;
mod poller;
mod raw;
pub mod report;
mod scenario;
mod test_bed;
pub mod wire;

use anyhow::{Context, Result, bail, ensure};
use clap::Subcommand;
use std::{fs, path::PathBuf};

use crate::node_binary;
use login_kind::{Chosen, LoginAlgorithm, LoginHandshake};
use report::BenchReport;
use wire::BenchTransport;

/// The scenarios to measure, and the options of all of them.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// The scenario to run.
    #[command(subcommand)]
    pub scenario: Scenario,
    /// Rounds of each side; single rounds scatter by 15 %, so at least five for a figure.
    #[arg(long, global = true, default_value_t = 7)]
    pub rounds: usize,
    /// Few and short rounds with few connections: shows that it works, its figures mean little.
    #[arg(long, global = true)]
    pub quick: bool,
    /// Transports to measure, one after the other.
    #[arg(long, global = true, value_delimiter = ',', default_values_t = [BenchTransport::Tcp, BenchTransport::Ws])]
    pub transport: Vec<BenchTransport>,
    /// Content bytes of a message.
    #[arg(long, global = true, default_value_t = 128)]
    pub size: usize,
    /// CPUs for servers; by default the first one allowed.
    #[arg(long, global = true, value_delimiter = ',')]
    pub server_cpus: Vec<usize>,
    /// CPUs for load generators; by default the last one allowed.
    #[arg(long, global = true, value_delimiter = ',')]
    pub client_cpus: Vec<usize>,
    /// Settings of the node, handed to `serve --set`.
    #[arg(long = "set", global = true, value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
    /// Program of the node; by default `tidegate` in the folder of this program.
    #[arg(long, global = true, value_name = "PROGRAM")]
    pub server_binary: Option<PathBuf>,
    /// Compares a second raw server instead of Tidegate: shows how exact the bench is.
    #[arg(long, global = true)]
    pub raw_twice: bool,
    /// Directory for the data of the nodes; by default a new one among the temporary files.
    #[arg(long, global = true)]
    pub directory: Option<PathBuf>,
    /// File for the report as JSON.
    #[arg(long, global = true)]
    pub json: Option<PathBuf>,
    /// File for the report as Markdown.
    #[arg(long, global = true)]
    pub markdown: Option<PathBuf>,
    /// Fails when a target is missed, too.
    #[arg(long, global = true)]
    pub strict: bool,
}

/// The scenarios.
#[derive(Subcommand, Clone, Debug)]
pub enum Scenario {
    /// Group fan-out, one message at a time: server CPU per delivery against a loop of `send`.
    Fanout {
        /// Members of the group.
        #[arg(long, value_delimiter = ',', default_values_t = [1000, 10_000])]
        members: Vec<usize>,
        /// Members connect to the node with TLS: compares it with the loop without TLS and with one of OpenSSL, which
        /// needs a C compiler and OpenSSL's headers.
        #[arg(long)]
        tls: bool,
        /// Folder of socketify's library, which has uWebSockets: compares the node with it over WebSocket and TLS, too.
        #[arg(long, value_name = "DIR", requires = "tls")]
        uwebsockets: Option<PathBuf>,
    },
    /// A hot live room: deliveries per second against one `send` a message; latency at part load.
    Room {
        /// People in the room.
        #[arg(long, default_value_t = 10_000)]
        members: usize,
        /// Messages a second that are offered.
        #[arg(long, default_value_t = 400.0)]
        rate: f64,
        /// Connections that publish, in turns.
        #[arg(long, default_value_t = 4)]
        publishers: usize,
        /// Seconds of a round.
        #[arg(long, default_value_t = 4.0)]
        seconds: f64,
    },
    /// A live room over its rate, some of whose messages are important: what arrives, how late, and at what cost, with one and
    /// two shards and with merged passes, next to the kernel's cost of one pass.
    Rooms {
        /// People in the room.
        #[arg(long, default_value_t = 10_000)]
        members: usize,
        /// Messages a second that are offered.
        #[arg(long, default_value_t = 1_000.0)]
        rate: f64,
        /// Each how-many-th message is important.
        #[arg(long, default_value_t = 100)]
        important_every: u64,
        /// Rate of the room (`rooms.rate`).
        #[arg(long, default_value_t = 200)]
        room_rate: u32,
        /// Connections that publish; the first one sends what is important.
        #[arg(long, default_value_t = 9)]
        publishers: usize,
        /// Seconds of a round.
        #[arg(long, default_value_t = 4.0)]
        seconds: f64,
    },
    /// Request and reply, one outstanding a connection, against an epoll echo loop.
    Echo {
        /// Connections.
        #[arg(long, default_value_t = 100)]
        conns: usize,
        /// Seconds of a round.
        #[arg(long, default_value_t = 2.0)]
        seconds: f64,
    },
    /// Logged-in quiet connections in three groups: memory and CPU of each.
    Idle {
        /// Connections.
        #[arg(long, default_value_t = 10_000)]
        conns: usize,
        /// Seconds that are watched.
        #[arg(long, default_value_t = 60.0)]
        seconds: f64,
        /// Seconds between two heartbeats of a client.
        #[arg(long, default_value_t = 30.0)]
        heartbeat: f64,
        /// Then the same with TLS; fails when such a connection takes more than 12 KiB of the node.
        #[arg(long)]
        tls: bool,
    },
    /// Logins per second against accept, read and write; and the time until all are back at once. With --alg or --tls:
    /// logins per CPU second of each kind, against a loop with the same handshake.
    Login {
        /// Connections that come back at once.
        #[arg(long, default_value_t = 15_000)]
        conns: usize,
        /// Logins of a round; by default 10,000, with --alg or --tls 2,000 of each kind.
        #[arg(long)]
        count: Option<usize>,
        /// Logins on their way at a time.
        #[arg(long, default_value_t = 64)]
        parallel: usize,
        /// Algorithms of the tokens, separated by commas: HS256, RS256, ES256, EdDSA, or all; by default HS256.
        #[arg(long, value_name = "ALGORITHMS")]
        alg: Option<Chosen<LoginAlgorithm>>,
        /// TLS handshakes, separated by commas: none, full, resumed, or all; by default none.
        #[arg(long, value_name = "HANDSHAKES")]
        tls: Option<Chosen<LoginHandshake>>,
    },
    /// Fan-out CPU per delivery with two shards against one.
    Shards {
        /// Members of the group.
        #[arg(long, default_value_t = 10_000)]
        members: usize,
    },
    /// One-to-one chat, stored on disk: accepts/s against append and `fdatasync`; latency at half load.
    Chat {
        /// Connections.
        #[arg(long, default_value_t = 64)]
        conns: usize,
        /// Unanswered messages of a connection.
        #[arg(long, default_value_t = 64)]
        in_flight: usize,
        /// Seconds of a round.
        #[arg(long, default_value_t = 2.0)]
        seconds: f64,
        /// Messages a second of the part load, without measuring flat out first; by default half of what connected
        /// users send each other flat out.
        #[arg(long)]
        rate: Option<f64>,
    },
    /// Twice the messages that a node can take: what it accepts and how fast, with its gates and without, from clients
    /// that keep the wait of a refusal and from clients that ignore it.
    Overload {
        /// Connections.
        #[arg(long, default_value_t = 1_000)]
        conns: usize,
        /// Seconds of a measurement of overload, and of the time before it.
        #[arg(long, default_value_t = 8.0)]
        seconds: f64,
    },
    /// The embedded store: bytes on disk per 100 B message, restart and sync times.
    Store {
        /// Messages stored.
        #[arg(long, default_value_t = 1_000_000)]
        messages: u64,
        /// Conversations of the users whose sync is timed; three at most.
        #[arg(long, value_delimiter = ',', default_values_t = [2_000, 10_000])]
        conversations: Vec<usize>,
    },
    /// The store on Postgres: messages archived a second as the tables grow; needs an empty database.
    Postgres {
        /// Address of the database.
        #[arg(long, default_value = "postgres://tidegate@127.0.0.1:5432/bench")]
        url: String,
        /// Messages in all.
        #[arg(long, default_value_t = 10_000_000)]
        messages: u64,
        /// Conversations that messages are spread over.
        #[arg(long, default_value_t = 200_000)]
        conversations: u64,
        /// Messages of one archive.
        #[arg(long, default_value_t = 1_000)]
        batch: u64,
        /// Partitions that are archived at once.
        #[arg(long, default_value_t = 4)]
        partitions: u32,
    },
    /// The feed: CPU of an archived message with it and without, embedded and on Postgres.
    Feed {
        /// Address of an empty database. Empty: the embedded store alone.
        #[arg(long, default_value = "")]
        url: String,
        /// Messages of a round.
        #[arg(long, default_value_t = 20_000)]
        messages: u64,
        /// Conversations that messages are spread over.
        #[arg(long, default_value_t = 1_000)]
        conversations: u64,
        /// Messages of one archive.
        #[arg(long, default_value_t = 200)]
        batch: u64,
    },
    /// The admin API: messages one by one and in batches, and pages of a history, against a request that does nothing.
    Api {
        /// Connections, each with a request at a time.
        #[arg(long, default_value_t = 16)]
        conns: usize,
        /// Seconds of a round.
        #[arg(long, default_value_t = 2.0)]
        seconds: f64,
        /// List that `cargo xtask services up` wrote: measures a node of a cluster instead of a single one.
        #[arg(long, value_name = "FILE")]
        cluster: Option<PathBuf>,
    },
    /// Webhooks: lag of events at a rate of messages, and CPU of a message with an endpoint and without.
    Webhooks {
        /// Messages a second.
        #[arg(long, default_value_t = 10_000.0)]
        rate: f64,
        /// Seconds of a round.
        #[arg(long, default_value_t = 5.0)]
        seconds: f64,
        /// Requests of the endpoint in flight.
        #[arg(long, default_value_t = 8)]
        parallel: u32,
    },
    /// A cluster whose owner of partitions dies, or stops by plan: how long its conversations wait for acks.
    Cluster {
        /// Servers of the cluster.
        #[command(flatten)]
        services: Services,
        /// Senders, each with a conversation of its own.
        #[arg(long, default_value_t = 48)]
        senders: usize,
        /// Partitions of the log.
        #[arg(long, default_value_t = 12)]
        partitions: u32,
    },
    /// A large group over three nodes: records, Redis commands and CPU of a message, and when its last member has it.
    Groups {
        /// Servers of the cluster.
        #[command(flatten)]
        services: Services,
        /// Members of the group.
        #[arg(long, default_value_t = 1_000_000)]
        members: usize,
        /// Members who are connected.
        #[arg(long, default_value_t = 15_000)]
        online: usize,
    },
    /// One-to-one chat through one node and through three, against a bare producer and consumer of the same Kafka.
    Kafka {
        /// Servers of the cluster.
        #[command(flatten)]
        services: Services,
        /// Connections.
        #[arg(long, default_value_t = 64)]
        conns: usize,
        /// Unanswered messages of a connection.
        #[arg(long, default_value_t = 32)]
        in_flight: usize,
        /// Seconds of a round.
        #[arg(long, default_value_t = 3.0)]
        seconds: f64,
        /// Partitions of the log.
        #[arg(long, default_value_t = 12)]
        partitions: u32,
        /// Conversations, a section for each number; more connections where so few can't have them.
        #[arg(long, value_delimiter = ',', default_values_t = [64, 100_000])]
        conversations: Vec<usize>,
    },
    /// Lookups of routes against `redis-benchmark -P 16`, and what Redis does for a message of a cluster.
    Redis {
        /// Servers of the cluster.
        #[command(flatten)]
        services: Services,
        /// Users with a route.
        #[arg(long, default_value_t = 10_000)]
        users: usize,
        /// Lookups of a round.
        #[arg(long, default_value_t = 200_000)]
        lookups: usize,
        /// Messages that are sent through a node.
        #[arg(long, default_value_t = 20_000)]
        messages: u64,
    },
    /// Runs all scenarios that need no servers, most of them with shorter rounds than alone.
    All,
    /// A load generator; started by the bench itself.
    #[command(hide = true)]
    Client,
    /// Becomes the given program, which ends when the bench ends.
    #[command(hide = true)]
    Hold {
        /// Program and arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<std::ffi::OsString>,
    },
    /// Raw loop: each frame of the control connection to every client.
    #[command(hide = true)]
    RawFanout,
    /// Raw loop: echo.
    #[command(hide = true)]
    RawEcho {
        /// Bytes of a request.
        #[arg(long)]
        request: usize,
        /// Bytes of a reply.
        #[arg(long)]
        reply: usize,
    },
    /// Raw loop: whatever comes goes back.
    #[command(hide = true)]
    RawMirror,
    /// Raw loop: append, sync, answer.
    #[command(hide = true)]
    RawLog {
        /// The file to append to.
        #[arg(long)]
        file: PathBuf,
        /// Give the file all of its blocks first.
        #[arg(long)]
        preallocated: bool,
    },
    /// Raw loop: accept, read, write; with a certificate over TLS.
    #[command(hide = true)]
    RawAccept {
        /// Bytes of a reply.
        #[arg(long)]
        reply: usize,
        /// Certificate of the server.
        #[arg(long, requires = "key")]
        certificate: Option<PathBuf>,
        /// Key of the certificate.
        #[arg(long, requires = "certificate")]
        key: Option<PathBuf>,
    },
}

/// The servers of a cluster.
#[derive(clap::Args, Clone, Debug)]
pub struct Services {
    /// The list that `cargo xtask services up` wrote.
    #[arg(long, value_name = "FILE", default_value = "target/services/services.json")]
    pub services: PathBuf,
}

impl std::fmt::Display for BenchTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Ws => "ws",
        })
    }
}

/// Runs the scenario. It fails when a process died or a verification failed.
pub fn run(args: &Args) -> Result<()> {
    let is_child = matches!(
        args.scenario,
        Scenario::Client
            | Scenario::Hold { .. }
            | Scenario::RawFanout
            | Scenario::RawEcho { .. }
            | Scenario::RawMirror
            | Scenario::RawLog { .. }
            | Scenario::RawAccept { .. }
    );
    if is_child {
        host::end_with_parent()?;
    }
    match &args.scenario {
        Scenario::Hold { command } => child::become_program(command),
        Scenario::Client => driver::run(),
        Scenario::RawFanout => raw::fanout(),
        Scenario::RawEcho { request, reply } => raw::echo(*request, *reply),
        Scenario::RawMirror => raw::mirror(),
        Scenario::RawLog { file, preallocated } => raw::log(file, *preallocated),
        Scenario::RawAccept { reply, certificate: Some(certificate), key: Some(key) } => {
            raw::accept_tls(*reply, certificate, key)
        }
        Scenario::RawAccept { reply, .. } => raw::accept_loop(*reply),
        _ => measure(args.clone()),
    }
}

/// Directory that is removed when the run ends.
pub(crate) struct ScratchFolder(pub(crate) PathBuf);

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

fn measure(mut args: Args) -> Result<()> {
    ensure!(args.rounds > 0, "at least one round");
    let allowed = host::cpus();
    let (Some(first), Some(last)) = (allowed.first(), allowed.last()) else { bail!("no CPU may be used") };
    if args.server_cpus.is_empty() {
        args.server_cpus = vec![*first];
    }
    if args.client_cpus.is_empty() {
        args.client_cpus = vec![*last];
    }
    if args.quick {
        args.rounds = args.rounds.min(2);
    }
    let parent = args.directory.clone().unwrap_or_else(std::env::temp_dir);
    let scratch = ScratchFolder(parent.join(format!("tidegate-bench-{}", std::process::id())));
    fs::create_dir_all(&scratch.0).with_context(|| format!("{}", scratch.0.display()))?;
    let launcher = child::Launcher {
        tidegate: node_binary::find(args.server_binary.as_deref(), "--server-binary")?,
        basics: child::bench_basics(),
        settings: args.settings.clone(),
        server_cpus: args.server_cpus.clone(),
        client_cpus: args.client_cpus.clone(),
        directory: scratch.0.clone(),
        authority: None,
        credentials: None,
    };
    let steal = host::Steal::read();
    let environment = host::Environment::capture(&args.server_cpus, &args.client_cpus);
    let mut report = BenchReport { environment, sections: Vec::new() };
    println!("{}", report.head());
    let outcome = scenario::run(&launcher, &args, |section| {
        println!("{}", section.markdown());
        report.sections.push(section);
    });
    report.environment.steal_percent = host::Steal::read().percent_since(steal);
    println!("Steal during the run: {:.2} %.", report.environment.steal_percent);
    // Figures from before a failure are worth keeping.
    if let Some(path) = &args.json {
        fs::write(path, serde_json::to_string_pretty(&report)?)
            .with_context(|| format!("{}", path.display()))?;
    }
    if let Some(path) = &args.markdown {
        fs::write(path, report.markdown()).with_context(|| format!("{}", path.display()))?;
    }
    outcome?;
    ensure!(!args.strict || report.all_met(), "a target was missed");
    Ok(())
}
