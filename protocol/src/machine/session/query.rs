//! Queries on stored conversations: Pull, Sync, Read, Recall, Edit, Clear, Hide, Watch, Leave of a group, and Ping with positions.
//!
//! One query is open at a time, and reading stops meanwhile, so that answers, which may be large, never accumulate for
//! a client that queries faster than it reads. The driver passes in the answer in one or more parts, and ends the query
//! with [`Session::query_over`] once the client has taken them.

use bytes::Bytes;

use super::{
    Action, POSITIONS_MAX, Session, SessionLimits, State,
    send::{Refusal, bad_id, encode},
};
use crate::{
    Code, Time,
    id::{ConversationId, ConversationKind, MsgId},
    pb::{self, server_frame::Body as ServerBody},
};
use std::time::Duration;

/// Maximum number of seqs in one Pull or Hide.
pub const SEQS_MAX: usize = 200;

/// Maximum number of messages in one page.
pub const PAGE_MAX: usize = 200;

/// Number of messages in a page if the client gives no limit.
pub const PAGE_DEFAULT: usize = 50;

/// Maximum number of messages on each side of the middle one, for a Pull around a seq.
pub const SIDE_MAX: usize = 100;

/// Number of messages on each side of the middle one if the client gives no limit.
const SIDE_DEFAULT: usize = 25;

/// Query that the store answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Query {
    /// Returns a part of a conversation's history, as one Page.
    Pull(Pull),
    /// Returns the state of all conversations of the user, as ConversationStates and a SyncEnd.
    Sync(Vec<(ConversationId, u64)>),
    /// Returns the conversations whose position differs from the client's, as a Pong.
    Positions(Vec<(ConversationId, u64)>),
    /// Marks everything up to the seq as read; replies Done.
    Read {
        /// Conversation to mark.
        conversation: ConversationId,
        /// Last read seq.
        seq: u64,
    },
    /// Clears everything up to the seq for the user; replies Done.
    Clear {
        /// Conversation to clear.
        conversation: ConversationId,
        /// Last cleared seq, from 1.
        seq: u64,
    },
    /// Hides single entries for the user; replies Done.
    Hide {
        /// Conversation of the entries.
        conversation: ConversationId,
        /// Seqs of the entries, ascending.
        seqs: Vec<u64>,
    },
    /// Recalls a message for all users; replies a SendAck with the seq of the recall.
    Recall {
        /// Conversation of the message.
        conversation: ConversationId,
        /// Seq of the message, from 1.
        seq: u64,
    },
    /// Replaces the content of a message for all users; replies a SendAck with the seq of the edit.
    Edit {
        /// Conversation of the message.
        conversation: ConversationId,
        /// Seq of the message, from 1.
        seq: u64,
        /// Encoded Content, checked.
        content: Bytes,
        /// Id of the edit.
        msg_id: MsgId,
    },
    /// Ends the user's membership in the group by a record of the log; replies Done.
    Leave(ConversationId),
    /// Begins or ends reports of who of a conversation is online; replies Done.
    Watch {
        /// Direct conversation of the user, or group.
        conversation: ConversationId,
        /// Whether the reports end.
        stop: bool,
    },
}

impl Query {
    /// Returns whether the query appends to the log, so that its outcome is unknown without an answer.
    pub fn appends(&self) -> bool {
        matches!(self, Self::Recall { .. } | Self::Edit { .. } | Self::Leave(_))
    }
}

/// Request for a part of a conversation's history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pull {
    /// Conversation to read.
    pub conversation: ConversationId,
    /// Selection of messages.
    pub which: Which,
    /// Maximum number of messages, at least 1; with [`Which::Around`], on each side.
    pub limit: usize,
}

/// Selection of messages for a Pull.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// Messages after this seq, oldest first.
    After(u64),
    /// Messages before this seq, newest first.
    Before(u64),
    /// Messages with these seqs, ascending.
    Seqs(Vec<u64>),
    /// Message with this seq and its neighbours on both sides, ascending.
    Around(u64),
    /// Messages from the first one whose time is not before this (ms since 1970), oldest first.
    Since(u64),
}

impl Session {
    /// Sends a part of the answer to the open query; the frames carry the query's id.
    pub fn query_told(&mut self, id: u64, bodies: Vec<ServerBody>, out: &mut Vec<Action>) {
        if !self.query_open || !matches!(self.state, State::Live | State::Leaving { .. }) {
            return;
        }
        for body in bodies {
            out.push(Action::Answer(Box::new(pb::ServerFrame { id, body: Some(body) })));
        }
        self.finish_append(out);
    }

    /// Marks an open query that appends as answered, and closes a leaving session if nothing else is due.
    fn finish_append(&mut self, out: &mut Vec<Action>) {
        if std::mem::take(&mut self.append_open) {
            self.close_if_done(out);
        }
    }

