//! A hot room, compared with one `send` per message, then the same room at part load.

use super::{Side, Sink, each, in_turns, load, rival};
use crate::bench::{
    Args, Scenario,
    child::Launcher,
    orders::{Order, Outcome},
    report::{FigureTarget, Section},
    wire::BenchTransport,
};
use anyhow::{Result, bail};

/// Room of all users.
const ROOM: &str = "hot";
/// Load below which the server counts as partly loaded, in percent.
const PART_LOAD: f64 = 60.0;
/// Steps in which part load is searched.
const STEPS: usize = 9;

/// Parameters of a hot room.
#[derive(Clone, Copy)]
struct Shape {
    members: usize,
    rate: f64,
    publishers: usize,
    seconds: f64,
}

impl Shape {
    fn order(self, rate: Option<f64>, seconds: f64) -> Order {
        Order::Room {
            conversation: format!("r:{ROOM}"),
            rate,
            warm_ms: 300,
            measure_ms: (seconds * 1000.0) as u64,
            important_every: None,
        }
    }
}

/// Adds one section for each transport.
pub(super) fn run(launcher: &Launcher, args: &Args, scenario: &Scenario, out: Sink<'_>) -> Result<()> {
    let Scenario::Room { members, rate, publishers, seconds } = scenario else { bail!("not a room") };
    let mut shape = Shape { members: *members, rate: *rate, publishers: *publishers, seconds: *seconds };
    if args.quick {
        (shape.members, shape.seconds) = (300, 0.5);
    }
    for &transport in &args.transport {
        out(compare(launcher, args, shape, transport)?);
    }
    Ok(())
}

fn raw(launcher: &Launcher, args: &Args, shape: Shape, transport: BenchTransport) -> Result<Side> {
    let mut side = Side::raw_fanout(launcher, transport, args.size)?;
    side.connect(shape.members, 1, None)?;
    Ok(side)
}

fn compare(launcher: &Launcher, args: &Args, shape: Shape, transport: BenchTransport) -> Result<Section> {
    let mut left = raw(launcher, args, shape, transport)?;
    let mut right = if args.raw_twice {
        raw(launcher, args, shape, transport)?
    } else {
        let mut side = Side::tidegate(launcher, "room", 1, transport, args.size)?;
        side.connect(shape.members, shape.publishers, Some(ROOM))?;
        side
    };
    let flat_out = shape.order(None, shape.seconds);
    let hot = if args.raw_twice { flat_out.clone() } else { shape.order(Some(shape.rate), shape.seconds) };
    let (raw, ours) = in_turns(args.rounds, || left.ask(&flat_out), || right.ask(&hot))?;
    let mut section = Section::new(format!(
        "Hot room, {} people, {:.0} messages/s of {} B offered, {}",
        shape.members,
        shape.rate,
        args.size,
        transport.name()
    ));
    let us = rival(args);
    let (raw_rate, our_rate) = (each(&raw, Outcome::rate), each(&ours, Outcome::rate));
    section.ratio(
        &format!("deliveries/s, {us} / raw"),
        &our_rate,
        &raw_rate,
        Some(FigureTarget::AtLeast(4.0)),
    );
    let per_cpu = |side: &[Outcome]| each(side, |o| 1e6 / o.cpu_us());
    section.ratio(
        &format!("deliveries per server CPU second, {us} / raw"),
        &per_cpu(&ours),
        &per_cpu(&raw),
        None,
    );
    section.rounds(&format!("deliveries, {us}"), our_rate, "/s", None);
    section.rounds("deliveries, raw flat out", raw_rate, "/s", None);
    let per_read = |o: &Outcome| o.count as f64 / o.reads.max(1) as f64;
    section.rounds(&format!("messages per read, {us}"), each(&ours, per_read), "", None);
    load(&mut section, &ours);
    section.rounds("raw server busy", each(&raw, Outcome::server_busy), "%", None);
    section.rounds("latency p50 when hot", each(&ours, |o| o.p50_us as f64 / 1e3), "ms", None);
    section.rounds("latency p99 when hot", each(&ours, |o| o.p99_us as f64 / 1e3), "ms", None);
    section.rounds("shed, and reported", each(&ours, shed_share), "% of offered", None);
    section.rounds("refused to the publisher", each(&ours, |o| o.refused as f64), "messages", None);
    if !args.raw_twice {
        part_load(&mut right, shape, &ours, &mut section)?;
    }
    Ok(section)
}

/// Returns the share of offered messages that were announced as shed.
fn shed_share(outcome: &Outcome) -> f64 {
    100.0 * outcome.shed as f64 / (outcome.shed + outcome.count).max(1) as f64
}

/// Lowers the rate until the server is partly loaded, and measures the latency there.
fn part_load(side: &mut Side, shape: Shape, hot: &[Outcome], section: &mut Section) -> Result<()> {
    let busy = super::super::report::median(&each(hot, |o| o.server_busy() + o.server_waits())).max(1.0);
    let mut rate = shape.rate * (0.9 * PART_LOAD / busy).min(1.0);
    for _ in 0..STEPS {
        let outcome = side.ask(&shape.order(Some(rate), shape.seconds))?;
        // Work that has to wait for the CPU is load, too.
        let load = outcome.server_busy() + outcome.server_waits();
        if load < PART_LOAD {
            let p99 = outcome.p99_us as f64 / 1e3;
            let what = format!("latency p99 at {rate:.0} messages/s, server {load:.0} % busy");
            section.one(&what, p99, "ms", Some(FigureTarget::AtMost(50.0)));
            section.one("latency p50 there", outcome.p50_us as f64 / 1e3, "ms", None);
            section.one("largest latency there", outcome.max_us as f64 / 1e3, "ms", None);
            section.one("deliveries there", outcome.rate(), "/s", None);
            section.one("load generator busy there", outcome.client_busy(), "%", None);
            return Ok(());
        }
        rate *= (0.8 * PART_LOAD / load).min(0.5);
    }
    section.note(format!("No rate was found at which the server is less than {PART_LOAD} % busy."));
    Ok(())
}
