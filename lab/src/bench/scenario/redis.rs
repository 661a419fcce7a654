//! Routes in Redis: lookups, compared with `redis-benchmark -P 16` of the same command; and the work of Redis for a
//! message.

use super::{Side, Sink, people};
use crate::{
    bench::{
        Args,
        child::Launcher,
        host,
        orders::{Chat, Order, To, Until},
        report::{FigureTarget, Section},
        test_bed::TestBed,
        wire::BenchTransport,
    },
    proxy::{Mode, Proxy},
};
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};
use tidegate::{
    config,
    routes::{Leases, NodeBoot, NodeInfo, RedisRoutes, Registration, Routes},
};
use tidegate_protocol::id::{DeviceId, NodeId, UserId};

/// Lookups of one pipeline, and concurrent pipelines, on both sides.
const PIPELINE: usize = 16;
const AT_ONCE: usize = 50;
/// Connections of the chat.
const CONNS: usize = 16;
/// Unanswered messages of each connection.
const IN_FLIGHT: usize = 16;
/// Messages while Redis hangs: they are done long before leases expire.
const HUNG_MESSAGES: u64 = 500;
/// Longest time that a new connection passes before it hangs.
const FREEZE_INTERVAL: Duration = Duration::from_millis(2);

/// Parameters of the scenario.
#[derive(Clone, Copy)]
pub(super) struct Load<'a> {
    pub(super) services: &'a Path,
    pub(super) users: usize,
    pub(super) lookups: usize,
    pub(super) messages: u64,
}

/// Adds two sections: lookups, and a node.
pub(super) fn run(launcher: &Launcher, args: &Args, what: &Load<'_>, out: Sink<'_>) -> Result<()> {
    let quick = Load { users: 200, lookups: 5_000, messages: 1_000, ..*what };
    let Load { services, users, lookups, messages } = if args.quick { quick } else { *what };
    ensure!(users > 0 && lookups >= PIPELINE, "at least one user and {PIPELINE} lookups");
    let test_bed = TestBed::make(services, launcher, 1, 1)?;
    let url = test_bed.config.redis.urls.first().context("no Redis")?;
    let redis: SocketAddr = url.trim_start_matches("redis://").parse().context("the address of Redis")?;
    out(routes(&test_bed, launcher, args, redis, users, lookups)?);
    out(chat(&test_bed, launcher, args, redis, messages)?);
    Ok(())
}

fn routes(
    test_bed: &TestBed,
    launcher: &Launcher,
    args: &Args,
    redis: SocketAddr,
    users: usize,
    lookups: usize,
) -> Result<Section> {
    // The library's own threads run on the servers' CPUs.
    let (ours, raw) = thread::scope(|scope| {
        scope
            .spawn(|| -> Result<_> {
                host::pin(&launcher.server_cpus)?;
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                // The number of lookups is measured, not whether each is in time on a busy machine.
                let redis_config = config::RedisConfig { timeout_ms: 5_000, ..test_bed.config.redis.clone() };
                let routes = Arc::new(RedisRoutes::connect(&redis_config, Leases::default())?);
                let names: Vec<UserId> = (0..users).map(user).collect::<Result<_>>()?;
                runtime.block_on(register(&routes, &names))?;
                let (mut ours, mut raw) = (Vec::new(), Vec::new());
                for round in 0..=args.rounds {
                    let theirs = benchmark(redis, &test_bed.config.redis.prefix, users, lookups)?;
                    let seconds = runtime.block_on(look_up(&routes, &names, lookups))?;
                    // The first round of each side does not count.
                    if round > 0 {
                        raw.push(theirs);
                        ours.push(lookups as f64 / seconds);
                    }
                }
                Ok((ours, raw))
            })
            .join()
            .map_err(|_| anyhow!("the lookups ended by themselves"))?
    })?;
    let title =
        format!("Routes in Redis, {users} users with a device, pipelines of {PIPELINE}, {AT_ONCE} at a time");
    let mut section = Section::new(title);
    let target = Some(FigureTarget::AtLeast(0.7));
    section.ratio("lookups/s, tidegate / redis-benchmark -P 16 HGETALL", &ours, &raw, target);
    section.rounds("lookups, tidegate", ours, "/s", None);
    section.rounds("HGETALL, redis-benchmark", raw, "/s", None);
    section.note(
        "Tidegate's side is `Routes::lookup` of a node over its one connection, keys built and answers read as tokens; \
         `redis-benchmark` has 50 connections and throws answers away. Both on the servers' CPUs, Redis where it runs.",
    );
    Ok(section)
}

