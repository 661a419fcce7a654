//! One-to-one chat on the embedded store against a raw loop that appends, syncs and answers.

use super::{
    Side, Sink, by_turns, each, load, ms,
    people::{self, HALF_ROUNDS},
    rival, rows,
};
use crate::bench::{
    Args, Scenario,
    child::Launcher,
    host,
    orders::{Chat, Order, Outcome, Peer, To, Until},
    report::{FigureTarget, Section, median},
    wire::BenchTransport,
};
use anyhow::{Result, bail, ensure};
use std::{fs::File, io::Write as _, path::Path};

/// Number and bytes of the appends that measure the cost of a sync on this disk.
const PROBES: usize = 200;
const PROBE_BYTES: usize = 4096;

/// Parameters of the scenario.
#[derive(Clone, Copy)]
struct Load {
    conns: usize,
    /// Unanswered messages of each connection.
    in_flight: usize,
    seconds: f64,
    /// Messages per second; `None` measures the largest rate, and half of it.
    rate: Option<f64>,
}

/// Returns a launcher whose nodes keep their messages on the disk.
pub(super) fn durable(launcher: &Launcher) -> Launcher {
    let mut launcher = launcher.clone();
    // Inserted first, so that a setting of the command line still wins.
    launcher.settings.insert(0, "node.store=embedded".to_owned());
    launcher
}

/// Servers of a run: raw logs on a growing and on a preallocated file, and the compared side.
struct Sides {
    growing: Side,
    preallocated: Side,
    ours: Side,
    /// Messages that `ours` has accepted.
    stored: u64,
}

/// Rounds of each side with the same load.
struct Rounds {
    growing: Vec<Outcome>,
    preallocated: Vec<Outcome>,
    ours: Vec<Outcome>,
}

impl Sides {
    fn start(launcher: &Launcher, args: &Args, conns: usize) -> Result<Self> {
        let growing = raw(launcher, args, conns, "left", false)?;
        let preallocated = raw(launcher, args, conns, "preallocated", true)?;
        let ours = match args.raw_twice {
            true => raw(launcher, args, conns, "right", false)?,
            false => node(launcher, args, conns)?,
        };
        Ok(Self { growing, preallocated, ours, stored: 0 })
    }

    fn ask(&mut self, order: &Order) -> Result<Outcome> {
        let outcome = self.ours.ask(order)?;
        self.stored += outcome.offered;
        Ok(outcome)
    }

    /// Runs rounds of all sides in turns.
    fn rounds(&mut self, count: usize, raw: &Order, order: &Order) -> Result<Rounds> {
        let Self { growing, preallocated, ours, stored } = self;
        let mut ask = || {
            let outcome = ours.ask(order)?;
            *stored += outcome.offered;
            Ok(outcome)
        };
        let sides: [&mut dyn FnMut() -> Result<Outcome>; 3] =
            [&mut || growing.ask(raw), &mut || preallocated.ask(raw), &mut ask];
        let [growing, preallocated, ours] = by_turns(count, sides)?;
        Ok(Rounds { growing, preallocated, ours })
    }
}

