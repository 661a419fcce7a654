//! Accepts and answers of a cluster beside a bare producer, and a bare producer and consumer, on the same Kafka.

use super::{Side, Sink, each, in_turns, load, rival};
use crate::bench::{
    Args,
    child::Launcher,
    kafka_baseline::KafkaBaseline,
    orders::{Chat, Order, Outcome, To, Until},
    report::{Section, Target, median},
    test_bed::TestBed,
    wire::Transport,
};
use anyhow::{Result, ensure};
use bytes::Bytes;
use std::path::Path;
use tidegate::{
    bus::{ensure_topics, topic_plans},
    config::Kafka,
};
use tidegate_protocol::{
    id::{ConversationId, DeviceId, MsgId, NodeId, UserId},
    record::{Body, Message, Origin, Record, SenderOrder, body_hash},
};

/// With how many nodes.
const NODES: [usize; 2] = [1, 3];
/// Rounds of each side at half load.
const HALF_ROUNDS: usize = 5;
/// By how much an answer may be later than what was produced and consumed, at the median.
const LATER_MS: f64 = 2.0;

/// What is asked for.
pub(super) struct Load<'a> {
    pub(super) services: &'a Path,
    pub(super) conns: usize,
    pub(super) in_flight: usize,
    pub(super) seconds: f64,
    pub(super) partitions: u32,
}

/// A section with one node, and one with three, which are held against the one.
pub(super) fn run(launcher: &Launcher, args: &Args, what: &Load<'_>, out: Sink<'_>) -> Result<()> {
    let quick = Load { conns: 12, in_flight: 8, seconds: 0.5, partitions: 3, ..*what };
    let what = if args.quick { &quick } else { what };
    ensure!(what.conns >= 2 && what.conns.is_multiple_of(2), "an even number of connections");
    let mut alone: Option<Vec<Outcome>> = None;
    for nodes in NODES {
        let (mut section, full) = with(launcher, args, what, nodes)?;
        match &alone {
            Some(alone) => beside(&mut section, nodes, &full, alone),
            None => load(&mut section, &full),
        }
        out(section);
        alone.get_or_insert(full);
    }
    Ok(())
}

/// The section of so many nodes, and what they accepted.
fn with(launcher: &Launcher, args: &Args, what: &Load<'_>, nodes: usize) -> Result<(Section, Vec<Outcome>)> {
    let test_bed = TestBed::make(what.services, launcher, nodes, what.partitions)?;
    let kafka = &test_bed.config.kafka;
    let bare = bare(&test_bed, launcher, args)?;
    let mut servers = Vec::new();
    for nth in 1..=nodes {
        servers.push(test_bed.start(launcher, nth, &[])?);
    }
    test_bed.settle(&servers.iter().collect::<Vec<_>>())?;
    let addresses: Vec<&str> = servers.iter().map(|server| server.address.as_str()).collect();
    let addresses = addresses.join(",");
    let mut first = servers.remove(0);
    first.address = addresses;
    let peer = first.peer();
    let mut ours = Side::of(launcher, first, peer, Transport::Tcp, args.size)?;
    ours.connect(what.conns, 0, None)?;

    let until = Until::Time { warm_ms: 1_000, measure_ms: (what.seconds * 1000.0) as u64 };
    let order =
        |to, rate| Order::Chat(Chat { senders: 0..what.conns, to, in_flight: what.in_flight, rate, until });
    let (full, mut accepted) = (order(To::Absent(1), None), 0);
    let before = KafkaBaseline::records(kafka)?;
    let (raw, full) = in_turns(
        args.rounds,
        || bare.flat_out(what.conns * what.in_flight, what.seconds),
        || {
            let outcome = ours.ask(&full)?;
            accepted += outcome.offered;
            Ok(outcome)
        },
    )?;
    let records = (KafkaBaseline::records(kafka)? - before) as f64 / accepted as f64;
    let rate = median(&each(&full, Outcome::rate)) / 2.0;
    let half = order(To::Partner, Some(rate));
    let (raw_half, half) = in_turns(
        args.rounds.min(HALF_ROUNDS),
        || bare.there_and_back(rate, what.seconds),
        || ours.ask(&half),
    )?;

    let [conns, in_flight] = [what.conns, what.in_flight];
    let via = if nodes == 1 { "one node".to_owned() } else { format!("{nodes} nodes") };
    let title = format!(
        "Kafka, {via}, {} partitions, {conns} connections with {in_flight} in flight, {} B, TCP",
        what.partitions, args.size
    );
    let mut section = Section::new(title);
    flat_out(&mut section, rival(args), &full, &raw);
    section.one("log records per accepted message", records, "", Some(Target::AtMost(1.0)));
    half_load(&mut section, rate, &half, &raw_half);
    section.note(format!("Bare records have {} B, as many as a message of {} B.", bare.size, args.size));
    section.note("An ack waits for Postgres as well (ADR 11), which the bare side does not know.");
    Ok((section, full))
}

