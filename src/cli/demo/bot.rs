//! Client of one bot as a state machine: outbox, position in the conversation, acks of pushes, and pulls of what is
//! missing (protocol/SPEC.md, sections 5 and 7). Pure: frames and times go in, frames come out.

use std::{
    collections::{BTreeMap, HashMap},
    mem,
    time::Duration,
};

use tidegate_protocol::{
    Code,
    content::Content,
    pb::{self, client_frame::Body as ClientBody, server_frame::Body as ServerBody},
};

use super::{
    audit::{Audit, text_of},
    record::{Acked, Record, Shown, User},
};

/// Messages in one page.
const PAGE_MESSAGES: u32 = 100;
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
        let has_all = self.complete.is_some_and(|complete| complete >= self.target.max(seq));
        self.is_live && self.outbox.is_empty() && has_all && self.early.is_empty()
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

    /// Begins to pull the whole history after `base`, for a comparison; it changes nothing of what the bot has.
    pub(super) fn begin_audit(&mut self, base: u64) {
        self.audit = Some(Audit::new(base));
        self.ask_audit();
    }

    /// Returns the pulled history, if it is complete.
    pub(super) fn audit(&self) -> Option<&Audit> {
        self.audit.as_ref().filter(|audit| audit.is_complete())
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
        let positions = self.positions();
        self.ask(Asked::Sync, ClientBody::Sync(pb::Sync { positions }));
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
                Some(Asked::Audit) => {
                    if let Some(audit) = &mut self.audit {
                        audit.add(page);
                    }
                    self.ask_audit();
                }
                Some(_) => self.take_page(page, now, record),
                None => {}
            },
            Some(ServerBody::ConversationState(state)) if state.conversation == self.conversation => {
                self.exists(state.max_seq);
            }
            Some(ServerBody::SyncEnd(_)) => {
                self.asked.remove(&frame.id);
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
        // The connection that sent a message gets no push of it.
        self.know(ack.seq, None, record);
    }

    fn refused(&mut self, request: u64, error: &pb::Error, now: Duration, record: &mut Record) {
        match self.asked.remove(&request) {
            Some(Asked::Send(id)) if error.temporary => {
                for outgoing in self.outbox.iter_mut().filter(|outgoing| outgoing.id == id) {
                    outgoing.due = Some(now + Duration::from_millis(error.retry_after_ms.max(100).into()));
                }
            }
            Some(Asked::Send(id)) => {
                self.outbox.retain(|outgoing| outgoing.id != id);
                record.refused(&id, format!("{} {}", error.code, error.name));
            }
            // There is nothing behind the cursor.
            Some(Asked::Audit) if !error.temporary || error.code == u32::from(Code::NotYet.number()) => {
                if let Some(audit) = &mut self.audit {
                    audit.end();
                }
            }
            // The passing of time repeats them.
            Some(Asked::Sync | Asked::Pull | Asked::Audit) | None => {}
        }
    }

    fn take_page(&mut self, page: pb::Page, now: Duration, record: &mut Record) {
        let before = self.complete;
        self.exists(page.complete_to);
        for push in page.messages {
            self.take(push, true, now, record);
        }
        for seq in page.recalled {
            self.know(seq, None, record);
        }
        for range in page.expired {
            for seq in range.first..=range.last.min(self.target) {
                self.know(seq, None, record);
            }
        }
        self.ack(false);
        // A page without progress is not asked for again at once.
        if self.complete > before {
            self.pull_missing();
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

    fn pull_missing(&mut self) {
        let Some(complete) = self.complete.filter(|complete| *complete < self.target) else { return };
        if !self.is_asked(&Asked::Pull) {
            let pull = self.forward(complete);
            self.ask(Asked::Pull, pull);
        }
    }

    fn ask_audit(&mut self) {
        let Some(audit) = self.audit.as_ref().filter(|audit| !audit.is_complete()) else { return };
        if !self.is_asked(&Asked::Audit) {
            let pull = self.forward(audit.cursor());
            self.ask(Asked::Audit, pull);
        }
    }

    fn forward(&self, cursor: u64) -> ClientBody {
        let direction = pb::Direction::Forward.into();
        let conversation = self.conversation.to_owned();
        ClientBody::Pull(pb::Pull {
            conversation,
            cursor,
            limit: PAGE_MESSAGES,
            direction,
            ..Default::default()
        })
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
