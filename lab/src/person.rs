//! A person with one device: a pure machine that sends, acks, retries with the same id until it has an answer, syncs,
//! and pulls what it misses, over many connections.
//!
//! A driver opens connections, moves frames, and calls [`Person::tick`] every [`TICK_INTERVAL`]; chaos does it over
//! sockets and the simulation over pipes. The machine reads no clock: times are since the start of the run, and all
//! choices come from the seed. What it sees goes into its events, for the checker.

mod editing;
mod profile;
mod reading;
mod room;
mod sync_state;

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tidegate_protocol::{
    Code,
    content::Content,
    pb::{self, client_frame::Body as ClientBody, server_frame::Body as ServerBody},
};
use xxhash_rust::xxh3::xxh3_64;

pub use self::profile::{Phase, Profile};
use self::{
    editing::{Editing, body_hash},
    reading::Reading,
    sync_state::{RequestState, SyncState},
};
use crate::checker::{HistoryEvent, Via};

/// Interval at which a person sends acks, pings, retries, and new messages.
pub const TICK_INTERVAL: Duration = Duration::from_millis(20);

/// Time without a frame after which the person drops the connection.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(12);

/// Ticks before a retry of a send that was temporarily refused.
const RETRY_TICKS: u64 = 10;

/// New messages that go to the room, in percent.
const TO_ROOM: u32 = 10;

/// Id of the request by which a person joins the room, after its `hello`.
const JOIN: u64 = 2;

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

/// State of one connection.
struct Session {
    number: u64,
    node: String,
    ticks: u64,
    requests: u64,
    acks: BTreeMap<String, u64>,
    last_input: u64,
    /// Whether the person is in its room.
    inside: bool,
    request_state: RequestState,
    reading: Reading,
    /// Messages that the person may compose.
    credit: f64,
}

/// Result of a tick.
#[derive(Debug, Default)]
pub struct Tick {
    /// Frames to send, in this order.
    pub frames: Vec<pb::ClientFrame>,
    /// Whether the driver must drop the connection, because nothing was received for too long.
    pub is_silent: bool,
    /// Whether the driver must open a new connection, and keep the old one for a while.
    pub hops: bool,
}

/// Event that a person adds to the history.
pub type PersonEvent = HistoryEvent<String>;

/// A person with one device.
pub struct Person {
    profile: Profile,
    rng: StdRng,
    /// Numbers of the next message, and of the next one outside the chain.
    next: u64,
    next_loose: u64,
    unanswered: VecDeque<Unanswered>,
    /// `None` for a person that edits nothing.
    editing: Option<Editing>,
    sync_state: SyncState,
    session: Option<Session>,
    is_marked: bool,
    is_complete: bool,
    events: Vec<PersonEvent>,
}

impl Person {
    /// Creates a person that has sent nothing yet.
    pub fn new(profile: Profile, seed: u64) -> Self {
        Self {
            profile,
            rng: StdRng::seed_from_u64(seed),
            next: 0,
            next_loose: 0,
            unanswered: VecDeque::new(),
            editing: None,
            sync_state: SyncState::default(),
            session: None,
            is_marked: false,
            is_complete: false,
            events: Vec::new(),
        }
    }

    /// Lets the person edit its messages, as this seed draws.
    #[must_use]
    pub fn with_edits(mut self, seed: u64) -> Self {
        self.editing = Some(Editing::new(self.profile.number, seed));
        self
    }

    /// Returns who the person is.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Takes the events that were added since the last call, in order.
    pub fn take_events(&mut self) -> Vec<PersonEvent> {
        std::mem::take(&mut self.events)
    }

    /// Returns whether the person waits for something before the next phase.
    pub fn is_busy(&self, phase: Phase) -> bool {
        self.waiting() > 0
            || (phase == Phase::Mark && !self.is_marked)
            || (phase == Phase::Check && !self.is_complete)
    }

    /// Returns whether the person has sent its markers.
    pub fn is_marked(&self) -> bool {
        self.is_marked
    }