/// What more nodes do beside one of the same run.
fn beside(section: &mut Section, nodes: usize, ours: &[Outcome], alone: &[Outcome]) {
    let (many, one) = (each(ours, Outcome::rate), each(alone, Outcome::rate));
    section.ratio(&format!("accepts/s, {nodes} nodes / one node of this run"), &many, &one, None);
    section.note(
        "All nodes have the processors of one: the ratio says what sharing the log costs, not what it gains.",
    );
}

fn flat_out(section: &mut Section, us: &str, ours: &[Outcome], raw: &[Outcome]) {
    let (our_rate, raw_rate) = (each(ours, Outcome::rate), each(raw, Outcome::rate));
    let target = Some(Target::AtLeast(0.6));
    section.ratio(&format!("accepts/s, {us} / bare producer"), &our_rate, &raw_rate, target);
    section.rounds(&format!("accepts, {us}"), our_rate, "/s", None);
    section.rounds("confirmed records, bare producer", raw_rate, "/s", None);
    section.rounds(&format!("send to ack when flat out, {us}, p50"), ms(ours, |o| o.p50_us), "ms", None);
}

fn half_load(section: &mut Section, rate: f64, ours: &[Outcome], raw: &[Outcome]) {
    let (acks, back) = (ms(ours, |o| o.p50_us), ms(raw, |o| o.p50_us));
    let later = acks.iter().zip(&back).map(|(ack, back)| ack - back).collect();
    let what = format!("send to ack at {rate:.0}/s, p50, less bare produce and consume");
    section.rounds(&what, later, "ms", Some(Target::AtMost(LATER_MS)));
    section.ratio("the same / bare produce and consume", &acks, &back, None);
    section.rounds("send to ack at half load, p50", acks, "ms", None);
    section.rounds("send to ack at half load, p99", ms(ours, |o| o.p99_us), "ms", None);
    section.rounds("send to push at half load, p50", ms(ours, |o| o.push_p50_us), "ms", None);
    section.rounds("send to push at half load, p99", ms(ours, |o| o.push_p99_us), "ms", None);
    section.rounds("bare produce and consume at that rate, p50", back, "ms", None);
    section.rounds("bare produce and consume, p99", ms(raw, |o| o.p99_us), "ms", None);
}

fn ms(outcomes: &[Outcome], us: impl Fn(&Outcome) -> u64) -> Vec<f64> {
    each(outcomes, |outcome| us(outcome) as f64 / 1e3)
}

/// A topic as that of the log, with records of the same size.
fn bare(test_bed: &TestBed, launcher: &Launcher, args: &Args) -> Result<KafkaBaseline> {
    let kafka =
        Kafka { topic: format!("{}.bare", test_bed.config.kafka.topic), ..test_bed.config.kafka.clone() };
    test_bed.runtime.block_on(ensure_topics(&kafka, &topic_plans(&kafka, &[])))?;
    Ok(KafkaBaseline { kafka, cpus: launcher.server_cpus.clone(), size: record(args.size)? })
}

/// Bytes of the record of such a message.
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
    });
    let origin = Origin { node: NodeId::new("n1")?, boot: 1 << 60, conn: 1 << 40, request: 10_000 };
    Ok(Record { origin, received_at: 1_790_000_000_000, body, trace: None }.encode().len())
}
