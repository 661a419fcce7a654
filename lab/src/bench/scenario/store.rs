//! The full embedded store: its bytes on disk, the time of a restart, and the time of a sync.

use super::{Side, Sink, chat::durable, rows};
use crate::bench::{
    Args,
    child::{Launcher, Server},
    host,
    orders::{Chat, Order, To, Until},
    report::{FigureTarget, Section},
    wire::BenchTransport,
};
use anyhow::{Result, ensure};
use std::path::Path;

/// Bytes of the content of a message.
const SIZE: usize = 100;
/// Connections that fill the store, and conversations of each, except for those whose sync is timed.
const CONNS: usize = 64;
const CONVERSATIONS: usize = 100;
/// Unanswered messages of each connection.
const IN_FLIGHT: usize = 64;
/// Number of timed starts and syncs of each kind.
const TIMES: usize = 3;
/// Name of the node, and of its directory.
const LABEL: &str = "store";

/// Adds one section.
pub(super) fn run(
    launcher: &Launcher,
    args: &Args,
    messages: u64,
    conversations: &[usize],
    out: Sink<'_>,
) -> Result<()> {
    let quick = ([30, 120], 3_000);
    let (conversations, messages) =
        if args.quick { (&quick.0[..], quick.1) } else { (conversations, messages) };
    ensure!(conversations.len() <= 3, "at most three users to sync");
    let extra: u64 = conversations.iter().map(|count| *count as u64).sum();
    ensure!(messages > extra, "more messages than conversations");
    let launcher = durable(launcher);
    let directory = launcher.directory.join(format!("{LABEL}-TCP"));
    let mut section = Section::new(format!("Embedded store, {messages} messages of {SIZE} B"));

    let mut side = Side::tidegate(&launcher, LABEL, 1, BenchTransport::Tcp, SIZE)?;
    side.connect(CONNS, 0, None)?;
    let fill = |senders, people, count| {
        let (to, until) = (To::Absent(people), Until::Messages(count));
        Order::Chat(Chat { senders, to, in_flight: IN_FLIGHT, rate: None, until })
    };
    for (user, &count) in conversations.iter().enumerate() {
        side.ask(&fill(user..user + 1, count, count as u64))?;
    }
    let others = conversations.len()..CONNS;
    let people = CONVERSATIONS * others.len();
    let filled = side.ask(&fill(others, people, messages - extra))?;
    let pid = side.server.pid();
    let rss = host::rss_anon(pid)?;
    restarts(&launcher, side.server, &directory, messages, &mut section)?;

    drop(side.client);
    let mut side = Side::tidegate(&launcher, LABEL, 1, BenchTransport::Tcp, SIZE)?;
    for (user, &count) in conversations.iter().enumerate() {
        syncs(&mut side, user, count, &mut section)?;
    }
    drop(side);
    section.one("accepts while it was filled", filled.rate(), "/s", None);
    section.one("anonymous RSS of the node then", rss as f64 / f64::from(1u32 << 20), "MiB", None);
    let rows = rows::count(&directory, CONNS)?;
    ensure!(rows == messages, "{messages} messages were acked, {rows} are in the store");
    section.one("messages acked, and each found in the store at the end", rows as f64, "", None);
    if rows::is_memory(&directory)? {
        section.note("The data was in memory, not on a disk: give --directory.");
    }
    out(section);
    Ok(())
}

/// Kills and starts the node several times, then stops and starts it several times.
fn restarts(
    launcher: &Launcher,
    server: Server,
    directory: &Path,
    messages: u64,
    section: &mut Section,
) -> Result<()> {
    let bytes = |directory: &Path| {
        rows::disk_bytes(&directory.join("store")).map(|bytes| bytes as f64 / messages as f64)
    };
    let start = || {
        let began = host::now_ns();
        let server = launcher.tidegate(&format!("{LABEL}-TCP"), 1)?;
        Ok::<_, anyhow::Error>((server, (host::now_ns() - began) as f64 / 1e9))
    };
    let full = bytes(directory)?;
    server.kill()?;
    let (mut crashed, mut stopped) = (Vec::new(), Vec::new());
    for _ in 0..TIMES {
        let (server, took) = start()?;
        crashed.push(took);
        server.kill()?;
    }
    let (mut server, _) = start()?;
    for _ in 0..TIMES {
        drop(server);
        let took;
        (server, took) = start()?;
        stopped.push(took);
    }
    drop(server);
    let target = Some(FigureTarget::AtMost(2.0));
    section.rounds("start until it is ready, after a kill", crashed, "s", target);
    section.rounds("start until it is ready, after a stop", stopped, "s", target);
    section.one(&format!("bytes on disk per message of {SIZE} B, journals and all"), full, "B", None);
    section.one("the same after it was stopped", bytes(directory)?, "B", None);
    Ok(())
}

fn syncs(side: &mut Side, user: usize, count: usize, section: &mut Section) -> Result<()> {
    let (mut logins, mut syncs, mut bytes) = (Vec::new(), Vec::new(), 0);
    for _ in 0..TIMES {
        let outcome = side.ask(&Order::Sync { user })?;
        ensure!(outcome.count == count as u64, "{} conversations of {count}", outcome.count);
        logins.push(outcome.max_us as f64 / 1e3);
        syncs.push(outcome.wall_ns as f64 / 1e6);
        bytes = outcome.reply_bytes;
    }
    section.rounds(&format!("login with {count} conversations"), logins, "ms", None);
    section.rounds(&format!("sync of {count} conversations, after that"), syncs, "ms", None);
    section.one(&format!("bytes sent for {count} conversations"), bytes as f64, "B", None);
    Ok(())
}
