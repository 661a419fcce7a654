//! A client of a rolling restart: writes to its neighbour one message after the other, reads those of its other
//! neighbour, and moves where the nodes send it.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use parking_lot::{Mutex, MutexGuard};
use tidegate::{
    auth,
    cli::assign::{Assigned, host_port},
};
use tidegate_protocol::{
    Code,
    codec::Wire,
    content::{Content, ContentBody},
    pb::{self, client_frame::Body as ClientBody, server_frame::Body as ServerBody},
};
use tokio::{
    task::JoinSet,
    time::{Instant as At, sleep, sleep_until, timeout},
};

use crate::{chaos::world::direct, link::ClientSocket};

/// How long a login may take.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(20);
/// Time after which a send without an answer is repeated under its id.
const RESEND_DELAY: Duration = Duration::from_secs(8);
/// Interval between two pulls of missing messages.
const PULL_INTERVAL: Duration = Duration::from_millis(500);
/// Interval at which a client that lacks nothing checks whether all clients have to be complete by now.
const COMPLETION_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Delay before another login, as the protocol asks: doubled each time up to the maximum, with full jitter.
const LOGIN_RETRY_DELAY: Duration = Duration::from_millis(500);
const LOGIN_RETRY_DELAY_MAX: Duration = Duration::from_secs(20);
/// Messages of one pull.
const PAGE: u32 = 100;
/// Request id of a pull.
const PULL: u64 = 1;
/// One of this many clients ignores `goAway`, as old clients do, and stays until it is closed.
const DEAF: usize = 10;

/// State that all clients share.
pub(super) struct Shared {
    pub(super) key: Vec<u8>,
    pub(super) clients: usize,
    /// Time between two messages of one client.
    pub(super) pace: Duration,
    /// Client addresses of the running nodes.
    pub(super) client_addresses: Mutex<Vec<SocketAddr>>,
    /// Whether clients send nothing new any more.
    pub(super) quiet: AtomicBool,
    /// Last acked number, by client.
    pub(super) acked: Vec<AtomicU64>,
    /// Seq up to which a client has everything that was sent to it, by client.
    pub(super) got: Vec<AtomicU64>,
    pub(super) noted: Mutex<Noted>,
    /// Whether a client is logged in, by client.
    pub(super) online: Vec<AtomicBool>,
    pub(super) began: Instant,
}

/// Observations of all clients.
#[derive(Default)]
pub(super) struct Noted {
    /// Times of the logins that followed a `goAway` or a close, from the start of the run.
    pub(super) arrivals: Vec<Duration>,
    /// Longest time without a connection: of clients that move as announced, and of those that ignore `goAway`.
    pub(super) pause: [Duration; 2],
    /// Moves with both connections open, and logins after a connection had ended.
    pub(super) moves: [u64; 2],
    /// Longest time from a send to its ack, and the time of that ack from the start of the run.
    pub(super) slowest: (Duration, Duration),
    /// Longest login, and its time from the start of the run.
    pub(super) login: (Duration, Duration),
    /// Pushes of messages that the client had already.
    pub(super) repeated: u64,
    /// Descriptions of broken promises.
    pub(super) broken: Vec<String>,
}

impl Shared {
    pub(super) fn noted(&self) -> MutexGuard<'_, Noted> {
        self.noted.lock()
    }

    pub(super) fn client_addresses(&self) -> MutexGuard<'_, Vec<SocketAddr>> {
        self.client_addresses.lock()
    }

    fn breaks(&self, what: String) {
        self.noted().broken.push(what);
    }
}

pub(super) fn name(index: usize) -> String {
    format!("u{index}")
}

/// The message in flight. The next one follows its ack, so its number is its seq.
struct Flight {
    number: u64,
    attempt: u32,
    since: Instant,
    /// Time of the next attempt if no answer comes.
    due: At,
}

struct Client {
    shared: Arc<Shared>,
    index: usize,
    peer: String,
    incoming: String,
    flight: Option<Flight>,
    next: At,
    got: u64,
    /// Seqs above a hole.
    beyond: BTreeMap<u64, ()>,
    asked: Option<Instant>,
    pull: bool,
    /// Time since which there is no connection.
    away: Option<Instant>,
}

