//! Client of one bot as a state machine: outbox, position in the conversation, acks of pushes, and pulls of what is
//! missing (protocol/SPEC.md, sections 5 and 7). Pure: frames and times go in, frames come out.

use std::{
    collections::{BTreeMap, HashMap},
    mem,
    time::Duration,
};

use tidegate_protocol::{
    content::Content,
    pb::{self, client_frame::Body as ClientBody, server_frame::Body as ServerBody},
};

use super::{
    audit::{Audit, text_of},
    record::{Acked, Record, Shown, User},
    words::plural,
};

mod pulls;

/// How long an entry may be missing before it is pulled; until then its push or ack is on its way.
const MISSING_MAX: Duration = Duration::from_millis(500);
/// Interval at which the broker is asked whether there is more.
const POSITIONS_INTERVAL: Duration = Duration::from_secs(5);

/// Message without an answer.
struct Outgoing {
    id: String,
    text: String,
    attempts: u32,
    /// Time of the next attempt; `None` if the broker has the message and may still answer.
    due: Option<Duration>,
}

/// Request of the present connection that has no answer yet.
enum Asked {
    Send(String),
    Sync,
    Pull,
    Audit,
}

/// State of a bot, which outlives its connections.
pub(super) struct Bot {
    user: User,
    conversation: &'static str,
    /// Whether the bot is logged in and its frames can be sent.
    is_live: bool,
    /// Connections so far.
    session: u64,
    next_request: u64,
    asked: HashMap<u64, Asked>,
    outbox: Vec<Outgoing>,
    ready: Vec<pb::ClientFrame>,
    /// Highest seq below which nothing is missing; `None` before the first sync.
    complete: Option<u64>,
    /// Entries above it; `None` for those without anything to show.
    early: BTreeMap<u64, Option<Shown>>,
    missing_since: Option<Duration>,
    /// Highest seq that the bot knows to exist.
    target: u64,
    acked: u64,
    positions_at: Duration,
    audit: Option<Audit>,
    /// Whether the bot acks no pushes.
    pub(super) is_frozen: bool,
    /// Message that the bot hides, for a planted fault.
    pub(super) hidden: Option<String>,
    /// Pushes that the bot had already.
    pub(super) copies: u64,
    /// Why the last login or request failed, until one succeeds.
    pub(super) last_error: Option<String>,
}

impl Bot {
    /// Creates a bot that has never been connected.
    pub(super) fn new(user: User, conversation: &'static str) -> Self {
        Self {
            user,
            conversation,
            is_live: false,
            session: 0,
            next_request: 1,
            asked: HashMap::new(),
            outbox: Vec::new(),
            ready: Vec::new(),
            complete: None,
            early: BTreeMap::new(),
            missing_since: None,
            target: 0,
            acked: 0,
            positions_at: Duration::ZERO,
            audit: None,
            is_frozen: false,
            hidden: None,
            copies: 0,
            last_error: None,
        }
    }

    /// Returns whether the bot is logged in.
    pub(super) fn is_live(&self) -> bool {
        self.is_live
    }

    /// Returns the highest seq below which the bot has everything; `None` before the first sync.
    pub(super) fn complete(&self) -> Option<u64> {
        self.complete
    }

    /// Returns whether the bot is logged in, has all answers, and has everything up to `seq`.
    pub(super) fn is_calm(&self, seq: u64) -> bool {
        self.waits_for(seq).is_none()
    }

    /// Returns what the bot lacks to be calm, with the last error.
    pub(super) fn waits_for(&self, seq: u64) -> Option<String> {
        let last = self.target.max(seq);
        let what = match self.complete {
            _ if !self.is_live => "is not logged in".to_owned(),
            None => "has no answer to its sync".to_owned(),
            Some(_) if !self.outbox.is_empty() => {
                format!("has no answer to {}", plural(self.outbox.len(), "message"))
            }
            Some(complete) if complete < last => format!("lacks seq {} of {last}", complete + 1),
            Some(_) => return None,
        };
        let why = self.last_error.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
        Some(format!("{} {what}{why}", self.user.name()))
    }

    /// Returns whether an attempt to send may still be answered, such as the second one of a message.
    pub(super) fn awaits_answer(&self) -> bool {
        self.asked.values().any(|asked| matches!(asked, Asked::Send(_)))
    }

    /// Returns the frames to send now.
    pub(super) fn take_ready(&mut self) -> Vec<pb::ClientFrame> {
        mem::take(&mut self.ready)
    }

