//! What other threads told this shard, in the order they told it; and what the shard tells the owner.

use std::{collections::VecDeque, mem};

use tidegate_protocol::{
    Code,
    id::{ConversationId, DeviceId, UserId},
    machine::session::Answer,
    record::Record,
};
use tokio::sync::oneshot::Sender;

use super::{Shard, conn::Who};
use crate::{
    ingest::intake,
    link::Session,
    mail::{Audience, ConnKey, Item, Lag, Mail, Reassert},
};

/// Connections that one memory alarm ends on a shard.
const SHED_CONNS: usize = 16;

impl Shard {
    /// Handles at most `budget` mails of other threads, and all of its own. While the fan-out is behind, mail waits in
    /// the mailbox, which is bounded, so that those who push wait as well.
    pub(super) fn handle_mail(&mut self, budget: usize) {
        let mut left = budget;
        while left > 0 && !self.hub.is_full() {
            let Some(mail) = self.mailbox.take() else { break };
            // What a mail costs is what is in it.
            let cost = match &mail {
                Mail::Deliver(items) => items.len(),
                Mail::Answers(answers) => answers.len(),
                Mail::Reassert(Reassert::Settle(routes)) => routes.len(),
                _ => 1,
            };
            left = left.saturating_sub(cost.max(1));
            self.handle(mail);
        }
        for mail in mem::take(&mut self.own) {
            self.handle(mail);
        }
    }

