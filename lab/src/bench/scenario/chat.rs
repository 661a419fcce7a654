//! One-to-one chat on the embedded store against a raw loop that appends, syncs and answers.

use super::{Side, Sink, each, in_turns, load, rival, rows};
use crate::bench::{
    Args,
    child::Launcher,
    host,
    orders::{Chat, Order, Outcome, Peer, To, Until},
    report::{Section, Target, median},
    wire::Transport,
};
use anyhow::{Result, ensure};
use std::{cell::Cell, fs::File, io::Write as _, path::Path};

/// Rounds of each side at half load.
const HALF_ROUNDS: usize = 5;

/// Appends of the probe that tells what a sync costs on this disk, and their bytes.
const PROBES: usize = 200;
const PROBE_BYTES: usize = 4096;

/// A launcher whose nodes keep their messages on the disk.
pub(super) fn durable(launcher: &Launcher) -> Launcher {
    let mut launcher = launcher.clone();
    // First, so that a setting of the command line still wins.
    launcher.settings.insert(0, "node.store=embedded".to_owned());
    launcher
}

/// One section: TCP, as the raw loop has no upgrade.
pub(super) fn run(
    launcher: &Launcher,
    args: &Args,
    [conns, in_flight]: [usize; 2],
    (seconds, rate): (f64, Option<f64>),
    out: Sink<'_>,
) -> Result<()> {
    let (conns, seconds) = if args.quick { (8, 0.3) } else { (conns, seconds) };
    ensure!(conns >= 2 && conns.is_multiple_of(2), "an even number of connections");
    let sync_us = probe(&launcher.directory)?;
    let mut left = raw(launcher, args, conns, "left")?;
    let mut right =
        if args.raw_twice { raw(launcher, args, conns, "right")? } else { node(launcher, args, conns)? };
    let stored = Cell::new(0);
    let until = Until::Time { warm_ms: 300, measure_ms: (seconds * 1000.0) as u64 };
    let order = |to, rate| Order::Chat(Chat { senders: 0..conns, to, in_flight, rate, until });
    let mut ask = |order: &Order| {
        let outcome = right.ask(order)?;
        stored.set(stored.get() + outcome.offered);
        Ok(outcome)
    };
    let full = order(To::Absent(1), None);
    let (raw, ours) = match rate {
        Some(_) => (Vec::new(), Vec::new()),
        None => in_turns(args.rounds, || left.ask(&full), || ask(&full))?,
    };
    // A message to somebody who is there is also pushed and acked by the receiver: a load of its own, so half of it is too.
    let to = if args.raw_twice { To::Absent(1) } else { To::Partner };
    let rounds = args.rounds.min(HALF_ROUNDS);
    let unless_given = if rate.is_some() { 0 } else { rounds };
    // Fewer at a time: more pushes than wait for one person at once are left out, and told as `behind`.
    let few =
        |rate| Order::Chat(Chat { senders: 0..conns, to, in_flight: (in_flight / 8).max(1), rate, until });
    let talk = several(unless_given, &few(None), &mut ask)?;
    let half = rate.unwrap_or_else(|| median(&each(&talk, Outcome::rate)) / 2.0);
    let (raw_order, our_order) = (order(To::Absent(1), Some(half)), order(to, Some(half)));
    let (raw_half, our_half) = in_turns(rounds, || left.ask(&raw_order), || ask(&our_order))?;
    let over = rate.map_or_else(|| median(&each(&ours, Outcome::rate)) / 2.0, |_| half);
    let over = (over, several(unless_given, &few(Some(over)), &mut ask)?);
    drop((left, right));

    let title = format!("Durable chat, {conns} connections with {in_flight} in flight, {} B, TCP", args.size);
    let mut section = Section::new(title);
    if rate.is_none() {
        flat_out(&mut section, rival(args), &ours, &raw);
    }
    half_load(&mut section, rival(args), half, &our_half, &raw_half);
    if rate.is_none() {
        to_people(&mut section, &talk, &over);
    }
    section.one(&format!("fdatasync after an append of {PROBE_BYTES} B, p50"), sync_us, "µs", None);
    load(&mut section, if rate.is_none() { &ours } else { &our_half });
    section.rounds("server busy at half load", each(&our_half, Outcome::server_busy), "%", None);
    section.rounds("server CPU per accept at half load", each(&our_half, Outcome::cpu_us), "µs", None);
    section.rounds("the same, raw", each(&raw_half, Outcome::cpu_us), "µs", None);
    if !args.raw_twice {
        let rows = rows::count(&launcher.directory.join("chat-TCP"), conns)?;
        ensure!(rows == stored.get(), "{} messages were acked, {rows} are in the store", stored.get());
        section.one("messages acked, and each found in the store at the end", rows as f64, "", None);
    }
    if rows::is_memory(&launcher.directory)? {
        section.note("The data was in memory, not on a disk: give --directory.");
    }
    out(section);
    Ok(())
}

