//! Accepts and answers of a cluster, compared with a bare producer, and a bare producer and consumer, on the same
//! Kafka.

use super::{
    Side, Sink, each, in_turns, load, ms,
    people::{self, HALF_ROUNDS},
    rival,
};
use crate::bench::{
    Args,
    child::{Launcher, Server},
    kafka_baseline::KafkaBaseline,
    orders::{Chat, Order, Outcome, To, Until, Watched},
    report::{FigureTarget, Section},
    test_bed::TestBed,
    wire::BenchTransport,
};
use anyhow::{Result, ensure};
use bytes::Bytes;
use std::path::Path;
use tidegate::{
    bus::{ensure_topics, topic_plans},
    config::KafkaConfig,
};
use tidegate_protocol::{
    id::{ConversationId, DeviceId, MsgId, NodeId, UserId},
    record::{Body, Message, Origin, Record, SenderOrder, body_hash},
};

/// Numbers of nodes.
const NODES: [usize; 2] = [1, 3];
/// Most conversations of a quick run, nearly all that its twelve connections can have.
const QUICK_CONVERSATIONS: usize = 60;
/// Largest accepted delay of an answer after a bare produce and consume, at the median.
const ADDED_DELAY_MAX_MS: f64 = 2.0;

/// Parameters of the scenario.
pub(super) struct Load<'a> {
    pub(super) services: &'a Path,
    pub(super) conns: usize,
    pub(super) in_flight: usize,
    pub(super) seconds: f64,
    pub(super) partitions: u32,
    /// Numbers of conversations, each with sections of its own.
    pub(super) conversations: &'a [usize],
}

/// Adds sections for each number of conversations: one with one node, and one with three nodes, which is compared with
/// the first.
pub(super) fn run(launcher: &Launcher, args: &Args, what: &Load<'_>, out: Sink<'_>) -> Result<()> {
    let mut few: Vec<usize> =
        what.conversations.iter().map(|count| *count.min(&QUICK_CONVERSATIONS)).collect();
    few.dedup();
    let quick = Load { conns: 12, in_flight: 8, seconds: 1.0, partitions: 3, conversations: &few, ..*what };
    let what = if args.quick { &quick } else { what };
    ensure!(what.conns >= 2 && what.conns.is_multiple_of(2), "an even number of connections");
    for conversations in what.conversations {
        let mut alone: Option<Vec<Outcome>> = None;
        for nodes in NODES {
            let (mut section, full) = with(launcher, args, what, nodes, *conversations)?;
            match &alone {
                Some(alone) => compare(&mut section, nodes, &full, alone),
                None => load(&mut section, &full),
            }
            out(section);
            alone.get_or_insert(full);
        }
    }
    Ok(())
}

/// Returns an even number of connections, at least `least`, that have this many conversations of two, and the
/// unanswered messages of each, which are as many in all as `least` connections have with `in_flight`.
fn connections(least: usize, in_flight: usize, conversations: usize) -> (usize, usize) {
    let mut conns = least;
    while conns * (conns - 1) / 2 < conversations {
        conns += 2;
    }
    (conns, (least * in_flight / conns).max(1))
}

/// Rounds of both sides of a section.
struct Rounds {
    raw: Vec<Outcome>,
    ours: Vec<Outcome>,
}

