//! Talk in live rooms: what is said in a turn is numbered together, then fanned out here and handed to the nodes that have
//! members.
//!
//! One numbering a room is under way at a time, so a sender's order stays; what is said meanwhile waits for the next one,
//! bounded in bytes. On a node of its own numbers are there at once, and nothing waits.

use std::{
    collections::{HashMap, VecDeque},
    num::NonZeroU64,
    sync::Arc,
};

use foldhash::quality::RandomState;
use tidegate_protocol::{
    Code,
    codec::PushFrame,
    id::{ConversationId, RoomId, UserId},
    machine::session::{Answer, Submit},
};

use super::{Shard, actions::wall_ms, conn::Conn};
use crate::{
    inline,
    mail::{Audience, ConnKey, Delivery, Mail, Turn},
};

/// Bytes of messages to rooms that may wait for their numbers on one shard.
const BYTES_MAX: usize = 1024 * 1024;

/// What a message weighs beside its content.
const ENTRY_BYTES: usize = 256;

/// What waits for its number, by room.
#[derive(Default)]
pub(super) struct Talks {
    rooms: HashMap<ConversationId, Talk, RandomState>,
    /// Rooms with something said for which no numbering is under way, each once.
    ready: Vec<ConversationId>,
    bytes: usize,
}

#[derive(Default)]
struct Talk {
    /// For the next numbering.
    said: Vec<Said>,
    /// The numbering under way is for these.
    asked: Vec<Said>,
}

struct Said {
    origin: ConnKey,
    sender: UserId,
    submit: Submit,
}

impl Talks {
    /// Whether something is to be numbered now.
    pub(super) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    fn is_full(&self) -> bool {
        self.bytes >= BYTES_MAX
    }

    fn add(&mut self, said: Said) {
        self.bytes += weight(&said);
        let room = said.submit.conversation.clone();
        let talk = self.rooms.entry(room.clone()).or_default();
        if talk.said.is_empty() && talk.asked.is_empty() {
            self.ready.push(room);
        }
        talk.said.push(said);
    }

    /// What was said in the room is asked numbers for: for so many.
    fn ask(&mut self, room: &ConversationId) -> Option<NonZeroU64> {
        let talk = self.rooms.get_mut(room)?;
        talk.asked = std::mem::take(&mut talk.said);
        NonZeroU64::new(talk.asked.len() as u64)
    }

    /// What the numbering that has come back was for.
    fn answered(&mut self, room: &ConversationId) -> Vec<Said> {
        let Some(talk) = self.rooms.get_mut(room) else { return Vec::new() };
        let asked = std::mem::take(&mut talk.asked);
        if talk.said.is_empty() {
            self.rooms.remove(room);
        } else {
            self.ready.push(room.clone());
        }
        self.bytes -= asked.iter().map(weight).sum::<usize>();
        asked
    }
}

fn weight(said: &Said) -> usize {
    said.submit.content.len() + ENTRY_BYTES
}

impl Shard {
    /// A message to a live room: waits for the numbers of this turn, if its sender is in the room.
    pub(super) fn publish(&mut self, conn: &mut Conn, submit: Submit) {
        let limits = &self.context.limits;
        let full = self.hub.is_full() || self.talks.is_full() || self.context.intake.is_short();
        if full {
            let (ticket, out) = (submit.ticket, &mut self.scratch.actions);
            return conn.session.submit_refused(ticket, Code::Busy, "", limits, self.now, out);
        }
        match &conn.who {
            Some(who) if self.hub.is_in(&submit.conversation, conn.key.slot) => {
                self.talks.add(Said { origin: conn.key, sender: who.route.user.clone(), submit });
            }
            _ => {
                let refusal =
                    Answer::Refused { code: Code::NotAMember, message: "join the room first".into() };
                let out = &mut self.scratch.actions;
                conn.session.answered(submit.ticket, refusal, limits, self.now, out);
            }
        }
    }