    /// Writes a message. It is kept until the broker has answered.
    pub(super) fn write(&mut self, id: String, text: String, now: Duration, record: &mut Record) {
        self.outbox.push(Outgoing { id, text, attempts: 0, due: Some(now) });
        self.send_due(now, record);
    }

    /// Sends a message without an answer once more, as a client does that lost track of it.
    pub(super) fn repeat(&mut self, id: &str, now: Duration, record: &mut Record) {
        for outgoing in self.outbox.iter_mut().filter(|outgoing| outgoing.id == id) {
            outgoing.due = Some(now);
        }
        self.send_due(now, record);
    }

    /// Acks again, after a time without acks.
    pub(super) fn thaw(&mut self) {
        self.is_frozen = false;
        self.ack(false);
    }

    /// Handles a login: asks for the state, and sends again what has no answer.
    pub(super) fn connected(&mut self, now: Duration, record: &mut Record) {
        self.is_live = true;
        self.session += 1;
        self.asked.clear();
        self.ready.clear();
        self.positions_at = now + POSITIONS_INTERVAL;
        self.ask_sync();
        for outgoing in &mut self.outbox {
            outgoing.due = Some(now);
        }
        self.send_due(now, record);
        if let Some(audit) = &mut self.audit {
            audit.restart();
        }
        self.ask_audit();
    }

    /// Handles the end of a connection.
    pub(super) fn disconnected(&mut self) {
        self.is_live = false;
        self.asked.clear();
        self.ready.clear();
    }

    /// Handles the passing of time.
    pub(super) fn tick(&mut self, now: Duration, record: &mut Record) {
        if !self.is_live {
            return;
        }
        self.send_due(now, record);
        let is_missing = self.complete.is_some_and(|complete| complete < self.target);
        self.missing_since = is_missing.then(|| self.missing_since.unwrap_or(now));
        if self.missing_since.is_some_and(|since| now >= since + MISSING_MAX) {
            self.missing_since = None;
            self.pull_missing();
        }
        self.ask_audit();
        if self.complete.is_none() {
            self.ask_sync();
        }
        if now >= self.positions_at {
            self.positions_at = now + POSITIONS_INTERVAL;
            let positions = self.positions();
            self.say(0, ClientBody::Ping(pb::Ping { positions }));
        }
    }

    /// Handles a frame of the broker.
    pub(super) fn receive(&mut self, frame: pb::ServerFrame, now: Duration, record: &mut Record) {
        match frame.body {
            Some(ServerBody::SendAck(ack)) => self.answered(frame.id, &ack, now, record),
            Some(ServerBody::Error(error)) => self.refused(frame.id, &error, now, record),
            Some(ServerBody::Push(push)) => {
                let is_copy = !self.take(push, false, now, record);
                self.copies += u64::from(is_copy);
                self.ack(is_copy);
            }
            Some(ServerBody::Page(page)) => match self.asked.remove(&frame.id) {
                Some(Asked::Audit) => self.take_audited(page),
                Some(_) => self.take_page(page, now, record),
                None => {}
            },
            Some(ServerBody::ConversationState(state)) if state.conversation == self.conversation => {
                self.exists(state.max_seq);
            }
            Some(ServerBody::SyncEnd(_)) => {
                self.asked.remove(&frame.id);
                self.last_error = None;
                // A bot begins at the end of an older conversation.
                self.complete.get_or_insert(self.target);
                self.pull_missing();
            }
            Some(ServerBody::Behind(behind)) if behind.conversation == self.conversation => {
                self.exists(behind.max_seq);
                self.pull_missing();
            }
            Some(ServerBody::Pong(pong)) => {
                let mut own = pong.positions.iter().filter(|it| it.conversation == self.conversation);
                let seq = own.next().map_or(0, |position| position.seq);
                self.exists(seq);
                self.pull_missing();
            }
            Some(ServerBody::Ping(_)) => self.say(frame.id, ClientBody::Pong(pb::Pong::default())),
            _ => {}
        }
    }

    fn answered(&mut self, request: u64, ack: &pb::SendAck, now: Duration, record: &mut Record) {
        if !matches!(self.asked.remove(&request), Some(Asked::Send(_))) {
            return;
        }
        record.acked(&ack.msg_id, Acked { seq: ack.seq, is_duplicate: ack.duplicate, at: now });
        self.outbox.retain(|outgoing| outgoing.id != ack.msg_id);
        self.last_error = None;
        // The connection that sent a message gets no push of it.
        self.know(ack.seq, None, record);
    }