    fn handle(&mut self, mail: Mail) {
        match mail {
            Mail::Accepted(stream, address, seat) => {
                if self.stopping {
                    self.mailbox.conns.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
                } else {
                    let slot = self.welcome(stream, address, seat);
                    if let (Some(slot), true) = (slot, self.leaving.is_some()) {
                        // It came through the door while that closed: it is refused as those behind it are.
                        self.ask_to_leave(slot, Code::Draining);
                    }
                }
            }
            Mail::Answers(answers) => self.answers(answers.into()),
            Mail::Deliver(items) => items.into_iter().for_each(|item| match item {
                Item::Behind(lag) if lag.audience != Audience::Members => self.on_lag(&lag),
                item => self.take_item(item),
            }),
            Mail::LoginDone(key, done) => match self.conns.find(key) {
                Some(slot) => self.with_conn(slot, |shard, conn| {
                    shard.on_login(conn, done);
                    shard.flush(conn);
                }),
                None => self.forget_login(done),
            },
            Mail::Found(key, found) => {
                if let Some(slot) = self.conns.find(key) {
                    self.with_conn(slot, |shard, conn| {
                        shard.on_found(conn, found);
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
            Mail::Replaced(user, device, epoch, asker) => self.take_replaced(&user, &device, epoch, asker),
            Mail::Outdated(outdated) => self.take_outdated(outdated),
            Mail::Renewed(key, done) => self.take_renewed(key, done),
            Mail::Signal(signal) => self.take_signal(signal),
            Mail::Sized(key, id, signal, size) => self.on_sized(key, id, signal, size),
            Mail::Numbered(room, turn) => self.on_numbered(&room, turn),
            Mail::Joined(key, id, room) => self.on_joined(key, id, &room),
            Mail::Drain(order) => self.on_drain(order),
            Mail::Reassert(order) => self.on_reassert(order),
            Mail::Stop(code) => {
                self.stopping = true;
                self.ask_all_to_leave(code);
            }
            Mail::Missed(room, count) => self.on_missed(&room, count),
            Mail::ShedMemory => self.shed_memory(),
        }
    }

    /// A newer login of the device stands.
    fn take_replaced(&mut self, user: &UserId, device: &DeviceId, epoch: u64, asker: Option<Sender<bool>>) {
        let is_old = |who: &Who| who.route.device == *device && who.route.token.epoch < epoch;
        let old = self.slots_of(user, is_old);
        for slot in &old {
            self.close_now(*slot, Code::Replaced);
        }
        if let Some(asker) = asker {
            // Who asked may have gone on without the answer.
            asker.send(!old.is_empty()).ok();
        }
    }

    pub(super) fn answers(&mut self, mut answers: VecDeque<(ConnKey, u64, Answer)>) {
        while let Some(key) = answers.front().map(|(key, ..)| *key) {
            match self.conns.find(key) {
                Some(slot) => self.with_conn(slot, |shard, conn| shard.on_answers(conn, &mut answers)),
                None => while answers.pop_front_if(|(other, ..)| *other == key).is_some() {},
            }
        }
    }

    /// Pushes were left out on the way here: whom they were for hears up to where.
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
                    let marked = outbox.mark_behind(&lag.conversation, lag.max_seq);
                    shard.pushed(conn, marked);
                }
            });
        }
    }

    /// The open connections of a user that `is_it` says yes to.
    fn slots_of(&self, user: &UserId, is_it: impl Fn(&Who) -> bool) -> Vec<u32> {
        let of_it = |slot: &u32| {
            let conn = self.conns.peek(*slot).filter(|conn| conn.is_open());
            conn.and_then(|conn| conn.who.as_deref()).is_some_and(&is_it)
        };
        self.hub.slots(user).iter().copied().filter(of_it).collect()
    }

    /// The connections of these sessions that are here.
    pub(super) fn slots_of_sessions(&self, sessions: &[Session]) -> Vec<u32> {
        let of = |it: &Session| {
            self.slots_of(&it.user, |who| who.route.device == it.device && who.route.token.epoch == it.epoch)
        };
        sessions.iter().flat_map(of).collect()
    }

    /// Closes one connection through its session, so that the client is told.
    pub(super) fn close_now(&mut self, slot: u32, code: Code) {
        self.with_conn(slot, |shard, conn| {
            conn.session.close(code, "", &mut shard.scratch.actions);
            shard.act(conn);
            shard.flush(conn);
        });
    }

    /// The owner held these open until this shard knew of its members; now the hub holds what it needs.
    pub(super) fn release_holds(&self, conversations: &[ConversationId]) {
        for conversation in conversations {
            self.context.directory.release_conversation(conversation, self.context.index);
        }
    }

    fn shed_memory(&mut self) {
        let weight = |slot: &u32| {
            // What was queued this turn and not offered to the socket yet is nobody's fault.
            let conn = self.conns.peek(*slot).filter(|conn| conn.blocked_since.is_some());
            conn.and_then(|conn| conn.outbox.as_ref()).map_or(0, |outbox| outbox.bytes())
        };
        let mut heavy: Vec<(usize, u32)> = self
            .conns
            .slots()
            .iter()
            .map(|slot| (weight(slot), *slot))
            .filter(|(bytes, _)| *bytes > 0)
            .collect();
        heavy.sort_unstable_by(|a, b| b.cmp(a));
        for (bytes, slot) in heavy.into_iter().take(SHED_CONNS) {
            tracing::warn!(bytes, "memory is short: ending a connection with a full outbox");
            self.context.metrics.slow.increment(1);
            self.with_conn(slot, Self::reset);
        }
    }

    /// Gives this turn's sends and logins to the owner; what it can't take now is offered again next turn.
    pub(super) fn hand_over(&mut self) {
        let is_planned = |record: &Record| intake::is_message(record, &self.context.panic_on_msg_id);
        if cfg!(debug_assertions) && self.context.panic_in_shard && self.batch.iter().any(is_planned) {
            panic!("a fault injected by fault.panic_on_msg_id in fault.panic_in=shard");
        }
        if !self.batch.is_empty() {
            self.batch = self.context.intake.offer_records(mem::take(&mut self.batch));
        }
        if !self.joining.is_empty() {
            self.joining = self.context.intake.offer_logins(mem::take(&mut self.joining));
            // Who has gone meanwhile waits for nothing.
            self.joining.retain(|(key, _)| self.conns.find(*key).is_some());
        }
        if self.frames_in > 0 {
            self.context.metrics.frames_in.increment(mem::take(&mut self.frames_in));
        }
    }
}
