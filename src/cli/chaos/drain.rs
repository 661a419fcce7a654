//! A drain under load: many clients talk, SIGTERM comes, and the node must leave as planned without losing an ack.

use std::{
    collections::{BTreeSet, HashMap},
    net::SocketAddr,
    path::Path,
    process::ExitStatus,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use futures_util::{StreamExt as _, stream};
use tidegate_protocol::{
    codec::Wire,
    content::Content,
    machine::drain::{self, Plan, Settings},
    pb::{self, client_frame::Body as Ask, server_frame::Body as Say},
};
use tokio::time::{Instant as At, sleep_until, timeout};

use super::{link::Link, process::Process, rows};
use crate::{
    auth,
    checker::{Event, History},
    config::Config,
};

/// Logins at a time.
const LOGINS: usize = 100;

/// How long everybody talks before the signal.
const TALK: Duration = Duration::from_secs(6);

/// How long a login may take.
const LOGIN: Duration = Duration::from_secs(20);

/// What all clients share.
struct Shared {
    address: SocketAddr,
    key: Vec<u8>,
    clients: usize,
    /// Between two messages of one client.
    pace: Duration,
}

/// What a client saw.
#[derive(Default)]
struct Seen {
    acked: Vec<(String, u64)>,
    /// The longest time from a send to its ack.
    slowest: Duration,
    unanswered: usize,
    /// When it heard of the drain, and when by that the connection ends.
    told: Option<(Instant, Duration)>,
    /// When it was closed; none = without a word.
    closed: Option<Instant>,
}

fn name(index: usize) -> String {
    format!("u{index}")
}

/// Runs a node with `clients` who send `rate` messages a second, and drains it.
///
/// # Errors
/// A lost ack, a connection that ends without a word, and an exit code other than 0.
pub(super) async fn run(binary: &Path, directory: &Path, clients: usize, rate: u32) -> anyhow::Result<()> {
    let sets = ["limits.conns_per_ip=0", "timing.handshake_ms=30000"];
    let mut process = Process::start(binary, directory, &sets).await?;
    let pace = Duration::from_secs_f64(clients as f64 / f64::from(rate.max(1)));
    let key = auth::load_or_create_key(directory)?;
    let shared = Arc::new(Shared { address: process.client, key, clients, pace });
    let began = Instant::now();
    let links: Vec<_> = stream::iter(0..clients)
        .map(|index| login(Arc::clone(&shared), index))
        .buffer_unordered(LOGINS)
        .collect()
        .await;
    println!(
        "{clients} clients logged in within {:.1} s; {rate} messages a second",
        began.elapsed().as_secs_f64()
    );
    let mut tasks = Vec::with_capacity(clients);
    for link in links {
        let (index, link) = link?;
        tasks.push(tokio::spawn(live(Arc::clone(&shared), index, link)));
    }
    tokio::time::sleep(TALK).await;
    let signalled = Instant::now();
    let status = process.terminate().await?;
    let took = signalled.elapsed();
    process.check_log()?;
    let mut seen = Vec::with_capacity(clients);
    for task in tasks {
        seen.push(timeout(LOGIN, task).await.context("a client goes on without a node")??);
    }
    let settings = Config::load(None, &[])?.drain_settings();
    report(&drain::plan(clients, &settings), &settings, &seen, signalled, took);
    let lost = lost(directory, &seen).await?;
    verdict(&seen, lost, status)
}

async fn login(shared: Arc<Shared>, index: usize) -> anyhow::Result<(usize, Link)> {
    let hello = async {
        let mut link = Link::connect(shared.address, Wire::ALL[index % Wire::ALL.len()]).await?;
        let token = auth::sign(&shared.key, &name(index), None, Duration::from_secs(3_600));
        let hello = pb::Hello { version: 1, token, device: "dev".into(), ..Default::default() };
        link.send(&[pb::ClientFrame { id: 1, body: Some(Ask::Hello(hello)) }]).await?;
        match link.next().await?.body {
            Some(Say::Welcome(_)) => Ok(link),
            other => bail!("no welcome: {other:?}"),
        }
    };
    let link = timeout(LOGIN, Box::pin(hello)).await.context("the login takes too long")?;
    Ok((index, link.with_context(|| format!("client {index}"))?))
}

/// Talks to its neighbour until the node ends the connection.
async fn live(shared: Arc<Shared>, index: usize, mut link: Link) -> Seen {
    let mut seen = Seen::default();
    let mut waiting: HashMap<u64, (String, Instant)> = HashMap::new();
    // Not all at once.
    let mut next = At::now() + shared.pace.mul_f64(index as f64 / shared.clients as f64);
    let peer = name((index + 1) % shared.clients);
    for number in 2.. {
        let frame = tokio::select! {
            frame = link.next() => Some(frame),
            () = sleep_until(next) => None,
        };
        let answer = match frame {
            None => {
                next += shared.pace;
                let cid = format!("{index}-{number}");
                waiting.insert(number, (cid.clone(), Instant::now()));
                let content = Some(Content::text(format!("this is {cid}")));
                let send = pb::Send { to_user: peer.clone(), msg_id: cid, content, ..Default::default() };
                pb::ClientFrame { id: number, body: Some(Ask::Send(send)) }
            }
            Some(Err(_)) => break,
            Some(Ok(frame)) => match hear(&mut seen, &mut waiting, frame) {
                Some(Ask::Bye(_)) => break,
                Some(body) => pb::ClientFrame { id: 0, body: Some(body) },
                None => continue,
            },
        };
        // A write that fails is followed by a read that does.
        link.send(&[answer]).await.ok();
    }
    seen.unanswered = waiting.len();
    seen
}

/// Notes what the node says; what there is to say to it. `Bye`: nothing, that was its last word.
fn hear(
    seen: &mut Seen,
    waiting: &mut HashMap<u64, (String, Instant)>,
    frame: pb::ServerFrame,
) -> Option<Ask> {
    match frame.body? {
        Say::SendAck(ack) => {
            let (cid, since) = waiting.remove(&frame.id)?;
            seen.slowest = seen.slowest.max(since.elapsed());
            seen.acked.push((cid, ack.seq));
        }
        Say::Error(_) => {
            waiting.remove(&frame.id);
        }
        Say::Push(push) => {
            return Some(Ask::Ack(pb::Ack { conversation: push.conversation, seq: push.seq }));
        }
        Say::Ping(_) => return Some(Ask::Pong(pb::Pong::default())),
        Say::GoAway(away) => {
            let end = Duration::from_millis(u64::from(away.after_ms) + u64::from(away.window_ms));
            seen.told = Some((Instant::now(), end));
        }
        Say::Close(_) => {
            seen.closed = Some(Instant::now());
            return Some(Ask::Bye(pb::Bye::default()));
        }
        _ => {}
    }
    None
}

fn report(plan: &Plan, settings: &Settings, seen: &[Seen], signalled: Instant, took: Duration) {
    let mut ends: Vec<Duration> =
        seen.iter().filter_map(|it| Some(it.closed?.saturating_duration_since(signalled))).collect();
    ends.sort_unstable();
    let (first, last) = (ends.first().copied().unwrap_or_default(), ends.last().copied().unwrap_or_default());
    let span = last.saturating_sub(first).as_secs_f64();
    let pause = ends.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max().unwrap_or_default();
    let mut from = 0;
    let mut busiest = 0;
    for (at, end) in ends.iter().enumerate() {
        while *end - ends[from] >= Duration::from_secs(1) {
            from += 1;
        }
        busiest = busiest.max(at + 1 - from);
    }
    let mut off: Vec<f64> = (seen.iter())
        .filter_map(|it| {
            let ((told, end), closed) = (it.told?, it.closed?);
            Some(closed.saturating_duration_since(told).as_secs_f64() * 1e3 - end.as_secs_f64() * 1e3)
        })
        .collect();
    off.sort_unstable_by(f64::total_cmp);
    let untold = seen.iter().filter(|it| it.told.is_none()).count();
    let slowest = seen.iter().map(|it| it.slowest).max().unwrap_or_default();
    println!("                     planned      seen");
    println!(
        "clients a second  {:>10} {:>9.0}   (most in one second: {busiest})",
        plan.rate,
        ends.len() as f64 / span.max(1e-3)
    );
    println!("first to last     {:>8.1} s {span:>7.1} s", plan.window.as_secs_f64());
    println!(
        "whole drain       {:>8.1} s {:>7.1} s   (planned: at most)",
        plan.deadline.min(settings.deadline).as_secs_f64(),
        took.as_secs_f64()
    );
    println!(
        "longest pause between two closes {} ms; slowest ack {} ms",
        pause.as_millis(),
        slowest.as_millis()
    );
    if let (Some(early), Some(late)) = (off.first(), off.last()) {
        let middle = off[off.len() / 2];
        println!(
            "closed after the end of the slot told: first {early:.0} ms, median {middle:.0} ms, last {late:.0} ms; {untold} not told"
        );
    }
}

/// How many acked messages are not in the store at their seq.
async fn lost(directory: &Path, seen: &[Seen]) -> anyhow::Result<usize> {
    let names: Vec<String> = (0..seen.len()).map(name).collect();
    let users: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    let mut history = History::default();
    rows::read(&rows::embedded(directory)?, &users, &mut history).await?;
    let mut stored = HashMap::new();
    for stamped in &history.events {
        if let Event::LogMessage { cid, seq, .. } = stamped.event {
            stored.insert(history.name(cid), seq);
        }
    }
    let acked = seen.iter().flat_map(|it| &it.acked);
    Ok(acked.filter(|(cid, seq)| stored.get(cid.as_str()) != Some(seq)).count())
}

fn verdict(seen: &[Seen], lost: usize, status: ExitStatus) -> anyhow::Result<()> {
    let acked: usize = seen.iter().map(|it| it.acked.len()).sum();
    let unanswered: usize = seen.iter().map(|it| it.unanswered).sum();
    let silent = seen.iter().filter(|it| it.closed.is_none()).count();
    let code = status.code().map_or_else(|| status.to_string(), |code| code.to_string());
    println!(
        "{acked} acked, {lost} of them lost; {unanswered} sends without an answer; {silent} ended without a word; exit code {code}"
    );
    if lost > 0 || silent > 0 || code != "0" {
        bail!("the drain broke a promise");
    }
    Ok(())
}
