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
use tidegate::{auth, config::Config};
use tidegate_protocol::{
    codec::Wire,
    content::Content,
    machine::drain::{self, Plan, Settings},
    pb::{self, client_frame::Body as ClientBody, server_frame::Body as ServerBody},
};
use tokio::time::{Instant as At, sleep_until, timeout};

use super::process::Process;
use crate::{
    checker::{History, HistoryEvent},
    link::ClientSocket,
    node_store, rows,
};

/// Concurrent logins.
const LOGINS: usize = 100;

/// How long all clients talk before the signal.
const TALK_TIME: Duration = Duration::from_secs(6);

/// How long a login may take.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(20);

/// A send that is older than this when the connection closes was read by the node, which has to answer it.
const CROSSING_AGE_MAX: Duration = Duration::from_secs(1);

/// Window over which the pace is judged: in a shorter one, a client that was not scheduled looks like a storm.
pub(super) const PACE_WINDOW: Duration = Duration::from_secs(5);

/// Largest accepted pace of closes, relative to the plan.
pub(super) const PACE_MAX: f64 = 1.2;

/// State that all clients share.
struct Shared {
    address: SocketAddr,
    key: Vec<u8>,
    clients: usize,
    /// Time between two messages of one client.
    pace: Duration,
}

/// Observations of one client.
#[derive(Default)]
struct Seen {
    acked: Vec<(String, u64)>,
    /// The longest time from a send to its ack.
    slowest: Duration,
    /// Sends without an answer, and how long they had waited at the end.
    unanswered: Vec<(String, Duration)>,
    /// Time of the `goAway`, and the announced time from then to the end of the connection.
    announced: Option<(Instant, Duration)>,
    /// Time of the `close`; `None` if the connection ended without one.
    closed: Option<Instant>,
}

fn name(index: usize) -> String {
    format!("u{index}")
}

/// Runs a node with `clients` who send `rate` messages a second, and drains it.
///
/// # Errors
/// Fails when an ack is lost, a connection ends without a `close`, or the exit code is not 0.
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
    tokio::time::sleep(TALK_TIME).await;
    let signalled = Instant::now();
    let status = process.terminate().await?;
    let took = signalled.elapsed();
    process.check_log()?;
    let mut seen = Vec::with_capacity(clients);
    for task in tasks {
        seen.push(timeout(LOGIN_TIMEOUT, task).await.context("a client goes on without a node")??);
    }
    let settings = Config::load(None, &[])?.drain_settings();
    let plan = drain::plan(clients, &settings);
    let ends = ends(&seen, signalled);
    report(&plan, &settings, &seen, &ends, took);
    let stored = stored(directory, clients).await?;
    verdict(&seen, &stored, fastest(&ends, &plan), status)
}

async fn login(shared: Arc<Shared>, index: usize) -> anyhow::Result<(usize, ClientSocket)> {
    let token = auth::sign(&shared.key, &name(index), None, Duration::from_secs(3_600));
    let hello = pb::Hello { token, device: "dev".into(), ..Default::default() };
    let login = ClientSocket::log_in(shared.address, Wire::ALL[index % Wire::ALL.len()], hello);
    let link = timeout(LOGIN_TIMEOUT, Box::pin(login)).await.context("the login takes too long")?;
    Ok((index, link.with_context(|| format!("client {index}"))?))
}

/// Talks to its neighbour until the node ends the connection.
async fn live(shared: Arc<Shared>, index: usize, mut link: ClientSocket) -> Seen {
    let mut seen = Seen::default();
    let mut waiting: HashMap<u64, (String, Instant)> = HashMap::new();
    // The clients do not start at the same time.
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
                pb::ClientFrame { id: number, body: Some(ClientBody::Send(send)) }
            }
            Some(Err(_)) => break,
            Some(Ok(frame)) => match handle_frame(&mut seen, &mut waiting, frame) {
                Some(ClientBody::Bye(_)) => break,
                Some(body) => pb::ClientFrame { id: 0, body: Some(body) },
                None => continue,
            },
        };
        // A failed write is followed by a failed read.
        link.send(&[answer]).await.ok();
    }
    let end = seen.closed.unwrap_or_else(Instant::now);
    let waited = |(cid, since)| (cid, end.saturating_duration_since(since));
    seen.unanswered = waiting.into_values().map(waited).collect();
    seen
}