/// The login on the next node, if one is in progress.
type Moving = JoinSet<anyhow::Result<ClientSocket>>;

/// Logs in, and runs until it is dropped.
pub(super) async fn run(shared: Arc<Shared>, index: usize) {
    let (clients, pace) = (shared.clients, shared.pace);
    let [peer, from] = [(index + 1) % clients, (index + clients - 1) % clients].map(name);
    let next = At::now() + pace.mul_f64(index as f64 / clients as f64);
    let incoming = direct(&from, &name(index));
    let mut client = Client {
        shared,
        index,
        peer,
        incoming,
        flight: None,
        next,
        got: 0,
        beyond: BTreeMap::new(),
        asked: None,
        pull: true,
        away: None,
    };
    let mut link = client.come_in().await;
    loop {
        link = match Box::pin(client.talk(link)).await {
            Ok(there) => there,
            Err(why) => {
                tracing::debug!(index, %why, "a connection ended");
                client.away.get_or_insert_with(Instant::now);
                client.shared.online[index].store(false, Ordering::Release);
                client.come_in().await
            }
        };
    }
}

impl Client {
    fn is_deaf(&self) -> bool {
        self.index % DEAF == DEAF - 1
    }

    /// Asks for an address and logs in there, until that succeeds.
    async fn come_in(&mut self) -> ClientSocket {
        let mut wait = LOGIN_RETRY_DELAY;
        loop {
            if let Ok(link) = self.try_to_come_in().await {
                self.arrived(1);
                return link;
            }
            sleep(wait.mul_f64(rand::random())).await;
            wait = (wait * 2).min(LOGIN_RETRY_DELAY_MAX);
        }
    }

    async fn try_to_come_in(&self) -> anyhow::Result<ClientSocket> {
        let mut client_addresses: Vec<String> =
            self.shared.client_addresses().iter().map(ToString::to_string).collect();
        let turn = rand::random_range(0..client_addresses.len().max(1));
        client_addresses.rotate_left(turn);
        let token = token(&self.shared, self.index);
        let assigned = Assigned::ask(&client_addresses, &token, "").await?;
        let addresses = assigned.addresses.into_iter().map(|place| place.address).collect();
        log_in(Arc::clone(&self.shared), self.index, addresses).await
    }

    /// Notes a login.
    fn arrived(&mut self, how: usize) {
        let shared = Arc::clone(&self.shared);
        let is_first = !shared.online[self.index].load(Ordering::Acquire) && self.away.is_none();
        let mut noted = shared.noted();
        if let Some(away) = self.away.take() {
            let pause = &mut noted.pause[usize::from(self.is_deaf())];
            *pause = (*pause).max(away.elapsed());
        }
        if !is_first {
            noted.arrivals.push(shared.began.elapsed());
            noted.moves[how] += 1;
        }
        drop(noted);
        // Last, because `until` reads the notes once all clients are online.
        shared.online[self.index].store(true, Ordering::Release);
        (self.pull, self.asked) = (true, None);
        if let Some(flight) = &mut self.flight {
            flight.due = At::now();
        }
    }

    /// Talks until the connection ends, or until the next one is open.
    async fn talk(&mut self, mut link: ClientSocket) -> anyhow::Result<ClientSocket> {
        let mut moving = Moving::new();
        loop {
            self.speak(&mut link).await?;
            let wake = self.flight.as_ref().map_or(self.next, |flight| flight.due);
            let wake = wake.min(At::now() + self.look_after());
            tokio::select! {
                frame = link.next() => {
                    let Some(body) = self.handle_frame(frame, &mut link).await? else { continue };
                    match body {
                        ServerBody::GoAway(away) if !self.is_deaf() && !away.alternates.is_empty() => {
                            moving = self.set_out(away);
                        }
                        ServerBody::Close(close) => return self.closed(&close, moving).await,
                        _ => {}
                    }
                }
                there = arrival(&mut moving) => {
                    if let Ok(there) = there {
                        self.arrived(0);
                        return Ok(there);
                    }
                }
                () = sleep_until(wake) => {}
            }
        }
    }

