//! What a client asks of the stored conversations: Pull, Sync, Read, Recall, Clear, Hide, Leave of a group, and Ping with
//! positions.
//!
//! One query is open at a time, and nothing is read meanwhile: so answers, which may be large, never pile up for a
//! client that asks faster than it reads. The driver tells the answer in one or more parts, and ends the query with
//! [`Session::query_over`] once the client has taken what was told.

use super::{Action, Limits, POSITIONS_MAX, Session, State, send::Refusal};
use crate::{
    Code, Time,
    id::{ConversationId, ConversationKind},
    pb::{self, server_frame::Body as Said},
};

/// The most seqs in one Pull or Hide.
pub const SEQS_MAX: usize = 200;

/// The most messages in one page; how many come when the client does not say is [`PAGE_DEFAULT`].
pub const PAGE_MAX: usize = 200;

/// The messages in a page when the client does not say.
pub const PAGE_DEFAULT: usize = 50;

/// The most messages on each side of the one in the middle, and how many when the client does not say.
pub const SIDE_MAX: usize = 100;
const SIDE_DEFAULT: usize = 25;

/// A question that the store answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Query {
    /// A part of a conversation's history: one Page.
    Pull(Pull),
    /// Where all conversations of the user stand: ConversationStates, then SyncEnd.
    Sync(Vec<(ConversationId, u64)>),
    /// Which conversations are not where the client believes: a Pong.
    Positions(Vec<(ConversationId, u64)>),
    /// Everything up to the seq is read: Done.
    Read {
        /// Where.
        conversation: ConversationId,
        /// Up to there.
        seq: u64,
    },
    /// Everything up to the seq is taken away for the user: Done.
    Clear {
        /// Where.
        conversation: ConversationId,
        /// Up to there, from 1.
        seq: u64,
    },
    /// These are taken away for the user: Done.
    Hide {
        /// Where.
        conversation: ConversationId,
        /// Which, ascending.
        seqs: Vec<u64>,
    },
    /// The message is taken back, for everybody: a SendAck with the seq of the recall.
    Recall {
        /// Where.
        conversation: ConversationId,
        /// Which, from 1.
        seq: u64,
    },
    /// The user is no member of the group any more, by a record of the log: Done.
    Leave(ConversationId),
}

impl Query {
    /// Whether it goes to the log: without an answer nobody knows what became of it.
    pub fn appends(&self) -> bool {
        matches!(self, Self::Recall { .. } | Self::Leave(_))
    }
}

/// Which part of a history is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pull {
    /// Of which conversation.
    pub conversation: ConversationId,
    /// Which messages.
    pub which: Which,
    /// The most messages, at least 1; with [`Which::Around`] those on each side.
    pub limit: usize,
}

/// Which messages a Pull is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// Those after this seq, the oldest first.
    After(u64),
    /// Those before this seq, the newest first.
    Before(u64),
    /// These, ascending.
    Seqs(Vec<u64>),
    /// This one and its neighbours on both sides, ascending.
    Around(u64),
    /// Those from the first one on whose time is not before this (ms since 1970), the oldest first.
    Since(u64),
}

impl Session {
    /// A part of the answer to the open query; the frames carry its id.
    pub fn query_told(&mut self, id: u64, told: Vec<Said>, out: &mut Vec<Action>) {
        if !self.asking || !matches!(self.state, State::Live | State::Leaving { .. }) {
            return;
        }
        self.errors = 0;
        for body in told {
            out.push(Action::Answer(Box::new(pb::ServerFrame { id, body: Some(body) })));
        }
        self.appended(out);
    }

    /// A query that goes to the log has its answer.
    fn appended(&mut self, out: &mut Vec<Action>) {
        if std::mem::take(&mut self.appending) {
            self.close_if_left(out);
        }
    }

    /// The positions that a Ping asked for.
    pub fn query_pong(&mut self, id: u64, positions: Vec<pb::Position>, now: Time, out: &mut Vec<Action>) {
        let time = self.wall_ms(now);
        self.query_told(id, vec![Said::Pong(pb::Pong { positions, time })], out);
    }

