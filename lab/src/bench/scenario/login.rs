//! Logins, compared with accept, read and write; and the login of all clients at once.

use super::{Side, Sink, each, in_turns, load, rival};
use crate::bench::{
    Args,
    child::Launcher,
    login_kind::{LoginAlgorithm, LoginHandshake},
    orders::{Order, Outcome, Peer},
    report::{FigureTarget, Section},
    wire::BenchTransport,
};
use anyhow::Result;
use std::{thread, time::Duration};

/// Logins of a round by default.
const COUNT: usize = 10_000;

/// Bytes of a reply without a node to learn it from.
const REPLY: usize = 96;

/// Adds one section, for TCP, because the raw loop has no upgrade to compare with.
pub(super) fn run(
    launcher: &Launcher,
    args: &Args,
    conns: usize,
    count: Option<usize>,
    parallel: usize,
    out: Sink<'_>,
) -> Result<()> {
    let (conns, count) = if args.quick { (300, 200) } else { (conns, count.unwrap_or(COUNT)) };
    let order = order(count, parallel);
    let (mut right, reply) = if args.raw_twice {
        (raw(launcher, REPLY)?, REPLY)
    } else {
        let mut side = Side::tidegate(launcher, "login", 1, BenchTransport::Tcp, 0)?;
        let reply = side.ask(&self::order(1, 1))?.reply_bytes;
        (side, reply)
    };
    let mut left = raw(launcher, reply)?;
    let (raw, ours) = in_turns(args.rounds, || left.ask(&order), || right.ask(&order))?;
    let storm = Order::Connect { users: conns, publishers: 0, parallel: conns, room: None };
    let (raw_back, back) =
        in_turns(args.rounds.min(3), || back(&mut left, &storm), || back(&mut right, &storm))?;

    let us = rival(args);
    let mut section = Section::new(format!("HS256 logins, {parallel} at a time, then {conns} at once, TCP"));
    let (raw_rate, our_rate) = (each(&raw, Outcome::rate), each(&ours, Outcome::rate));
    let (raw_us, our_us) = (each(&raw, Outcome::cpu_us), each(&ours, Outcome::cpu_us));
    let target = Some(FigureTarget::AtLeast(0.5));
    section.ratio(&format!("logins/s, {us} / raw accept, read, write"), &our_rate, &raw_rate, target);
    section.ratio("logins per server CPU second, the same", &raw_us, &our_us, target);
    let seconds = |o: &Outcome| o.wall_ns as f64 / 1e9;
    let what = format!("time until {conns} are back");
    section.rounds(&what, each(&back, seconds), "s", Some(FigureTarget::AtMost(5.0)));
    section.rounds("the same, raw", each(&raw_back, seconds), "s", None);
    section.rounds("tries that were refused meanwhile", each(&back, |o| o.retries as f64), "", None);
    section.rounds(&format!("logins, {us}"), our_rate, "/s", None);
    section.rounds("logins, raw", raw_rate, "/s", None);
    section.rounds(&format!("server CPU per login, {us}"), our_us, "µs", None);
    section.rounds("server CPU per login, raw", raw_us, "µs", None);
    load(&mut section, &ours);
    out(section);
    Ok(())
}

fn order(count: usize, parallel: usize) -> Order {
    let (handshake, algorithm) = (LoginHandshake::None, LoginAlgorithm::Hs256);
    Order::Logins { count, parallel, handshake, algorithm }
}

/// Starts the raw accept loop without TLS.
pub(super) fn raw(launcher: &Launcher, reply: usize) -> Result<Side> {
    let arguments = ["raw-accept", "--reply", &reply.to_string()];
    Side::raw_reply(launcher, &arguments, Peer::Reply { bytes: reply }, BenchTransport::Tcp)
}

/// Logs in all clients at once, and disconnects them.
fn back(side: &mut Side, storm: &Order) -> Result<Outcome> {
    let outcome = side.ask(storm)?;
    side.ask(&Order::Hangup)?;
    // The other side's turn must not pay for what this server still has to clean up.
    thread::sleep(Duration::from_millis(300));
    Ok(outcome)
}