    /// Asks numbers for what was said in this turn.
    pub(super) fn number_talks(&mut self) {
        for room in std::mem::take(&mut self.talks.ready) {
            let Some(count) = self.talks.ask(&room) else { continue };
            let (rooms, home) = (Arc::clone(&self.context.rooms), self.context.own_handle());
            let (asked, named) = (room.clone(), room.clone());
            let work = async move { rooms.turn(&asked, count).await };
            let turn = inline::run(&self.context.runtime, work, move |turn| {
                Box::pin(async move {
                    if let Some(home) = home {
                        // The shard is gone only when the node stops.
                        home.post(Mail::Numbered(named, turn)).await.ok();
                    }
                })
            });
            if let Some(turn) = turn {
                self.on_numbered(&room, turn);
            }
        }
    }

    /// The numbers are there: everybody hears what was said, and who said it that it is so.
    pub(super) fn on_numbered(&mut self, room: &ConversationId, turn: Result<Turn, Code>) {
        let said = self.talks.answered(room);
        let mut answers = VecDeque::with_capacity(said.len());
        match turn {
            Ok(Turn { numbers, nodes }) => {
                let time = wall_ms();
                for (seq, said) in numbers.zip(said) {
                    answers.push_back((said.origin, said.submit.ticket, Answer::Accepted { seq, time }));
                    self.tell_room(said, seq, time, &nodes);
                }
            }
            Err(code) => {
                answers.extend(said.into_iter().map(|said| {
                    (said.origin, said.submit.ticket, Answer::Refused { code, message: "".into() })
                }))
            }
        }
        self.answers(answers);
    }

    fn tell_room(&mut self, said: Said, seq: u64, time: u64, nodes: &[crate::routes::NodeBoot]) {
        let Said { origin, sender, submit } = said;
        let frame = PushFrame::from_parts(
            submit.conversation.as_str(),
            seq,
            sender.as_str(),
            submit.msg_id.as_str(),
            time,
            &submit.content,
        );
        if let Some(push) = frame.push().filter(|_| !nodes.is_empty()) {
            self.context.rooms.carry(nodes, &submit.conversation, &push);
        }
        self.spread(Delivery {
            conversation: submit.conversation,
            seq,
            audience: Audience::Members,
            frame: Arc::new(frame),
            origin: Some(origin),
            tracked: false,
        });
    }

    /// Brings a connection into a room. It hears so once the other nodes know that the room has members here, and not
    /// later than they can be told.
    pub(super) fn join_room(&mut self, conn: &mut Conn, id: u64, room: &RoomId) {
        let place = ConversationId::room(room);
        self.hub.join(&place, conn.key.slot);
        if self.context.rooms.is_declared(&place) {
            let limits = &self.context.limits;
            return conn.session.joined(id, room, Ok(()), limits, &mut self.scratch.actions);
        }
        let rooms = Arc::clone(&self.context.rooms);
        let (key, named, home) = (conn.key, room.clone(), self.context.own_handle());
        let work = async move { rooms.declare(&place).await };
        let done = inline::run(&self.context.runtime, work, move |()| {
            Box::pin(async move {
                if let Some(home) = home {
                    // The shard is gone only when the node stops.
                    home.post(Mail::Joined(key, id, named)).await.ok();
                }
            })
        });
        if done.is_some() {
            conn.session.joined(id, room, Ok(()), &self.context.limits, &mut self.scratch.actions);
        }
    }

    /// The other nodes know that the room has members here.
    pub(super) fn on_joined(&mut self, key: ConnKey, id: u64, room: &RoomId) {
        let Some(slot) = self.conns.find(key) else { return };
        self.with_conn(slot, |shard, conn| {
            conn.session.joined(id, room, Ok(()), &shard.context.limits, &mut shard.scratch.actions);
            shard.act(conn);
            shard.flush(conn);
        });
    }
}
