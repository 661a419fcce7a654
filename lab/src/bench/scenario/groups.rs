//! A group of a million over three nodes: what a message costs Kafka, Redis and the nodes, compared with a loop of
//! `send`.

use super::{Side, Sink, in_turns, people, redis::calls, rival};
use crate::bench::{
    Args,
    admin::{create_group, metric},
    child::{Launcher, Server},
    host,
    orders::{Order, Outcome},
    report::{FigureTarget, Section},
    test_bed::TestBed,
    wire::BenchTransport,
};
use anyhow::{Context as _, Result, ensure};
use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    path::Path,
    thread,
    time::{Duration, Instant},
};
use tidegate::cli::admin::AdminClient;

const NODES: usize = 3;
/// The group that is measured.
const GROUP: &str = "bench";
/// Deliveries of a round.
const DELIVERIES: usize = 200_000;
/// Time for which an owner that has just seen a large group sends to all nodes, with or without members.
const BROADCAST_TIME: Duration = Duration::from_secs(6);
/// Most Redis commands for a message, regardless of the number of members.
const COMMANDS_MAX: f64 = 10.0;

/// Parameters of the scenario.
pub(super) struct Load<'a> {
    pub(super) services: &'a Path,
    pub(super) members: usize,
    pub(super) online: usize,
}

/// Cost of a round, in addition to the load generator's outcome.
struct Cost {
    outcome: Outcome,
    cpu_us: f64,
    records: f64,
    /// Calls of each Redis command per message.
    commands: BTreeMap<String, f64>,
    /// Redis commands per message that leases cause without messages.
    leases: f64,
}

impl Cost {
    fn all_commands(&self) -> f64 {
        sum(&self.commands)
    }
}

fn sum(calls: &BTreeMap<String, f64>) -> f64 {
    calls.values().sum()
}

/// Adds one section.
pub(super) fn run(launcher: &Launcher, args: &Args, what: &Load<'_>, out: Sink<'_>) -> Result<()> {
    let quick = Load { members: 3_000, online: 600, ..*what };
    let what = if args.quick { &quick } else { what };
    ensure!(what.online > 0 && what.online < what.members, "some are online, and not all");
    let test_bed = TestBed::make(what.services, launcher, NODES, NODES as u32)?;
    let redis = test_bed.config.redis.urls.first().context("no Redis")?;
    let redis: SocketAddr = redis.trim_start_matches("redis://").parse().context("the address of Redis")?;
    let mut servers = Vec::new();
    for nth in 1..=NODES {
        servers.push(test_bed.start(launcher, nth, &[])?);
    }
    test_bed.settle(&servers.iter().collect::<Vec<_>>())?;
    let began = Instant::now();
    create_group(&mut AdminClient::connect(&servers[0].second)?, GROUP, &["p0".into()], 0..what.members)?;
    let made = began.elapsed().as_secs_f64();
    let mut section = Section::new(format!(
        "A group of {} over {NODES} nodes, {} online, {} B, one message at a time, TCP",
        what.members, what.online, args.size
    ));
    measure(launcher, args, what, servers, redis, &mut section)?;
    section.one("time to make the group", made, "s", None);
    section.one("members taken in", what.members as f64 / made, "/s", None);
    out(section);
    Ok(())
}

