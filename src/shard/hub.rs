//! Hub: the indexes of one shard (user → connections, group → members), and its pending fan-out work.
//!
//! The maps are single-threaded; no other thread touches them. Their keys are chosen by clients, so they are hashed by
//! SipHash under a key from the system. The members of a group lie in one dense array with
//! back-links, so joining and leaving are O(1) and a fan-out walks memory in order. Pushes and membership changes of a
//! group share one queue, so that a removal takes effect exactly between two pushes. A fan-out is cut into slices, so
//! that a group of ten thousand does not starve the others.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    sync::Arc,
};

use slab::Slab;
use smallvec::SmallVec;
use std::hash::RandomState;
use tidegate_protocol::{
    Time,
    id::{ConversationId, UserId},
};

use self::{
    listing::RoomListings,
    recent::{RecentMessages, RecentTotal},
    thinning::{RoomThinning, ThinnedPass},
};
use crate::{
    directory::Directory,
    mail::{Audience, Delivery, GroupSize, Item, Lag},
    room_rules::RoomRules,
};

/// Most pushes of one group that are written together.
const BATCH_PUSHES_MAX: usize = 64;

/// Bytes of pushes and changes to conversations that wait for fan-out or are in it, and of room frames. Above this, the
/// members of conversations get hints instead of pushes, and room frames wait in the mailbox.
const WAITING_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Part of these bytes that one conversation or room may take.
const GROUP_BYTES_MAX: usize = 1024 * 1024;

/// Bytes for which a member of a fan-out counts once more.
const COST_BYTES: usize = 1024;

/// Most named recipients that are served at once; a push with more is queued and served in slices.
const NAMED_INLINE_MAX: usize = 1_000;

/// Most removals from groups that are remembered for one connection.
const REMOVED_GROUPS_MAX: usize = 64;

/// Mark of a member that left during a fan-out over its array.
const VACANT: u32 = u32::MAX;

/// Indexes and fan-out queue of one shard.
pub(super) struct Hub {
    shard: usize,
    directory: Arc<Directory>,
    users: HashMap<UserId, SmallVec<[u32; 2]>, RandomState>,
    ids: HashMap<ConversationId, u32, RandomState>,
    /// Rooms, in order.
    rooms: BTreeSet<ConversationId>,
    /// Rooms with their members in order, while these are listed.
    pub(super) listings: RoomListings,
    groups: Slab<Group>,
    /// Slot → its groups, with its position in each.
    links: Vec<SmallVec<[Link; 3]>>,
    /// Slot → the groups that its user was removed from while connected, oldest first.
    removed: HashMap<u32, VecDeque<ConversationId>, RandomState>,
    /// Groups with pending work, without duplicates.
    ready: VecDeque<u32>,
    /// Rooms with pending work that wait for the time of their next pass.
    paced: Vec<u32>,
    /// Rooms whose number of members has changed since it was taken.
    changed: Vec<ConversationId>,
    /// Load level of the node.
    load_level: u8,
    /// Rooms with passes that are thinned.
    thinned: HashSet<u32, RandomState>,
    /// Recent messages of all rooms.
    recent: RecentTotal,
    /// Rules of rooms.
    room_rules: Arc<RoomRules>,
    /// Time of the turn.
    now: Time,
    /// Bytes of pushes and changes to conversations whose fan-out is not complete.
    waiting_bytes: usize,
    /// Bytes of room frames whose fan-out is not complete.
    room_bytes: usize,
}

struct Group {
    id: ConversationId,
    is_room: bool,
    /// Bytes of its pushes and changes whose fan-out is not complete.
    waiting_bytes: usize,
    members: Vec<u32>,
    pending: VecDeque<Item>,
    job: Option<Job>,
    queued: bool,
    /// Number of members that left during a fan-out, which are vacant in the array.
    vacant: u32,
    /// Whether it is among the changed rooms.
    is_changed: bool,
    /// Time of the next pass over the members of a room.
    next_pass: Time,
    /// Thinning of a room, while the node is overloaded.
    thinning: Option<RoomThinning>,
    /// Recent messages of a room, if its rule wants them.
    recent: Option<Box<RecentMessages>>,
    /// Size of the group, with the time of the lookup.
    size: Option<(GroupSize, Time)>,
}

