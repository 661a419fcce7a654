//! More messages than a node can take: what it accepts of twice its capacity, and how fast, with its gates and without.

use super::{Side, Sink, chat::durable};
use crate::bench::{
    Args, Scenario,
    child::Launcher,
    orders::{Order, Outcome, Overload},
    report::{FigureTarget, Section},
    wire::BenchTransport,
};
use anyhow::{Result, bail, ensure};

/// Rate that no node takes, at which its capacity is measured.
const FLAT_OUT: f64 = 1e6;

/// Parts of the capacity at which the knee is searched, highest first.
const KNEES: [f64; 7] = [1.0, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6];

/// Factor of the p99 at half load up to which a rate is below the knee.
const P99_FACTOR: f64 = 3.0;

/// Starts a node with its gates, or without.
fn node(launcher: &Launcher, args: &Args, conns: usize, has_gates: bool) -> Result<Side> {
    let mut launcher = durable(launcher);
    launcher.settings.insert(0, format!("overload.gates={has_gates}"));
    let label = if has_gates { "overload" } else { "overload-without" };
    let mut side = Side::tidegate(&launcher, label, 1, BenchTransport::Tcp, args.size)?;
    side.connect(conns, 0, None)?;
    Ok(side)
}

/// Adds one section, for TCP.
pub(super) fn run(launcher: &Launcher, args: &Args, scenario: &Scenario, out: Sink<'_>) -> Result<()> {
    let Scenario::Overload { conns, seconds } = *scenario else { bail!("not this scenario") };
    let (conns, seconds) = if args.quick { (32, 0.4) } else { (conns, seconds) };
    ensure!(conns >= 2, "at least two connections");
    let ms = |part: f64| (seconds * part * 1_000.0) as u64;
    let short =
        |rate| Order::Overload(Overload { rate, keeps_wait: true, warm_ms: ms(0.25), measure_ms: ms(0.5) });
    let long = |rate, keeps_wait| {
        Order::Overload(Overload { rate, keeps_wait, warm_ms: ms(1.0), measure_ms: ms(1.0) })
    };
    let mut without = node(launcher, args, conns, false)?;
    // The first run of a node finds its caches cold.
    without.ask(&short(FLAT_OUT))?;
    let capacity = without.ask(&short(FLAT_OUT))?.rate();
    ensure!(capacity > 0.0, "no message was accepted");
    let half = without.ask(&short(capacity / 2.0))?;
    let (knee, at_knee) = knee(capacity, &half, |rate| without.ask(&short(rate)))?;
    let twice = 2.0 * capacity;
    let unguarded = without.ask(&long(twice, true))?;
    drop(without);
    let mut with = node(launcher, args, conns, true)?;
    with.ask(&short(capacity / 2.0))?;
    let kept = with.ask(&long(twice, true))?;
    let ignored = with.ask(&long(twice, false))?;
    drop(with);
    let mut section =
        Section::new(format!("Overload, {conns} connections, {} B, embedded store, TCP", args.size));
    section.one("capacity, accepts flat out", capacity, "/s", None);
    section.one("half of it, send to ack, p50", half.p50_us as f64 / 1e3, "ms", None);
    section.one("half of it, p99", half.p99_us as f64 / 1e3, "ms", None);
    section.one("knee, the highest rate with p99 of at most 3 x that", knee, "/s", None);
    section.one("p99 at the knee", at_knee.p99_us as f64 / 1e3, "ms", None);
    let targets = [Some(FigureTarget::AtLeast(0.9)), Some(FigureTarget::AtMost(P99_FACTOR))];
    report(&mut section, "clients keep the wait", &kept, knee, &half, targets);
    report(&mut section, "clients ignore the wait", &ignored, knee, &half, [None, None]);
    report(&mut section, "without gates", &unguarded, knee, &half, [None, None]);
    out(section);
    Ok(())
}

/// Returns the knee with its outcome: half the capacity if p99 is too long at all higher rates.
fn knee(
    capacity: f64,
    half: &Outcome,
    mut ask: impl FnMut(f64) -> Result<Outcome>,
) -> Result<(f64, Outcome)> {
    for part in KNEES {
        let outcome = ask(capacity * part)?;
        if outcome.p99_us as f64 <= P99_FACTOR * half.p99_us as f64 {
            // Answers to messages of the rate before may raise the count.
            return Ok((outcome.rate().min(capacity * part), outcome));
        }
    }
    Ok((capacity / 2.0, half.clone()))
}

/// Adds the figures of a run at twice the capacity.
fn report(
    section: &mut Section,
    name: &str,
    outcome: &Outcome,
    knee: f64,
    half: &Outcome,
    [goodput, p99]: [Option<FigureTarget>; 2],
) {
    let per_second = |count: u64| count as f64 * 1e9 / outcome.wall_ns.max(1) as f64;
    section.one(&format!("twice the capacity, {name}: accepts / knee"), outcome.rate() / knee, "x", goodput);
    let ratio = outcome.p99_us as f64 / half.p99_us.max(1) as f64;
    section.one(&format!("{name}: p99 of what is accepted / at half load"), ratio, "x", p99);
    section.one(&format!("{name}: p99"), outcome.p99_us as f64 / 1e3, "ms", None);
    section.one(&format!("{name}: refused"), per_second(outcome.refused), "/s", None);
    section.one(&format!("{name}: answered with UNKNOWN"), per_second(outcome.unknown), "/s", None);
    section.one(&format!("{name}: sent"), per_second(outcome.offered), "/s", None);
    section.one(&format!("{name}: server busy"), outcome.server_busy(), "%", None);
}
