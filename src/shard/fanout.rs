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
    machine::{
        room_sample::ROOM_CLASSES,
        window::{Tracked, Window},
    },
};

use super::{
    Shard,
    conn::{Conn, DIRTY, LIVE, TrackedPush, WAITING, class_of},
    hub::{Work, thinning::ThinnedPass},
    outbox::{PushOutcome, RoomFrame},
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

/// Batches of a thinned pass by class, built when the first member needs one.
struct ThinnedBatches<'a> {
    all: &'a [Delivery],
    pass: ThinnedPass,
    by_class: [OnceCell<Vec<Delivery>>; ROOM_CLASSES],
}

impl<I: Io> Shard<I> {
    /// Does approximately `budget` of work: one for each member, and one for each KiB of its pushes.
    pub(super) fn fan_out(&mut self, budget: usize) {
        let mut left = budget;
        while left > 0 {
            match self.hub.next_work(left) {
                None => return,
                Some(Work::Change(item)) => self.apply_change(item),
                Some(Work::Members { group, batch, start, end, cost, thinned: None }) => {
                    left = left.saturating_sub(cost.max(1));
                    self.serve(group, &batch, start, end);
                }
                Some(Work::Members { group, batch, start, end, cost, thinned: Some(pass) }) => {
                    let each = cost / (end - start).max(1);
                    let skipped = self.serve_thinned(group, &batch, pass, start..end);
                    // A member that gets nothing costs the look at it.
                    left = left.saturating_sub((cost - skipped * each.saturating_sub(1)).max(1));
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
            } else if let Some(handle) = self.context.shards().get(shard).cloned() {
                self.report_missed(shard, &delivery.conversation);
                if !handle.try_post(Mail::RoomFrames(vec![delivery.clone()])) {
                    self.note_missed(shard, &delivery);
                }
            }
        }
    }

    fn note_missed(&mut self, shard: usize, delivery: &Delivery) {
        let is_message = delivery.is_message();
        let count = if is_message { 1 } else { delivery.left_out_count() };
        if is_message {
            self.context.metrics.count_shed(delivery.class, 1);
        }
        *self.missed.entry((shard, delivery.conversation.clone(), is_message)).or_default() += count;
    }

    /// Reports earlier lost frames of the room to the other shard, if its mailbox has capacity for that.
    fn report_missed(&mut self, shard: usize, room: &ConversationId) {
        if self.missed.is_empty() {
            return;
        }
        for is_message in [true, false] {
            let key = (shard, room.clone(), is_message);
            let Some(count) = self.missed.get(&key).copied() else { continue };
            let mail = match is_message {
                true => Mail::RoomLoss(room.clone(), count),
                false => Mail::RoomFrames(vec![Delivery::left_out(room, count)]),
            };
            if self.context.shards().get(shard).is_none_or(|handle| handle.try_post(mail)) {
                self.missed.remove(&key);
            }
        }
    }

    /// Retries the reports of lost room frames to all shards.
    pub(super) fn retry_missed_reports(&mut self) {
        let keys: Vec<(usize, ConversationId)> =
            self.missed.keys().map(|(shard, room, _)| (*shard, room.clone())).collect();
        for (shard, room) in keys {
            self.report_missed(shard, &room);
        }
    }

    /// Adds `count` lost frames of a room to the `Shed` of every member.
    pub(super) fn on_room_loss(&mut self, room: &ConversationId, count: u64) {
        for slot in self.hub.members_of(room) {
            self.with_conn(slot, |shard, conn| shard.add_shed(conn, room, count));
        }
    }

    fn add_shed(&mut self, conn: &mut Conn, room: &ConversationId, count: u64) {
        if conn.is_open() {
            conn.outbox.get_or_insert_with(Box::default).add_shed(room, count);
            self.mark_dirty(conn);
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
            written += self.serve_member(slot, &slices, plain && !origins.contains(&slot));
        }
        self.context.metrics.pushes.increment(written);
    }

    /// Serves members of a room in a pass of which low classes get less; returns how many get nothing. A loop of its own, so
    /// that the usual one has no comparison more.
    fn serve_thinned(
        &mut self,
        group: u32,
        all: &[Delivery],
        pass: ThinnedPass,
        members: std::ops::Range<usize>,
    ) -> usize {
        let thinned = ThinnedBatches::new(all, pass);
        let slices: [OnceCell<BatchSlices<'_>>; ROOM_CLASSES] = Default::default();
        let local = |delivery: &Delivery| {
            let key = delivery.origin.filter(|key| usize::from(key.shard) == self.context.index)?;
            self.conns.find(key)
        };
        let origins: SmallVec<[Option<u32>; 4]> = all.iter().map(local).collect();
        let (mut written, mut skipped, mut without_any) = (0, 0, 0);
        let mut skipped_origins: SmallVec<[u32; 4]> = SmallVec::new();
        for index in members {
            let Some(slot) = self.hub.member(group, index) else { continue };
            let hot = &self.conns.hot[slot as usize];
            let class = usize::from(class_of(hot.flags));
            let is_origin = origins.contains(&Some(slot));
            if pass.skips.get(class).copied().unwrap_or_default() {
                skipped += 1;
                skipped_origins.extend(is_origin.then_some(slot));
            }
            let batch = thinned.of(class);
            if batch.is_empty() {
                without_any += 1;
                continue;
            }
            let slices = slices[class].get_or_init(|| BatchSlices::new(batch));
            written += self.serve_member(slot, slices, !is_origin);
        }
        self.context.metrics.pushes.increment(written);
        for (delivery, origin) in all.iter().zip(origins).filter(|(delivery, _)| delivery.is_message()) {
            // A speaker does not get its own message in any case.
            let is_own = origin.is_some_and(|slot| skipped_origins.contains(&slot));
            self.context.metrics.count_shed(delivery.class, skipped - u64::from(is_own));
        }
        without_any
    }

    /// Writes a batch to a member at once if it may, and nothing waits for it; else by its connection. Returns the number of
    /// pushes that were written at once.
    #[inline]
    fn serve_member(&mut self, slot: u32, slices: &BatchSlices<'_>, may_write: bool) -> u64 {
        let hot = &self.conns.hot[slot as usize];
        let is_direct = may_write && hot.flags & (LIVE | WAITING | DIRTY) == LIVE;
        let Some(stream) = hot.stream.as_ref().filter(|_| is_direct) else {
            self.serve_via_conn(slot, slices.batch);
            return 0;
        };
        let (bytes, len) = slices.of(hot.wire);
        match self.io.write_slices(stream, bytes) {
            Ok(taken) if taken == len => {}
            other => self.serve_rest(slot, slices.batch, other),
        }
        slices.batch.len() as u64
    }

    /// Reports what members of low classes missed in rooms that are quiet since.
    pub(super) fn report_thinned(&mut self) {
        for (room, missed) in self.hub.take_missed() {
            for slot in self.hub.members_of(&room) {
                let class = usize::from(class_of(self.conns.hot[slot as usize].flags));
                if let Some(count) = missed.get(class).copied().filter(|count| *count > 0) {
                    self.with_conn(slot, |shard, conn| shard.add_shed(conn, &room, count));
                }
            }
        }
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
        let limits = conn.session.window_limits(&conn.settings.limits);
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
        let caps = conn.settings.caps;
        let outcome = match delivery.conversation.kind() {
            ConversationKind::Room(_) => {
                let (room, class, is_message) =
                    (delivery.conversation.clone(), delivery.class, delivery.is_message());
                let (left_out, missed) = delivery.reported();
                let frame = RoomFrame { frame, room, class, is_message, left_out, missed };
                let shed = outbox.push_room(frame, caps);
                for (class, count) in (0..).zip(shed).filter(|(_, count)| *count > 0) {
                    self.context.metrics.count_shed(class, count);
                }
                return self.mark_dirty(conn);
            }
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

impl<'a> ThinnedBatches<'a> {
    fn new(all: &'a [Delivery], pass: ThinnedPass) -> Self {
        Self { all, pass, by_class: Default::default() }
    }

    /// Returns what members of a class get.
    fn of(&self, class: usize) -> &[Delivery] {
        let is_skipped = self.pass.skips.get(class).copied().unwrap_or_default();
        let missed = self.pass.missed.get(class).copied().filter(|missed| *missed > 0);
        if !is_skipped && missed.is_none() {
            return self.all;
        }
        self.by_class[class].get_or_init(|| {
            let report =
                missed.zip(self.all.first()).map(|(missed, it)| Delivery::shed(&it.conversation, missed));
            let rest = self.all.iter().filter(|delivery| !is_skipped || !delivery.is_message()).cloned();
            report.into_iter().chain(rest).collect()
        })
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
