//! Signals: volatile frames, written at the end of a turn to connections with
//! nothing else waiting, dropped for the rest.
//!
//! They never enter an outbox, so they neither delay a message nor use its capacity. The number of signals that wait
//! for the end of a turn is bounded, and so is the number of members served in a turn.

use std::{collections::HashSet, io, sync::Arc, time::Duration};

use tidegate_protocol::{
    Code, Time,
    codec::PushFrame,
    id::{ConversationId, ConversationKind, UserId},
    pb::{self, server_frame::Body as FrameBody},
};

use super::{
    Shard,
    actions::{
        blocks::BLOCKED,
        limits::{CountedRequest, mark_limit},
        token::RECIPIENT_NOT_GRANTED,
    },
    conn::{Conn, DIRTY, LIVE, WAITING},
};
use crate::{
    cluster::BlockVerdict,
    conversation::group_size,
    delivery::signals::route_signal,
    limits::LimitCall,
    mail::{Audience, ConnKey, GroupSize, Mail, Volatile},
    net::io::Io,
};

/// Most signals that wait for the end of a turn.
const SIGNALS_WAITING_MAX: usize = 256;

/// Most members that signals are written to in one turn.
const MEMBERS_BUDGET: usize = 1_024;

/// Time for which a looked-up group size is used on a single node.
const SIZE_MAX_AGE: Duration = Duration::from_secs(10);

/// Time for which a looked-up member list is used in a cluster; a removal that this node missed takes effect after it.
const MEMBERS_MAX_AGE: Duration = Duration::from_secs(2);

/// Refusal of a signal to a large group.
const GROUP_TOO_LARGE: (Code, &str) = (Code::Forbidden, "signals go to small groups only");

impl<I: Io> Shard<I> {
    /// Checks whether the connection may send the signal, by its token, the block list of the recipient and the hook.
    pub(super) fn signal(
        &mut self,
        conn: &mut Conn,
        id: u64,
        conversation: ConversationId,
        signal: Box<pb::Signal>,
    ) {
        if !self.admit_signal(conn, id, LimitCall::Signal, &conversation, Some(&conversation)) {
            return;
        }
        match self.block_verdict(conn, &conversation) {
            BlockVerdict::Allowed => {}
            BlockVerdict::Blocked => {
                self.context.metrics.blocked.increment(1);
                return self.answer_signal(conn, id, Err(BLOCKED));
            }
            BlockVerdict::Unknown => {
                self.context.metrics.signals_dropped.increment(1);
                self.prepare_block_verdict(conn, &conversation);
                return self.answer_signal(conn, id, Ok(()));
            }
        }
        self.decide_signal(conn, id, conversation, signal);
    }

    /// Returns whether the connection may send a signal or a reaction by its suspension, its token, the limits and the load;
    /// otherwise it is refused or dropped. Rules for conversations count it in `counted`.
    pub(super) fn admit_signal(
        &mut self,
        conn: &mut Conn,
        id: u64,
        call: LimitCall,
        conversation: &ConversationId,
        counted: Option<&ConversationId>,
    ) -> bool {
        if self.drop_suspended(conn, id) {
            return false;
        }
        if !Self::may_write(conn, conversation) {
            self.answer_signal(conn, id, Err(RECIPIENT_NOT_GRANTED));
            return false;
        }
        if let Some(login) = &conn.login {
            let limiter = || self.context.limiter.signal(&login.route.user, self.now);
            let request = CountedRequest::new(call, counted);
            if let Err(refusal) = self.admit_request(conn, &request, limiter) {
                self.context.metrics.signals_dropped.increment(1);
                let out = &mut self.buffers.actions;
                let before = out.len();
                conn.session.signal_limited(id, refusal.wait, out);
                mark_limit(&mut out[before..], &refusal);
                return false;
            }
        }
        self.enter_signal(conn, id)
    }

