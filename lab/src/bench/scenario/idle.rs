//! Quiet connections: the memory of each, and its CPU with a heartbeat now and then.

use super::{Side, Sink};
use crate::bench::{
    Args,
    admin::{create_group, metric},
    child::Launcher,
    credentials::Credentials,
    driver::beat,
    host,
    orders::{Order, Outcome, Peer},
    report::{FigureTarget, Section},
    wire::BenchTransport,
};
use anyhow::{Result, ensure};
use std::{thread, time::Duration};
use tidegate::cli::admin::AdminClient;

/// Number of members of a group; each user is in three.
const GROUP_SIZE: usize = 100;
const GROUPS_EACH: usize = 3;
/// Metric of the bytes that the node has allocated.
const HEAP_METRIC: &str = "tidegate_heap_bytes";

/// Most anonymous RSS of a connection with TLS, in KiB; more fails the run.
const TLS_LIMIT_KIB: f64 = 12.0;

/// Parameters of the scenario.
#[derive(Clone, Copy)]
pub(super) struct Load {
    pub(super) conns: usize,
    pub(super) seconds: f64,
    pub(super) heartbeat: f64,
    /// Whether connections with TLS are measured after those without.
    pub(super) has_tls: bool,
}

/// Adds one section for each transport, and with TLS a second one.
pub(super) fn run(launcher: &Launcher, args: &Args, what: Load, out: Sink<'_>) -> Result<()> {
    // What the first connection costs must not weigh in the memory of each.
    let conns = if what.has_tls { 1_000 } else { 300 };
    let quick = Load { conns, seconds: 1.0, heartbeat: 1.0, ..what };
    let what = if args.quick { quick } else { what };
    let credentials = what.has_tls.then(|| Credentials::create(launcher)).transpose()?;
    for &transport in &args.transport {
        let plain = watch(launcher, launcher, what, transport)?;
        let plain_kib = plain.figures[0].value;
        out(plain);
        if let Some(credentials) = &credentials {
            let mut section = watch(launcher, &credentials.with_tls(launcher), what, transport)?;
            let kib = section.figures[0].value;
            section.one("anonymous RSS per connection, with TLS less without", kib - plain_kib, "KiB", None);
            section.note(format!("A connection with TLS may take {TLS_LIMIT_KIB} KiB; more fails the run."));
            out(section);
            check_limit(kib)?;
        }
    }
    Ok(())
}

/// Fails when a connection with TLS takes more memory than it may.
fn check_limit(kib: f64) -> Result<()> {
    ensure!(
        kib <= TLS_LIMIT_KIB,
        "a quiet connection with TLS takes {kib:.1} KiB of the node; the limit is {TLS_LIMIT_KIB} KiB"
    );
    Ok(())
}

/// Measures a node that `nodes` starts, whose clients use TLS if it says so. The first figure is the memory of a
/// connection.
fn watch(launcher: &Launcher, nodes: &Launcher, what: Load, transport: BenchTransport) -> Result<Section> {
    let Load { conns, seconds, heartbeat, .. } = what;
    let has_tls = nodes.authority.is_some();
    let order =
        Order::Idle { heartbeat_ms: (heartbeat * 1000.0).max(1.0) as u64, ms: (seconds * 1000.0) as u64 };
    let raw = raw(launcher, conns, transport, &order)?;
    let label = if has_tls { "idle-tls" } else { "idle" };
    let mut side = Side::tidegate(nodes, label, 1, transport, 0)?;
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
        "{conns} quiet connections{}, in {GROUPS_EACH} groups each, {}",
        if has_tls { " with TLS" } else { "" },
        transport.name()
    ));
    let each = |after: u64| after.saturating_sub(rss) as f64 / conns as f64 / 1024.0;
    let bound = match transport {
        BenchTransport::Tcp if !has_tls => 1.5,
        BenchTransport::Tcp | BenchTransport::Ws => 2.0,
    };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_memory_than_the_limit_is_an_error() {
        assert!(check_limit(TLS_LIMIT_KIB).is_ok());
        assert!(check_limit(f64::NAN).is_err());
        let error = check_limit(12.1).unwrap_err().to_string();
        assert!(error.contains("12.1 KiB") && error.contains("limit is 12 KiB"), "{error}");
    }
}
