//! Quiet connections: the memory of each, and its CPU with a heartbeat now and then.

use super::{Side, Sink};
use crate::bench::{
    Args,
    admin::{create_group, metric},
    child::Launcher,
    driver::beat,
    host,
    orders::{Order, Outcome, Peer},
    report::{FigureTarget, Section},
    wire::BenchTransport,
};
use anyhow::Result;
use std::{thread, time::Duration};
use tidegate::cli::admin::AdminClient;

/// Number of members of a group; each user is in three.
const GROUP_SIZE: usize = 100;
const GROUPS_EACH: usize = 3;
/// Metric of the bytes that the node has allocated.
const HEAP_METRIC: &str = "tidegate_heap_bytes";

/// Adds one section for each transport.
pub(super) fn run(
    launcher: &Launcher,
    args: &Args,
    conns: usize,
    seconds: f64,
    heartbeat: f64,
    out: Sink<'_>,
) -> Result<()> {
    let (conns, seconds, heartbeat) = if args.quick { (300, 1.0, 1.0) } else { (conns, seconds, heartbeat) };
    for &transport in &args.transport {
        out(watch(launcher, conns, seconds, heartbeat, transport)?);
    }
    Ok(())
}

fn watch(
    launcher: &Launcher,
    conns: usize,
    seconds: f64,
    heartbeat: f64,
    transport: BenchTransport,
) -> Result<Section> {
    let order =
        Order::Idle { heartbeat_ms: (heartbeat * 1000.0).max(1.0) as u64, ms: (seconds * 1000.0) as u64 };
    let raw = raw(launcher, conns, transport, &order)?;
    let mut side = Side::tidegate(launcher, "idle", 1, transport, 0)?;
    let mut admin = AdminClient::connect(&side.server.second)?;
    for at in 0..conns.div_ceil(GROUP_SIZE) {
        let users = at * GROUP_SIZE..((at + 1) * GROUP_SIZE).min(conns);
        for copy in 0..GROUPS_EACH {
            create_group(&mut admin, &format!("idle{copy}-{at}"), &[], users.clone())?;
        }
    }
    settle();
    let pid = side.server.pid();
    let empty = empty_us(pid)?;
    let (rss, heap) = (host::rss_anon(pid)?, metric(&mut admin, HEAP_METRIC));
    side.connect_calmly(conns)?;
    settle();
    let (rss_in, heap_in) = (host::rss_anon(pid)?, metric(&mut admin, HEAP_METRIC));
    let outcome = side.ask(&order)?;
    let rss_end = host::rss_anon(pid)?;

    let mut section = Section::new(format!(
        "{conns} quiet connections, in {GROUPS_EACH} groups each, {}",
        transport.name()
    ));
    let each = |after: u64| after.saturating_sub(rss) as f64 / conns as f64 / 1024.0;
    let bound = if transport == BenchTransport::Tcp { 1.5 } else { 2.0 };
    section.one("anonymous RSS per connection", each(rss_in), "KiB", Some(FigureTarget::AtMost(bound)));
    let cpu = |o: &Outcome| o.server_cpu_ns as f64 / 1e3 / (o.wall_ns as f64 / 1e9) / conns as f64;
    let what = format!("CPU per connection, heartbeat every {heartbeat} s");
    section.one(&what, cpu(&outcome), "µs/s", Some(FigureTarget::AtMost(0.5)));
    section.one("the same of a raw echo loop", cpu(&raw), "µs/s", None);
    section.one("CPU, tidegate / raw", cpu(&outcome) / cpu(&raw), "x", None);
    section.one("anonymous RSS per connection after that", each(rss_end), "KiB", None);
    match (heap, heap_in) {
        (Some(before), Some(after)) => {
            section.one("heap per connection", (after - before) / conns as f64 / 1024.0, "KiB", None);
        }
        _ => section.note("The node does not tell its heap."),
    }
    section.one("anonymous RSS before the logins", rss as f64 / 1024.0 / 1024.0, "MiB", None);
    section.one("CPU of the node before the logins", empty, "µs/s", None);
    section.one("server waiting for its CPU", outcome.server_waits(), "%", None);
    section.one("heartbeats, each answered", outcome.count as f64, "", None);
    Ok(section)
}

/// Measures a loop of system calls under the same heartbeats: the cost of the kernel and the machine alone.
fn raw(launcher: &Launcher, conns: usize, transport: BenchTransport, order: &Order) -> Result<Outcome> {
    let bytes = beat(transport).len();
    let size = bytes.to_string();
    let arguments = ["raw-echo", "--request", &size, "--reply", &size];
    let mut side = Side::raw_reply(launcher, &arguments, Peer::Echo { bytes }, transport)?;
    side.connect_calmly(conns)?;
    side.ask(order)
}

/// Returns the CPU of a node without connections, in µs per second.
fn empty_us(pid: u32) -> Result<f64> {
    let (began, before) = (host::now_ns(), host::cpu(pid)?.ran);
    thread::sleep(Duration::from_secs(1));
    let used = host::cpu(pid)?.ran.saturating_sub(before) as f64 / 1e3;
    Ok(used * 1e9 / (host::now_ns() - began) as f64)
}

/// Lets the node finish its work after its answers.
fn settle() {
    thread::sleep(Duration::from_millis(500));
}