/// Notes a frame of the node. Returns the reply to send; `Bye` means that this was the last frame.
fn handle_frame(
    seen: &mut Seen,
    waiting: &mut HashMap<u64, (String, Instant)>,
    frame: pb::ServerFrame,
) -> Option<ClientBody> {
    match frame.body? {
        ServerBody::SendAck(ack) => {
            let (cid, since) = waiting.remove(&frame.id)?;
            seen.slowest = seen.slowest.max(since.elapsed());
            seen.acked.push((cid, ack.seq));
        }
        ServerBody::Error(_) => {
            waiting.remove(&frame.id);
        }
        ServerBody::Push(push) => {
            return Some(ClientBody::Ack(pb::Ack { conversation: push.conversation, seq: push.seq }));
        }
        ServerBody::Ping(_) => return Some(ClientBody::Pong(pb::Pong::default())),
        ServerBody::GoAway(away) => {
            let end = Duration::from_millis(u64::from(away.after_ms) + u64::from(away.window_ms));
            seen.announced = Some((Instant::now(), end));
        }
        ServerBody::Close(_) => {
            seen.closed = Some(Instant::now());
            return Some(ClientBody::Bye(pb::Bye::default()));
        }
        _ => {}
    }
    None
}

/// Returns the times of the closes after the signal, in order.
fn ends(seen: &[Seen], signalled: Instant) -> Vec<Duration> {
    let mut ends: Vec<Duration> =
        seen.iter().filter_map(|it| Some(it.closed?.saturating_duration_since(signalled))).collect();
    ends.sort_unstable();
    ends
}

/// Returns the largest number of these times within a window.
pub(super) fn busiest(ends: &[Duration], over: Duration) -> usize {
    let (mut from, mut most) = (0, 0);
    for (at, end) in ends.iter().enumerate() {
        while *end - ends[from] >= over {
            from += 1;
        }
        most = most.max(at + 1 - from);
    }
    most
}

/// Returns the fastest pace relative to the plan; `None` when all clients are closed within a second.
fn fastest(ends: &[Duration], plan: &Plan) -> Option<f64> {
    let over = plan.window.min(PACE_WINDOW).as_secs_f64();
    let most = busiest(ends, Duration::from_secs_f64(over)) as f64;
    (over >= 1.0).then(|| most / over / f64::from(plan.rate))
}

fn report(plan: &Plan, settings: &Settings, seen: &[Seen], ends: &[Duration], took: Duration) {
    let (first, last) = (ends.first().copied().unwrap_or_default(), ends.last().copied().unwrap_or_default());
    let span = last.saturating_sub(first).as_secs_f64();
    let pause = ends.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max().unwrap_or_default();
    let busiest = busiest(ends, Duration::from_secs(1));
    let mut off: Vec<f64> = (seen.iter())
        .filter_map(|it| {
            let ((announced, end), closed) = (it.announced?, it.closed?);
            Some(closed.saturating_duration_since(announced).as_secs_f64() * 1e3 - end.as_secs_f64() * 1e3)
        })
        .collect();
    off.sort_unstable_by(f64::total_cmp);
    let unannounced = seen.iter().filter(|it| it.announced.is_none()).count();
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
            "closed after the end of the announced slot: first {early:.0} ms, median {middle:.0} ms, last {late:.0} ms; {unannounced} not announced"
        );
    }
}

/// Returns the seqs in the store, by message.
async fn stored(directory: &Path, clients: usize) -> anyhow::Result<HashMap<String, u64>> {
    let names: Vec<String> = (0..clients).map(name).collect();
    let users: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    let mut history = History::default();
    rows::read(&node_store::open(directory)?, &users, &mut history).await?;
    let mut stored = HashMap::new();
    for stamped in &history.events {
        if let HistoryEvent::LogMessage { cid, seq, .. } = stamped.event {
            stored.insert(history.name(cid).to_owned(), seq);
        }
    }
    Ok(stored)
}

