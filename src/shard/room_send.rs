//! Sends to live rooms: numbers a turn's messages together, fans them out here, and
//! forwards them to nodes with members.
//!
//! One numbering per room is in flight at a time, which keeps each sender's order. Messages sent meanwhile wait for the
//! next one, bounded in bytes. On a single node the numbers are available at once, and nothing waits but what a room over
//! its rate has to choose from.

mod queue;
mod react;

use std::{collections::VecDeque, sync::Arc};

use tidegate_protocol::{
    Code,
    codec::PushFrame,
    id::{ConversationId, RoomId},
    machine::session::{Submit, SubmitAnswer},
    record::mode::UNCHECKED,
};

use self::queue::RoomPost;
pub(super) use self::queue::RoomQueue;
use super::{
    Shard,
    actions::{
        limits::{CountedRequest, mark_limit},
        token::ROOM_NOT_GRANTED,
    },
    conn::{AskingRequest, Conn, class_of},
};
use crate::{
    limits::LimitCall,
    mail::{Audience, ConnKey, Delivery, Mail, RoomNumbers},
    net::io::Io,
    routes::Route,
};

impl<I: Io> Shard<I> {
    /// Queues a message to a live room for this turn's numbering, if its sender is in the room. With `can_wait` a limit may
    /// let it wait.
    pub(super) fn publish(&mut self, conn: &mut Conn, mut submit: Submit, can_wait: bool) {
        let limits = &conn.settings.limits;
        let class = class_of(self.conns.hot[conn.key.slot as usize].flags);
        let rules = self.context.room_rules.get();
        if self.room_queue.is_full(&submit, class, &rules, self.now) || self.context.intake.is_short() {
            let (ticket, out) = (submit.ticket, &mut self.buffers.actions);
            return conn.session.submit_refused(ticket, Code::Busy.into(), limits, self.now, out);
        }
        let closed = self.context.cluster.closed_rooms.get(&submit.conversation);
        match &conn.login {
            // Closed rooms have no members, and the limits count what they refuse.
            Some(login) if closed.is_some() || self.hub.is_in(&submit.conversation, conn.key.slot) => {
                let content = submit.ruling.sent.as_ref().unwrap_or(&submit.content);
                let room = &submit.conversation;
                let limiter = || self.context.limiter.send(&login.route.user, &submit.conversation, self.now);
                if let Err(fault) = self.admit_send(conn, room, content, can_wait, limiter) {
                    return self.turn_away(conn, submit, &fault);
                }
                // It counts as a message does: otherwise a flood of them would be free.
                if let Some(code) = submit.ruling.denied {
                    return self.refuse_denied(conn, submit.ticket, code);
                }
                if let Some(closed) = closed {
                    return self.refuse_closed_send(conn, submit.ticket, &closed);
                }
                // The limits have counted it.
                submit.ruling.sent = None;
                let post = RoomPost { origin: conn.key, sender: login.route.user.clone(), class, submit };
                self.room_queue.add(post, conn.address, &rules, self.now);
            }
            _ => {
                let refusal =
                    SubmitAnswer::Refused { code: Code::NotAMember, message: "join the room first".into() };
                self.note_probe(conn, Code::NotAMember, &submit.conversation);
                let (limits, out) = (&conn.settings.limits, &mut self.buffers.actions);
                conn.session.answered(submit.ticket, refusal, limits, self.now, out);
            }
        }
    }

