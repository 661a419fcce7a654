//! The scenarios: their servers, rounds and figures.

mod api;
mod chat;
mod cluster;
mod echo;
mod fanout;
mod fanout_tls;
mod feed;
mod groups;
mod idle;
mod kafka;
mod login;
mod login_kinds;
mod overload;
mod people;
mod postgres;
mod redis;
mod room;
mod rooms;
mod rows;
mod store;

use super::{
    Args, Scenario,
    child::{Client, Launcher, Server},
    orders::{Order, Outcome, Peer},
    report::{Section, median},
    wire::BenchTransport,
};
use anyhow::{Context, Result, anyhow, bail};

/// Concurrent logins where their pace is not measured.
const PARALLEL: usize = 128;

/// Concurrent logins where the traces of a storm of logins must not be measured.
const CALM: usize = 4;

/// Receiver of the sections of a scenario.
type Sink<'a> = &'a mut dyn FnMut(Section);

/// Runs the scenario of `args`, and passes on each section when it is done.
pub(super) fn run(launcher: &Launcher, args: &Args, mut out: impl FnMut(Section)) -> Result<()> {
    one(launcher, args, &args.scenario, &mut out)
}

fn one(launcher: &Launcher, args: &Args, scenario: &Scenario, out: Sink<'_>) -> Result<()> {
    match scenario {
        Scenario::Fanout { members, tls: false, .. } => {
            fanout::run(launcher, args, members, out).context("fanout")
        }
        Scenario::Fanout { members, tls: true, uwebsockets } => {
            fanout_tls::run(launcher, args, members, uwebsockets.as_deref(), out).context("fanout --tls")
        }
        Scenario::Room { .. } => room::run(launcher, args, scenario, out).context("room"),
        Scenario::Rooms { .. } => rooms::run(launcher, args, scenario, out).context("rooms"),
        Scenario::Echo { conns, seconds } => echo::run(launcher, args, *conns, *seconds, out).context("echo"),
        Scenario::Idle { conns, seconds, heartbeat, tls } => {
            let load = idle::Load { conns: *conns, seconds: *seconds, heartbeat: *heartbeat, has_tls: *tls };
            idle::run(launcher, args, load, out).context("idle")
        }
        Scenario::Login { conns, count, parallel, alg: None, tls: None } => {
            login::run(launcher, args, *conns, *count, *parallel, out).context("login")
        }
        Scenario::Login { count, parallel, alg, tls, .. } => {
            let load = login_kinds::Load::new(alg.as_ref(), tls.as_ref(), *count, *parallel);
            login_kinds::run(launcher, args, &load, out).context("login")
        }
        Scenario::Shards { members } => fanout::shards(launcher, args, *members, out).context("shards"),
        Scenario::Chat { .. } => chat::run(launcher, args, scenario, out).context("chat"),
        Scenario::Overload { .. } => overload::run(launcher, args, scenario, out).context("overload"),
        Scenario::Store { messages, conversations } => {
            store::run(launcher, args, *messages, conversations, out).context("store")
        }
        Scenario::Postgres { url, messages, conversations, batch, partitions } => {
            let (messages, conversations, batch, partitions) =
                (*messages, *conversations, *batch, *partitions);
            let load = postgres::Load { url, messages, conversations, batch, partitions };
            postgres::run(args, &load, out).context("postgres")
        }
        Scenario::Feed { url, messages, conversations, batch } => {
            let (messages, conversations, batch) = (*messages, *conversations, *batch);
            let load = postgres::Load { url, messages, conversations, batch, partitions: 1 };
            feed::run(args, &launcher.directory, &load, out).context("feed")
        }
        Scenario::Api { .. } => api::run(launcher, args, scenario, out).context("api"),
        Scenario::Webhooks { .. } => api::webhooks::run(launcher, args, scenario, out).context("webhooks"),
        Scenario::Cluster { services, senders, partitions } => {
            let services = &services.services;
            let load = cluster::Load { services, senders: *senders, partitions: *partitions };
            cluster::run(launcher, args, &load, out).context("cluster")
        }
        Scenario::Groups { services, members, online } => {
            let load = groups::Load { services: &services.services, members: *members, online: *online };
            groups::run(launcher, args, &load, out).context("groups")
        }
        Scenario::Kafka { services, conns, in_flight, seconds, partitions, conversations } => {
            let load = kafka::Load {
                services: &services.services,
                conns: *conns,
                in_flight: *in_flight,
                seconds: *seconds,
                partitions: *partitions,
                conversations,
            };
            kafka::run(launcher, args, &load, out).context("kafka")
        }
        Scenario::Redis { services, users, lookups, messages } => {
            let services = &services.services;
            let load = redis::Load { services, users: *users, lookups: *lookups, messages: *messages };
            redis::run(launcher, args, &load, out).context("redis")
        }
        Scenario::All => all(launcher, args, out),
        _ => bail!("not a scenario"),
    }
}

fn all(launcher: &Launcher, args: &Args, out: Sink<'_>) -> Result<()> {
    let scenarios = [
        Scenario::Fanout { members: vec![1000, 10_000], tls: false, uwebsockets: None },
        Scenario::Room { members: 10_000, rate: 400.0, publishers: 4, seconds: 3.0 },
        Scenario::Echo { conns: 100, seconds: 1.0 },
        Scenario::Idle { conns: 10_000, seconds: 30.0, heartbeat: 30.0, tls: false },
        Scenario::Login { conns: 15_000, count: Some(5_000), parallel: 64, alg: None, tls: None },
        Scenario::Shards { members: 10_000 },
        Scenario::Chat { conns: 64, in_flight: 64, seconds: 1.0, rate: None },
        Scenario::Store { messages: 1_000_000, conversations: vec![2_000, 10_000] },
    ];
    scenarios.iter().try_for_each(|scenario| one(launcher, args, scenario, out))
}

