//! Mail of a shard: handles mail from other threads, and from the shard itself, in order.

use std::{collections::VecDeque, mem};

use tidegate_protocol::{
    Code,
    id::{ConversationId, DeviceId, UserId},
    machine::session::SubmitAnswer,
};
use tokio::sync::oneshot::Sender;

use super::{Shard, conn::LoginState, newcomer::NEWCOMERS_MAX};
use crate::{
    budget::shed,
    link::RoutedSession,
    log_limit::log_limited,
    mail::{Audience, ConnKey, Lag, Mail, Reassert},
    net::io::Io,
};

impl<I: Io> Shard<I> {
    /// Handles mail of other threads worth `budget`, as much with room frames, and all mail of this shard to itself.
    ///
    /// What waits for fan-out is bounded without stopping other mail: room frames wait in their lane of the mailbox, and
    /// the hub replaces pushes to conversations by hints. Common mail waits only behind very many membership changes.
    pub(super) fn handle_mail(&mut self, budget: usize) {
        let mut left = budget;
        while left > 0
            && let Some(mail) = self.mailbox.take_urgent()
        {
            left -= 1;
            self.handle(mail);
        }
        while left > 0 && !self.hub.is_overfull() {
            if let Some(item) = self.items.pop_front() {
                left = left.saturating_sub(self.take_item(item).max(1));
                continue;
            }
            let Some(mail) = self.mailbox.take() else { break };
            // A mail costs what it contains; items are charged one by one.
            let cost = match &mail {
                Mail::Answers(answers) => answers.len(),
                Mail::Reassert(Reassert::Settle(routes)) => routes.len(),
                _ => 1,
            };
            left = left.saturating_sub(cost.max(1));
            self.handle(mail);
        }
        let mut left = budget;
        while left > 0 && !self.hub.is_full_of_room_frames() {
            let Some(mail) = self.mailbox.take_room_frames() else { break };
            let cost = if let Mail::RoomFrames(frames) = &mail { frames.len() } else { 1 };
            left = left.saturating_sub(cost.max(1));
            self.handle(mail);
        }
        for mail in mem::take(&mut self.own_mail) {
            self.handle(mail);
        }
    }

    fn handle(&mut self, mail: Mail) {
        match mail {
            Mail::Answers(answers) => self.answers(answers.into()),
            Mail::Deliver(items) => self.items.extend(items),
            Mail::RoomFrames(frames) => frames.into_iter().for_each(|frame| self.hub.push(frame)),
            Mail::TokenChecked(key, purpose, checked) => {
                if let Some(slot) = self.conns.find(key) {
                    self.with_conn(slot, |shard, conn| {
                        shard.on_token(conn, *purpose, checked);
                        shard.act(conn);
                        shard.flush(conn);
                    });
                }
            }
            Mail::LoginDone(key, done) => match self.conns.find(key) {
                Some(slot) => self.with_conn(slot, |shard, conn| {
                    shard.on_login(conn, done);
                    shard.flush(conn);
                }),
                None => self.forget_login(done),
            },
            Mail::QueryDone(key, result) => {
                if let Some(slot) = self.conns.find(key) {
                    self.with_conn(slot, |shard, conn| {
                        shard.on_query_result(conn, result);
                        shard.act(conn);
                        shard.flush(conn);
                    });
                }
            }
            Mail::Memberships(key, mut groups) => {
                if let Some(slot) = self.conns.find(key) {
                    self.with_conn(slot, |shard, conn| shard.on_memberships(conn, &mut groups));
                }
                self.release_holds(&groups);
            }
            Mail::Replaced(user, device, epoch, reply) => self.take_replaced(&user, &device, epoch, reply),
            Mail::Cut(user, device, reply) => self.cut(&user, device.as_ref(), reply),
            Mail::Connections(order) => self.on_connections(order),
            Mail::Outdated(outdated) => self.take_outdated(outdated),
            Mail::EpochRenewed(key, done) => self.take_renewed(key, done),
            Mail::Signal(signal) => self.take_signal(signal),
            Mail::Presence(report) => self.take_presence(report),
            Mail::GroupSize(key, id, signal, size) => self.on_group_size(key, id, signal, size),
            Mail::RoomNumbers(room, numbers) => self.on_numbered(&room, numbers),
            Mail::Decided(key, decision) => self.take_decision(key, decision),
            Mail::RoomJoined(key, id, room) => self.on_joined(key, id, &room),
            Mail::Drain(order) => self.on_drain(order),
            Mail::Reassert(order) => self.on_reassert(order),
            Mail::Stop(code) => {
                // Connections that were accepted before the stop get a `Close` as well.
                self.take_newcomers(NEWCOMERS_MAX);
                self.stopping = true;
                self.close_all_gracefully(code);
            }
            Mail::RoomLoss(room, count) => self.on_room_loss(&room, count),
            Mail::ShedMemory => self.shed_memory(),
        }
    }