    /// Requests numbers for the waiting messages of all rooms but those whose earlier frames fill the fan-out, as far as the
    /// rates of the rooms allow, and answers those that are left out.
    pub(super) fn number_posts(&mut self) {
        let ready = self.room_queue.take_ready();
        if !ready.is_empty() {
            let rules = self.context.room_rules.get();
            for room in ready {
                if self.hub.is_full(&room) {
                    self.room_queue.put_back(room);
                    continue;
                }
                let Some(count) = self.room_queue.start_numbering(&room, &rules, self.now) else { continue };
                let rooms = Arc::clone(&self.context.rooms);
                let (requested, named) = (room.clone(), room.clone());
                let work = async move { rooms.assign_numbers(&requested, count).await };
                let numbers = self.context.ask(work, move |numbers| Mail::RoomNumbers(named, numbers));
                if let Some(numbers) = numbers {
                    self.on_numbered(&room, numbers);
                }
            }
        }
        let left_out = self.room_queue.take_left_out();
        if !left_out.is_empty() {
            self.context.metrics.room_left_out.increment(left_out.len() as u64);
            let refused = |(origin, ticket)| {
                let refusal = SubmitAnswer::Refused { code: Code::LeftOut, message: "".into() };
                (origin, ticket, refusal)
            };
            self.answers(left_out.into_iter().map(refused).collect());
        }
    }

    /// Publishes the numbered messages, or refuses them, and answers their senders.
    pub(super) fn on_numbered(&mut self, room: &ConversationId, numbers: Result<RoomNumbers, Code>) {
        let first = numbers.as_ref().ok().map(|numbers| *numbers.numbers.start());
        let posts = self.room_queue.finish_numbering(room, first, &self.context.room_rules.get());
        let mut answers = VecDeque::with_capacity(posts.len());
        match numbers {
            Ok(RoomNumbers { numbers, nodes }) => {
                let time = self.wall_ms;
                let mut left_out = self.room_queue.take_report(room, self.now).map_or(0, u64::from);
                if left_out > 0 {
                    self.broadcast(Delivery::left_out(room, left_out));
                }
                for (seq, post) in numbers.zip(posts) {
                    answers.push_back((
                        post.origin,
                        post.submit.ticket,
                        SubmitAnswer::Accepted { seq, time },
                    ));
                    self.push_post(post, seq, time, &nodes, std::mem::take(&mut left_out));
                }
            }
            Err(code) => answers.extend(posts.into_iter().map(|post| {
                (post.origin, post.submit.ticket, SubmitAnswer::Refused { code, message: "".into() })
            })),
        }
        self.answers(answers);
    }

    /// Reports to the members of rooms how many messages were left out, where no numbered message has done so.
    pub(super) fn report_left_out(&mut self) {
        for (room, count) in self.room_queue.take_reports(self.now) {
            self.broadcast(Delivery::left_out(&room, count.get()));
            let rooms = Arc::clone(&self.context.rooms);
            self.context.run_detached(async move { rooms.report_left_out(&room, count.get()).await });
        }
    }

    /// Pushes a numbered message to the members here, and forwards it to the other nodes with the number of messages that
    /// were left out.
    fn push_post(
        &mut self,
        post: RoomPost,
        seq: u64,
        time: u64,
        nodes: &[crate::routes::NodeBoot],
        left_out: u64,
    ) {
        let RoomPost { origin, sender, class, submit } = post;
        let frame = PushFrame::from_parts(
            submit.conversation.as_str(),
            seq,
            sender.as_str(),
            submit.msg_id.as_str(),
            time,
            &submit.content,
            submit.flags & UNCHECKED,
        );
        if let Some(push) = frame.push().filter(|_| !nodes.is_empty()) {
            self.context.rooms.forward(nodes, &submit.conversation, &push, class, left_out);
        }
        self.broadcast(Delivery {
            conversation: submit.conversation,
            seq,
            audience: Audience::Members,
            frame: Arc::new(frame),
            origin: Some(origin),
            tracked: false,
            class,
        });
    }