    /// Answers a Ping with positions.
    pub fn query_pong(&mut self, id: u64, positions: Vec<pb::Position>, now: Time, out: &mut Vec<Action>) {
        let time = self.wall_ms(now);
        self.query_told(id, vec![ServerBody::Pong(pb::Pong { positions, time })], out);
    }

    /// Answers the open query with Done.
    pub fn query_done(&mut self, id: u64, out: &mut Vec<Action>) {
        let bodies = if id == 0 { Vec::new() } else { vec![ServerBody::Done(pb::Done {})] };
        self.query_told(id, bodies, out);
    }

    /// Refuses the open query.
    pub fn query_refused(
        &mut self,
        id: u64,
        code: Code,
        message: &str,
        limits: &SessionLimits,
        out: &mut Vec<Action>,
    ) {
        if self.query_open && matches!(self.state, State::Live | State::Leaving { .. }) {
            self.refuse(id, code, message, limits, out);
            self.finish_append(out);
        }
    }

    /// Refuses the open query, which was not started, because a rate limit is reached.
    pub fn query_limited(&mut self, id: u64, wait: Duration, out: &mut Vec<Action>) {
        self.query_deferred(id, Code::RateLimited.error_after("", wait), out);
    }

    /// Refuses the open query, which was not started, for the time that the error names.
    pub fn query_deferred(&mut self, id: u64, error: pb::Error, out: &mut Vec<Action>) {
        if self.query_open && matches!(self.state, State::Live | State::Leaving { .. }) {
            self.push_frame(id, ServerBody::Error(error), out);
            self.finish_append(out);
        }
    }

    /// Ends the open query once the client has taken the answer; the client may send the next one.
    pub fn query_over(&mut self, limits: &SessionLimits, now: Time) {
        self.query_open = false;
        self.update_reading(limits, now);
    }

    pub(super) fn handle_pull(
        &mut self,
        id: u64,
        pull: pb::Pull,
        limits: &SessionLimits,
        out: &mut Vec<Action>,
    ) {
        let query = self.queryable(&pull.conversation).and_then(|it| to_pull(it, pull));
        self.open_query(id, query.map(Query::Pull), limits, out);
    }

    pub(super) fn handle_read(
        &mut self,
        id: u64,
        read: &pb::Read,
        limits: &SessionLimits,
        out: &mut Vec<Action>,
    ) {
        let query = self.queryable(&read.conversation);
        let query = query.map(|conversation| Query::Read { conversation, seq: read.seq });
        self.open_query(id, query, limits, out);
    }

    pub(super) fn handle_recall(
        &mut self,
        id: u64,
        recall: &pb::Recall,
        limits: &SessionLimits,
        out: &mut Vec<Action>,
    ) {
        let query = self
            .queryable(&recall.conversation)
            .and_then(|conversation| Ok(Query::Recall { conversation, seq: check_seq(recall.seq)? }));
        self.open_query(id, query, limits, out);
    }

    pub(super) fn handle_edit(
        &mut self,
        id: u64,
        edit: pb::Edit,
        limits: &SessionLimits,
        out: &mut Vec<Action>,
    ) {
        let query = self.queryable(&edit.conversation).and_then(|conversation| {
            let seq = check_seq(edit.seq)?;
            let msg_id = MsgId::new(&edit.msg_id).map_err(|error| bad_id("msgId", &error))?;
            let content = encode(edit.content, limits)?;
            Ok(Query::Edit { conversation, seq, content, msg_id })
        });
        self.open_query(id, query, limits, out);
    }

    pub(super) fn handle_clear(
        &mut self,
        id: u64,
        clear: &pb::Clear,
        limits: &SessionLimits,
        out: &mut Vec<Action>,
    ) {
        let query = self
            .queryable(&clear.conversation)
            .and_then(|conversation| Ok(Query::Clear { conversation, seq: check_seq(clear.seq)? }));
        self.open_query(id, query, limits, out);
    }

    pub(super) fn handle_hide(
        &mut self,
        id: u64,
        hide: pb::Hide,
        limits: &SessionLimits,
        out: &mut Vec<Action>,
    ) {
        let query = self
            .queryable(&hide.conversation)
            .and_then(|conversation| Ok(Query::Hide { conversation, seqs: check_seqs(hide.seqs)? }));
        self.open_query(id, query, limits, out);
    }

    pub(super) fn handle_leave_group(
        &mut self,
        id: u64,
        leave: &pb::Leave,
        limits: &SessionLimits,
        out: &mut Vec<Action>,
    ) {
        let query = parse(&leave.conversation).and_then(|conversation| match conversation.kind() {
            ConversationKind::Group(_) if leave.room.is_empty() => Ok(Query::Leave(conversation)),
            ConversationKind::Group(_) => {
                Err((Code::Malformed, "set either room or conversation, not both".to_owned()))
            }
            ConversationKind::Direct(..) => {
                Err((Code::Forbidden, "a direct conversation can't be left".to_owned()))
            }
            ConversationKind::Room(_) => Err((Code::BadId, "set room to leave a live room".to_owned())),
        });
        self.open_query(id, query, limits, out);
    }