    /// The open query was carried out, and there is nothing to tell.
    pub fn query_done(&mut self, id: u64, out: &mut Vec<Action>) {
        let told = if id == 0 { Vec::new() } else { vec![Said::Done(pb::Done {})] };
        self.query_told(id, told, out);
    }

    /// The open query is refused.
    pub fn query_refused(
        &mut self,
        id: u64,
        code: Code,
        message: &str,
        limits: &Limits,
        out: &mut Vec<Action>,
    ) {
        if self.asking && matches!(self.state, State::Live | State::Leaving { .. }) {
            self.refuse(id, code, message, limits, out);
            self.appended(out);
        }
    }

    /// The answer is told and taken: the client may ask again.
    pub fn query_over(&mut self, limits: &Limits, now: Time) {
        self.asking = false;
        self.note_reading(limits, now);
    }

    pub(super) fn handle_pull(&mut self, id: u64, pull: pb::Pull, limits: &Limits, out: &mut Vec<Action>) {
        let query = self.may_ask(&pull.conversation).and_then(|it| to_pull(it, pull));
        self.ask(id, query.map(Query::Pull), limits, out);
    }

    pub(super) fn handle_read(&mut self, id: u64, read: &pb::Read, limits: &Limits, out: &mut Vec<Action>) {
        let query = self.may_ask(&read.conversation);
        let query = query.map(|conversation| Query::Read { conversation, seq: read.seq });
        self.ask(id, query, limits, out);
    }

    pub(super) fn handle_recall(
        &mut self,
        id: u64,
        recall: &pb::Recall,
        limits: &Limits,
        out: &mut Vec<Action>,
    ) {
        let query = self
            .may_ask(&recall.conversation)
            .and_then(|conversation| Ok(Query::Recall { conversation, seq: from_one(recall.seq)? }));
        self.ask(id, query, limits, out);
    }

    pub(super) fn handle_clear(
        &mut self,
        id: u64,
        clear: &pb::Clear,
        limits: &Limits,
        out: &mut Vec<Action>,
    ) {
        let query = self
            .may_ask(&clear.conversation)
            .and_then(|conversation| Ok(Query::Clear { conversation, seq: from_one(clear.seq)? }));
        self.ask(id, query, limits, out);
    }

    pub(super) fn handle_hide(&mut self, id: u64, hide: pb::Hide, limits: &Limits, out: &mut Vec<Action>) {
        let query = self
            .may_ask(&hide.conversation)
            .and_then(|conversation| Ok(Query::Hide { conversation, seqs: listed(hide.seqs)? }));
        self.ask(id, query, limits, out);
    }

    pub(super) fn handle_leave_group(
        &mut self,
        id: u64,
        leave: &pb::Leave,
        limits: &Limits,
        out: &mut Vec<Action>,
    ) {
        let query = parse(&leave.conversation).and_then(|conversation| match conversation.kind() {
            ConversationKind::Group(_) if leave.room.is_empty() => Ok(Query::Leave(conversation)),
            ConversationKind::Group(_) => Err((Code::Malformed, "set room or conversation".to_owned())),
            ConversationKind::Direct(..) => {
                Err((Code::Forbidden, "the two of a direct conversation always are in it".to_owned()))
            }
            ConversationKind::Room(_) => Err((Code::BadId, "name a live room in room".to_owned())),
        });
        self.ask(id, query, limits, out);
    }

    pub(super) fn handle_sync(&mut self, id: u64, sync: &pb::Sync, limits: &Limits, out: &mut Vec<Action>) {
        self.ask(id, positions(&sync.positions).map(Query::Sync), limits, out);
    }

    /// A Ping without positions is answered at once.
    pub(super) fn handle_ping(
        &mut self,
        id: u64,
        ping: &pb::Ping,
        limits: &Limits,
        now: Time,
        out: &mut Vec<Action>,
    ) {
        if ping.positions.is_empty() {
            self.pong(id, now, out);
        } else {
            self.ask(id, positions(&ping.positions).map(Query::Positions), limits, out);
        }
    }