    /// Broadcasts a signal that the connection may send, if it is a member of the conversation.
    pub(super) fn signal_allowed(
        &mut self,
        conn: &mut Conn,
        id: u64,
        conversation: ConversationId,
        signal: pb::Signal,
    ) {
        let audience = match conversation.kind() {
            ConversationKind::Direct(a, b) => {
                let both = [a, b].into_iter().take(if a == b { 1 } else { 2 });
                Audience::Users(both.filter_map(|id| UserId::new(id).ok()).collect())
            }
            ConversationKind::Group(_) | ConversationKind::Room(_) => Audience::Members,
        };
        let frame =
            Arc::new(PushFrame::new(&pb::ServerFrame { id: 0, body: Some(FrameBody::Signal(signal)) }));
        let mut volatile = Volatile { conversation, audience, only: None, frame, origin: Some(conn.key) };
        if matches!(volatile.audience, Audience::Users(_)) {
            self.answer_signal(conn, id, Ok(()));
            return self.broadcast_signal(volatile);
        }
        let is_in = self.hub.is_in(&volatile.conversation, conn.key.slot);
        let was_removed = self.hub.was_removed(&volatile.conversation, conn.key.slot);
        if !is_in && (was_removed || self.context.best_effort.is_none()) {
            return self.refuse_signal(conn, id, &volatile.conversation, Code::NotAMember);
        }
        let max_age = if self.context.best_effort.is_some() { MEMBERS_MAX_AGE } else { SIZE_MAX_AGE };
        let since = self.now.as_millis().checked_sub(max_age.as_millis() as u64).map(Time::from_millis);
        // A sender outside the index that was not removed may have joined without
        // this node learning of it: ask the store.
        match self.hub.size(&volatile.conversation, since.unwrap_or_default()).filter(|_| is_in).cloned() {
            Some(size) => {
                let outcome = check_signal(conn, &size);
                self.answer_signal(conn, id, outcome);
                if outcome.is_ok() {
                    volatile.only = size.members;
                    self.broadcast_signal(volatile);
                }
            }
            None => self.look_up_size(conn, id, volatile),
        }
    }

    /// Refuses a signal to a conversation that its sender may not see. Without an answer, the sender does not notice.
    fn refuse_signal(&mut self, conn: &mut Conn, id: u64, conversation: &ConversationId, code: Code) {
        if id > 0 {
            self.note_probe(conn, code, conversation);
        }
        self.answer_signal(conn, id, Err((code, "")));
    }

    /// Passes the outcome of a signal or reaction to its sender's session.
    pub(super) fn answer_signal(&mut self, conn: &mut Conn, id: u64, outcome: Result<(), (Code, &str)>) {
        conn.session.signalled(id, outcome, &conn.settings.limits, &mut self.buffers.actions);
    }

    /// Looks up the size of the group; the signal returns with it as mail.
    fn look_up_size(&mut self, conn: &Conn, id: u64, volatile: Volatile) {
        let Some(user) = conn.login.as_ref().map(|login| login.route.user.clone()) else { return };
        let (key, reads) = (conn.key, Arc::clone(&self.context.reads));
        let (store, max) = (Arc::clone(&self.context.cluster.ports.store), self.context.small_group_max);
        let (conversation, exact) = (volatile.conversation.clone(), self.context.best_effort.is_none());
        let work = async move {
            let _turn = reads.turn(&user).await?;
            let found = match exact {
                true => group_size::of(&*store, &conversation, max).await,
                false => group_size::with_members(&*store, &conversation, max).await,
            };
            found.map_err(|code| (code, ""))
        };
        let waiting = volatile.clone();
        let sized = self.context.ask(work, move |sized| Mail::GroupSize(key, id, waiting, sized));
        if let Some(sized) = sized {
            self.own_mail.push(Mail::GroupSize(key, id, volatile, sized));
        }
    }