fn several(
    count: usize,
    order: &Order,
    mut ask: impl FnMut(&Order) -> Result<Outcome>,
) -> Result<Vec<Outcome>> {
    (0..count).map(|_| ask(order)).collect()
}

/// What a node does for people who are there, and how it takes half of what it does for nobody.
fn to_people(section: &mut Section, talk: &[Outcome], (rate, over): &(f64, Vec<Outcome>)) {
    section.rounds("send, ack, push and its ack, flat out", each(talk, Outcome::rate), "/s", None);
    section.rounds("server CPU per message of that", each(talk, Outcome::cpu_us), "µs", None);
    let name = format!("send to ack at {rate:.0}/s, half of the accepts with nobody listening, p50");
    section.rounds(&name, ms(over, |o| o.p50_us), "ms", None);
    section.rounds("the same, p99", ms(over, |o| o.p99_us), "ms", None);
    section.rounds("server busy then", each(over, Outcome::server_busy), "%", None);
}

fn flat_out(section: &mut Section, us: &str, ours: &[Outcome], raw: &[Outcome]) {
    let (raw_rate, our_rate) = (each(raw, Outcome::rate), each(ours, Outcome::rate));
    section.ratio(&format!("durable accepts/s, {us} / raw append and fdatasync"), &our_rate, &raw_rate, None);
    section.rounds(&format!("durable accepts, {us}"), our_rate, "/s", Some(Target::AtLeast(50_000.0)));
    section.rounds("durable accepts, raw", raw_rate, "/s", None);
    section.rounds(&format!("send to ack when flat out, {us}, p50"), ms(ours, |o| o.p50_us), "ms", None);
    section.rounds("the same, p99", ms(ours, |o| o.p99_us), "ms", None);
    section.rounds(&format!("server CPU per accept, {us}"), each(ours, Outcome::cpu_us), "µs", None);
    section.rounds("server CPU per accept, raw", each(raw, Outcome::cpu_us), "µs", None);
}

fn half_load(section: &mut Section, us: &str, rate: f64, ours: &[Outcome], raw: &[Outcome]) {
    let (acks, raw_acks) = (ms(ours, |o| o.p50_us), ms(raw, |o| o.p50_us));
    section.ratio(&format!("send to ack at {rate:.0}/s, p50, {us} / raw"), &acks, &raw_acks, None);
    let raw_p99 = ms(raw, |o| o.p99_us);
    section.ratio("the same, p99", &ms(ours, |o| o.p99_us), &raw_p99, None);
    section.rounds("send to ack at half load, p50", acks, "ms", Some(Target::AtMost(2.0)));
    section.rounds("send to ack at half load, p99", ms(ours, |o| o.p99_us), "ms", Some(Target::AtMost(10.0)));
    if ours.iter().any(|outcome| outcome.push_max_us > 0) {
        let (p50, p99) = (ms(ours, |o| o.push_p50_us), ms(ours, |o| o.push_p99_us));
        section.rounds("send to push at half load, p50", p50, "ms", Some(Target::AtMost(2.0)));
        section.rounds("send to push at half load, p99", p99, "ms", Some(Target::AtMost(10.0)));
        section.rounds("largest send to push", ms(ours, |o| o.push_max_us), "ms", None);
    }
    section.rounds("send to ack, raw, p50", raw_acks, "ms", None);
    section.rounds("send to ack, raw, p99", raw_p99, "ms", None);
    section.rounds("accepts at half load", each(ours, Outcome::rate), "/s", None);
}

fn ms(outcomes: &[Outcome], us: impl Fn(&Outcome) -> u64) -> Vec<f64> {
    each(outcomes, |outcome| us(outcome) as f64 / 1e3)
}

fn raw(launcher: &Launcher, args: &Args, conns: usize, name: &str) -> Result<Side> {
    let file = launcher.directory.join(format!("raw-{name}.log"));
    let arguments = ["raw-log", "--file", &file.to_string_lossy()];
    let server = launcher.raw(&arguments)?;
    let mut side = Side::of(launcher, server, Peer::Log, Transport::Tcp, args.size)?;
    side.connect(conns, 0, None)?;
    Ok(side)
}

fn node(launcher: &Launcher, args: &Args, conns: usize) -> Result<Side> {
    let mut side = Side::tidegate(&durable(launcher), "chat", 1, Transport::Tcp, args.size)?;
    side.connect(conns, 0, None)?;
    Ok(side)
}

/// What an append with a sync costs here, in µs.
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