    /// Returns whether the person has reported that it has everything.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Returns the number of answers and conversations that the person waits for; `usize::MAX` if it is not logged in.
    pub fn waiting(&self) -> usize {
        if self.session.is_none() {
            return usize::MAX;
        }
        let edits = self.editing.as_ref().map_or(0, Editing::waiting);
        self.unanswered.len() + edits + self.sync_state.lacking()
    }

    /// Returns the `hello` of the next connection.
    pub fn hello(&self, token: String) -> pb::Hello {
        let first = self.unanswered.iter().find_map(|message| message.number).unwrap_or(self.next);
        let next_id = if self.profile.chained { self.id(first) } else { String::new() };
        pb::Hello { version: 1, token, device: self.profile.device.clone(), next_id, ..Default::default() }
    }

    /// Notes the `welcome` of a new connection to a node. Returns the frames to send first.
    pub fn on_open(&mut self, session: u64, node: &str) -> Vec<pb::ClientFrame> {
        let Profile { user, device, room, .. } = &self.profile;
        let (user, device, room) = (user.clone(), device.clone(), room.clone());
        self.events.push(HistoryEvent::Open { user, device, session });
        self.session = Some(Session {
            number: session,
            node: node.to_owned(),
            ticks: 0,
            requests: JOIN,
            acks: BTreeMap::new(),
            last_input: 0,
            inside: true,
            request_state: RequestState::default(),
            reading: Reading::default(),
            credit: 0.0,
        });
        vec![pb::ClientFrame { id: JOIN, body: Some(ClientBody::Join(pb::Join { room })) }]
    }

    /// Notes the end of the connection, with the code of the broker's `close`, or 0 if the connection broke.
    pub fn on_close(&mut self, code: u16) {
        let Some(session) = self.session.take() else { return };
        self.events.push(HistoryEvent::Close { session: session.number, code });
        // A message in flight may be stored or not: all of them go again, in order.
        for message in &mut self.unanswered {
            if message.due.is_none() {
                self.events.push(HistoryEvent::SendInfo { cid: message.cid.clone() });
                message.attempt += 1;
            }
            message.due = Some(0);
        }
        if let Some(editing) = &mut self.editing {
            editing.on_close();
        }
    }

    /// Runs one tick of the connection at the time `now`.
    pub fn tick(&mut self, now: Duration, phase: Phase) -> Tick {
        let Some(mut session) = self.session.take() else { return Tick::default() };
        session.ticks += 1;
        session.credit += TICK_INTERVAL.as_secs_f64() / self.profile.pace.as_secs_f64();
        let mut frames = Vec::new();
        self.compose(&mut session, phase);
        self.wander(&mut session, &mut frames);
        self.speak(&mut session, &mut frames);
        self.ask(&mut session, now, phase, &mut frames);
        self.read(&mut session, phase, &mut frames);
        if let Some(editing) = &mut self.editing {
            if phase == Phase::Talk {
                self.events.extend(editing.begin());
            }
            frames.extend(editing.due(session.ticks, &mut session.requests));
        }
        let hops = phase == Phase::Talk && self.rng.random_ratio(self.profile.hops, 10_000);
        let ticks = u32::try_from(session.ticks - session.last_input).unwrap_or(u32::MAX);
        let is_silent = TICK_INTERVAL.saturating_mul(ticks) > SILENCE_TIMEOUT;
        self.session = Some(session);
        Tick { frames, is_silent, hops }
    }

    /// Handles a frame. Returns the code when the broker closes the connection.
    pub fn handle_frame(&mut self, now: Duration, frame: pb::ServerFrame) -> Option<u16> {
        let mut session = self.session.take()?;
        session.last_input = session.ticks;
        let code = self.handle(&mut session, now, frame);
        self.session = Some(session);
        code
    }

    /// Returns the id of a message of this person.
    fn id(&self, number: u64) -> String {
        format!("c{}.{number}", self.profile.number)
    }

