//! A client: logs in, sends, acks, retries with the same id until it has an answer, and reconnects after each
//! disconnect.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use anyhow::{Context as _, bail};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tidegate::auth;
use tidegate_protocol::{
    Code,
    content::{self, Content},
    pb::{self, client_frame::Body as ClientBody, server_frame::Body as ServerBody},
};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::{
    reading::{self, Reading},
    sync_state::{RequestState, SyncState},
    world::{Device, Phase, World},
};
use crate::{
    checker::{HistoryEvent, Via},
    link::ClientSocket,
};

/// Most unanswered sends of a client while it talks.
const IN_FLIGHT: usize = 32;

/// How long a login may take before the client tries again.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(8);

/// Time without a frame after which the client drops the connection.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(12);

/// Interval at which a client sends acks, pings, retries, and at most one new message.
const TICK_INTERVAL: Duration = Duration::from_millis(20);

/// Ticks before a retry of a send that was temporarily refused.
const RETRY_TICKS: u64 = 10;

/// New messages that go to the room, in percent.
const TO_ROOM: u32 = 10;

/// Ticks in which a client leaves its room, per hundred thousand.
const LEAVES: u32 = 30;

/// Ticks in which a client of a cluster goes to another node, per ten thousand. Its sends are in flight then and its
/// old connection stays, so both nodes have the same ids.
const HOPS: u32 = 15;

/// Id of the request by which a client joins its room, after its `hello`.
const JOIN: u64 = 2;

/// How long the old connection stays open.
const OLD_CONNECTION_TIME: Duration = Duration::from_secs(2);

/// A message without an answer.
struct Unanswered {
    cid: String,
    /// Position in the chain, if the message is chained.
    number: Option<u64>,
    place: String,
    attempt: u32,
    /// Request id on this connection, and the tick from which the message may be sent; `None` while it waits for an
    /// answer.
    request: u64,
    due: Option<u64>,
}

struct Client {
    world: Arc<World>,
    index: usize,
    rng: StdRng,
    /// Numbers of the next message, and of the next one outside the chain.
    next: u64,
    next_loose: u64,
    unanswered: VecDeque<Unanswered>,
    sync_state: SyncState,
    /// Connections so far; each goes to the next client address.
    connects: usize,
}

/// State of one connection.
struct Session {
    number: u64,
    /// Index of the node.
    nth: usize,
    link: ClientSocket,
    ticks: u64,
    requests: u64,
    acks: BTreeMap<String, u64>,
    last_input: u64,
    /// Whether the client is in its room.
    inside: bool,
    request_state: RequestState,
    reading: Reading,
    hops: bool,
}

/// Runs a client until it is aborted.
pub(super) async fn run(world: Arc<World>, index: usize, seed: u64) {
    let rng = StdRng::seed_from_u64(seed);
    let (unanswered, sync_state) = (VecDeque::new(), SyncState::default());
    let mut client =
        Client { world, index, rng, next: 0, next_loose: 0, unanswered, sync_state, connects: index };
    loop {
        if let Err(error) = client.live().await {
            tracing::debug!(index, %error, "a connection ended");
        }
        client.me().waiting.store(usize::MAX, Ordering::Release);
        let wait = client.rng.random_range(5..150);
        tokio::time::sleep(Duration::from_millis(wait)).await;
    }
}

impl Client {
    fn me(&self) -> &Device {
        &self.world.clients[self.index]
    }

    /// Returns the id of a message of this client.
    fn id(&self, number: u64) -> String {
        format!("c{}.{number}", self.index)
    }

    fn say(&self, event: HistoryEvent<&str>) {
        self.world.recorder.add(event);
    }

    /// Runs one connection to its end.
    async fn live(&mut self) -> anyhow::Result<()> {
        let mut session =
            timeout(LOGIN_TIMEOUT, Box::pin(self.login())).await.context("the login takes too long")??;
        let number = session.number;
        let result = Box::pin(self.talk(&mut session)).await;
        if session.hops {
            tokio::spawn(async move {
                tokio::time::sleep(OLD_CONNECTION_TIME).await;
                drop(session);
            });
        }
        let code = result.as_ref().map_or(0, |code| *code);
        self.say(HistoryEvent::Close { session: number, code });
        // A message in flight may be stored or not: all of them go again, in order.
        for message in &mut self.unanswered {
            if message.due.is_none() {
                self.world.recorder.add(HistoryEvent::SendInfo { cid: message.cid.as_str() });
                message.attempt += 1;
            }
            message.due = Some(0);
        }
        result.map(|_| ())
    }