    pub(super) fn handle_watch(
        &mut self,
        id: u64,
        watch: &pb::Watch,
        limits: &SessionLimits,
        out: &mut Vec<Action>,
    ) {
        let query = parse(&watch.conversation).and_then(|conversation| match conversation.kind() {
            ConversationKind::Room(_) => {
                let cure = "a live room reports no presence; its members are counted in roomStats";
                Err((Code::Unsupported, cure.to_owned()))
            }
            ConversationKind::Direct(..) | ConversationKind::Group(_) => {
                let conversation = self.checked(conversation)?;
                Ok(Query::Watch { conversation, stop: watch.stop })
            }
        });
        self.open_query(id, query, limits, out);
    }

    pub(super) fn handle_sync(
        &mut self,
        id: u64,
        sync: &pb::Sync,
        limits: &SessionLimits,
        out: &mut Vec<Action>,
    ) {
        self.open_query(id, positions(&sync.positions).map(Query::Sync), limits, out);
    }

    /// Handles a Ping; without positions it is answered immediately.
    pub(super) fn handle_ping(
        &mut self,
        id: u64,
        ping: &pb::Ping,
        limits: &SessionLimits,
        now: Time,
        out: &mut Vec<Action>,
    ) {
        if ping.positions.is_empty() {
            self.pong(id, now, out);
        } else {
            self.open_query(id, positions(&ping.positions).map(Query::Positions), limits, out);
        }
    }

    fn open_query(
        &mut self,
        id: u64,
        query: Result<Query, Refusal>,
        limits: &SessionLimits,
        out: &mut Vec<Action>,
    ) {
        match query {
            // Only a driver that reads although it should not gets here while a query is open.
            Ok(_) if self.query_open => self.refuse(id, Code::Busy, "", limits, out),
            Ok(query) => {
                (self.query_open, self.append_open) = (true, query.appends());
                out.push(Action::Query { id, query: Box::new(query) });
            }
            Err((code, message)) => self.refuse(id, code, &message, limits, out),
        }
    }

    /// Parses a conversation key; refuses rooms, and direct conversations of other users.
    fn queryable(&self, key: &str) -> Result<ConversationId, Refusal> {
        parse(key).and_then(|conversation| self.checked(conversation))
    }

    /// Returns a conversation that the user may query: a group, or a direct conversation of the user.
    fn checked(&self, conversation: ConversationId) -> Result<ConversationId, Refusal> {
        let mine = self.identity.as_ref().is_some_and(|me| conversation.is_direct_of(&me.user));
        match conversation.kind() {
            ConversationKind::Direct(..) if !mine => {
                Err((Code::Forbidden, "this is a direct conversation of other users".to_owned()))
            }
            ConversationKind::Room(_) => Err((Code::NotFound, "a live room has no history".to_owned())),
            ConversationKind::Direct(..) | ConversationKind::Group(_) => Ok(conversation),
        }
    }
}

fn check_seq(seq: u64) -> Result<u64, Refusal> {
    if seq == 0 { Err((Code::Malformed, "seqs begin at 1".to_owned())) } else { Ok(seq) }
}

fn parse(key: &str) -> Result<ConversationId, Refusal> {
    ConversationId::parse(key).map_err(|error| (Code::BadId, format!("conversation: {error}")))
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
            return Err((Code::Malformed, "a pull around a seq needs it in cursor".to_owned()));
        }
        (true, 0, cursor) if around => Which::Around(cursor),
        (true, 0, cursor) if pull.direction() == pb::Direction::Forward => Which::After(cursor),
        (true, 0, 0) => Which::Before(u64::MAX),
        (true, 0, cursor) => Which::Before(cursor),
        (true, time, 0) if !around => Which::Since(time),
        (false, 0, 0) if !around => Which::Seqs(check_seqs(pull.seqs)?),
        _ => {
            let cure = "set only one of cursor, seqs and time; a pull around a seq needs cursor";
            return Err((Code::Malformed, cure.to_owned()));
        }
    };
    Ok(Pull { conversation, which, limit })
}

/// Returns the seqs of a list in ascending order, each once.
fn check_seqs(mut seqs: Vec<u64>) -> Result<Vec<u64>, Refusal> {
    if seqs.len() > SEQS_MAX {
        return Err((Code::Malformed, format!("too many seqs; send at most {SEQS_MAX} in one frame")));
    }
    seqs.retain(|seq| *seq > 0);
    seqs.sort_unstable();
    seqs.dedup();
    if seqs.is_empty() { Err((Code::Malformed, "seqs begin at 1".to_owned())) } else { Ok(seqs) }
}

fn positions(positions: &[pb::Position]) -> Result<Vec<(ConversationId, u64)>, Refusal> {
    if positions.len() > POSITIONS_MAX {
        let cure = format!("too many positions; send at most {POSITIONS_MAX} in one frame");
        return Err((Code::Malformed, cure));
    }
    positions.iter().map(|it| Ok((parse(&it.conversation)?, it.seq))).collect()
}