/// Returns the section of a number of nodes and conversations, and the rounds of accepts.
fn with(
    launcher: &Launcher,
    args: &Args,
    what: &Load<'_>,
    nodes: usize,
    conversations: usize,
) -> Result<(Section, Vec<Outcome>)> {
    let (conns, in_flight) = connections(what.conns, what.in_flight, conversations);
    ensure!(conversations >= conns, "at least as many conversations as connections");
    let test_bed = TestBed::make(what.services, launcher, nodes, what.partitions)?;
    let bare = bare(&test_bed, launcher, args)?;
    let mut ours = side(&test_bed, launcher, args, nodes)?;
    ours.connect(conns, 0, None)?;

    let until = Until::Time { warm_ms: 1_000, measure_ms: (what.seconds * 1000.0) as u64 };
    let order =
        |to, in_flight, rate, until| Order::Chat(Chat { senders: 0..conns, to, in_flight, rate, until });
    let (absent, there) = (To::Absent(conversations), To::Among(conversations));
    let few = people::in_flight(in_flight);
    // The first message of a conversation costs more than later ones.
    ours.ask(&order(absent, in_flight, None, Until::Once))?;
    let (full, mut accepted) = (order(absent, in_flight, None, until), 0);
    let before = KafkaBaseline::records(&test_bed.config.kafka)?;
    let (raw, full) = in_turns(
        args.rounds,
        || bare.flat_out(conns * in_flight, what.seconds),
        || {
            let outcome = ours.ask(&full)?;
            accepted += outcome.offered;
            Ok(outcome)
        },
    )?;
    let records = (KafkaBaseline::records(&test_bed.config.kafka)? - before) as f64 / accepted as f64;
    let full = Rounds { raw, ours: full };

    ours.ask(&order(there, few, None, Until::Once))?;
    let rounds = args.rounds.min(HALF_ROUNDS);
    let talk = people::several(rounds, &order(there, few, None, until), |order| ours.ask(order))?;
    let rate = people::half(&talk);
    let half = order(there, in_flight, Some(rate), until);
    let (raw, half) = in_turns(rounds, || bare.there_and_back(rate, what.seconds), || ours.ask(&half))?;
    let half = Rounds { raw, ours: half };
    let over = people::half(&full.ours);
    let over_rounds =
        people::several(rounds, &order(there, few, Some(over), until), |order| ours.ask(order))?;

    let via = if nodes == 1 { "one node".to_owned() } else { format!("{nodes} nodes") };
    let mut section = Section::new(format!(
        "Kafka, {via}, {} partitions, {conversations} conversations, {conns} connections with {in_flight} in flight, \
         {} B, TCP",
        what.partitions, args.size
    ));
    flat_out(&mut section, rival(args), &full);
    section.one("log records per accepted message", records, "", Some(FigureTarget::AtMost(1.0)));
    half_load(&mut section, rate, &half);
    people::report(&mut section, &talk, over, &over_rounds);
    let watched = &ours.server.watched;
    shares(&mut section, "CPU per accept with nobody listening, flat out", watched, &full.ours);
    shares(&mut section, "CPU per message to people who are there, flat out", watched, &talk);
    shares(&mut section, "CPU per message to people who are there, half load", watched, &half.ours);
    notes(&mut section, &test_bed, &bare, args);
    Ok((section, full.ours))
}

fn notes(section: &mut Section, test_bed: &TestBed, bare: &KafkaBaseline, args: &Args) {
    section.note(format!("Bare records have {} B, as many as a message of {} B.", bare.size, args.size));
    section.note("An ack waits for Postgres as well (ADR 11), which the bare side does not know.");
    section.note("Each conversation had a message before those that are measured.");
    if test_bed.has_jvm_of_tests() {
        section.note(
            "Kafka's JVM is that of the tests: a small heap, and compiled for a quick start. Without --services \
             `cargo xtask bench kafka` starts one as in production.",
        );
    }
}

/// Starts the nodes, and one load generator for all of them.
fn side(test_bed: &TestBed, launcher: &Launcher, args: &Args, nodes: usize) -> Result<Side> {
    let mut servers = Vec::new();
    for nth in 1..=nodes {
        servers.push(test_bed.start(launcher, nth, &[])?);
    }
    test_bed.settle(&servers.iter().collect::<Vec<_>>())?;
    let addresses: Vec<&str> = servers.iter().map(|server| server.address.as_str()).collect();
    let addresses = addresses.join(",");
    let processes = test_bed.processes(servers.iter().map(Server::pid).collect());
    let mut first = servers.remove(0);
    (first.address, first.watched) = (addresses, processes);
    let peer = first.peer();
    let mut side = Side::of(launcher, first, peer, BenchTransport::Tcp, args.size)?;
    side.others = servers;
    Ok(side)
}

/// Adds what each kind of process spends on a message.
fn shares(section: &mut Section, what: &str, watched: &[Watched], outcomes: &[Outcome]) {
    let us = |ns: u64, outcome: &Outcome| ns as f64 / 1e3 / outcome.count.max(1) as f64;
    let all: fn(&Outcome) -> u64 = |outcome| outcome.watched_cpu_ns.iter().sum();
    section.rounds(
        &format!("{what}, all but the load generator"),
        each(outcomes, |it| us(all(it), it)),
        "µs",
        None,
    );
    for (nth, Watched { name, .. }) in watched.iter().enumerate() {
        let cpu = |it: &Outcome| us(it.watched_cpu_ns.get(nth).copied().unwrap_or(0), it);
        section.rounds(&format!("{what}, {name}"), each(outcomes, cpu), "µs", None);
    }
    let load = each(outcomes, |it| us(it.client_cpu_ns, it));
    section.rounds(&format!("{what}, load generator"), load, "µs", None);
}

