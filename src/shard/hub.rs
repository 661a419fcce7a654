//! Who is here: user → connections and group → members of one shard, and the fan-out work in hand.
//!
//! Plain single-threaded maps; nothing here is touched by another thread. Members of a group lie in one dense array
//! with back-links, so joining and leaving are O(1) and a fan-out walks memory in order. Pushes and membership
//! changes of a group share one queue, so that a kick is exact; a fan-out is cut into slices, so that a group of
//! ten thousand does not starve the others.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use foldhash::quality::RandomState;
use slab::Slab;
use smallvec::SmallVec;
use tidegate_protocol::{
    Time,
    id::{ConversationId, UserId},
};

use crate::{
    directory::Directory,
    mail::{Audience, Delivery, Item, Size},
};

/// Most pushes of one group written together.
const RUN_MAX: usize = 64;

/// Bytes of pushes that may wait for their fan-out or be in it; above it mail stays in the mailbox and room sends are refused.
const WAITING_BYTES_MAX: usize = 4 * 1024 * 1024;

/// A push for more who are named waits for its turn, in slices.
const NAMED_MAX: usize = 1_000;

/// Groups that a connection was taken out of, and that are remembered for it.
const PARTED_MAX: usize = 64;

/// Marks a member that left while a fan-out was walking the array.
const LEFT: u32 = u32::MAX;

/// The indexes of one shard.
pub(super) struct Hub {
    shard: usize,
    directory: Arc<Directory>,
    users: HashMap<UserId, SmallVec<[u32; 2]>, RandomState>,
    ids: HashMap<ConversationId, u32, RandomState>,
    groups: Slab<Group>,
    /// slot → its groups, and where it stands in each.
    links: Vec<SmallVec<[Link; 3]>>,
    /// slot → the groups that its user was removed from since it is here, oldest first.
    parted: HashMap<u32, VecDeque<ConversationId>, RandomState>,
    /// Groups with work in hand, each once.
    ready: VecDeque<u32>,
    /// Bytes of all pushes and changes whose fan-out is not done.
    waiting: usize,
}

struct Group {
    id: ConversationId,
    members: Vec<u32>,
    pending: VecDeque<Item>,
    job: Option<Job>,
    queued: bool,
    holes: bool,
    /// How large it is, and when that was seen.
    size: Option<(Size, Time)>,
}

struct Job {
    run: Arc<[Delivery]>,
    /// What the run weighs; it waits until everybody is served.
    bytes: usize,
    next: usize,
    /// Members that join later stand beyond it and are not served.
    end: usize,
    /// It is one push for those whom it names, and `next` and `end` are places in its list.
    named: bool,
}

#[derive(Clone, Copy)]
struct Link {
    group: u32,
    position: u32,
}

/// What to do next.
pub(super) enum Work {
    /// Write `run` to the members from `start` to before `end`.
    Fan {
        /// The group, for [`Hub::member`].
        group: u32,
        /// The pushes, in order.
        run: Arc<[Delivery]>,
        /// First member index.
        start: usize,
        /// Past the last member index.
        end: usize,
    },
    /// Write the one push to those whom it names, from `start` to before `end`.
    Named {
        /// The push.
        run: Arc<[Delivery]>,
        /// First place in its list.
        start: usize,
        /// Past the last place.
        end: usize,
    },
    /// A membership change, or a hint about pushes left out, whose turn has come.
    Change(Item),
}

impl Hub {
    /// The empty indexes of shard number `shard`.
    pub(super) fn new(shard: usize, directory: Arc<Directory>) -> Self {
        Self {
            shard,
            directory,
            users: HashMap::default(),
            ids: HashMap::default(),
            groups: Slab::new(),
            links: Vec::new(),
            parted: HashMap::default(),
            ready: VecDeque::new(),
            waiting: 0,
        }
    }

    /// Whether so much waits for fan-out that nothing may be added which can wait elsewhere.
    pub(super) fn is_full(&self) -> bool {
        self.waiting >= WAITING_BYTES_MAX
    }

    /// The connection `slot` belongs to `user`.
    pub(super) fn add_user(&mut self, user: &UserId, slot: u32) {
        let slots = self.users.entry(user.clone()).or_default();
        if slots.is_empty() {
            self.directory.add_user(user, self.shard);
        }
        slots.push(slot);
    }