struct Job {
    batch: Arc<[Delivery]>,
    /// Weight of the batch, counted as waiting until its last member is served.
    bytes: usize,
    next: usize,
    /// End of the members or recipients to serve; members that join later lie beyond it.
    end: usize,
    /// Whether the batch is one push with named recipients, of which `next` and `end` are indexes.
    named: bool,
    thinned: Option<ThinnedPass>,
}

#[derive(Clone, Copy)]
struct Link {
    group: u32,
    position: u32,
}

/// Piece of fan-out work.
pub(super) enum Work {
    /// Write `batch` to the members in `start..end`.
    Members {
        /// Index of the group, for [`Hub::member`].
        group: u32,
        /// Pushes, in order.
        batch: Arc<[Delivery]>,
        /// Index of the first member.
        start: usize,
        /// Index after the last member.
        end: usize,
        /// Cost, of a fan-out's budget.
        cost: usize,
        /// What members of low classes get; `None` if they get all.
        thinned: Option<ThinnedPass>,
    },
    /// Write the single push to its named recipients in `start..end`.
    Named {
        /// The single push.
        batch: Arc<[Delivery]>,
        /// Index of the first recipient.
        start: usize,
        /// Index after the last recipient.
        end: usize,
        /// Cost, of a fan-out's budget.
        cost: usize,
    },
    /// Apply a membership change, or a hint about omitted pushes.
    Change(Item),
}

impl Hub {
    /// Creates the empty indexes of shard number `shard`.
    pub(super) fn new(shard: usize, directory: Arc<Directory>) -> Self {
        Self {
            shard,
            directory,
            users: HashMap::default(),
            ids: HashMap::default(),
            rooms: BTreeSet::new(),
            listings: RoomListings::default(),
            groups: Slab::new(),
            links: Vec::new(),
            removed: HashMap::default(),
            ready: VecDeque::new(),
            paced: Vec::new(),
            changed: Vec::new(),
            load_level: 0,
            thinned: HashSet::default(),
            recent: RecentTotal::default(),
            room_rules: Arc::default(),
            now: Time::ZERO,
            waiting_bytes: 0,
            room_bytes: 0,
        }
    }

    /// Returns whether so many changes wait, which no hint can replace, that no more may be added.
    pub(super) fn is_overfull(&self) -> bool {
        self.waiting_bytes >= 2 * WAITING_BYTES_MAX
    }

    /// Returns whether so many room frames wait for fan-out that no more may be added.
    pub(super) fn is_full_of_room_frames(&self) -> bool {
        self.room_bytes >= WAITING_BYTES_MAX
    }

    /// Returns whether so much waits in the group or room, or in all of its kind, that no push may be added to it.
    pub(super) fn is_full(&self, conversation: &ConversationId) -> bool {
        self.ids.get(conversation).is_some_and(|group| self.is_group_full(*group))
    }

    fn is_group_full(&self, index: u32) -> bool {
        let group = &self.groups[index as usize];
        let of_kind = if group.is_room { self.room_bytes } else { self.waiting_bytes };
        group.waiting_bytes >= GROUP_BYTES_MAX || of_kind >= WAITING_BYTES_MAX
    }

    /// Indexes the connection `slot` under `user`.
    pub(super) fn add_user(&mut self, user: &UserId, slot: u32) {
        let slots = self.users.entry(user.clone()).or_default();
        if slots.is_empty() {
            self.directory.add_user(user, self.shard);
        }
        slots.push(slot);
    }

    /// Returns the connections of `user` on this shard.
    pub(super) fn slots(&self, user: &UserId) -> &[u32] {
        self.users.get(user).map_or(&[], |slots| slots)
    }

    /// Removes the connection from its user's entry and from all groups.
    pub(super) fn remove(&mut self, user: &UserId, slot: u32) {
        if let Some(slots) = self.users.get_mut(user) {
            slots.retain(|other| *other != slot);
            if slots.is_empty() {
                self.users.remove(user);
                self.directory.remove_user(user, self.shard);
            }
        }
        while let Some(link) = self.links.get(slot as usize).and_then(|links| links.last().copied()) {
            self.unlink(link, slot);
        }
        self.removed.remove(&slot);
    }

    /// Adds the connection to a group or room; returns `false` if it was in it already.
    pub(super) fn join(&mut self, conversation: &ConversationId, slot: u32) -> bool {
        if let Some(removed) = self.removed.get_mut(&slot) {
            removed.retain(|other| other != conversation);
        }
        let group = match self.ids.get(conversation) {
            Some(group) => *group,
            None => self.open(conversation),
        };
        if self.links.len() <= slot as usize {
            self.links.resize_with(slot as usize + 1, SmallVec::new);
        }
        let links = &mut self.links[slot as usize];
        if links.iter().any(|link| link.group == group) {
            return false;
        }
        let members = &mut self.groups[group as usize].members;
        links.push(Link { group, position: members.len() as u32 });
        members.push(slot);
        self.note_member_change(group);
        true
    }