/// Adds one section, for TCP, as the raw loop has no upgrade.
pub(super) fn run(launcher: &Launcher, args: &Args, scenario: &Scenario, out: Sink<'_>) -> Result<()> {
    let Scenario::Chat { conns, in_flight, seconds, rate } = *scenario else { bail!("not this scenario") };
    let what = Load { conns, in_flight, seconds, rate };
    let quick = Load { conns: 8, seconds: 0.3, ..what };
    let Load { conns, in_flight, seconds, rate } = if args.quick { quick } else { what };
    ensure!(conns >= 2 && conns.is_multiple_of(2), "an even number of connections");
    let sync_us = probe(&launcher.directory)?;
    let mut sides = Sides::start(launcher, args, conns)?;
    let until = Until::Time { warm_ms: 300, measure_ms: (seconds * 1000.0) as u64 };
    let order = |to, in_flight, rate| Order::Chat(Chat { senders: 0..conns, to, in_flight, rate, until });
    let absent = To::Absent(conns);
    // A message to a connected user is also pushed, and acked by the receiver: half of its rate is a load of its own.
    let to = if args.raw_twice { absent } else { To::Partner };
    let few = people::in_flight(in_flight);
    let rounds = args.rounds.min(HALF_ROUNDS);
    let title = format!("Durable chat, {conns} connections with {in_flight} in flight, {} B, TCP", args.size);
    let mut section = Section::new(title);
    let at_rate = match rate {
        Some(rate) => {
            let orders = (order(absent, in_flight, Some(rate)), order(to, in_flight, Some(rate)));
            let at_rate = sides.rounds(rounds, &orders.0, &orders.1)?;
            half_load(&mut section, rival(args), rate, &at_rate);
            load(&mut section, &at_rate.ours);
            at_rate
        }
        None => {
            let full = order(absent, in_flight, None);
            let full = sides.rounds(args.rounds, &full, &full)?;
            let talk = people::several(rounds, &order(to, few, None), |order| sides.ask(order))?;
            let half = people::half(&talk);
            let orders = (order(absent, in_flight, Some(half)), order(to, in_flight, Some(half)));
            let at_half = sides.rounds(rounds, &orders.0, &orders.1)?;
            let rate = people::half(&full.ours);
            let over = people::several(rounds, &order(to, few, Some(rate)), |order| sides.ask(order))?;
            flat_out(&mut section, rival(args), &full);
            half_load(&mut section, rival(args), half, &at_half);
            people::report(&mut section, &talk, rate, &over);
            let per_message = each(&talk, Outcome::cpu_us);
            section.rounds(
                "server CPU per message to people who are there, flat out",
                per_message,
                "µs",
                None,
            );
            let busy = each(&over, Outcome::server_busy);
            section.rounds("server busy at half of the accepts with nobody listening", busy, "%", None);
            load(&mut section, &full.ours);
            at_half
        }
    };
    let stored = sides.stored;
    drop(sides);
    section.one(&format!("fdatasync after an append of {PROBE_BYTES} B, p50"), sync_us, "µs", None);
    section.rounds("server busy at half load", each(&at_rate.ours, Outcome::server_busy), "%", None);
    section.rounds("server CPU per accept at half load", each(&at_rate.ours, Outcome::cpu_us), "µs", None);
    section.rounds("the same, raw", each(&at_rate.growing, Outcome::cpu_us), "µs", None);
    if !args.raw_twice {
        let rows = rows::count(&launcher.directory.join("chat-TCP"), conns)?;
        ensure!(rows == stored, "{stored} messages were acked, {rows} are in the store");
        section.one("messages acked, and each found in the store at the end", rows as f64, "", None);
    }
    if rows::is_memory(&launcher.directory)? {
        section.note("The data was in memory, not on a disk: give --directory.");
    }
    out(section);
    Ok(())
}

fn flat_out(section: &mut Section, us: &str, full: &Rounds) {
    let Rounds { growing, preallocated, ours } = full;
    let [raw_rate, fixed_rate, our_rate] = [growing, preallocated, ours].map(|it| each(it, Outcome::rate));
    section.ratio(&format!("durable accepts/s, {us} / raw append and fdatasync"), &our_rate, &raw_rate, None);
    section.ratio("the same / raw on a preallocated file", &our_rate, &fixed_rate, None);
    section.rounds(&format!("durable accepts, {us}"), our_rate, "/s", Some(FigureTarget::AtLeast(50_000.0)));
    section.rounds("durable accepts, raw", raw_rate, "/s", None);
    section.rounds("durable accepts, raw, preallocated", fixed_rate, "/s", None);
    section.rounds(&format!("send to ack when flat out, {us}, p50"), ms(ours, |o| o.p50_us), "ms", None);
    section.rounds("the same, p99", ms(ours, |o| o.p99_us), "ms", None);
    section.rounds(&format!("server CPU per accept, {us}"), each(ours, Outcome::cpu_us), "µs", None);
    section.rounds("server CPU per accept, raw", each(growing, Outcome::cpu_us), "µs", None);
    section.rounds(
        "server CPU per accept, raw, preallocated",
        each(preallocated, Outcome::cpu_us),
        "µs",
        None,
    );
}