/// Compares several nodes with one node of the same run.
fn compare(section: &mut Section, nodes: usize, ours: &[Outcome], alone: &[Outcome]) {
    let (many, one) = (each(ours, Outcome::rate), each(alone, Outcome::rate));
    section.ratio(&format!("accepts/s, {nodes} nodes / one node of this run"), &many, &one, None);
    section.note(
        "All nodes have the processors of one: the ratio says what sharing the log costs, not what it gains.",
    );
}

fn flat_out(section: &mut Section, us: &str, Rounds { ours, raw }: &Rounds) {
    let (our_rate, raw_rate) = (each(ours, Outcome::rate), each(raw, Outcome::rate));
    let target = Some(FigureTarget::AtLeast(0.6));
    section.ratio(&format!("accepts/s, {us} / bare producer"), &our_rate, &raw_rate, target);
    section.rounds(&format!("accepts, {us}"), our_rate, "/s", None);
    section.rounds("confirmed records, bare producer", raw_rate, "/s", None);
    section.rounds(&format!("send to ack when flat out, {us}, p50"), ms(ours, |o| o.p50_us), "ms", None);
}

fn half_load(section: &mut Section, rate: f64, Rounds { ours, raw }: &Rounds) {
    let (acks, back) = (ms(ours, |o| o.p50_us), ms(raw, |o| o.p50_us));
    let later = acks.iter().zip(&back).map(|(ack, back)| ack - back).collect();
    let what = format!("send to ack at {rate:.0}/s, p50, less bare produce and consume");
    section.rounds(&what, later, "ms", Some(FigureTarget::AtMost(ADDED_DELAY_MAX_MS)));
    section.ratio("the same / bare produce and consume", &acks, &back, None);
    section.rounds("send to ack at half load, p50", acks, "ms", None);
    section.rounds("send to ack at half load, p99", ms(ours, |o| o.p99_us), "ms", None);
    section.rounds("send to push at half load, p50", ms(ours, |o| o.push_p50_us), "ms", None);
    section.rounds("send to push at half load, p99", ms(ours, |o| o.push_p99_us), "ms", None);
    people::lag(section, "at half load", ours);
    section.rounds("bare produce and consume at that rate, p50", back, "ms", None);
    section.rounds("bare produce and consume, p99", ms(raw, |o| o.p99_us), "ms", None);
}

/// Creates a topic like that of the log, with records of the same size.
fn bare(test_bed: &TestBed, launcher: &Launcher, args: &Args) -> Result<KafkaBaseline> {
    let kafka = KafkaConfig {
        topic: format!("{}.bare", test_bed.config.kafka.topic),
        ..test_bed.config.kafka.clone()
    };
    test_bed.runtime.block_on(ensure_topics(&kafka, &topic_plans(&kafka, &[])))?;
    Ok(KafkaBaseline { kafka, cpus: launcher.server_cpus.clone(), size: record(args.size)? })
}

/// Returns the bytes of the record of a message.
fn record(size: usize) -> Result<usize> {
    let (sender, other) = (UserId::new("u10")?, UserId::new("x10-0")?);
    let content = Bytes::from(vec![b'x'; size]);
    let body = Body::Message(Message {
        conversation: ConversationId::direct(&sender, &other),
        sender,
        device: DeviceId::new("phone")?,
        msg_id: MsgId::new("1790000000000-10-10000")?,
        attempt: 0,
        body_hash: body_hash(&content),
        content,
        order: SenderOrder::default(),
        flags: 0,
        mode: Default::default(),
    });
    let origin = Origin { node: NodeId::new("n1")?, boot: 1 << 60, conn: 1 << 40, request: 10_000 };
    Ok(Record { origin, received_at: 1_790_000_000_000, body, trace: None }.encode().len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_have_the_conversations_and_the_load_stays() {
        assert_eq!(connections(64, 32, 64), (64, 32));
        assert_eq!(connections(64, 32, 2_016), (64, 32), "all that 64 can have");
        assert_eq!(connections(64, 32, 2_017), (66, 31));
        assert_eq!(connections(64, 32, 100_000), (448, 4));
        assert_eq!(connections(2, 1, 6), (4, 1));
    }
}