    /// Returns the time to the next check for missing messages. Thousands of frequent checks would be a load of their
    /// own.
    fn look_after(&self) -> Duration {
        let soon = self.pull || !self.beyond.is_empty() || self.shared.quiet.load(Ordering::Acquire);
        if soon { PULL_INTERVAL } else { COMPLETION_CHECK_INTERVAL }
    }

    fn set_out(&self, away: pb::GoAway) -> Moving {
        let mut moving = Moving::new();
        let wait = u64::from(away.after_ms) + rand::random_range(0..=u64::from(away.window_ms) / 2);
        let (shared, index) = (Arc::clone(&self.shared), self.index);
        moving.spawn(async move {
            sleep(Duration::from_millis(wait)).await;
            log_in(shared, index, away.alternates).await
        });
        moving
    }

    /// Handles a `close`, which comes at best because the new connection has taken over.
    async fn closed(&mut self, close: &pb::Close, mut moving: Moving) -> anyhow::Result<ClientSocket> {
        self.away = Some(Instant::now());
        if close.code == u32::from(Code::Replaced.number()) {
            if !moving.is_empty()
                && let Ok(there) = arrival(&mut moving).await
            {
                self.arrived(0);
                return Ok(there);
            }
        } else if moving.is_empty() {
            sleep(Duration::from_millis(close.after_ms.into())).await;
        }
        bail!("closed: {}", close.name)
    }

    /// Sends what is due, and pulls what is missing.
    async fn speak(&mut self, link: &mut ClientSocket) -> anyhow::Result<()> {
        let mut frames = Vec::new();
        let now = At::now();
        if self.flight.is_none() && now >= self.next && !self.shared.quiet.load(Ordering::Acquire) {
            self.next = (self.next + self.shared.pace).max(now);
            let number = self.shared.acked[self.index].load(Ordering::Acquire) + 1;
            self.flight = Some(Flight { number, attempt: 0, since: Instant::now(), due: now });
        }
        if let Some(flight) = self.flight.as_mut().filter(|flight| flight.due <= now) {
            flight.due = now + RESEND_DELAY;
            let send = pb::Send {
                to_user: self.peer.clone(),
                msg_id: format!("{}-{}", self.index, flight.number),
                attempt: flight.attempt,
                content: Some(Content::text(flight.number.to_string())),
                ..Default::default()
            };
            flight.attempt += 1;
            frames.push(pb::ClientFrame { id: 10 + flight.number, body: Some(ClientBody::Send(send)) });
        }
        let sender = (self.index + self.shared.clients - 1) % self.shared.clients;
        let lacks = self.got < self.shared.acked[sender].load(Ordering::Acquire);
        let may_ask = self.asked.is_none_or(|then| then.elapsed() >= PULL_INTERVAL);
        let quiet = self.shared.quiet.load(Ordering::Acquire);
        if may_ask && (self.pull || !self.beyond.is_empty() || (quiet && lacks)) {
            (self.pull, self.asked) = (false, Some(Instant::now()));
            let (conversation, direction) = (self.incoming.clone(), pb::Direction::Forward.into());
            let pull =
                pb::Pull { conversation, cursor: self.got, limit: PAGE, direction, ..Default::default() };
            frames.push(pb::ClientFrame { id: PULL, body: Some(ClientBody::Pull(pull)) });
        }
        link.send(&frames).await
    }

    /// Handles a frame. Returns a body that the connection has to act on.
    async fn handle_frame(
        &mut self,
        frame: anyhow::Result<pb::ServerFrame>,
        link: &mut ClientSocket,
    ) -> anyhow::Result<Option<ServerBody>> {
        let frame = frame.inspect_err(|_| self.away = Some(Instant::now()))?;
        match frame.body {
            Some(ServerBody::SendAck(ack)) => self.acked(&ack),
            Some(ServerBody::Error(error)) if frame.id > 10 => self.refused(&error),
            Some(ServerBody::Push(push)) => {
                self.take(&push);
                let ack = pb::Ack { conversation: push.conversation, seq: push.seq };
                link.send(&[pb::ClientFrame { id: 0, body: Some(ClientBody::Ack(ack)) }]).await?;
            }
            Some(ServerBody::Page(page)) => {
                self.pull |= page.messages.len() >= PAGE as usize;
                page.messages.iter().for_each(|push| self.take(push));
                if self.pull {
                    self.asked = None;
                }
            }
            Some(ServerBody::Behind(_)) => self.pull = true,
            Some(ServerBody::Ping(_)) => {
                link.send(&[pb::ClientFrame {
                    id: frame.id,
                    body: Some(ClientBody::Pong(pb::Pong::default())),
                }])
                .await?;
            }
            body => return Ok(body),
        }
        Ok(None)
    }