fn half_load(section: &mut Section, us: &str, rate: f64, rounds: &Rounds) {
    let Rounds { growing, preallocated, ours } = rounds;
    let [raw_acks, fixed_acks, acks] = [growing, preallocated, ours].map(|it| ms(it, |o| o.p50_us));
    let [raw_p99, fixed_p99, p99] = [growing, preallocated, ours].map(|it| ms(it, |o| o.p99_us));
    section.ratio(&format!("send to ack at {rate:.0}/s, p50, {us} / raw"), &acks, &raw_acks, None);
    section.ratio("the same, p99", &p99, &raw_p99, None);
    section.ratio(&format!("send to ack, p50, {us} / raw, preallocated"), &acks, &fixed_acks, None);
    section.ratio("the same, p99", &p99, &fixed_p99, None);
    section.rounds("send to ack at half load, p50", acks, "ms", Some(FigureTarget::AtMost(2.0)));
    section.rounds("send to ack at half load, p99", p99, "ms", Some(FigureTarget::AtMost(10.0)));
    if ours.iter().any(|outcome| outcome.push_max_us > 0) {
        let (p50, p99) = (ms(ours, |o| o.push_p50_us), ms(ours, |o| o.push_p99_us));
        section.rounds("send to push at half load, p50", p50, "ms", Some(FigureTarget::AtMost(2.0)));
        section.rounds("send to push at half load, p99", p99, "ms", Some(FigureTarget::AtMost(10.0)));
        section.rounds("largest send to push", ms(ours, |o| o.push_max_us), "ms", None);
        people::lag(section, "at half load", ours);
    }
    section.rounds("send to ack, raw, p50", raw_acks, "ms", None);
    section.rounds("send to ack, raw, p99", raw_p99, "ms", None);
    section.rounds("send to ack, raw, preallocated, p50", fixed_acks, "ms", None);
    section.rounds("send to ack, raw, preallocated, p99", fixed_p99, "ms", None);
    section.rounds("accepts at half load", each(ours, Outcome::rate), "/s", None);
}

fn raw(launcher: &Launcher, args: &Args, conns: usize, name: &str, is_preallocated: bool) -> Result<Side> {
    let file = launcher.directory.join(format!("raw-{name}.log"));
    let file = file.to_string_lossy();
    let mut arguments = vec!["raw-log", "--file", &file];
    if is_preallocated {
        arguments.push("--preallocated");
    }
    let server = launcher.raw(&arguments)?;
    let mut side = Side::of(launcher, server, Peer::Log, BenchTransport::Tcp, args.size)?;
    side.connect(conns, 0, None)?;
    Ok(side)
}

fn node(launcher: &Launcher, args: &Args, conns: usize) -> Result<Side> {
    let mut side = Side::tidegate(&durable(launcher), "chat", 1, BenchTransport::Tcp, args.size)?;
    side.connect(conns, 0, None)?;
    Ok(side)
}

/// Returns the cost of an append with a sync in µs.
fn probe(directory: &Path) -> Result<f64> {
    let path = directory.join("probe");
    let mut file = File::create(&path)?;
    let mut took = Vec::new();
    for _ in 0..PROBES {
        file.write_all(&[7; PROBE_BYTES])?;
        let began = host::now_ns();
        file.sync_data()?;
        took.push((host::now_ns() - began) as f64 / 1e3);
    }
    std::fs::remove_file(&path)?;
    Ok(median(&took))
}