    fn ask(&mut self, id: u64, query: Result<Query, Refusal>, limits: &Limits, out: &mut Vec<Action>) {
        match query {
            // Only a driver that reads on although it should not gets here while a query is open.
            Ok(_) if self.asking => self.refuse(id, Code::Busy, "", limits, out),
            Ok(query) => {
                (self.asking, self.appending) = (true, query.appends());
                out.push(Action::Query { id, query: Box::new(query) });
            }
            Err((code, message)) => self.refuse(id, code, &message, limits, out),
        }
    }

    /// The conversation, unless it is plain from the key that it is none of this user's business.
    fn may_ask(&self, key: &str) -> Result<ConversationId, Refusal> {
        let conversation = parse(key)?;
        let mine = self.identity.as_ref().is_some_and(|me| conversation.is_direct_of(&me.user));
        match conversation.kind() {
            ConversationKind::Direct(..) if !mine => {
                Err((Code::Forbidden, "this conversation is between others".to_owned()))
            }
            ConversationKind::Room(_) => Err((Code::NotFound, "a live room has no history".to_owned())),
            ConversationKind::Direct(..) | ConversationKind::Group(_) => Ok(conversation),
        }
    }
}

fn from_one(seq: u64) -> Result<u64, Refusal> {
    if seq == 0 { Err((Code::Malformed, "seqs begin at 1".to_owned())) } else { Ok(seq) }
}

fn parse(key: &str) -> Result<ConversationId, Refusal> {
    ConversationId::parse(key).map_err(|why| (Code::BadId, format!("conversation: {why}")))
}

fn to_pull(conversation: ConversationId, pull: pb::Pull) -> Result<Pull, Refusal> {
    let around = pull.direction() == pb::Direction::Around;
    let (default, max) = if around { (SIDE_DEFAULT, SIDE_MAX) } else { (PAGE_DEFAULT, PAGE_MAX) };
    let limit = match pull.limit as usize {
        0 => default,
        limit => limit.min(max),
    };
    let which = match (pull.seqs.is_empty(), pull.time, pull.cursor) {
        (true, 0, 0) if around => {
            return Err((Code::Malformed, "around which seq? set cursor".to_owned()));
        }
        (true, 0, cursor) if around => Which::Around(cursor),
        (true, 0, cursor) if pull.direction() == pb::Direction::Forward => Which::After(cursor),
        (true, 0, 0) => Which::Before(u64::MAX),
        (true, 0, cursor) => Which::Before(cursor),
        (true, time, 0) if !around => Which::Since(time),
        (false, 0, 0) if !around => Which::Seqs(listed(pull.seqs)?),
        _ => {
            let cure = "set one of cursor, seqs and time; around goes with cursor";
            return Err((Code::Malformed, cure.to_owned()));
        }
    };
    Ok(Pull { conversation, which, limit })
}

/// The seqs of a list, ascending, each once.
fn listed(mut seqs: Vec<u64>) -> Result<Vec<u64>, Refusal> {
    if seqs.len() > SEQS_MAX {
        return Err((Code::Malformed, format!("at most {SEQS_MAX} seqs in one frame: send several")));
    }
    seqs.retain(|seq| *seq > 0);
    seqs.sort_unstable();
    seqs.dedup();
    if seqs.is_empty() { Err((Code::Malformed, "seqs begin at 1".to_owned())) } else { Ok(seqs) }
}

fn positions(positions: &[pb::Position]) -> Result<Vec<(ConversationId, u64)>, Refusal> {
    if positions.len() > POSITIONS_MAX {
        return Err((Code::Malformed, format!("at most {POSITIONS_MAX} positions in one frame")));
    }
    positions.iter().map(|it| Ok((parse(&it.conversation)?, it.seq))).collect()
}