    /// Adds new messages, as the phase allows.
    fn compose(&mut self, session: &mut Session, phase: Phase) {
        match phase {
            Phase::Talk => {
                while session.credit >= 1.0 {
                    session.credit -= 1.0;
                    if self.unanswered.len() >= self.profile.in_flight_max {
                        continue;
                    }
                    if session.inside && self.rng.random_ratio(TO_ROOM, 100) {
                        self.add_loose(format!("r:{}", self.profile.room));
                    } else {
                        let place = self.rng.random_range(0..self.profile.places.len());
                        self.add(self.profile.places[place].clone());
                    }
                }
            }
            Phase::Mark if !self.is_marked => {
                for place in self.profile.places.clone() {
                    self.add(place);
                }
                self.close_room(session);
                self.is_marked = true;
            }
            Phase::Settle | Phase::Mark | Phase::Check => {}
        }
    }

    fn add(&mut self, place: String) {
        let number = self.next;
        self.next += 1;
        let chained = self.profile.chained.then_some(number);
        self.push(self.id(number), chained, place);
    }

    /// Adds a message outside the chain, also for a person that chains its messages.
    fn add_loose(&mut self, place: String) {
        let cid = format!("r{}.{}", self.profile.number, self.next_loose);
        self.next_loose += 1;
        self.push(cid, None, place);
    }

    fn push(&mut self, cid: String, number: Option<u64>, place: String) {
        self.unanswered.push_back(Unanswered { cid, number, place, attempt: 0, request: 0, due: Some(0) });
    }