fn verdict(
    seen: &[Seen],
    stored: &HashMap<String, u64>,
    pace: Option<f64>,
    status: ExitStatus,
) -> anyhow::Result<()> {
    let acked: usize = seen.iter().map(|it| it.acked.len()).sum();
    let all = seen.iter().flat_map(|it| &it.acked);
    let lost = all.filter(|(cid, seq)| stored.get(cid) != Some(seq)).count();
    // The node had not read a send that crossed the close. It answers all that it has read.
    let (forgotten, crossed): (Vec<_>, Vec<_>) = (seen.iter().flat_map(|it| &it.unanswered))
        .partition(|(cid, waited)| *waited > CROSSING_AGE_MAX || stored.contains_key(cid));
    let silent = seen.iter().filter(|it| it.closed.is_none()).count();
    let code = status.code().map_or_else(|| status.to_string(), |code| code.to_string());
    let (forgotten, crossed) = (forgotten.len(), crossed.len());
    println!(
        "{acked} acked, {lost} of them lost; {forgotten} sends without an answer, {crossed} crossed the close; {silent} ended without a word; exit code {code}"
    );
    let too_fast = pace.is_some_and(|pace| pace > PACE_MAX);
    if lost > 0 || forgotten > 0 || silent > 0 || too_fast || code != "0" {
        let pace = pace.map_or("not judged".to_owned(), |pace| format!("{pace:.2} × the plan"));
        bail!(
            "the drain broke a promise: {lost} lost, {forgotten} unanswered, {silent} without a word, pace {pace}, exit code {code}"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Ten clients with an ack each, and a store that has them.
    fn gone() -> (Vec<Seen>, HashMap<String, u64>) {
        let seen = |n: u64| Seen {
            acked: vec![(format!("{n}-2"), n)],
            closed: Some(Instant::now()),
            ..Seen::default()
        };
        ((0..10).map(seen).collect(), (0..10).map(|n| (format!("{n}-2"), n)).collect())
    }

    fn broken(change: impl FnOnce(&mut Vec<Seen>, &mut HashMap<String, u64>), pace: f64, code: i32) -> bool {
        let (mut seen, mut stored) = gone();
        change(&mut seen, &mut stored);
        verdict(&seen, &stored, Some(pace), ExitStatus::from_raw(code << 8)).is_err()
    }

    #[test]
    fn each_broken_promise_of_a_drain_fails() {
        assert!(!broken(|_, _| {}, 1.1, 0));
        assert!(broken(|_, stored| _ = stored.remove("3-2"), 1.1, 0), "lost");
        assert!(broken(|_, stored| _ = stored.insert("3-2".into(), 9), 1.1, 0), "renumbered");
        assert!(broken(|seen, _| seen[4].closed = None, 1.1, 0), "without a word");
        assert!(broken(|_, _| {}, 1.1, 3), "cut at the deadline");
        assert!(broken(|_, _| {}, 1.3, 0), "a storm");
        let waits = |waited| {
            move |seen: &mut Vec<Seen>, _: &mut HashMap<String, u64>| {
                seen[5].unanswered.push(("5-3".into(), waited))
            }
        };
        assert!(broken(waits(1_001 * MS), 1.1, 0), "it was read long ago");
        assert!(!broken(waits(20 * MS), 1.1, 0), "it crossed the close");
        let accepted = |seen: &mut Vec<Seen>, stored: &mut HashMap<String, u64>| {
            waits(20 * MS)(seen, stored);
            stored.insert("5-3".into(), 11);
        };
        assert!(broken(accepted, 1.1, 0), "accepted, and not said");
    }

    #[test]
    fn the_pace_is_judged_where_it_is_fastest() {
        let settings = Config::default().drain_settings();
        let plan = drain::plan(10_000, &settings);
        let step = plan.window / 10_000;
        let even: Vec<Duration> = (0..10_000).map(|n| step * n).collect();
        let pace_of = |ends: &[Duration]| fastest(ends, &plan).expect("it takes seconds");
        assert!((0.95..1.05).contains(&pace_of(&even)), "{}", pace_of(&even));
        // A third of them at once, the others at the planned pace.
        let storm: Vec<Duration> = (0..10_000_u32).map(|n| step * n.saturating_sub(3_333)).collect();
        assert!(pace_of(&storm) > PACE_MAX, "{}", pace_of(&storm));
        assert_eq!(fastest(&even[..20], &drain::plan(20, &settings)), None, "too short to tell");
    }
}
