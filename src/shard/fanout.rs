//! Fan-out: writes one encoded frame to many connections, directly from the loop, in one `write` each.
//!
//! A member with an empty outbox is served from its 12 hot bytes alone. Pushes that arrive together are written
//! together, so a quiet group gets its message at once and the messages of a busy one share their writes.

use std::{cell::OnceCell, collections::HashSet, io, io::IoSlice, sync::Arc};

use bytes::Bytes;
use smallvec::SmallVec;
use tidegate_protocol::{
    codec::Wire,
    id::{ConversationId, ConversationKind, UserId},
    machine::window::{Tracked, Window},
};

use super::{
    Shard,
    conn::{Conn, DIRTY, LIVE, TrackedPush, WAITING},
    hub::Work,
    outbox::PushOutcome,
};
use crate::{
    fault::planted::{Planted, is_planted},
    mail::{Audience, Delivery, Item, Mail},
    net::io::Io,
};

/// Batch of pushes as slices with their total length, built for a wire when the first member needs it.
struct BatchSlices<'a> {
    batch: &'a [Delivery],
    by_wire: [OnceCell<(SmallVec<[IoSlice<'a>; 4]>, usize)>; 4],
}

impl<I: Io> Shard<I> {
    /// Does approximately `budget` of work: one for each member, and one for each KiB of its pushes.
    pub(super) fn fan_out(&mut self, budget: usize) {
        let mut left = budget;
        while left > 0 {
            match self.hub.next_work(left) {
                None => return,
                Some(Work::Change(item)) => self.apply_change(item),
                Some(Work::Members { group, batch, start, end, cost }) => {
                    left = left.saturating_sub(cost.max(1));
                    self.serve(group, &batch, start, end);
                }
                Some(Work::Named { batch, start, end, cost }) => {
                    left = left.saturating_sub(cost.max(1));
                    for delivery in batch.iter() {
                        self.push_to_named(delivery, start, end);
                    }
                }
            }
        }
    }

    /// Handles a delivery or a membership change, in log order. Returns the number of connections that it was pushed to.
    pub(super) fn take_item(&mut self, item: Item) -> usize {
        match item {
            Item::Push(delivery) if delivery.audience == Audience::Members => self.hub.push(delivery),
            Item::Push(delivery) => {
                if let Some(delivery) = self.hub.push_named(delivery) {
                    return self.push_to_named(&delivery, 0, delivery.audience.named());
                }
            }
            Item::Behind(lag) if lag.audience != Audience::Members => self.on_lag(&lag),
            change => {
                if let Some(change) = self.hub.queue_change(change) {
                    self.apply_change(change);
                }
            }
        }
        0
    }

    /// Pushes a room frame of one of this shard's connections to all shards that have members.
    pub(super) fn broadcast(&mut self, delivery: Delivery) {
        for shard in self.context.directory.conversation(&delivery.conversation).iter() {
            if shard == self.context.index {
                self.hub.push(delivery.clone());
            } else if let Some(handle) = self.context.shards().get(shard).cloned()
                && !(self.report_missed(shard, &delivery.conversation)
                    && handle.try_post(Mail::RoomFrames(vec![delivery.clone()])))
            {
                self.context.metrics.shed.increment(1);
                *self.missed.entry((shard, delivery.conversation.clone())).or_default() += 1;
            }
        }
    }

    /// Reports earlier lost room frames to the other shard. Returns `false` if its
    /// mailbox has no capacity for that either.
    fn report_missed(&mut self, shard: usize, room: &ConversationId) -> bool {
        let key = (shard, room.clone());
        let Some(count) = self.missed.get(&key).copied() else { return true };
        let sent = self
            .context
            .shards()
            .get(shard)
            .is_none_or(|handle| handle.try_post(Mail::RoomLoss(room.clone(), count)));
        if sent {
            self.missed.remove(&key);
        }
        sent
    }

    /// Retries the reports of lost room frames to all shards.
    pub(super) fn retry_missed_reports(&mut self) {
        let keys: Vec<(usize, ConversationId)> = self.missed.keys().cloned().collect();
        for (shard, room) in keys {
            self.report_missed(shard, &room);
        }
    }

    /// Adds `count` lost frames of a room to the `Shed` of every member.
    pub(super) fn on_room_loss(&mut self, room: &ConversationId, count: u64) {
        for slot in self.hub.members_of(room) {
            self.with_conn(slot, |shard, conn| {
                if conn.is_open() {
                    conn.outbox.get_or_insert_with(Box::default).add_shed(room, count);
                    shard.mark_dirty(conn);
                }
            });
        }
    }

    fn apply_change(&mut self, item: Item) {
        let (conversation, users, join) = match &item {
            Item::Join(conversation, users) => (conversation, users, true),
            Item::Part(conversation, users) => (conversation, users, false),
            Item::Keep(conversation, users) => return self.retain_members(conversation, users),
            Item::Behind(lag) => return self.on_lag(lag),
            Item::Push(_) => return,
        };
        for user in users.iter() {
            let slots: SmallVec<[u32; 4]> = self.hub.slots(user).into();
            for slot in slots {
                if join {
                    self.hub.join(conversation, slot);
                } else {
                    self.hub.remove_member(conversation, slot);
                }
            }
        }
        if join {
            self.release_holds(std::slice::from_ref(conversation));
        }
    }

    fn retain_members(&mut self, conversation: &ConversationId, users: &HashSet<UserId>) {
        for slot in self.hub.members_of(conversation) {
            let login = self.conns.peek(slot).and_then(|conn| conn.login.as_deref());
            if login.is_none_or(|login| !users.contains(&login.route.user)) {
                self.hub.remove_member(conversation, slot);
            }
        }
    }

    fn serve(&mut self, group: u32, batch: &Arc<[Delivery]>, start: usize, end: usize) {
        let slices = BatchSlices::new(batch);
        let origins: SmallVec<[u32; 4]> = batch
            .iter()
            .filter_map(|delivery| delivery.origin)
            .filter(|key| usize::from(key.shard) == self.context.index)
            .filter_map(|key| self.conns.find(key))
            .collect();
        if batch.iter().any(|delivery| delivery.frame.trace().is_some()) {
            self.trace_fan_out(batch, end - start);
        }
        let plain = !batch.iter().any(|delivery| delivery.tracked);
        let mut written = 0;
        for index in start..end {
            let Some(slot) = self.hub.member(group, index) else { continue };
            let hot = &self.conns.hot[slot as usize];
            let direct = plain && hot.flags & (LIVE | WAITING | DIRTY) == LIVE && !origins.contains(&slot);
            let Some(stream) = hot.stream.as_ref().filter(|_| direct) else {
                self.serve_via_conn(slot, batch);
                continue;
            };
            let (bytes, len) = slices.of(hot.wire);
            let result = self.io.write_slices(stream, bytes);
            written += batch.len() as u64;
            match result {
                Ok(taken) if taken == len => {}
                other => self.serve_rest(slot, batch, other),
            }
        }
        self.context.metrics.pushes.increment(written);
    }

    /// Queues the part of the batch that the socket did not take, or drops the connection if the socket failed.
    fn serve_rest(&mut self, slot: u32, batch: &[Delivery], result: io::Result<usize>) {
        let mut skip = match result {
            Ok(bytes) => bytes,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => 0,
            Err(_) => return self.with_conn(slot, Self::abort),
        };
        let wire = self.conns.hot[slot as usize].wire;
        self.with_conn(slot, |shard, conn| {
            for delivery in batch {
                let frame = delivery.frame.bytes(wire);
                if skip >= frame.len() {
                    skip -= frame.len();
                } else if skip > 0 {
                    conn.outbox
                        .get_or_insert_with(Box::default)
                        .push_rest(frame.clone(), std::mem::take(&mut skip));
                } else {
                    shard.queue(conn, delivery, frame.clone());
                }
            }
            conn.blocked_since = conn.blocked_since.or(Some(shard.now));
            shard.conns.hot[slot as usize].flags |= WAITING;
        });
    }

    /// Serves a member that needs its box: it has a window or queued frames, sent
    /// one of the pushes, or is not live yet.
    fn serve_via_conn(&mut self, slot: u32, batch: &[Delivery]) {
        self.with_conn(slot, |shard, conn| {
            let key = conn.key;
            for delivery in batch.iter().filter(|delivery| delivery.origin != Some(key)) {
                shard.push(conn, delivery);
            }
        });
    }

    /// Pushes to the named recipients in `start..end`; returns the number of their connections.
    fn push_to_named(&mut self, delivery: &Delivery, start: usize, end: usize) -> usize {
        match &delivery.audience {
            Audience::Members => 0,
            Audience::Users(users) => {
                let mut conns = 0;
                for user in users.get(start..end).unwrap_or_default() {
                    let slots: SmallVec<[u32; 4]> = self.hub.slots(user).into();
                    self.push_to(&slots, delivery);
                    conns += slots.len();
                }
                conns
            }
            Audience::Sessions(sessions) => {
                let slots = self.slots_of_sessions(sessions.get(start..end).unwrap_or_default());
                self.push_to(&slots, delivery);
                slots.len()
            }
        }
    }

    fn push_to(&mut self, slots: &[u32], delivery: &Delivery) {
        for slot in slots {
            self.with_conn(*slot, |shard, conn| {
                if delivery.origin != Some(conn.key) {
                    shard.push(conn, delivery);
                }
            });
        }
    }

    fn push(&mut self, conn: &mut Conn, delivery: &Delivery) {
        if !conn.is_open() {
            return;
        }
        let wire = self.conns.hot[conn.key.slot as usize].wire;
        self.context.metrics.pushes.increment(1);
        if let Some(trace) = delivery.frame.trace() {
            self.trace_push(conn, delivery, *trace);
        }
        if delivery.tracked && !self.track(conn, delivery) {
            let outbox = conn.outbox.get_or_insert_with(Box::default);
            let outcome = outbox.mark_behind(&delivery.conversation, delivery.seq);
            return self.handle_push_outcome(conn, outcome);
        }
        self.queue(conn, delivery, delivery.frame.bytes(wire).clone());
    }

    fn track(&mut self, conn: &mut Conn, delivery: &Delivery) -> bool {
        if is_planted(Planted::WindowForgets) {
            return true;
        }
        let limits = conn.session.window_limits(&self.context.limits);
        let window = conn.window.get_or_insert_with(|| Box::new(Window::new(limits)));
        let push = TrackedPush {
            conversation: delivery.conversation.clone(),
            seq: delivery.seq,
            frame: Arc::clone(&delivery.frame),
        };
        let bytes = delivery.frame.proto().len();
        window.track(&delivery.conversation, delivery.seq, push, bytes, self.now) == Tracked::Ok
    }

    /// Puts a frame into the outbox, which is flushed at the end of the turn.
    pub(super) fn queue(&mut self, conn: &mut Conn, delivery: &Delivery, frame: Bytes) {
        if !conn.is_open() {
            return;
        }
        let outbox = conn.outbox.get_or_insert_with(Box::default);
        let caps = self.context.caps;
        let outcome = match delivery.conversation.kind() {
            ConversationKind::Room(_) => outbox.push_bulk(frame, &delivery.conversation, caps),
            ConversationKind::Direct(..) | ConversationKind::Group(_) => {
                outbox.push_normal(frame, &delivery.conversation, delivery.seq, caps)
            }
        };
        self.handle_push_outcome(conn, outcome);
    }

    pub(super) fn handle_push_outcome(&mut self, conn: &mut Conn, outcome: PushOutcome) {
        match outcome {
            PushOutcome::Queued => {}
            PushOutcome::Behind => self.context.metrics.behind.increment(1),
            PushOutcome::Shed => self.context.metrics.shed.increment(1),
            PushOutcome::Overflow => {
                self.slow(conn);
                // Flush now: the final frame is in the reply buffer, which belongs to the connection flushed next.
                return self.flush(conn);
            }
        }
        self.mark_dirty(conn);
    }

    /// Lists the connection for the flush at the end of the turn; before its Welcome it is flushed later.
    pub(super) fn mark_dirty(&mut self, conn: &Conn) {
        let hot = &mut self.conns.hot[conn.key.slot as usize];
        if hot.flags & LIVE != 0 && hot.flags & DIRTY == 0 {
            hot.flags |= DIRTY;
            self.dirty.push(conn.key.slot);
        }
    }
}

impl<'a> BatchSlices<'a> {
    fn new(batch: &'a [Delivery]) -> Self {
        Self { batch, by_wire: Default::default() }
    }

    /// Returns the slices for a wire. Always inlined: a call costs an eighth of a member's instructions
    /// (`cargo xtask test counts`).
    #[inline(always)]
    fn of(&self, wire: Wire) -> (&[IoSlice<'a>], usize) {
        let (slices, len) = self.by_wire[wire as usize].get_or_init(|| {
            let slices: SmallVec<[IoSlice<'a>; 4]> =
                self.batch.iter().map(|delivery| IoSlice::new(delivery.frame.bytes(wire))).collect();
            let len = slices.iter().map(|slice| slice.len()).sum();
            (slices, len)
        });
        (slices, *len)
    }
}