/// Returns a user whose name is as wide as the random numbers of `redis-benchmark`.
fn user(number: usize) -> Result<UserId> {
    Ok(UserId::new(&format!("{number:012}"))?)
}

async fn register(routes: &RedisRoutes, users: &[UserId]) -> Result<()> {
    let at = NodeBoot { node: NodeId::new("bench")?, boot: 1 };
    let info = NodeInfo { peer_address: "127.0.0.1:1".to_owned(), ..NodeInfo::new(at.clone()) };
    routes.renew(&info).await?;
    for user in users {
        let device = DeviceId::new("phone")?;
        let wish = Registration {
            user: user.clone(),
            device,
            at: at.clone(),
            above: 0,
            only_if: None,
            policy: tidegate::routes::DevicePolicy::default(),
        };
        routes.register(wish).await?;
    }
    Ok(())
}

/// Returns the seconds that lookups take.
async fn look_up(routes: &Arc<RedisRoutes>, users: &[UserId], lookups: usize) -> Result<f64> {
    let pages: Arc<Vec<Vec<UserId>>> = Arc::new(users.chunks(PIPELINE).map(<[UserId]>::to_vec).collect());
    let done = Arc::new(AtomicUsize::new(0));
    let began = host::now_ns();
    let tasks = (0..AT_ONCE).map(|first| {
        let (routes, pages, done) = (Arc::clone(routes), Arc::clone(&pages), Arc::clone(&done));
        tokio::spawn(async move {
            for page in pages.iter().cycle().skip(first) {
                if done.fetch_add(page.len(), Ordering::Relaxed) >= lookups {
                    return Ok(());
                }
                let rows = routes.lookup(page).await?;
                ensure!(rows.iter().all(|rows| rows.len() == 1), "a route is missing");
            }
            Ok(())
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await??;
    }
    Ok((host::now_ns() - began) as f64 / 1e9)
}

/// Returns the requests per second that `redis-benchmark` reports.
fn benchmark(redis: SocketAddr, prefix: &str, users: usize, requests: usize) -> Result<f64> {
    let mut command = Command::new("redis-benchmark");
    command.args(["-h", &redis.ip().to_string(), "-p", &redis.port().to_string(), "--csv"]);
    command.args(["-P", &PIPELINE.to_string(), "-c", &AT_ONCE.to_string(), "-n", &requests.to_string()]);
    command.args(["-r", &users.to_string(), "HGETALL", &format!("{prefix}:route:{{__rand_int__}}")]);
    let output = command.output().context("redis-benchmark, of Debian's package redis-tools")?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "redis-benchmark: {said}");
    // "command","rps",…; the first line names the columns.
    let line =
        said.lines().find(|line| line.starts_with("\"HGETALL")).context("redis-benchmark said nothing")?;
    let rate = line.split("\",\"").nth(1).context("redis-benchmark said no rate")?;
    Ok(rate.trim_matches('"').parse()?)
}

/// Measures a node behind a proxy: the work of Redis for a message, and whether an ack waits for it.
fn chat(
    test_bed: &TestBed,
    launcher: &Launcher,
    args: &Args,
    redis: SocketAddr,
    messages: u64,
) -> Result<Section> {
    let proxy = test_bed.runtime.block_on(Proxy::start(redis))?;
    let way = [format!("redis.urls=[redis://{}]", proxy.address)];
    let server = test_bed.start(launcher, 1, &way)?;
    test_bed.settle(&[&server])?;
    let peer = server.peer();
    let mut side = Side::of(launcher, server, peer, BenchTransport::Tcp, args.size)?;
    side.connect(CONNS, 0, None)?;
    let order = |to, messages| {
        let (senders, until) = (0..CONNS, Until::Messages(messages));
        Order::Chat(Chat { senders, to, in_flight: IN_FLIGHT, rate: None, until })
    };
    let (mut calls, mut reads, mut talk) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..args.rounds {
        let before = Work::read(redis)?;
        talk.push(side.ask(&order(To::Partner, messages))?);
        let after = Work::read(redis)?;
        calls.push((after.commands - before.commands) / messages as f64);
        reads.push((after.reads - before.reads) / messages as f64);
    }
    let (mut there, mut hung) = (Vec::new(), Vec::new());
    for _ in 0..args.rounds {
        there.push(side.ask(&order(To::Absent(CONNS), HUNG_MESSAGES))?.p50_us as f64 / 1e3);
        let outcome = hanging(&proxy, || side.ask(&order(To::Absent(CONNS), HUNG_MESSAGES)));
        hung.push(outcome.context("with a Redis that says nothing")?.p50_us as f64 / 1e3);
    }
    let title =
        format!("Redis and one-to-one chat, {CONNS} connections with {IN_FLIGHT} in flight, one node");
    let mut section = Section::new(title);
    section.ratio("send to ack, p50, with Redis hung / answering", &hung, &there, None);
    section.rounds("commands per accepted message", calls, "", None);
    section.rounds("reads by Redis per accepted message", reads, "", Some(FigureTarget::AtMost(1.0)));
    people::lag(&mut section, "flat out to people who are there", &talk);
    section.rounds("send to ack with Redis hung, p50", hung, "ms", None);
    section.rounds("send to ack with Redis answering, p50", there, "ms", None);
    section.note(
        "A pipelined turn is a read of Redis, and may serve several messages of a batch. Leases and their like are in the counts.",
    );
    Ok(section)
}

/// Runs `work` while Redis hangs, also for new connections.
fn hanging<T>(proxy: &Proxy, work: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    let result = thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                proxy.set(Mode::Freeze, || true);
                thread::sleep(FREEZE_INTERVAL);
            }
        });
        let result = work();
        done.store(true, Ordering::Relaxed);
        result
    });
    proxy.set(Mode::Pass, || true);
    result
}