    fn refused(&mut self, request: u64, error: &pb::Error, now: Duration, record: &mut Record) {
        let asked = self.asked.remove(&request);
        if !matches!(asked, Some(Asked::Audit)) {
            self.last_error = Some(format!("{} {}", error.code, error.name));
        }
        match asked {
            Some(Asked::Send(id)) if error.temporary => {
                for outgoing in self.outbox.iter_mut().filter(|outgoing| outgoing.id == id) {
                    outgoing.due = Some(now + Duration::from_millis(error.retry_after_ms.max(100).into()));
                }
            }
            Some(Asked::Send(id)) => {
                self.outbox.retain(|outgoing| outgoing.id != id);
                record.refused(&id, format!("{} {}", error.code, error.name));
            }
            Some(Asked::Audit) => self.audit_refused(error),
            // The passing of time repeats a pull and the first sync; pings with positions replace a later sync.
            Some(Asked::Sync | Asked::Pull) | None => {}
        }
    }

    /// Takes a message; returns whether it was new.
    fn take(&mut self, push: pb::Push, is_pulled: bool, at: Duration, record: &mut Record) -> bool {
        if push.conversation != self.conversation {
            return true;
        }
        let text = text_of(push.content).filter(|_| push.sender != self.user.name());
        let shown = text.map(|text| Shown { seq: push.seq, id: push.msg_id, text, at, is_pulled });
        self.know(push.seq, shown, record)
    }

    /// Notes an entry, and shows what is complete now. Returns whether the entry was new.
    fn know(&mut self, seq: u64, shown: Option<Shown>, record: &mut Record) -> bool {
        self.exists(seq);
        let Some(complete) = &mut self.complete else { return false };
        if seq <= *complete || self.early.contains_key(&seq) {
            return false;
        }
        self.early.insert(seq, shown);
        while let Some(next) = self.early.remove(&(*complete + 1)) {
            *complete += 1;
            if let Some(next) = next.filter(|next| self.hidden.as_ref() != Some(&next.id)) {
                record.show(self.user, next);
            }
        }
        true
    }

    fn exists(&mut self, seq: u64) {
        self.target = self.target.max(seq);
    }

    /// Acks what is complete; a copy again, because its ack may be lost.
    fn ack(&mut self, again: bool) {
        let seq = self.complete.unwrap_or(0);
        if self.is_frozen || !(again || seq > self.acked) {
            return;
        }
        self.acked = seq;
        self.say(0, ClientBody::Ack(pb::Ack { conversation: self.conversation.to_owned(), seq }));
    }

    fn ask_sync(&mut self) {
        if !self.is_asked(&Asked::Sync) {
            let positions = self.positions();
            self.ask(Asked::Sync, ClientBody::Sync(pb::Sync { positions }));
        }
    }

    fn positions(&self) -> Vec<pb::Position> {
        let seq = self.complete.filter(|seq| *seq > 0);
        seq.map(|seq| pb::Position { conversation: self.conversation.to_owned(), seq }).into_iter().collect()
    }

    /// Sends the messages whose time has come.
    fn send_due(&mut self, now: Duration, record: &mut Record) {
        if !self.is_live {
            return;
        }
        let mut sends = Vec::new();
        for outgoing in self.outbox.iter_mut().filter(|outgoing| outgoing.due.is_some_and(|due| due <= now)) {
            outgoing.due = None;
            record.attempt(self.user, &outgoing.id, &outgoing.text, self.session, now);
            let send = pb::Send {
                to_user: self.user.other().name().to_owned(),
                msg_id: outgoing.id.clone(),
                attempt: outgoing.attempts,
                content: Some(Content::text(outgoing.text.clone())),
                ..Default::default()
            };
            outgoing.attempts += 1;
            sends.push((outgoing.id.clone(), send));
        }
        for (id, send) in sends {
            self.ask(Asked::Send(id), ClientBody::Send(send));
        }
    }

    fn is_asked(&self, what: &Asked) -> bool {
        self.asked.values().any(|asked| mem::discriminant(asked) == mem::discriminant(what))
    }

    fn ask(&mut self, what: Asked, body: ClientBody) {
        if !self.is_live {
            return;
        }
        let id = self.next_request;
        self.next_request += 1;
        self.asked.insert(id, what);
        self.say(id, body);
    }

    fn say(&mut self, id: u64, body: ClientBody) {
        if self.is_live {
            self.ready.push(pb::ClientFrame { id, body: Some(body) });
        }
    }
}

#[cfg(test)]
mod tests;
