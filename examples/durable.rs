//! Durable accepts per second through a real node, beside a raw loop that appends and syncs groups on the same disk,
//! in turns; bytes on disk for each message; and how long a node takes to start on what was stored.
//!
//! `cargo run --release --example durable -- --directory target/durable --messages 1000000`

use std::{
    collections::HashMap,
    fs::{self, File},
    io::{ErrorKind, Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use hdrhistogram::Histogram;
use mio::{Events, Interest, Poll, Token};
use prost::Message as _;
use tidegate::{auth, config::Config, node::Node};
use tidegate_protocol::{
    codec::{Split, tcp},
    content::Content,
    pb,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
struct Args {
    /// Where the data goes; emptied first. On the disk that is to be measured.
    #[arg(long, default_value = "target/durable")]
    directory: PathBuf,
    /// Connections.
    #[arg(long, default_value_t = 64)]
    conns: usize,
    /// Sends on the way, each connection.
    #[arg(long, default_value_t = 64)]
    in_flight: usize,
    /// Content bytes.
    #[arg(long, default_value_t = 100)]
    size: usize,
    /// Seconds of a turn.
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// Turns of each side.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Messages to have stored before the restart is timed.
    #[arg(long, default_value_t = 1_000_000)]
    messages: u64,
    /// `memory` shows what the disk costs.
    #[arg(long, default_value = "embedded")]
    store: String,
}

/// Records of a raw group: what one connection has on the way.
const GROUP: usize = 64;

struct Conn {
    socket: mio::net::TcpStream,
    input: Vec<u8>,
    output: Vec<u8>,
    sent: u64,
    /// When each send on the way began.
    begun: HashMap<u64, Instant>,
}

struct Load<'a> {
    args: &'a Args,
    poll: Poll,
    conns: Vec<Conn>,
    content: Content,
    run: u64,
    accepted: u64,
    latency: Histogram<u64>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    if args.directory.exists() {
        fs::remove_dir_all(&args.directory)?;
    }
    fs::create_dir_all(&args.directory)?;
    let node = start(&args)?;
    let mut ratios = Vec::new();
    let mut stored = 0;
    for round in 0..args.rounds {
        let raw = raw(&args)?;
        let mut load = Load::connect(&args, &node, round as u64)?;
        let begun = Instant::now();
        load.drive(|load| begun.elapsed().as_secs_f64() >= load.args.seconds)?;
        let rate = load.accepted as f64 / begun.elapsed().as_secs_f64();
        stored += load.accepted;
        let at = |quantile| load.latency.value_at_quantile(quantile) as f64 / 1_000.0;
        println!(
            "round {round}: {rate:.0} accepts/s (p50 {:.1} ms, p99 {:.1} ms), raw {raw:.0} records/s, ratio {:.2}",
            at(0.5),
            at(0.99),
            rate / raw
        );
        ratios.push(rate / raw);
    }
    ratios.sort_by(f64::total_cmp);
    println!("median ratio {:.2}", ratios[ratios.len() / 2]);
    if stored < args.messages {
        let mut load = Load::connect(&args, &node, 1_000)?;
        let missing = args.messages - stored;
        load.drive(|load| load.accepted >= missing)?;
        stored += load.accepted;
    }
    node.stop();
    if args.store == "memory" {
        return Ok(());
    }
    let bytes = bytes_under(&args.directory.join("data/store"))?;
    println!("{stored} messages stored, {:.0} bytes on disk each", bytes as f64 / stored as f64);
    let begun = Instant::now();
    let node = start(&args)?;
    println!("started again in {:.2} s", begun.elapsed().as_secs_f64());
    let mut load = Load::connect(&args, &node, 2_000)?;
    load.drive(|load| load.accepted >= 1)?;
    println!("first ack after {:.2} s", begun.elapsed().as_secs_f64());
    node.stop();
    Ok(())
}

fn start(args: &Args) -> Result<Node> {
    let mut config = Config::default();
    config.node.data = args.directory.join("data");
    config.node.store.clone_from(&args.store);
    config.listen.client.set_port(0);
    config.listen.admin.set_port(0);
    config.limits.conns_per_ip = 0;
    Node::start(&config)
}

/// Appends groups of records as large as a stored message, each with one sync; records per second.
fn raw(args: &Args) -> Result<f64> {
    let path = args.directory.join("raw");
    let mut file = File::create(&path)?;
    let group = vec![7_u8; (args.size + 150) * GROUP];
    let (begun, mut groups) = (Instant::now(), 0);
    while begun.elapsed().as_secs_f64() < args.seconds.min(2.0) {
        file.write_all(&group)?;
        file.sync_data()?;
        groups += GROUP;
    }
    let rate = groups as f64 / begun.elapsed().as_secs_f64();
    fs::remove_file(&path)?;
    Ok(rate)
}

fn bytes_under(path: &Path) -> Result<u64> {
    use std::os::unix::fs::MetadataExt as _;
    let mut bytes = 0;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let about = entry.metadata()?;
        // Blocks, because journals are made large and filled later.
        bytes += if about.is_dir() { bytes_under(&entry.path())? } else { about.blocks() * 512 };
    }
    Ok(bytes)
}

impl<'a> Load<'a> {
    fn connect(args: &'a Args, node: &Node, run: u64) -> Result<Self> {
        let poll = Poll::new()?;
        let mut conns = Vec::new();
        for number in 0..args.conns {
            let mut stream = TcpStream::connect(node.addresses.client)?;
            stream.set_nodelay(true)?;
            let token =
                auth::sign(&node.token_key, &format!("sender{number}"), None, Duration::from_secs(3_600));
            let hello = pb::Hello { version: 1, token, device: "bench".into(), ..Default::default() };
            let mut output = b"TG/1\n".to_vec();
            put(1, pb::client_frame::Body::Hello(hello), &mut output);
            stream.write_all(&output)?;
            stream.set_nonblocking(true)?;
            let mut socket = mio::net::TcpStream::from_std(stream);
            poll.registry().register(&mut socket, Token(number), Interest::READABLE | Interest::WRITABLE)?;
            let (input, output) = (Vec::new(), Vec::new());
            conns.push(Conn { socket, input, output, sent: 0, begun: HashMap::new() });
        }
        let text = "x".repeat(args.size);
        let content = Content::text(text);
        let latency = Histogram::new(3)?;
        Ok(Self { args, poll, conns, content, run, accepted: 0, latency })
    }

    /// Keeps every connection busy until `done`, then waits for the answers on the way.
    fn drive(&mut self, done: impl Fn(&Self) -> bool) -> Result<()> {
        let mut events = Events::with_capacity(1_024);
        let mut stopping = false;
        loop {
            self.poll.poll(&mut events, Some(Duration::from_secs(10)))?;
            ensure!(!events.is_empty(), "the node answers nothing any more");
            let ready: Vec<usize> = events.iter().map(|event| event.token().0).collect();
            for number in ready {
                self.turn(number, stopping)?;
            }
            stopping = stopping || done(self);
            if stopping && self.conns.iter().all(|conn| conn.begun.is_empty()) {
                return Ok(());
            }
        }
    }

    fn turn(&mut self, number: usize, stopping: bool) -> Result<()> {
        let conn = &mut self.conns[number];
        let mut chunk = [0; 64 << 10];
        loop {
            match conn.socket.read(&mut chunk) {
                Ok(0) => anyhow::bail!("the node closed a connection"),
                Ok(count) => conn.input.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        let (mut at, mut welcome) = (0, conn.sent > 0);
        while let Split::Frame { payload, consumed } = tcp::split(&conn.input[at..], 1 << 20)? {
            let frame = pb::ServerFrame::decode(&conn.input[at..][payload])?;
            at += consumed;
            match frame.body.context("a frame says something")? {
                pb::server_frame::Body::SendAck(_) => {
                    let begun = conn.begun.remove(&frame.id).context("an answer to a send")?;
                    self.latency.record(begun.elapsed().as_micros() as u64)?;
                    self.accepted += 1;
                }
                pb::server_frame::Body::Welcome(_) => welcome = true,
                other => anyhow::bail!("unexpected: {other:?}"),
            }
        }
        conn.input.drain(..at);
        while welcome && !stopping && conn.begun.len() < self.args.in_flight {
            conn.sent += 1;
            let send = pb::Send {
                to_user: format!("receiver{number}"),
                msg_id: format!("{}-{}", self.run, conn.sent),
                content: Some(self.content.clone()),
                ..Default::default()
            };
            put(conn.sent + 1, pb::client_frame::Body::Send(send), &mut conn.output);
            conn.begun.insert(conn.sent + 1, Instant::now());
        }
        while !conn.output.is_empty() {
            match conn.socket.write(&conn.output) {
                Ok(count) => drop(conn.output.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

fn put(id: u64, body: pb::client_frame::Body, to: &mut Vec<u8>) {
    let frame = pb::ClientFrame { id, body: Some(body) };
    tcp::put_length(frame.encoded_len(), to);
    frame.encode_raw(to);
}