    /// Removes the connection from a group or room; returns `false` if it was not in it.
    pub(super) fn leave(&mut self, conversation: &ConversationId, slot: u32) -> bool {
        let Some(group) = self.ids.get(conversation).copied() else { return false };
        let links = self.links.get(slot as usize);
        let Some(link) = links.and_then(|links| links.iter().find(|link| link.group == group).copied())
        else {
            return false;
        };
        self.unlink(link, slot);
        true
    }

    /// Removes the connection from a group that its user is no longer a member of, and remembers that. It also remembers
    /// the removal if the connection was not indexed in the group.
    pub(super) fn remove_member(&mut self, conversation: &ConversationId, slot: u32) {
        self.leave(conversation, slot);
        let removed = self.removed.entry(slot).or_default();
        removed.retain(|other| other != conversation);
        if removed.len() == REMOVED_GROUPS_MAX {
            removed.pop_front();
        }
        removed.push_back(conversation.clone());
    }

    /// Returns whether the connection's user is known to have been removed from the group and not added again. A reply
    /// from the store may be older than that.
    pub(super) fn was_removed(&self, conversation: &ConversationId, slot: u32) -> bool {
        self.removed.get(&slot).is_some_and(|removed| removed.contains(conversation))
    }

    /// Returns whether the connection is in the group or room.
    pub(super) fn is_in(&self, conversation: &ConversationId, slot: u32) -> bool {
        self.ids.get(conversation).is_some_and(|group| {
            self.links.get(slot as usize).is_some_and(|links| links.iter().any(|link| link.group == *group))
        })
    }

    /// Queues a push for the members of its conversation; drops it if there are none on this shard.
    pub(super) fn push(&mut self, delivery: Delivery) {
        if let Some(group) = self.ids.get(&delivery.conversation).copied() {
            self.enqueue_push(group, delivery);
        }
    }

    /// Queues a push with many named recipients, or with work of its conversation before it. Returns any other push,
    /// which can be written at once.
    pub(super) fn push_named(&mut self, delivery: Delivery) -> Option<Delivery> {
        let group = self.ids.get(&delivery.conversation).copied();
        let is_queued = |group: &u32| self.groups[*group as usize].queued;
        match group.filter(|group| delivery.audience.named() > NAMED_INLINE_MAX || is_queued(group)) {
            Some(group) => {
                self.enqueue_push(group, delivery);
                None
            }
            None => Some(delivery),
        }
    }

    /// Queues a membership change or a hint about omitted pushes after earlier work of
    /// its group. Returns it if there is none.
    pub(super) fn queue_change(&mut self, item: Item) -> Option<Item> {
        let conversation = match &item {
            Item::Join(conversation, _) | Item::Part(conversation, _) | Item::Keep(conversation, _) => {
                conversation
            }
            Item::Push(delivery) => &delivery.conversation,
            Item::Behind(lag) => &lag.conversation,
        };
        let group = self.ids.get(conversation).copied().filter(|group| self.groups[*group as usize].queued);
        let Some(group) = group else { return Some(item) };
        self.enqueue(group, item);
        None
    }

    /// Returns the member at `index`; `None` if it has left.
    pub(super) fn member(&self, group: u32, index: usize) -> Option<u32> {
        let slot = *self.groups.get(group as usize)?.members.get(index)?;
        (slot != VACANT).then_some(slot)
    }