    /// Closes the connections of the device that are older than `epoch`, and replies whether there were any.
    fn take_replaced(&mut self, user: &UserId, device: &DeviceId, epoch: u64, reply: Option<Sender<bool>>) {
        let is_old = |login: &LoginState| login.route.device == *device && login.route.token.epoch < epoch;
        let old = self.slots_of(user, is_old);
        for slot in &old {
            self.close_now(*slot, Code::Replaced);
        }
        if let Some(reply) = reply {
            // The caller may have stopped waiting.
            reply.send(!old.is_empty()).ok();
        }
    }

    /// Resets the sockets of the user's device, or of all its devices, and replies how many there were.
    fn cut(&mut self, user: &UserId, device: Option<&DeviceId>, reply: Sender<usize>) {
        let slots = self.slots_of_device(user, device);
        for slot in &slots {
            self.with_conn(*slot, Self::reset);
        }
        // The caller may have stopped waiting.
        reply.send(slots.len()).ok();
    }

    /// Passes answers to the sessions of their connections, in order.
    pub(super) fn answers(&mut self, mut answers: VecDeque<(ConnKey, u64, SubmitAnswer)>) {
        while let Some(key) = answers.front().map(|(key, ..)| *key) {
            match self.conns.find(key) {
                Some(slot) => self.with_conn(slot, |shard, conn| shard.on_answers(conn, &mut answers)),
                None => while answers.pop_front_if(|(other, ..)| *other == key).is_some() {},
            }
        }
    }

    /// Marks the recipients of omitted pushes as behind, up to the last omitted seq.
    pub(super) fn on_lag(&mut self, lag: &Lag) {
        let slots: Vec<u32> = match &lag.audience {
            Audience::Members => self.hub.members_of(&lag.conversation),
            Audience::Users(users) => users.iter().flat_map(|user| self.hub.slots(user)).copied().collect(),
            Audience::Sessions(sessions) => self.slots_of_sessions(sessions),
        };
        for slot in slots {
            self.with_conn(slot, |shard, conn| {
                if conn.is_open() {
                    let outbox = conn.outbox.get_or_insert_with(Box::default);
                    let outcome = outbox.mark_behind(&lag.conversation, lag.max_seq);
                    shard.handle_push_outcome(conn, outcome);
                }
            });
        }
    }

    /// Returns the open connections of a user whose login `matches`.
    pub(super) fn slots_of(&self, user: &UserId, matches: impl Fn(&LoginState) -> bool) -> Vec<u32> {
        let is_match = |slot: &u32| {
            let conn = self.conns.peek(*slot).filter(|conn| conn.is_open());
            conn.and_then(|conn| conn.login.as_deref()).is_some_and(&matches)
        };
        self.hub.slots(user).iter().copied().filter(is_match).collect()
    }

    /// Returns the open connections of a user's device, or of all its devices.
    pub(super) fn slots_of_device(&self, user: &UserId, device: Option<&DeviceId>) -> Vec<u32> {
        self.slots_of(user, |login| device.is_none_or(|device| login.route.device == *device))
    }

    /// Returns the connections of these sessions on this shard.
    pub(super) fn slots_of_sessions(&self, sessions: &[RoutedSession]) -> Vec<u32> {
        let slots_of_session = |it: &RoutedSession| {
            let matches =
                |login: &LoginState| login.route.device == it.device && login.route.token.epoch == it.epoch;
            self.slots_of(&it.user, matches)
        };
        sessions.iter().flat_map(slots_of_session).collect()
    }

    /// Closes one connection at once, with a `Close` frame from its session.
    pub(super) fn close_now(&mut self, slot: u32, code: Code) {
        self.with_conn(slot, |shard, conn| {
            conn.session.close(code, "", &mut shard.buffers.actions);
            shard.act(conn);
            shard.flush(conn);
        });
    }

    /// Releases the references that kept this shard subscribed until its hub had the members; the hub holds its own.
    pub(super) fn release_holds(&self, conversations: &[ConversationId]) {
        for conversation in conversations {
            self.context.directory.release_conversation(conversation, self.context.index);
        }
    }

    /// Closes the connections that hold the most: those that are not logged in first, then those of the lowest class.
    fn shed_memory(&mut self) {
        let weigh = |slot: &u32| {
            let hot = &self.conns.hot[*slot as usize];
            let mut weight = self.conns.peek(*slot)?.weight(hot.flags);
            weight.bytes += hot.stream.as_ref().map_or(0, |stream| self.io.held(stream));
            Some((weight, *slot))
        };
        let chosen = shed::choose(self.conns.slots().iter().filter_map(weigh).collect());
        let bytes: usize = chosen.iter().map(|(weight, _)| weight.bytes).sum();
        for (weight, slot) in chosen {
            tracing::debug!(?weight, "memory is short; closing a connection that holds much");
            self.context.metrics.slow.increment(1);
            self.with_conn(slot, Self::reset);
        }
        if bytes > 0 {
            log_limited!(warn, bytes, "memory is short; closed the connections that hold the most");
        }
    }
}
