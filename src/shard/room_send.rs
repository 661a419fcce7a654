//! Sends to live rooms: numbers a turn's messages together, fans them out here, and
//! forwards them to nodes with members.
//!
//! One numbering per room is in flight at a time, which keeps each sender's order. Messages sent meanwhile wait for the
//! next one, bounded in bytes. On a single node the numbers are available at once, and nothing waits.

use std::{
    collections::{HashMap, VecDeque},
    num::NonZeroU64,
    sync::Arc,
};

use std::hash::RandomState;
use tidegate_protocol::{
    Code,
    codec::PushFrame,
    id::{ConversationId, RoomId, UserId},
    machine::session::{Submit, SubmitAnswer, SubmitRefusal},
};

use super::{Shard, actions::token::ROOM_NOT_GRANTED, conn::Conn};
use crate::{
    mail::{Audience, ConnKey, Delivery, Mail, RoomNumbers},
    net::io::Io,
    routes::Route,
};

/// Most bytes of room messages that wait for their numbers on one shard.
const ROOM_QUEUE_BYTES_MAX: usize = 1024 * 1024;

/// Part of these bytes that the messages of one room may take.
const ROOM_BYTES_MAX: usize = 256 * 1024;

/// Bytes that a message counts in addition to its content.
const POST_OVERHEAD_BYTES: usize = 256;

/// Room messages that wait for their numbers, by room.
#[derive(Default)]
pub(super) struct RoomQueue {
    rooms: HashMap<ConversationId, PostQueue, RandomState>,
    /// Rooms with waiting messages and no numbering in flight, without duplicates.
    ready: Vec<ConversationId>,
    bytes: usize,
}

/// Messages of one room.
#[derive(Default)]
struct PostQueue {
    /// Messages for the next numbering.
    waiting: Vec<RoomPost>,
    /// Messages of the numbering in flight.
    numbering: Vec<RoomPost>,
    /// Bytes of all these messages.
    bytes: usize,
}

/// Message to a room, with its sender.
struct RoomPost {
    origin: ConnKey,
    sender: UserId,
    submit: Submit,
}

impl RoomQueue {
    /// Returns whether a numbering can start now.
    pub(super) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Returns whether no further message to the room may be queued.
    fn is_full(&self, room: &ConversationId) -> bool {
        self.bytes >= ROOM_QUEUE_BYTES_MAX
            || self.rooms.get(room).is_some_and(|queue| queue.bytes >= ROOM_BYTES_MAX)
    }

    fn add(&mut self, post: RoomPost) {
        self.bytes += weight(&post);
        let room = post.submit.conversation.clone();
        let queue = self.rooms.entry(room.clone()).or_default();
        if queue.waiting.is_empty() && queue.numbering.is_empty() {
            self.ready.push(room);
        }
        queue.bytes += weight(&post);
        queue.waiting.push(post);
    }

    /// Moves the room's waiting messages into a new numbering, and returns their count.
    fn start_numbering(&mut self, room: &ConversationId) -> Option<NonZeroU64> {
        let queue = self.rooms.get_mut(room)?;
        queue.numbering = std::mem::take(&mut queue.waiting);
        NonZeroU64::new(queue.numbering.len() as u64)
    }

    /// Ends the numbering in flight, and returns its messages.
    fn finish_numbering(&mut self, room: &ConversationId) -> Vec<RoomPost> {
        let Some(queue) = self.rooms.get_mut(room) else { return Vec::new() };
        let numbered = std::mem::take(&mut queue.numbering);
        let bytes: usize = numbered.iter().map(weight).sum();
        queue.bytes -= bytes;
        if queue.waiting.is_empty() {
            self.rooms.remove(room);
        } else {
            self.ready.push(room.clone());
        }
        self.bytes -= bytes;
        numbered
    }
}

fn weight(post: &RoomPost) -> usize {
    post.submit.content.len() + POST_OVERHEAD_BYTES
}

impl<I: Io> Shard<I> {
    /// Queues a message to a live room for this turn's numbering, if its sender is in the room.
    pub(super) fn publish(&mut self, conn: &mut Conn, submit: Submit) {
        let limits = &self.context.limits;
        if self.room_queue.is_full(&submit.conversation) || self.context.intake.is_short() {
            let (ticket, out) = (submit.ticket, &mut self.buffers.actions);
            return conn.session.submit_refused(ticket, Code::Busy.into(), limits, self.now, out);
        }
        match &conn.login {
            Some(login) if self.hub.is_in(&submit.conversation, conn.key.slot) => {
                let user = &login.route.user;
                if let Err(retry_after) = self.context.limiter.send(user, &submit.conversation, self.now) {
                    let (ticket, out) = (submit.ticket, &mut self.buffers.actions);
                    let refusal = SubmitRefusal { retry_after, ..Code::RateLimited.into() };
                    return conn.session.submit_refused(ticket, refusal, limits, self.now, out);
                }
                self.room_queue.add(RoomPost { origin: conn.key, sender: login.route.user.clone(), submit });
            }
            _ => {
                let refusal =
                    SubmitAnswer::Refused { code: Code::NotAMember, message: "join the room first".into() };
                let out = &mut self.buffers.actions;
                conn.session.answered(submit.ticket, refusal, limits, self.now, out);
            }
        }
    }

