//! The pause of a conversation when the node that owns its partition dies, and when it stops by plan.

use super::Sink;
use crate::{
    bench::{
        Args,
        admin::token,
        child::{Launcher, Server},
        report::{FigureTarget, Section},
        test_bed::TestBed,
    },
    link::ClientSocket,
};
use anyhow::{Context as _, Result, bail, ensure};
use std::{
    net::SocketAddr,
    path::Path,
    time::{Duration, Instant},
};
use tidegate_protocol::{
    codec::Wire,
    content::Content,
    pb::{self, client_frame::Body as ClientBody, server_frame::Body as ServerBody},
};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{MissedTickBehavior, interval, sleep, timeout},
};

const NODES: usize = 3;
/// Time for which senders run before and after an event.
const STEADY_TIME: Duration = Duration::from_secs(3);
/// Longest pause; a longer one is a failure.
const PAUSE_MAX: Duration = Duration::from_secs(40);
/// Time between two messages of a sender.
const SEND_INTERVAL: Duration = Duration::from_millis(100);
const LOGIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Parameters of the scenario.
pub(super) struct Load<'a> {
    pub(super) services: &'a Path,
    pub(super) senders: usize,
    pub(super) partitions: u32,
}

/// Adds one section.
pub(super) fn run(launcher: &Launcher, args: &Args, what: &Load<'_>, out: Sink<'_>) -> Result<()> {
    let Load { services, senders, partitions } = *what;
    ensure!(senders > 0, "at least one sender");
    let test_bed = TestBed::make(services, launcher, NODES, partitions)?;
    let mut servers = Vec::new();
    for nth in 1..=NODES {
        servers.push(test_bed.start(launcher, nth, &[])?);
    }
    let (mut crashes, mut plans, mut owned) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..2 * args.rounds {
        let owns = test_bed.settle(&servers.iter().collect::<Vec<_>>())?;
        owned.push(owns[NODES - 1] as f64);
        let victim = servers.pop().context("no node")?;
        let addresses = addresses(&servers)?;
        let key = test_bed.key()?;
        let is_crash = round % 2 == 0;
        let end = || match is_crash {
            true => victim.kill(),
            // Dropping it asks the node to end, and waits for that.
            false => {
                drop(victim);
                Ok(())
            }
        };
        let watch = Box::pin(watch_end(&addresses, &key, senders, round, end));
        let pause = test_bed.runtime.block_on(watch)?;
        eprintln!("{}: {:.2} s", if is_crash { "kill -9" } else { "SIGTERM" }, pause.as_secs_f64());
        let pauses = if is_crash { &mut crashes } else { &mut plans };
        pauses.push(pause.as_secs_f64());
        servers.push(test_bed.start(launcher, NODES, &[])?);
    }
    let session = test_bed.config.kafka.session_ms as f64 / 1e3;
    let title =
        format!("Take-over, {NODES} nodes, {partitions} partitions, {senders} senders on the other two");
    let mut section = Section::new(title);
    let times: Vec<f64> = crashes.iter().map(|pause| pause / session).collect();
    section.rounds("longest pause of a sender after kill -9 of an owner / session timeout", times, "x", None);
    let target = Some(FigureTarget::AtMost(session + 2.0));
    section.rounds("longest pause of a sender after kill -9 of an owner", crashes, "s", target);
    let target = Some(FigureTarget::AtMost(1.0));
    section.rounds("longest pause of a sender while an owner stops by plan", plans, "s", target);
    section.one("session timeout (kafka.session_ms)", session, "s", None);
    section.rounds("partitions of the node that ended", owned, "", None);
    section.note(format!(
        "Each sender writes to a conversation of its own every {} ms and never waits; a pause is the longest time between two acks of one \
         of them, from the end of a node on. So up to {} ms of it are the pace.",
        SEND_INTERVAL.as_millis(),
        SEND_INTERVAL.as_millis()
    ));
    out(section);
    Ok(())
}

fn addresses(servers: &[Server]) -> Result<Vec<SocketAddr>> {
    servers.iter().map(|server| server.address.parse().context("an address")).collect()
}

/// Signal to the senders: when the node ended, and whether they have to finish.
type SenderSignal = (Option<Instant>, bool);

/// Returns the longest pause of any sender after the end of the node.
async fn watch_end(
    addresses: &[SocketAddr],
    key: &[u8],
    count: usize,
    round: usize,
    end: impl FnOnce() -> Result<()>,
) -> Result<Duration> {
    let signal = watch::Sender::new((None, false));
    let mut senders: Vec<JoinHandle<Result<Duration>>> = Vec::new();
    for nth in 0..count {
        let name = format!("s{round}-{nth}");
        let login = Box::pin(Talker::login(addresses[nth % addresses.len()], key, name));
        let talker = timeout(LOGIN_TIMEOUT, login).await.context("the login takes too long")??;
        senders.push(tokio::spawn(talker.talk(signal.subscribe())));
    }
    sleep(STEADY_TIME).await;
    let from = Instant::now();
    signal.send_replace((Some(from), false));
    // This blocks only this thread.
    end()?;
    sleep(STEADY_TIME).await;
    signal.send_replace((Some(from), true));
    let mut longest = Duration::ZERO;
    for sender in senders {
        longest = longest.max(timeout(PAUSE_MAX, sender).await.context("there are no acks any more")???);
    }
    Ok(longest)
}

/// A sender that writes to its own conversation at its pace, without waiting for acks.
struct Talker {
    name: String,
    link: ClientSocket,
    requests: u64,
}

impl Talker {
    async fn login(address: SocketAddr, key: &[u8], name: String) -> Result<Self> {
        let hello = pb::Hello { token: token(key, &name), device: "bench".into(), ..Default::default() };
        let link = ClientSocket::log_in(address, Wire::Tcp, hello).await.with_context(|| name.clone())?;
        Ok(Self { name, link, requests: 1 })
    }

    /// Sends until a message is acked that was sent after the signal to finish. Returns the longest time without an
    /// ack.
    async fn talk(mut self, signal: watch::Receiver<SenderSignal>) -> Result<Duration> {
        let mut tick = interval(SEND_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut longest, mut last, mut over) = (Duration::ZERO, Instant::now(), None);
        loop {
            tokio::select! {
                _ = tick.tick() => {
                    if signal.borrow().1 {
                        over.get_or_insert(self.requests);
                    }
                    self.send().await?;
                }
                frame = self.link.next() => {
                    let frame = frame.with_context(|| self.name.clone())?;
                    match frame.body {
                        Some(ServerBody::SendAck(_)) => {}
                        Some(ServerBody::Close(close)) => bail!("{}: closed: {close:?}", self.name),
                        // A message that was temporarily refused, or is unknown, is not acked.
                        _ => continue,
                    }
                    let now = Instant::now();
                    if let Some(from) = signal.borrow().0 {
                        longest = longest.max(now - last.max(from));
                    }
                    last = now;
                    if over.is_some_and(|over| frame.id > over) {
                        return Ok(longest);
                    }
                }
            }
        }
    }

    async fn send(&mut self) -> Result<()> {
        self.requests += 1;
        let (id, name) = (self.requests, &self.name);
        let send = pb::Send {
            conversation: format!("d:{name}:x{name}"),
            msg_id: format!("m{id}"),
            content: Some(Content::text("still there?".to_owned())),
            ..Default::default()
        };
        self.link.send(&[pb::ClientFrame { id, body: Some(ClientBody::Send(send)) }]).await
    }
}