    /// Adds a connection to a room. The join is confirmed once the room's interest is declared to the
    /// other nodes, or that attempt has failed.
    pub(super) fn join_room(&mut self, conn: &mut Conn, id: u64, room: &RoomId) {
        if !Self::may_join(conn, room) {
            let (limits, out) = (&conn.settings.limits, &mut self.buffers.actions);
            return conn.session.joined(id, room, Err(ROOM_NOT_GRANTED), limits, self.now, out);
        }
        if !self.enter_join(conn, id, room) {
            return;
        }
        if let Some(login) = &conn.login {
            let Route { user, device, .. } = &login.route;
            let conversation = ConversationId::room(room);
            let limiter = || self.context.limiter.join(user, device, self.now);
            let request = CountedRequest::new(LimitCall::Join, Some(&conversation));
            let admitted = self.admit_request(conn, &request, limiter);
            if let Err(refusal) = admitted {
                if let Some(asking) = refusal.asking.as_ref().filter(|_| conn.held.is_none()) {
                    let request = AskingRequest::Join { id, room: room.clone() };
                    return self.await_permits(conn, request, asking);
                }
                let out = &mut self.buffers.actions;
                if refusal.asking.is_some() {
                    // A send waits for the block list of its recipient, and a connection keeps one request.
                    return conn.session.join_deferred(
                        id,
                        room,
                        Code::Busy.error_after("", refusal.wait),
                        out,
                    );
                }
                let before = out.len();
                conn.session.join_limited(id, room, refusal.wait, out);
                return mark_limit(&mut out[before..], &refusal);
            }
        }
        self.decide_join(conn, id, room.clone());
    }

    /// Adds a connection to a room that its user may join, unless it was removed from the room while the join was held.
    pub(super) fn join_allowed(&mut self, conn: &mut Conn, id: u64, room: &RoomId) {
        if conn.session.is_removed_join(id, room) {
            let limits = &conn.settings.limits;
            return conn.session.joined(id, room, Ok(()), limits, self.now, &mut self.buffers.actions);
        }
        let conversation = ConversationId::room(room);
        if self.refuse_closed_join(conn, id, room, &conversation) {
            return;
        }
        if self.hub.join(&conversation, conn.key.slot) {
            if let Some(login) = conn.login.as_deref() {
                self.hub.listings.joined(&conversation, &login.route, conn.key.slot);
            }
            let wire = self.conns.hot[conn.key.slot as usize].wire;
            for message in self.hub.recent(&conversation) {
                self.queue(conn, &message, message.frame.bytes(wire).clone());
            }
            self.queue_room_stats(conn, &conversation);
        }
        if self.context.rooms.is_declared(&conversation) {
            let limits = &conn.settings.limits;
            return conn.session.joined(id, room, Ok(()), limits, self.now, &mut self.buffers.actions);
        }
        let rooms = Arc::clone(&self.context.rooms);
        let Some(place) = rooms.reserve_join() else {
            self.leave_room(conn, room);
            let (limits, out) = (&conn.settings.limits, &mut self.buffers.actions);
            return conn.session.joined(id, room, Err((Code::Busy, "")), limits, self.now, out);
        };
        let (key, named) = (conn.key, room.clone());
        let work = async move { rooms.declare(&conversation, place).await };
        let done = self.context.ask(work, move |()| Mail::RoomJoined(key, id, named));
        if done.is_some() {
            let (limits, out) = (&conn.settings.limits, &mut self.buffers.actions);
            conn.session.joined(id, room, Ok(()), limits, self.now, out);
        }
    }

    /// Removes a connection from a room.
    pub(super) fn leave_room(&mut self, conn: &Conn, room: &RoomId) {
        let conversation = ConversationId::room(room);
        if self.hub.leave(&conversation, conn.key.slot) {
            if let Some(login) = conn.login.as_deref() {
                self.hub.listings.left(&conversation, &login.route, conn.key.slot);
            }
            self.context.rooms.left(&conversation);
        }
    }

    /// Confirms a join after the attempt to declare the room's interest.
    pub(super) fn on_joined(&mut self, key: ConnKey, id: u64, room: &RoomId) {
        let Some(slot) = self.conns.find(key) else { return };
        self.with_conn(slot, |shard, conn| {
            let (limits, out) = (&conn.settings.limits, &mut shard.buffers.actions);
            conn.session.joined(id, room, Ok(()), limits, shard.now, out);
            shard.act(conn);
            shard.resume(conn);
            shard.flush(conn);
        });
    }
}