/// Work of Redis so far.
pub(super) struct Work {
    pub(super) commands: f64,
    reads: f64,
}

impl Work {
    pub(super) fn read(redis: SocketAddr) -> Result<Self> {
        let text = info(redis, "stats")?;
        let field = |name: &str| -> Result<f64> {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            Ok(value.with_context(|| format!("INFO has no {name}"))?.trim().parse()?)
        };
        Ok(Self { commands: field("total_commands_processed")?, reads: field("total_reads_processed")? })
    }
}

/// Returns a section of Redis' `INFO`.
fn info(redis: SocketAddr, part: &str) -> Result<String> {
    let mut stream = TcpStream::connect(redis)?;
    stream.write_all(format!("INFO {part}\r\n").as_bytes())?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let Some(length) = line.trim().strip_prefix('$') else { bail!("INFO: {line}") };
    let mut text = vec![0; length.parse()?];
    reader.read_exact(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Returns the calls of each command so far, by clients and by scripts, except for the command that asks this.
pub(super) fn calls(redis: SocketAddr) -> Result<BTreeMap<String, f64>> {
    let mut calls = BTreeMap::new();
    for line in info(redis, "commandstats")?.lines() {
        let Some((name, stats)) = line.strip_prefix("cmdstat_").and_then(|line| line.split_once(":calls="))
        else {
            continue;
        };
        if name != "info" {
            let count = stats.split(',').next().unwrap_or_default();
            calls.insert(name.to_owned(), count.parse().with_context(|| format!("INFO: {line}"))?);
        }
    }
    Ok(calls)
}