    /// Returns whether fan-out work waits.
    pub(super) fn has_work(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Returns the next piece of work, for at least one member of a group and otherwise within `budget`: a member costs
    /// one, and one more for each KiB of its pushes. Groups alternate.
    pub(super) fn next_work(&mut self, budget: usize) -> Option<Work> {
        while let Some(index) = self.ready.pop_front() {
            self.finish_job(index);
            let group = &mut self.groups[index as usize];
            if group.job.is_none() {
                if group.is_room && group.next_pass > self.now && !group.pending.is_empty() {
                    self.paced.push(index);
                    continue;
                }
                let (batch, named) = take_batch(&mut group.pending);
                if batch.is_empty() {
                    if let Some(change) = group.pending.pop_front() {
                        self.uncount(index, change.weight());
                        self.ready.push_front(index);
                        return Some(Work::Change(change));
                    }
                    group.queued = false;
                    self.close_if_empty(index);
                    continue;
                }
                let bytes = batch.iter().map(Delivery::weight).sum();
                let end = if named { batch[0].audience.named() } else { group.members.len() };
                if group.is_room && group.pending.is_empty() {
                    group.next_pass = self.now + self.room_rules.of_room(&group.id).tick;
                }
                let is_room = group.is_room;
                let mut thinned = None;
                if is_room {
                    self.keep_recent(index, &batch);
                    thinned = self.thin(index, &batch);
                }
                self.groups[index as usize].job = Some(Job { batch, bytes, next: 0, end, named, thinned });
            }
            let job = self.groups[index as usize].job.as_mut().expect("set above or before");
            let each = 1 + job.bytes / COST_BYTES;
            let (start, end) = (job.next, job.end.min(job.next + (budget / each).max(1)));
            let cost = (end - start) * each;
            job.next = end;
            let (batch, named, thinned) = (Arc::clone(&job.batch), job.named, job.thinned);
            self.ready.push_back(index);
            return Some(match named {
                true => Work::Named { batch, start, end, cost },
                false => Work::Members { group: index, batch, start, end, cost, thinned },
            });
        }
        None
    }

    /// Queues a push. In a conversation that is full, a hint takes its place; room frames are bounded by those that add
    /// them.
    fn enqueue_push(&mut self, index: u32, delivery: Delivery) {
        if self.groups[index as usize].is_room || !self.is_group_full(index) {
            return self.enqueue(index, Item::Push(delivery));
        }
        let Delivery { conversation, seq: max_seq, audience, .. } = delivery;
        let lag = Lag { conversation, max_seq, audience };
        match self.groups[index as usize].pending.back_mut() {
            Some(Item::Behind(last)) if last.audience == lag.audience => {
                last.max_seq = last.max_seq.max(lag.max_seq);
            }
            _ => self.enqueue(index, Item::Behind(lag)),
        }
    }

    fn enqueue(&mut self, index: u32, item: Item) {
        let bytes = item.weight();
        let group = &mut self.groups[index as usize];
        group.waiting_bytes += bytes;
        *if group.is_room { &mut self.room_bytes } else { &mut self.waiting_bytes } += bytes;
        group.pending.push_back(item);
        if !group.queued {
            group.queued = true;
            self.ready.push_back(index);
        }
    }

    /// Subtracts the bytes of work that is done.
    fn uncount(&mut self, index: u32, bytes: usize) {
        let group = &mut self.groups[index as usize];
        group.waiting_bytes -= bytes;
        *if group.is_room { &mut self.room_bytes } else { &mut self.waiting_bytes } -= bytes;
    }

    /// Ends a fully served job, and compacts the members that left during it.
    fn finish_job(&mut self, index: u32) {
        let group = &mut self.groups[index as usize];
        let Some(job) = group.job.take_if(|job| job.next >= job.end) else { return };
        let has_holes = std::mem::take(&mut group.vacant) > 0;
        self.uncount(index, job.bytes);
        if !has_holes {
            return;
        }
        let group = &mut self.groups[index as usize];
        group.members.retain(|slot| *slot != VACANT);
        for position in 0..self.groups[index as usize].members.len() {
            let slot = self.groups[index as usize].members[position];
            self.relink(index, Some(slot), position as u32);
        }
    }
}

/// Takes the next pushes to all members, or one push with named recipients (`true`).
fn take_batch(pending: &mut VecDeque<Item>) -> (Arc<[Delivery]>, bool) {
    let to_all = |item: &Item| matches!(item, Item::Push(it) if matches!(it.audience, Audience::Members));
    let named = matches!(pending.front(), Some(Item::Push(_))) && !pending.front().is_some_and(to_all);
    let pushes =
        if named { 1 } else { pending.iter().take(BATCH_PUSHES_MAX).take_while(|item| to_all(item)).count() };
    let batch = pending
        .drain(..pushes)
        .filter_map(|item| match item {
            Item::Push(delivery) => Some(delivery),
            Item::Join(..) | Item::Part(..) | Item::Keep(..) | Item::Behind(_) => None,
        })
        .collect();
    (batch, named)
}

mod listing;
mod members;
mod pacing;
mod recent;
mod sizes;
#[cfg(test)]
mod tests;
pub(super) mod thinning;