/// A server and the load generator that talks to it.
struct Side {
    // Dropped first: a server that is asked to end lets its clients leave at its pace.
    client: Client,
    server: Server,
    /// Further nodes of the same cluster.
    others: Vec<Server>,
}

impl Side {
    /// Starts the raw fan-out loop.
    fn raw_fanout(launcher: &Launcher, transport: BenchTransport, size: usize) -> Result<Self> {
        let server = launcher.raw(&["raw-fanout"])?;
        let peer = Peer::Sink { control: server.second.clone() };
        Self::of(launcher, server, peer, transport, size)
    }

    /// Starts a raw loop that replies.
    fn raw_reply(
        launcher: &Launcher,
        arguments: &[&str],
        peer: Peer,
        transport: BenchTransport,
    ) -> Result<Self> {
        let server = launcher.raw(arguments)?;
        Self::of(launcher, server, peer, transport, 0)
    }

    /// Starts a node.
    fn tidegate(
        launcher: &Launcher,
        label: &str,
        shards: usize,
        transport: BenchTransport,
        size: usize,
    ) -> Result<Self> {
        let server = launcher.tidegate(&format!("{label}-{}", transport.name()), shards)?;
        let peer = server.peer();
        Self::of(launcher, server, peer, transport, size)
    }

    fn of(
        launcher: &Launcher,
        server: Server,
        peer: Peer,
        transport: BenchTransport,
        size: usize,
    ) -> Result<Self> {
        let client = launcher.client(&server, peer, transport, size)?;
        Ok(Self { server, client, others: Vec::new() })
    }

    fn ask(&mut self, order: &Order) -> Result<Outcome> {
        self.client.ask(&mut self.server, order)
    }

    fn connect(&mut self, users: usize, publishers: usize, room: Option<&str>) -> Result<Outcome> {
        let room = room.map(ToOwned::to_owned);
        self.ask(&Order::Connect { users, publishers, parallel: PARALLEL, room })
    }

    /// Connects users a few at a time, as on a quiet day.
    fn connect_calmly(&mut self, users: usize) -> Result<Outcome> {
        self.ask(&Order::Connect { users, publishers: 0, parallel: CALM, room: None })
    }
}

/// Returns a latency of each round, in ms.
fn ms(outcomes: &[Outcome], us: impl Fn(&Outcome) -> u64) -> Vec<f64> {
    each(outcomes, |outcome| us(outcome) as f64 / 1e3)
}

/// Returns a field of each round.
fn each(outcomes: &[Outcome], field: impl Fn(&Outcome) -> f64) -> Vec<f64> {
    outcomes.iter().map(field).collect()
}

/// Runs rounds of two sides in strict turns, as [`by_turns`] does.
fn in_turns(
    rounds: usize,
    mut raw: impl FnMut() -> Result<Outcome>,
    mut ours: impl FnMut() -> Result<Outcome>,
) -> Result<(Vec<Outcome>, Vec<Outcome>)> {
    let [raw, ours] = by_turns(rounds, [&mut raw, &mut ours])?;
    Ok((raw, ours))
}

/// Runs rounds of several sides in strict turns. The first round of each does not count, so that all find their sockets
/// equally cold, after the others' rounds.
fn by_turns<const SIDES: usize>(
    rounds: usize,
    mut sides: [&mut dyn FnMut() -> Result<Outcome>; SIDES],
) -> Result<[Vec<Outcome>; SIDES]> {
    let outcomes = turns(rounds, &mut sides)?;
    outcomes.try_into().map_err(|_| anyhow!("one list for each side"))
}

/// Runs rounds of any number of sides, as [`by_turns`] does.
fn turns(rounds: usize, sides: &mut [&mut dyn FnMut() -> Result<Outcome>]) -> Result<Vec<Vec<Outcome>>> {
    let mut outcomes = vec![Vec::new(); sides.len()];
    for round in 0..=rounds {
        for (side, outcomes) in sides.iter_mut().zip(&mut outcomes) {
            let outcome = side()?;
            if round > 0 {
                outcomes.push(outcome);
            }
        }
    }
    Ok(outcomes)
}

/// Largest share of the time that servers may wait for their CPU before their figures are doubtful, in percent.
const WAITS_MAX: f64 = 10.0;

/// Adds how busy the server and the load generator were, and whether something else took their CPU.
fn load(section: &mut Section, ours: &[Outcome]) {
    section.rounds("server busy", each(ours, Outcome::server_busy), "%", None);
    let waits = each(ours, Outcome::server_waits);
    if median(&waits) > WAITS_MAX {
        section.note(
            "Something else used the server's CPU: repeat this on a quiet machine before you believe it.",
        );
    }
    section.rounds("server waiting for its CPU", waits, "%", None);
    section.rounds("load generator busy", each(ours, Outcome::client_busy), "%", None);
}

/// Returns the name of the compared side.
const fn rival(args: &Args) -> &'static str {
    if args.raw_twice { "second raw loop" } else { "tidegate" }
}
