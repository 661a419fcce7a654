//! Ping and pong, compared with an epoll echo loop that moves as many bytes.

use super::{Side, Sink, each, in_turns, load, rival};
use crate::bench::{
    Args,
    child::Launcher,
    orders::{Order, Outcome, Peer},
    report::{FigureTarget, Section},
    wire::BenchTransport,
};
use anyhow::Result;

/// Sizes of request and reply without a node to learn them from.
const SIZES: (usize, usize) = (6, 14);

/// Adds one section for each transport.
pub(super) fn run(launcher: &Launcher, args: &Args, conns: usize, seconds: f64, out: Sink<'_>) -> Result<()> {
    let seconds = if args.quick { 0.3 } else { seconds };
    for &transport in &args.transport {
        let order = Order::Echo { ms: (seconds * 1000.0) as u64 };
        out(compare(launcher, args, conns, transport, &order)?);
    }
    Ok(())
}

fn raw(
    launcher: &Launcher,
    conns: usize,
    transport: BenchTransport,
    request: usize,
    reply: usize,
) -> Result<Side> {
    let arguments = ["raw-echo", "--request", &request.to_string(), "--reply", &reply.to_string()];
    let mut side = Side::raw_reply(launcher, &arguments, Peer::Echo { bytes: reply }, transport)?;
    side.connect(conns, 0, None)?;
    Ok(side)
}

/// Returns a launcher whose nodes read pings as fast as they come.
fn unlimited(launcher: &Launcher) -> Launcher {
    let mut launcher = launcher.clone();
    // Inserted first, so that a setting of the command line still wins.
    launcher.settings.insert(0, "limits.frames_per_second=0".to_owned());
    launcher
}

fn compare(
    launcher: &Launcher,
    args: &Args,
    conns: usize,
    transport: BenchTransport,
    order: &Order,
) -> Result<Section> {
    let launcher = &unlimited(launcher);
    let (mut right, sizes) = if args.raw_twice {
        let sizes = if transport == BenchTransport::Ws { (SIZES.0 + 5, SIZES.1 + 5) } else { SIZES };
        (raw(launcher, conns, transport, sizes.0, sizes.1)?, sizes)
    } else {
        let mut side = Side::tidegate(launcher, "echo", 1, transport, 0)?;
        side.connect(conns, 0, None)?;
        let probe = side.ask(&Order::Echo { ms: 50 })?;
        (side, (probe.request_bytes, probe.reply_bytes.max(probe.request_bytes)))
    };
    let mut left = raw(launcher, conns, transport, sizes.0, sizes.1)?;
    let (raw, ours) = in_turns(args.rounds, || left.ask(order), || right.ask(order))?;
    let mut section = Section::new(format!(
        "Ping and pong, {conns} connections, {} B and {} B, {}",
        sizes.0,
        sizes.1,
        transport.name()
    ));
    let us = rival(args);
    let (raw_us, our_us) = (each(&raw, Outcome::cpu_us), each(&ours, Outcome::cpu_us));
    let (raw_rate, our_rate) = (each(&raw, Outcome::rate), each(&ours, Outcome::rate));
    let target = Some(FigureTarget::AtLeast(0.9));
    section.ratio(&format!("requests/s, {us} / raw"), &our_rate, &raw_rate, target);
    section.ratio("requests per server CPU second, the same", &raw_us, &our_us, target);
    section.rounds(&format!("requests, {us}"), our_rate, "/s", None);
    section.rounds("requests, raw", raw_rate, "/s", None);
    section.rounds(&format!("server CPU per request, {us}"), our_us, "µs", None);
    section.rounds("server CPU per request, raw", raw_us, "µs", None);
    load(&mut section, &ours);
    Ok(section)
}