    /// Answers the sender, and broadcasts the signal if the group's size and members allow it.
    pub(super) fn on_group_size(
        &mut self,
        key: ConnKey,
        id: u64,
        mut volatile: Volatile,
        sized: Result<GroupSize, (Code, &'static str)>,
    ) {
        if let Ok(size) = &sized {
            self.hub.record_size(&volatile.conversation, size.clone(), self.now);
        }
        let Some(slot) = self.conns.find(key) else { return };
        let is_in = self.hub.is_in(&volatile.conversation, slot);
        // A sender that was removed during the lookup, or before the store had the removal, stays out.
        let may_be_in =
            self.context.best_effort.is_some() && !self.hub.was_removed(&volatile.conversation, slot);
        let mut outcome = Err((Code::NotAMember, ""));
        self.with_conn(slot, |shard, conn| {
            if is_in || may_be_in {
                outcome = match &sized {
                    Ok(size) if is_in || size.small => check_signal(conn, size),
                    // For a large group the store returns no member list to check.
                    Ok(_) => Err((Code::NotAMember, "")),
                    Err(refusal) => Err(*refusal),
                };
            }
            if outcome.is_ok() {
                // The join was lost on the way to this node; index it, so that the connection gets signals too.
                shard.hub.join(&volatile.conversation, slot);
            }
            match outcome {
                Err((code, "")) => shard.refuse_signal(conn, id, &volatile.conversation, code),
                _ => shard.answer_signal(conn, id, outcome),
            }
            shard.act(conn);
            shard.flush(conn);
        });
        if let (Ok(()), Ok(size)) = (outcome, sized) {
            volatile.only = size.members;
            self.broadcast_signal(volatile);
        }
    }

    /// Sends a signal to the other nodes and to all shards with recipients; a shard with a full mailbox is skipped.
    fn broadcast_signal(&mut self, volatile: Volatile) {
        let best_effort = self.context.best_effort.as_deref();
        let shards = route_signal(&volatile, &self.context.directory, best_effort);
        for shard in shards.iter() {
            if shard == self.context.index {
                self.take_signal(volatile.clone());
            } else if let Some(handle) = self.context.shards().get(shard)
                && !handle.try_post(Mail::Signal(volatile.clone()))
            {
                self.context.metrics.signals_dropped.increment(1);
            }
        }
    }

    /// Queues a signal for the end of the turn, or drops it if the queue is full.
    pub(super) fn take_signal(&mut self, volatile: Volatile) {
        if self.signals.len() < SIGNALS_WAITING_MAX {
            self.signals.push_back(volatile);
        } else {
            self.context.metrics.signals_dropped.increment(1);
        }
    }

    /// Writes the waiting signals, unless fan-out work waits.
    pub(super) fn write_signals(&mut self) {
        let mut left = MEMBERS_BUDGET;
        while left > 0 && !self.hub.has_work() {
            let Some(signal) = self.signals.pop_front() else { return };
            let slots: Vec<u32> = match &signal.audience {
                Audience::Members => self.hub.members_of(&signal.conversation),
                Audience::Users(users) => {
                    users.iter().flat_map(|user| self.hub.slots(user)).copied().collect()
                }
                Audience::Sessions(sessions) => self.slots_of_sessions(sessions),
            };
            left = left.saturating_sub(slots.len().max(1));
            let local_origin = signal.origin.filter(|key| usize::from(key.shard) == self.context.index);
            let origin = local_origin.and_then(|key| self.conns.find(key));
            for slot in slots {
                if Some(slot) != origin && self.is_for(slot, signal.only.as_deref()) {
                    self.write_signal(slot, &signal.frame);
                }
            }
        }
    }

    /// Returns whether the connection's user is in `only`; always if that is `None`.
    fn is_for(&self, slot: u32, only: Option<&HashSet<UserId>>) -> bool {
        let login = self.conns.peek(slot).and_then(|conn| conn.login.as_ref());
        only.is_none_or(|users| login.is_some_and(|login| users.contains(&login.route.user)))
    }

    fn write_signal(&mut self, slot: u32, frame: &PushFrame) {
        if self.write_volatile(slot, frame) {
            self.context.metrics.signals.increment(1);
        } else {
            self.context.metrics.signals_dropped.increment(1);
        }
    }

    /// Writes a frame to a connection with nothing else to write; returns false if it was dropped.
    pub(super) fn write_volatile(&mut self, slot: u32, frame: &PushFrame) -> bool {
        let hot = &self.conns.hot[slot as usize];
        let idle = hot.flags & (LIVE | WAITING | DIRTY) == LIVE;
        let Some(stream) = hot.stream.as_ref().filter(|_| idle) else { return false };
        let bytes = frame.bytes(hot.wire);
        match self.io.write(stream, bytes) {
            Ok(taken) if taken == bytes.len() => true,
            // A frame that was begun must be completed.
            Ok(taken) if taken > 0 => {
                self.with_conn(slot, |shard, conn| {
                    conn.outbox.get_or_insert_with(Box::default).push_rest(bytes.clone(), taken);
                    conn.blocked_since = conn.blocked_since.or(Some(shard.now));
                    shard.conns.hot[slot as usize].flags |= WAITING;
                });
                true
            }
            Err(error) if !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                self.with_conn(slot, Self::abort);
                false
            }
            Ok(_) | Err(_) => false,
        }
    }
}

/// Checks that the group is small enough for signals, and that the sender is a member.
fn check_signal(conn: &Conn, size: &GroupSize) -> Result<(), (Code, &'static str)> {
    let is_member =
        |users: &HashSet<UserId>| conn.login.as_ref().is_some_and(|login| users.contains(&login.route.user));
    match &size.members {
        _ if !size.small => Err(GROUP_TOO_LARGE),
        Some(users) if !is_member(users) => Err((Code::NotAMember, "")),
        _ => Ok(()),
    }
}