    async fn login(&mut self) -> anyhow::Result<Session> {
        self.connects += 1;
        let me = self.me();
        let nth = self.connects % self.world.client_addresses.len();
        let token = auth::sign(&self.world.key, &me.user, None, Duration::from_secs(86_400));
        let first = self.unanswered.iter().find_map(|message| message.number).unwrap_or(self.next);
        let next_id = if me.chained { self.id(first) } else { String::new() };
        let device = me.device.clone();
        let hello = pb::Hello { token, device, next_id, ..Default::default() };
        let mut link = ClientSocket::log_in(self.world.client_addresses[nth], me.wire, hello).await?;
        let number = self.world.next_session();
        self.say(HistoryEvent::Open { user: &self.me().user, device: &self.me().device, session: number });
        let room = self.me().room.clone();
        link.send(&[pb::ClientFrame { id: JOIN, body: Some(ClientBody::Join(pb::Join { room })) }]).await?;
        let (acks, request_state, reading) = (BTreeMap::new(), RequestState::default(), Reading::default());
        let (ticks, requests, last_input, inside, hops) = (0, JOIN, 0, true, false);
        Ok(Session {
            number,
            nth,
            link,
            ticks,
            requests,
            acks,
            last_input,
            inside,
            request_state,
            reading,
            hops,
        })
    }