    fn acked(&mut self, ack: &pb::SendAck) {
        let Some(flight) = self.flight.take_if(|it| ack.msg_id == format!("{}-{}", self.index, it.number))
        else {
            return;
        };
        self.shared.acked[self.index].store(flight.number, Ordering::Release);
        let mut noted = self.shared.noted();
        let took = flight.since.elapsed();
        if took > noted.slowest.0 {
            noted.slowest = (took, self.shared.began.elapsed());
        }
        drop(noted);
        if ack.seq != flight.number {
            self.shared.breaks(format!("{} is acked with seq {}", ack.msg_id, ack.seq));
        }
    }

    fn refused(&mut self, error: &pb::Error) {
        if !error.temporary && error.code != u32::from(Code::Unknown.number()) {
            self.shared.breaks(format!(
                "{}: a send is refused permanently: {}",
                name(self.index),
                error.name
            ));
        }
        if let Some(flight) = &mut self.flight {
            flight.due = At::now() + Duration::from_millis(error.retry_after_ms.clamp(50, 2_000).into());
        }
    }

    /// Takes a message of the other neighbour; the text of the n-th is n.
    fn take(&mut self, push: &pb::Push) {
        if push.conversation != self.incoming {
            return;
        }
        let said = match push.content.as_ref().and_then(|content| content.body.as_ref()) {
            Some(ContentBody::Text(text)) => text.parse().unwrap_or(0),
            _ => 0,
        };
        if said != push.seq {
            self.shared.breaks(format!("{}: seq {} says {said}", self.incoming, push.seq));
        }
        if push.seq <= self.got || self.beyond.insert(push.seq, ()).is_some() {
            self.shared.noted().repeated += 1;
            return;
        }
        while self.beyond.remove(&(self.got + 1)).is_some() {
            self.got += 1;
        }
        self.shared.got[self.index].store(self.got, Ordering::Release);
    }
}

/// Returns the new connection; waits forever if there is none in progress.
async fn arrival(moving: &mut Moving) -> anyhow::Result<ClientSocket> {
    match moving.join_next().await {
        Some(there) => there.context("the way was given up")?,
        None => std::future::pending().await,
    }
}

fn token(shared: &Shared, index: usize) -> String {
    auth::sign(&shared.key, &name(index), None, Duration::from_secs(86_400))
}

/// Logs in at the first address that accepts the client.
async fn log_in(shared: Arc<Shared>, index: usize, addresses: Vec<String>) -> anyhow::Result<ClientSocket> {
    let mut why = anyhow::anyhow!("no node takes newcomers");
    for address in &addresses {
        let began = Instant::now();
        let there = timeout(LOGIN_TIMEOUT, Box::pin(log_in_at(&shared, index, address))).await;
        let (took, mut noted) = (began.elapsed(), shared.noted());
        if took > noted.login.0 {
            noted.login = (took, shared.began.elapsed());
        }
        drop(noted);
        match there.context("the login takes too long").and_then(|it| it) {
            Ok(link) => return Ok(link),
            Err(error) => why = error,
        }
    }
    Err(why)
}

async fn log_in_at(shared: &Shared, index: usize, address: &str) -> anyhow::Result<ClientSocket> {
    let hello = pb::Hello { token: token(shared, index), device: "dev".into(), ..Default::default() };
    ClientSocket::log_in(host_port(address)?.parse()?, Wire::ALL[index % Wire::ALL.len()], hello).await
}