fn measure(
    launcher: &Launcher,
    args: &Args,
    what: &Load<'_>,
    mut servers: Vec<Server>,
    redis: SocketAddr,
    section: &mut Section,
) -> Result<()> {
    let pids: Vec<u32> = servers.iter().map(Server::pid).collect();
    let admins: Vec<String> = servers.iter().map(|server| server.second.clone()).collect();
    let addresses: Vec<&str> = servers.iter().map(|server| server.address.as_str()).collect();
    let addresses = addresses.join(",");
    // The other nodes run until the end.
    let mut first = servers.remove(0);
    first.address = addresses;
    let peer = first.peer();
    let mut ours = Side::of(launcher, first, peer, BenchTransport::Tcp, args.size)?;
    ours.connect(what.online, 1, None)?;
    let mut raw = Side::raw_fanout(launcher, BenchTransport::Tcp, args.size)?;
    raw.connect(what.online, 1, None)?;
    let messages = if args.quick { 20 } else { (DELIVERIES / what.online).max(10) as u32 };
    let order = Order::Fanout { conversation: format!("g:{GROUP}"), messages };
    // With the first message its owner and the nodes learn of the group.
    ours.ask(&order)?;
    let before = calls(redis)?;
    thread::sleep(BROADCAST_TIME);
    let at_rest = (sum(&calls(redis)?) - sum(&before)) / BROADCAST_TIME.as_secs_f64();
    let costs = RefCell::new(Vec::new());
    let round = || {
        let before = (host_cpu(&pids)?, fan_outs(&admins)?, calls(redis)?);
        let outcome = ours.ask(&order)?;
        let after = (host_cpu(&pids)?, fan_outs(&admins)?, calls(redis)?);
        let sent = outcome.offered.max(1) as f64;
        let since = |name: &str, count: f64| (count - before.2.get(name).unwrap_or(&0.0)) / sent;
        costs.borrow_mut().push(Cost {
            cpu_us: (after.0 - before.0) as f64 / 1e3 / outcome.count.max(1) as f64,
            records: (after.1 - before.1) / sent,
            commands: after
                .2
                .into_iter()
                .map(|(name, count)| {
                    let called = since(&name, count);
                    (name, called)
                })
                .collect(),
            leases: at_rest * outcome.wall_ns as f64 / 1e9 / sent,
            outcome: outcome.clone(),
        });
        Ok(outcome)
    };
    let (theirs, _) = in_turns(args.rounds, || raw.ask(&order), round)?;
    let costs: Vec<Cost> = costs.into_inner().split_off(1);
    report(section, args, &costs, &theirs);
    Ok(())
}

fn report(section: &mut Section, args: &Args, costs: &[Cost], theirs: &[Outcome]) {
    let each = |field: fn(&Cost) -> f64| costs.iter().map(field).collect::<Vec<f64>>();
    let raw_us: Vec<f64> = theirs.iter().map(Outcome::cpu_us).collect();
    let last = |it: &Outcome| it.wall_ns as f64 / 1e6 / it.offered.max(1) as f64;
    section.ratio(
        &format!("CPU of all nodes per delivery, {} / raw", rival(args)),
        &each(|it| it.cpu_us),
        &raw_us,
        None,
    );
    section.rounds("CPU of all nodes per delivery", each(|it| it.cpu_us), "µs", None);
    section.rounds("server CPU per delivery, raw", raw_us, "µs", None);
    let to_last = costs.iter().map(|it| last(&it.outcome)).collect();
    section.rounds("from the send to the last member, mean", to_last, "ms", None);
    section.rounds("the same, raw", theirs.iter().map(last).collect(), "ms", None);
    let outcomes: Vec<Outcome> = costs.iter().map(|cost| cost.outcome.clone()).collect();
    people::lag(section, "of all members", &outcomes);
    let records = Some(FigureTarget::AtMost(NODES as f64));
    section.rounds("records of node topics per message", each(|it| it.records), "", records);
    let commands = Some(FigureTarget::AtMost(COMMANDS_MAX));
    section.rounds("Redis commands per message", each(|it| it.all_commands() - it.leases), "", commands);
    section.rounds("the same with leases renewed meanwhile", each(Cost::all_commands), "", None);
    let names: BTreeSet<&String> = costs.iter().flat_map(|cost| cost.commands.keys()).collect();
    for name in names {
        let called: Vec<f64> =
            costs.iter().map(|cost| cost.commands.get(name).copied().unwrap_or(0.0)).collect();
        if called.iter().any(|count| *count > 0.0) {
            section.rounds(&format!("of them {name}"), called, "", None);
        }
    }
    section.note(
        "The raw loop is one process with all sockets; the nodes share the servers' CPUs, and their work on Kafka, Redis and \
         Postgres is in their CPU. What scripts call is among the Redis commands; what the nodes ask while nobody says anything, for their leases, is taken off by time.",
    );
}

/// Returns the CPU time of all processes so far, in ns.
fn host_cpu(pids: &[u32]) -> Result<u64> {
    pids.iter().map(|pid| Ok(host::cpu(*pid)?.ran)).sum()
}

/// Returns the number of records that node topics have taken so far.
fn fan_outs(admins: &[String]) -> Result<f64> {
    let of = |admin: &String| -> Result<f64> {
        metric(&mut AdminClient::connect(admin)?, "tidegate_fan_outs_total")
            .context("no metric of node topics")
    };
    admins.iter().map(of).sum()
}