    /// Talks until the connection breaks, or until the broker closes it: then returns its code.
    async fn talk(&mut self, session: &mut Session) -> anyhow::Result<u16> {
        let mut tick = interval(TICK_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut credit = 0.0;
        loop {
            self.me().waiting.store(self.unanswered.len() + self.sync_state.lacking(), Ordering::Release);
            tokio::select! {
                frame = session.link.next() => {
                    session.last_input = session.ticks;
                    if let Some(code) = self.hear(session, frame?) {
                        return Ok(code);
                    }
                }
                _ = tick.tick() => {
                    session.ticks += 1;
                    credit += TICK_INTERVAL.as_secs_f64() / self.world.pace.as_secs_f64();
                    self.compose(session, &mut credit);
                    self.wander(session).await?;
                    self.speak(session).await?;
                    self.ask(session).await?;
                    self.read(session).await?;
                    let is_talk = self.world.is_cluster() && self.world.phase() == Phase::Talk;
                    session.hops = is_talk && self.rng.random_ratio(HOPS, 10_000);
                    if session.hops {
                        bail!("it goes to another node");
                    }
                    let ticks = u32::try_from(session.ticks - session.last_input).unwrap_or(u32::MAX);
                    let silent = TICK_INTERVAL * ticks;
                    if silent > SILENCE_TIMEOUT {
                        bail!("no frame received for {silent:?}");
                    }
                }
            }
        }
    }

    /// Adds new messages, as the phase allows.
    fn compose(&mut self, session: &Session, credit: &mut f64) {
        match self.world.phase() {
            Phase::Talk => {
                while *credit >= 1.0 {
                    *credit -= 1.0;
                    if self.unanswered.len() >= IN_FLIGHT {
                        continue;
                    }
                    if session.inside && self.rng.random_ratio(TO_ROOM, 100) {
                        self.add_loose(format!("r:{}", self.me().room));
                    } else {
                        let place = self.rng.random_range(0..self.me().places.len());
                        self.add(self.me().places[place].clone());
                    }
                }
            }
            Phase::Settle | Phase::Check => {}
            Phase::Mark if self.me().marked.load(Ordering::Acquire) => {}
            Phase::Mark => {
                for place in self.me().places.clone() {
                    self.add(place);
                }
                // The client waits for these answers before it counts as marked.
                self.me().waiting.store(self.unanswered.len(), Ordering::Release);
                self.me().marked.store(true, Ordering::Release);
            }
        }
    }

    fn add(&mut self, place: String) {
        let number = self.next;
        self.next += 1;
        let chained = self.me().chained.then_some(number);
        self.push(self.id(number), chained, place);
    }

    /// Adds a message outside the chain, also for a client that chains its messages.
    fn add_loose(&mut self, place: String) {
        let cid = format!("r{}.{}", self.index, self.next_loose);
        self.next_loose += 1;
        self.push(cid, None, place);
    }

    fn push(&mut self, cid: String, number: Option<u64>, place: String) {
        self.unanswered.push_back(Unanswered { cid, number, place, attempt: 0, request: 0, due: Some(0) });
    }

    /// Leaves the room now and then, until the next connection.
    async fn wander(&mut self, session: &mut Session) -> anyhow::Result<()> {
        let leaves = session.inside && self.rng.random_ratio(LEAVES, 100_000);
        // A message in flight to the room would be permanently refused.
        let room = format!("r:{}", self.me().room);
        if !leaves || self.unanswered.iter().any(|message| message.place == room) {
            return Ok(());
        }
        session.inside = false;
        let room = self.me().room.clone();
        session
            .link
            .send(&[pb::ClientFrame {
                id: 0,
                body: Some(ClientBody::Leave(pb::Leave { room, ..Default::default() })),
            }])
            .await
    }

    /// Sends acks and all messages that are due.
    async fn speak(&mut self, session: &mut Session) -> anyhow::Result<()> {
        let mut frames = Vec::new();
        for (conversation, seq) in std::mem::take(&mut session.acks) {
            frames
                .push(pb::ClientFrame { id: 0, body: Some(ClientBody::Ack(pb::Ack { conversation, seq })) });
        }
        let me = &self.world.clients[self.index];
        for at in 0..self.unanswered.len() {
            let message = &mut self.unanswered[at];
            if message.due.is_none_or(|due| due > session.ticks) {
                continue;
            }
            session.requests += 1;
            (message.request, message.due) = (session.requests, None);
            let message = &self.unanswered[at];
            let text = text_of(&message.cid);
            // The next id skips messages that are already answered: a node that rebuilds a lost chain does not expect
            // them.
            let later = self.unanswered.iter().skip(at + 1).find_map(|message| message.number);
            let next_id = message.number.map_or_else(String::new, |_| self.id(later.unwrap_or(self.next)));
            self.say(HistoryEvent::SendInv {
                user: &me.user,
                device: &me.device,
                session: session.number,
                conv: &message.place,
                cid: &message.cid,
                body: super::rows::hash(&text),
                attempt: message.attempt,
                chained: message.number.is_some(),
            });
            let send = pb::Send {
                conversation: message.place.clone(),
                msg_id: message.cid.clone(),
                next_id,
                attempt: message.attempt,
                content: Some(Content::text(text)),
                ..Default::default()
            };
            frames.push(pb::ClientFrame { id: message.request, body: Some(ClientBody::Send(send)) });
        }
        session.link.send(&frames).await
    }

    /// Requests what the device does not know or have, and reports at the end that nothing is missing.
    async fn ask(&mut self, session: &mut Session) -> anyhow::Result<()> {
        let phase = self.world.phase();
        if phase == Phase::Check && session.request_state.is_checked() && self.sync_state.lacking() == 0 {
            let me = self.me();
            if !me.complete.swap(true, Ordering::AcqRel) {
                let hints = self.world.is_cluster();
                self.say(HistoryEvent::Complete { user: &me.user, device: &me.device, hints });
            }
        }
        session.requests += 1;
        let Some(body) = self.sync_state.next_request(&mut session.request_state, phase, session.requests)
        else {
            return Ok(());
        };
        if matches!(body, ClientBody::Sync(_)) {
            self.say(HistoryEvent::SyncInv { session: session.number });
        }
        session.link.send(&[pb::ClientFrame { id: session.requests, body: Some(body) }]).await
    }

    /// Moves a read mark now and then.
    async fn read(&mut self, session: &mut Session) -> anyhow::Result<()> {
        if self.world.phase() != Phase::Talk {
            return Ok(());
        }
        let Some((conv, seq)) = reading::choose(&self.sync_state, &mut self.rng) else { return Ok(()) };
        session.requests += 1;
        self.say(HistoryEvent::ReadInv { user: &self.me().user, conv: &conv, seq });
        let body = Some(session.reading.ask(session.requests, conv, seq));
        session.link.send(&[pb::ClientFrame { id: session.requests, body }]).await
    }

    /// Handles a frame. Returns the code when the broker closes the connection.
    fn hear(&mut self, session: &mut Session, frame: pb::ServerFrame) -> Option<u16> {
        let body = frame.body?;
        if let Some(event) = session.reading.hear(session.number, &self.me().user, frame.id, &body) {
            self.world.recorder.add(event);
        }
        if let Some(brought) = self.sync_state.receive(&mut session.request_state, frame.id, &body) {
            brought.iter().for_each(|push| self.received(session, push, Via::Pull));
            return None;
        }
        match body {
            ServerBody::Push(push) => self.take(session, &push),
            ServerBody::SendAck(ack) => {
                let mine = self.unanswered.iter().find(|message| message.request == frame.id);
                // Rooms store nothing.
                let place =
                    mine.map(|message| message.place.clone()).filter(|place| !place.starts_with("r:"));
                if let Some(place) = place {
                    self.sync_state.add(&place, ack.seq);
                }
                self.say(HistoryEvent::SendOk { cid: &ack.msg_id, seq: ack.seq, duplicate: ack.duplicate });
                self.unanswered.retain(|message| message.request != frame.id || message.due.is_some());
            }
            ServerBody::Error(error) => self.refused(session, frame.id, &error),
            ServerBody::Done(_) if frame.id == JOIN => {
                let (conv, node) = (format!("r:{}", self.me().room), World::node(session.nth));
                self.say(HistoryEvent::Joined { session: session.number, conv: &conv, node: &node });
            }
            ServerBody::Behind(behind) => {
                // `Behind` does not name the start of the hole: everything up to `max_seq` counts as announced.
                let (conv, last) = (behind.conversation.as_str(), behind.max_seq);
                self.say(HistoryEvent::Gap { session: session.number, conv, first: 1, last });
                self.sync_state.learn(conv, last);
                session.acks.insert(behind.conversation, behind.max_seq);
            }
            ServerBody::Shed(shed) => {
                let conv = format!("r:{}", shed.room.trim_start_matches("r:"));
                self.say(HistoryEvent::Shed { session: session.number, conv: &conv, count: shed.count });
            }
            ServerBody::Close(close) => return Some(u16::try_from(close.code).unwrap_or(u16::MAX)),
            _ => {}
        }
        None
    }

    fn received(&self, session: &Session, push: &pb::Push, via: Via) {
        let text = match push.content.as_ref().and_then(|content| content.body.as_ref()) {
            Some(content::ContentBody::Text(text)) => super::rows::hash(text),
            _ => 0,
        };
        self.say(HistoryEvent::Recv {
            user: &self.me().user,
            device: &self.me().device,
            session: session.number,
            conv: &push.conversation,
            seq: push.seq,
            cid: push.event.is_none().then_some(push.msg_id.as_str()),
            body: text,
            via,
        });
    }

    fn take(&mut self, session: &mut Session, push: &pb::Push) {
        self.received(session, push, Via::Push);
        if push.conversation.starts_with("r:") {
            return;
        }
        self.sync_state.add(&push.conversation, push.seq);
        let acked = session.acks.entry(push.conversation.clone()).or_default();
        *acked = push.seq.max(*acked);
    }

    fn refused(&mut self, session: &Session, request: u64, error: &pb::Error) {
        let found = self.unanswered.iter().position(|it| it.request == request && it.due.is_none());
        let Some(at) = found else { return };
        let cid = self.unanswered[at].cid.clone();
        let code = u16::try_from(error.code).unwrap_or(u16::MAX);
        if error.temporary || code == Code::Unknown.number() {
            self.say(HistoryEvent::SendInfo { cid: &cid });
            let message = &mut self.unanswered[at];
            message.attempt += 1;
            message.due = Some(session.ticks + RETRY_TICKS);
            return;
        }
        if code != Code::NotAMember.number() {
            tracing::debug!(cid, code, error.name, "refused");
        }
        self.say(HistoryEvent::SendFail { cid: &cid, code });
        self.unanswered.remove(at);
    }
}

/// Returns the text of a message: its id, with padding for some ids.
fn text_of(cid: &str) -> String {
    let long = cid.len() % 3 * 40;
    format!("{cid} {:.>long$}", "")
}
