//! Fan-out: one encoded frame to many connections, written directly from the loop in one `write` each.
//!
//! A member whose outbox is empty is served from its 12 hot bytes alone; pushes that came together go out together,
//! so a quiet group gets its message at once and a hot one coalesces by itself.

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
    conn::{Conn, DIRTY, LIVE, Sent, WAITING},
    hub::Work,
    outbox::Pushed,
};
use crate::{
    mail::{Audience, Delivery, Item, Mail},
    net::transfer,
};

/// A run of pushes as slices and their length, made for a wire when the first member uses it.
struct Slices<'a> {
    run: &'a [Delivery],
    by_wire: [OnceCell<(SmallVec<[IoSlice<'a>; 4]>, usize)>; 4],
}

impl Shard {
    /// Serves about `budget` members, then lets others have their turn.
    pub(super) fn fan_out(&mut self, budget: usize) {
        let mut left = budget;
        while left > 0 {
            match self.hub.next_work(left) {
                None => return,
                Some(Work::Change(item)) => self.apply_change(item),
                Some(Work::Fan { group, run, start, end }) => {
                    left = left.saturating_sub(end - start).min(left - 1);
                    self.serve(group, &run, start, end);
                }
                Some(Work::Named { run, start, end }) => {
                    left = left.saturating_sub(end - start).min(left - 1);
                    run.iter().for_each(|delivery| self.push_to_named(delivery, start, end));
                }
            }
        }
    }

    /// A delivery or a change of members, in log order.
    pub(super) fn take_item(&mut self, item: Item) {
        match item {
            Item::Push(delivery) => match &delivery.audience {
                Audience::Members => self.hub.push(delivery),
                Audience::Users(_) | Audience::Sessions(_) => {
                    if let Some(delivery) = self.hub.push_named(delivery) {
                        self.push_to_named(&delivery, 0, delivery.audience.named());
                    }
                }
            },
            change => {
                if let Some(change) = self.hub.change(change) {
                    self.apply_change(change);
                }
            }
        }
    }

    /// A room frame from one of our own connections, to all shards that have members.
    pub(super) fn spread(&mut self, delivery: Delivery) {
        for shard in self.context.directory.conversation(&delivery.conversation).iter() {
            if shard == self.context.index {
                self.hub.push(delivery.clone());
            } else if let Some(handle) = self.context.shards().get(shard).cloned()
                && !(self.tell_missed(shard, &delivery.conversation)
                    && handle.try_post(Mail::Deliver(vec![Item::Push(delivery.clone())])))
            {
                self.context.metrics.shed.increment(1);
                *self.missed.entry((shard, delivery.conversation.clone())).or_default() += 1;
            }
        }
    }

    /// Has the other shard tell what was lost before; false = it can't hear that now either.
    fn tell_missed(&mut self, shard: usize, room: &ConversationId) -> bool {
        let key = (shard, room.clone());
        let Some(count) = self.missed.get(&key).copied() else { return true };
        let told = self
            .context
            .shards()
            .get(shard)
            .is_none_or(|handle| handle.try_post(Mail::Missed(room.clone(), count)));
        if told {
            self.missed.remove(&key);
        }
        told
    }

    /// Tries again to tell the other shards what was lost.
    pub(super) fn tell_all_missed(&mut self) {
        let keys: Vec<(usize, ConversationId)> = self.missed.keys().cloned().collect();
        for (shard, room) in keys {
            self.tell_missed(shard, &room);
        }
    }

    /// Frames of a room were lost on the way here: every member hears how many.
    pub(super) fn on_missed(&mut self, room: &ConversationId, count: u64) {
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
            Item::Keep(conversation, users) => return self.keep_only(conversation, users),
            Item::Behind(lag) => return self.on_lag(lag),
            Item::Push(_) => return,
        };
        for user in users.iter() {
            let slots: SmallVec<[u32; 4]> = self.hub.slots(user).into();
            for slot in slots {
                if join {
                    self.hub.join(conversation, slot);
                } else {
                    self.hub.part(conversation, slot);
                }
            }
        }
        if join {
            self.release_holds(std::slice::from_ref(conversation));
        }
    }

    fn keep_only(&mut self, conversation: &ConversationId, users: &HashSet<UserId>) {
        for slot in self.hub.members_of(conversation) {
            let who = self.conns.peek(slot).and_then(|conn| conn.who.as_deref());
            if who.is_none_or(|who| !users.contains(&who.route.user)) {
                self.hub.part(conversation, slot);
            }
        }
    }

    fn serve(&mut self, group: u32, run: &Arc<[Delivery]>, start: usize, end: usize) {
        let slices = Slices::new(run);
        let origins: SmallVec<[u32; 4]> = run
            .iter()
            .filter_map(|delivery| delivery.origin)
            .filter(|key| usize::from(key.shard) == self.context.index)
            .filter_map(|key| self.conns.find(key))
            .collect();
        if run.iter().any(|delivery| delivery.frame.trace().is_some()) {
            self.note_fan_out(run, end - start);
        }
        let plain = !run.iter().any(|delivery| delivery.tracked);
        let mut written = 0;
        for index in start..end {
            let Some(slot) = self.hub.member(group, index) else { continue };
            let hot = &self.conns.hot[slot as usize];
            let direct = plain && hot.flags & (LIVE | WAITING | DIRTY) == LIVE && !origins.contains(&slot);
            let Some(stream) = hot.stream.as_ref().filter(|_| direct) else {
                self.serve_with_care(slot, run);
                continue;
            };
            let (bytes, len) = slices.of(hot.wire);
            let result = transfer::write_slices(stream, bytes);
            written += run.len() as u64;
            match result {
                Ok(taken) if taken == len => {}
                other => self.serve_rest(slot, run, other),
            }
        }
        self.context.metrics.pushes.increment(written);
    }

    /// The socket took a part of the run, or none of it.
    fn serve_rest(&mut self, slot: u32, run: &[Delivery], result: io::Result<usize>) {
        let mut skip = match result {
            Ok(bytes) => bytes,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => 0,
            Err(_) => return self.with_conn(slot, Self::peer_gone),
        };
        let wire = self.conns.hot[slot as usize].wire;
        self.with_conn(slot, |shard, conn| {
            for delivery in run {
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

    /// A member that needs its box: it has a window, waits already, sent one of these itself, or is not live yet.
    fn serve_with_care(&mut self, slot: u32, run: &[Delivery]) {
        self.with_conn(slot, |shard, conn| {
            let key = conn.key;
            for delivery in run.iter().filter(|delivery| delivery.origin != Some(key)) {
                shard.push(conn, delivery);
            }
        });
    }

    /// To those of whom it names that stand from `start` to before `end` in its list.
    fn push_to_named(&mut self, delivery: &Delivery, start: usize, end: usize) {
        match &delivery.audience {
            Audience::Members => {}
            Audience::Users(users) => {
                for user in users.get(start..end).unwrap_or_default() {
                    let slots: SmallVec<[u32; 4]> = self.hub.slots(user).into();
                    self.push_to(&slots, delivery);
                }
            }
            Audience::Sessions(sessions) => {
                let slots = self.slots_of_sessions(sessions.get(start..end).unwrap_or_default());
                self.push_to(&slots, delivery);
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
            self.note_push(conn, delivery, *trace);
        }
        if delivery.tracked && !self.track(conn, delivery) {
            let outbox = conn.outbox.get_or_insert_with(Box::default);
            let marked = outbox.mark_behind(&delivery.conversation, delivery.seq);
            return self.pushed(conn, marked);
        }
        self.queue(conn, delivery, delivery.frame.bytes(wire).clone());
    }

    fn track(&mut self, conn: &mut Conn, delivery: &Delivery) -> bool {
        let limits = conn.session.window_limits(&self.context.limits);
        let window = conn.window.get_or_insert_with(|| Box::new(Window::new(limits)));
        let sent = Sent {
            conversation: delivery.conversation.clone(),
            seq: delivery.seq,
            frame: Arc::clone(&delivery.frame),
        };
        let bytes = delivery.frame.proto().len();
        window.track(&delivery.conversation, delivery.seq, sent, bytes, self.now) == Tracked::Ok
    }

    /// Puts a frame into the outbox; the turn's end flushes it.
    pub(super) fn queue(&mut self, conn: &mut Conn, delivery: &Delivery, frame: Bytes) {
        if !conn.is_open() {
            return;
        }
        let outbox = conn.outbox.get_or_insert_with(Box::default);
        let caps = self.context.caps;
        let pushed = match delivery.conversation.kind() {
            ConversationKind::Room(_) => outbox.push_bulk(frame, &delivery.conversation, caps),
            ConversationKind::Direct(..) | ConversationKind::Group(_) => {
                outbox.push_normal(frame, &delivery.conversation, delivery.seq, caps)
            }
        };
        self.pushed(conn, pushed);
    }

    pub(super) fn pushed(&mut self, conn: &mut Conn, pushed: Pushed) {
        match pushed {
            Pushed::Queued => {}
            Pushed::Behind => self.context.metrics.behind.increment(1),
            Pushed::Shed => self.context.metrics.shed.increment(1),
            Pushed::Overflow => {
                self.slow(conn);
                // Its last word leaves now: the replies at hand belong to whoever is flushed next.
                return self.flush(conn);
            }
        }
        self.mark_dirty(conn);
    }

    /// Has the connection flushed at the end of the turn; before Welcome it waits for that.
    pub(super) fn mark_dirty(&mut self, conn: &Conn) {
        let hot = &mut self.conns.hot[conn.key.slot as usize];
        if hot.flags & LIVE != 0 && hot.flags & DIRTY == 0 {
            hot.flags |= DIRTY;
            self.dirty.push(conn.key.slot);
        }
    }
}

impl<'a> Slices<'a> {
    fn new(run: &'a [Delivery]) -> Self {
        Self { run, by_wire: Default::default() }
    }

    /// Always inlined: a call costs each member an eighth of its instructions (`cargo xtask test counts`).
    #[inline(always)]
    fn of(&self, wire: Wire) -> (&[IoSlice<'a>], usize) {
        let (slices, len) = self.by_wire[wire as usize].get_or_init(|| {
            let slices: SmallVec<[IoSlice<'a>; 4]> =
                self.run.iter().map(|delivery| IoSlice::new(delivery.frame.bytes(wire))).collect();
            let len = slices.iter().map(|slice| slice.len()).sum();
            (slices, len)
        });
        (slices, *len)
    }
}