    /// Requests numbers for the waiting messages of all rooms but those whose earlier frames fill the fan-out.
    pub(super) fn number_posts(&mut self) {
        for room in std::mem::take(&mut self.room_queue.ready) {
            if self.hub.is_full(&room) {
                self.room_queue.ready.push(room);
                continue;
            }
            let Some(count) = self.room_queue.start_numbering(&room) else { continue };
            let rooms = Arc::clone(&self.context.rooms);
            let (requested, named) = (room.clone(), room.clone());
            let work = async move { rooms.assign_numbers(&requested, count).await };
            let numbers = self.context.ask(work, move |numbers| Mail::RoomNumbers(named, numbers));
            if let Some(numbers) = numbers {
                self.on_numbered(&room, numbers);
            }
        }
    }

    /// Publishes the numbered messages, or refuses them, and answers their senders.
    pub(super) fn on_numbered(&mut self, room: &ConversationId, numbers: Result<RoomNumbers, Code>) {
        let posts = self.room_queue.finish_numbering(room);
        let mut answers = VecDeque::with_capacity(posts.len());
        match numbers {
            Ok(RoomNumbers { numbers, nodes }) => {
                let time = self.wall_ms;
                for (seq, post) in numbers.zip(posts) {
                    answers.push_back((
                        post.origin,
                        post.submit.ticket,
                        SubmitAnswer::Accepted { seq, time },
                    ));
                    self.push_post(post, seq, time, &nodes);
                }
            }
            Err(code) => answers.extend(posts.into_iter().map(|post| {
                (post.origin, post.submit.ticket, SubmitAnswer::Refused { code, message: "".into() })
            })),
        }
        self.answers(answers);
    }

    fn push_post(&mut self, post: RoomPost, seq: u64, time: u64, nodes: &[crate::routes::NodeBoot]) {
        let RoomPost { origin, sender, submit } = post;
        let frame = PushFrame::from_parts(
            submit.conversation.as_str(),
            seq,
            sender.as_str(),
            submit.msg_id.as_str(),
            time,
            &submit.content,
        );
        if let Some(push) = frame.push().filter(|_| !nodes.is_empty()) {
            self.context.rooms.forward(nodes, &submit.conversation, &push);
        }
        self.broadcast(Delivery {
            conversation: submit.conversation,
            seq,
            audience: Audience::Members,
            frame: Arc::new(frame),
            origin: Some(origin),
            tracked: false,
        });
    }

    /// Adds a connection to a room. The join is confirmed once the room's interest is declared to the
    /// other nodes, or that attempt has failed.
    pub(super) fn join_room(&mut self, conn: &mut Conn, id: u64, room: &RoomId) {
        if let Some(login) = &conn.login {
            let Route { user, device, .. } = &login.route;
            if let Err(wait) = self.context.limiter.join(user, device, self.now) {
                return conn.session.join_limited(id, room, wait, &mut self.buffers.actions);
            }
        }
        if !Self::may_join(conn, room) {
            let (limits, out) = (&self.context.limits, &mut self.buffers.actions);
            return conn.session.joined(id, room, Err(ROOM_NOT_GRANTED), limits, self.now, out);
        }
        let conversation = ConversationId::room(room);
        self.hub.join(&conversation, conn.key.slot);
        if self.context.rooms.is_declared(&conversation) {
            let limits = &self.context.limits;
            return conn.session.joined(id, room, Ok(()), limits, self.now, &mut self.buffers.actions);
        }
        let rooms = Arc::clone(&self.context.rooms);
        let Some(place) = rooms.reserve_join() else {
            self.leave_room(conn, room);
            let (limits, out) = (&self.context.limits, &mut self.buffers.actions);
            return conn.session.joined(id, room, Err((Code::Busy, "")), limits, self.now, out);
        };
        let (key, named) = (conn.key, room.clone());
        let work = async move { rooms.declare(&conversation, place).await };
        let done = self.context.ask(work, move |()| Mail::RoomJoined(key, id, named));
        if done.is_some() {
            let (limits, out) = (&self.context.limits, &mut self.buffers.actions);
            conn.session.joined(id, room, Ok(()), limits, self.now, out);
        }
    }

    /// Removes a connection from a room.
    pub(super) fn leave_room(&mut self, conn: &Conn, room: &RoomId) {
        let conversation = ConversationId::room(room);
        if self.hub.leave(&conversation, conn.key.slot) {
            self.context.rooms.left(&conversation);
        }
    }

    /// Confirms a join after the attempt to declare the room's interest.
    pub(super) fn on_joined(&mut self, key: ConnKey, id: u64, room: &RoomId) {
        let Some(slot) = self.conns.find(key) else { return };
        self.with_conn(slot, |shard, conn| {
            let (limits, out) = (&shard.context.limits, &mut shard.buffers.actions);
            conn.session.joined(id, room, Ok(()), limits, shard.now, out);
            shard.act(conn);
            shard.resume(conn);
            shard.flush(conn);
        });
    }
}