    /// The connections of `user` here.
    pub(super) fn slots(&self, user: &UserId) -> &[u32] {
        self.users.get(user).map_or(&[], |slots| slots)
    }

    /// Forgets the connection: its user entry and all its memberships.
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
        self.parted.remove(&slot);
    }

    /// Adds the connection to a group or room; says whether it was not in it before.
    pub(super) fn join(&mut self, conversation: &ConversationId, slot: u32) -> bool {
        if let Some(parted) = self.parted.get_mut(&slot) {
            parted.retain(|other| other != conversation);
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
        true
    }

    /// Takes the connection out of a group or room; says whether it was in it.
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

    /// Takes the connection out of a group whose member its user is no more, wherever it was, and remembers that.
    pub(super) fn part(&mut self, conversation: &ConversationId, slot: u32) {
        self.leave(conversation, slot);
        let parted = self.parted.entry(slot).or_default();
        parted.retain(|other| other != conversation);
        if parted.len() == PARTED_MAX {
            parted.pop_front();
        }
        parted.push_back(conversation.clone());
    }

    /// Whether the connection's user was removed from that group, and not taken in again, as far as is known here: what a
    /// store says may be older than that.
    pub(super) fn has_parted(&self, conversation: &ConversationId, slot: u32) -> bool {
        self.parted.get(&slot).is_some_and(|parted| parted.contains(conversation))
    }

    /// Whether the connection is in that group or room.
    pub(super) fn is_in(&self, conversation: &ConversationId, slot: u32) -> bool {
        self.ids.get(conversation).is_some_and(|group| {
            self.links.get(slot as usize).is_some_and(|links| links.iter().any(|link| link.group == *group))
        })
    }

    /// Queues a push for the members of its conversation; nobody here → dropped.
    pub(super) fn push(&mut self, delivery: Delivery) {
        if let Some(group) = self.ids.get(&delivery.conversation).copied() {
            self.enqueue(group, Item::Push(delivery));
        }
    }

    /// Queues a push for many who are named, or one behind others of its conversation; gives it back when it can be written at
    /// once.
    pub(super) fn push_named(&mut self, delivery: Delivery) -> Option<Delivery> {
        let group = self.ids.get(&delivery.conversation).copied();
        let waits = |group: &u32| self.groups[*group as usize].queued;
        match group.filter(|group| delivery.audience.named() > NAMED_MAX || waits(group)) {
            Some(group) => {
                self.enqueue(group, Item::Push(delivery));
                None
            }
            None => Some(delivery),
        }
    }

    /// Queues a membership change, or a hint about pushes left out, behind the pushes that came before it; gives it back when nothing is before it.
    pub(super) fn change(&mut self, item: Item) -> Option<Item> {
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

    /// The member at `index`; `None` when it left meanwhile.
    pub(super) fn member(&self, group: u32, index: usize) -> Option<u32> {
        let slot = *self.groups.get(group as usize)?.members.get(index)?;
        (slot != LEFT).then_some(slot)
    }

    /// How large a group is, if that was seen after `since`.
    pub(super) fn size(&self, conversation: &ConversationId, since: Time) -> Option<&Size> {
        let group = self.ids.get(conversation).map(|group| &self.groups[*group as usize])?;
        group.size.as_ref().filter(|(_, seen)| *seen > since).map(|(size, _)| size)
    }

    /// A group was seen to be that large.
    pub(super) fn note_size(&mut self, conversation: &ConversationId, size: Size, now: Time) {
        if let Some(group) = self.ids.get(conversation) {
            self.groups[*group as usize].size = Some((size, now));
        }
    }

    /// All members of a conversation here.
    pub(super) fn members_of(&self, conversation: &ConversationId) -> Vec<u32> {
        let group = self.ids.get(conversation).map(|group| &self.groups[*group as usize]);
        group.into_iter().flat_map(|group| &group.members).copied().filter(|slot| *slot != LEFT).collect()
    }

    /// Whether fan-out work waits.
    pub(super) fn has_work(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The next piece of work, at most `budget` members of one group; groups take turns.
    pub(super) fn next_work(&mut self, budget: usize) -> Option<Work> {
        while let Some(index) = self.ready.pop_front() {
            self.finish_job(index);
            let group = &mut self.groups[index as usize];
            if group.job.is_none() {
                let (run, named) = take_run(&mut group.pending);
                if run.is_empty() {
                    if let Some(change) = group.pending.pop_front() {
                        self.waiting -= change.weight();
                        self.ready.push_front(index);
                        return Some(Work::Change(change));
                    }
                    group.queued = false;
                    self.close_if_empty(index);
                    continue;
                }
                let bytes = run.iter().map(Delivery::weight).sum();
                let end = if named { run[0].audience.named() } else { group.members.len() };
                group.job = Some(Job { run, bytes, next: 0, end, named });
            }
            let job = group.job.as_mut().expect("set above or before");
            let (start, end) = (job.next, job.end.min(job.next + budget));
            job.next = end;
            let (run, named) = (Arc::clone(&job.run), job.named);
            self.ready.push_back(index);
            return Some(match named {
                true => Work::Named { run, start, end },
                false => Work::Fan { group: index, run, start, end },
            });
        }
        None
    }

    fn open(&mut self, conversation: &ConversationId) -> u32 {
        let group = Group {
            id: conversation.clone(),
            members: Vec::new(),
            pending: VecDeque::new(),
            job: None,
            queued: false,
            holes: false,
            size: None,
        };
        let index = self.groups.insert(group) as u32;
        self.ids.insert(conversation.clone(), index);
        self.directory.hold_conversation(conversation, self.shard);
        index
    }

    fn enqueue(&mut self, index: u32, item: Item) {
        self.waiting += item.weight();
        let group = &mut self.groups[index as usize];
        group.pending.push_back(item);
        if !group.queued {
            group.queued = true;
            self.ready.push_back(index);
        }
    }

    fn unlink(&mut self, link: Link, slot: u32) {
        self.links[slot as usize].retain(|other| other.group != link.group);
        let group = &mut self.groups[link.group as usize];
        if group.job.is_some() {
            group.members[link.position as usize] = LEFT;
            group.holes = true;
            return;
        }
        group.members.swap_remove(link.position as usize);
        let moved = group.members.get(link.position as usize).copied();
        self.relink(link.group, moved, link.position);
        self.close_if_empty(link.group);
    }

    fn relink(&mut self, group: u32, slot: Option<u32>, position: u32) {
        let links = slot.filter(|slot| *slot != LEFT).and_then(|slot| self.links.get_mut(slot as usize));
        if let Some(link) = links.and_then(|links| links.iter_mut().find(|link| link.group == group)) {
            link.position = position;
        }
    }

    /// Ends a job that has served everybody and closes the holes that were left meanwhile.
    fn finish_job(&mut self, index: u32) {
        let group = &mut self.groups[index as usize];
        let Some(job) = group.job.take_if(|job| job.next >= job.end) else { return };
        self.waiting -= job.bytes;
        if !std::mem::take(&mut group.holes) {
            return;
        }
        group.members.retain(|slot| *slot != LEFT);
        for position in 0..self.groups[index as usize].members.len() {
            let slot = self.groups[index as usize].members[position];
            self.relink(index, Some(slot), position as u32);
        }
    }

    fn close_if_empty(&mut self, index: u32) {
        let group = &self.groups[index as usize];
        if group.members.is_empty() && !group.queued && group.job.is_none() {
            let group = self.groups.remove(index as usize);
            self.ids.remove(&group.id);
            self.directory.release_conversation(&group.id, self.shard);
        }
    }
}

/// The next pushes that go to all members, or one that goes to those whom it names (true).
fn take_run(pending: &mut VecDeque<Item>) -> (Arc<[Delivery]>, bool) {
    let to_all = |item: &Item| matches!(item, Item::Push(it) if matches!(it.audience, Audience::Members));
    let named = matches!(pending.front(), Some(Item::Push(_))) && !pending.front().is_some_and(to_all);
    let pushes = if named { 1 } else { pending.iter().take(RUN_MAX).take_while(|item| to_all(item)).count() };
    let run = pending
        .drain(..pushes)
        .filter_map(|item| match item {
            Item::Push(delivery) => Some(delivery),
            Item::Join(..) | Item::Part(..) | Item::Keep(..) | Item::Behind(_) => None,
        })
        .collect();
    (run, named)
}

#[cfg(test)]
mod tests;