    /// Sends acks and all messages that are due.
    fn speak(&mut self, session: &mut Session, frames: &mut Vec<pb::ClientFrame>) {
        for (conversation, seq) in std::mem::take(&mut session.acks) {
            frames
                .push(pb::ClientFrame { id: 0, body: Some(ClientBody::Ack(pb::Ack { conversation, seq })) });
        }
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
            self.events.push(HistoryEvent::SendInv {
                user: self.profile.user.clone(),
                device: self.profile.device.clone(),
                session: session.number,
                conv: message.place.clone(),
                cid: message.cid.clone(),
                body: text_hash(&text),
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
    }

    /// Requests what the device does not know or have, and reports at the end that nothing is missing.
    fn ask(&mut self, session: &mut Session, now: Duration, phase: Phase, frames: &mut Vec<pb::ClientFrame>) {
        if phase == Phase::Check
            && session.request_state.is_checked()
            && self.sync_state.lacking() == 0
            && !std::mem::replace(&mut self.is_complete, true)
        {
            let Profile { user, device, hints, .. } = &self.profile;
            let (user, device, hints) = (user.clone(), device.clone(), *hints);
            self.events.push(HistoryEvent::Complete { user, device, hints });
        }
        session.requests += 1;
        let id = session.requests;
        let Some(body) = self.sync_state.next_request(&mut session.request_state, phase, id, now) else {
            return;
        };
        if matches!(body, ClientBody::Sync(_)) {
            self.events.push(HistoryEvent::SyncInv { session: session.number });
        }
        frames.push(pb::ClientFrame { id, body: Some(body) });
    }

    /// Moves a read mark now and then.
    fn read(&mut self, session: &mut Session, phase: Phase, frames: &mut Vec<pb::ClientFrame>) {
        if phase != Phase::Talk {
            return;
        }
        let Some((conv, seq)) = reading::choose(&self.sync_state, &mut self.rng) else { return };
        session.requests += 1;
        let user = self.profile.user.clone();
        self.events.push(HistoryEvent::ReadInv { user, conv: conv.clone(), seq });
        let body = Some(session.reading.ask(session.requests, conv, seq));
        frames.push(pb::ClientFrame { id: session.requests, body });
    }

    fn handle(&mut self, session: &mut Session, now: Duration, frame: pb::ServerFrame) -> Option<u16> {
        let body = frame.body?;
        if let Some(event) = session.reading.handle_frame(session.number, &self.profile.user, frame.id, &body)
        {
            self.events.push(event);
        }
        if let Some(brought) = self.sync_state.receive(&mut session.request_state, frame.id, &body, now) {
            brought.iter().for_each(|push| self.received(session, push, Via::Pull));
            return None;
        }
        if let Some(editing) = &mut self.editing
            && editing.takes(frame.id, &body, session.ticks, &mut self.events)
        {
            return None;
        }
        match body {
            ServerBody::Push(push) => self.take(session, now, &push),
            ServerBody::SendAck(ack) => self.acked(frame.id, now, ack),
            ServerBody::Error(error) => self.refused(session, frame.id, &error),
            ServerBody::Done(_) if frame.id == JOIN => {
                let (conv, node) = (format!("r:{}", self.profile.room), session.node.clone());
                self.events.push(HistoryEvent::Joined { session: session.number, conv, node });
            }
            ServerBody::Behind(behind) => {
                // `Behind` does not name the start of the hole: everything up to `max_seq` counts as announced.
                let (conv, last) = (behind.conversation.clone(), behind.max_seq);
                self.events.push(HistoryEvent::Gap { session: session.number, conv, first: 1, last });
                self.sync_state.learn(&behind.conversation, last, now);
                session.acks.insert(behind.conversation, behind.max_seq);
            }
            ServerBody::Shed(shed) => {
                let conv = format!("r:{}", shed.room.trim_start_matches("r:"));
                self.events.push(HistoryEvent::Shed { session: session.number, conv, count: shed.count });
            }
            ServerBody::Close(close) => return Some(u16::try_from(close.code).unwrap_or(u16::MAX)),
            _ => {}
        }
        None
    }

    fn acked(&mut self, request: u64, now: Duration, ack: pb::SendAck) {
        let mine = self.unanswered.iter().find(|message| message.request == request);
        // Rooms store nothing.
        let place = mine.map(|message| message.place.clone()).filter(|place| !place.starts_with("r:"));
        if let Some(place) = place {
            self.sync_state.add(&place, ack.seq, now);
            if let Some(editing) = &mut self.editing {
                editing.note_own(place, ack.seq);
            }
        }
        self.events.push(HistoryEvent::SendOk { cid: ack.msg_id, seq: ack.seq, duplicate: ack.duplicate });
        self.unanswered.retain(|message| message.request != request || message.due.is_some());
    }

    fn received(&mut self, session: &Session, push: &pb::Push, via: Via) {
        self.events.push(HistoryEvent::Recv {
            user: self.profile.user.clone(),
            device: self.profile.device.clone(),
            session: session.number,
            conv: push.conversation.clone(),
            seq: push.seq,
            cid: (push.event.is_none() && push.edit.is_none()).then(|| push.msg_id.clone()),
            body: body_hash(push),
            via,
        });
    }

    fn take(&mut self, session: &mut Session, now: Duration, push: &pb::Push) {
        self.received(session, push, Via::Push);
        if push.conversation.starts_with("r:") {
            return;
        }
        self.sync_state.add(&push.conversation, push.seq, now);
        let acked = session.acks.entry(push.conversation.clone()).or_default();
        *acked = push.seq.max(*acked);
    }

    fn refused(&mut self, session: &Session, request: u64, error: &pb::Error) {
        let found = self.unanswered.iter().position(|it| it.request == request && it.due.is_none());
        let Some(at) = found else { return };
        let cid = self.unanswered[at].cid.clone();
        let code = u16::try_from(error.code).unwrap_or(u16::MAX);
        if error.temporary || code == Code::Unknown.number() {
            self.events.push(HistoryEvent::SendInfo { cid });
            let message = &mut self.unanswered[at];
            message.attempt += 1;
            message.due = Some(session.ticks + RETRY_TICKS);
            return;
        }
        if code != Code::NotAMember.number() {
            tracing::debug!(cid, code, error.name, "refused");
        }
        self.events.push(HistoryEvent::SendFail { cid, code });
        self.unanswered.remove(at);
    }
}

/// Returns the hash that stands for a text in a history.
pub fn text_hash(text: &str) -> u64 {
    xxh3_64(text.as_bytes())
}

/// Returns the text of a message: its id, with padding for some ids.
pub(crate) fn text_of(cid: &str) -> String {
    let long = cid.len() % 3 * 40;
    format!("{cid} {:.>long$}", "")
}
