//! Messages to live rooms that wait for their numbers, by room, with the sampler of each room that is in use.

use std::{
    collections::HashMap,
    hash::{BuildHasher as _, RandomState},
    net::IpAddr,
    num::NonZeroU64,
    time::Duration,
};

use tidegate_protocol::{
    Time,
    id::{ConversationId, UserId},
    machine::{
        room_sample::{RoomCandidate, RoomSampler},
        session::Submit,
    },
};

use crate::{mail::ConnKey, priorities::class_share, room_rules::RoomRules};

/// Most bytes of room messages that wait for their numbers on one shard.
const ROOM_QUEUE_BYTES_MAX: usize = 1024 * 1024;

/// Part of these bytes that the messages of one room may take.
const ROOM_BYTES_MAX: usize = 256 * 1024;

/// Bytes that a message counts in addition to its content.
const POST_OVERHEAD_BYTES: usize = 256;

/// Most rooms with a sampler on one shard.
const ROOMS_MAX: usize = 4_096;

/// Rooms without waiting messages that are forgotten at once when there are too many.
const ROOMS_EVICTED: usize = ROOMS_MAX / 16;

/// Time from an attempt to forget rooms in vain to the next one.
const EVICTION_RETRY: Duration = Duration::from_millis(50);

/// Time from the first message that waits in a room over its rate until the choice among those that wait.
const SAMPLE_TICK: Duration = Duration::from_millis(50);

/// Least time between two reports to the members of a room about how many messages were left out.
const LEFT_OUT_INTERVAL: Duration = Duration::from_secs(1);

/// Message to a room, with its sender.
pub(super) struct RoomPost {
    pub(super) origin: ConnKey,
    pub(super) sender: UserId,
    /// Class of the sender's connection.
    pub(super) class: u8,
    pub(super) submit: Submit,
}

/// Room messages that wait for their numbers, by room.
#[derive(Default)]
pub(in crate::shard) struct RoomQueue {
    rooms: HashMap<ConversationId, PostQueue, RandomState>,
    /// Rooms with waiting messages and no numbering in flight, without duplicates.
    ready: Vec<ConversationId>,
    /// Such rooms whose earlier frames fill the fan-out; it wakes the shard.
    blocked: Vec<ConversationId>,
    /// Time of the next attempt to forget rooms.
    evict_at: Time,
    /// Messages that are left out and not answered yet.
    left_out: Vec<(ConnKey, u64)>,
    bytes: usize,
    hasher: RandomState,
}

/// Messages of one room.
struct PostQueue {
    /// Messages for the next numbering.
    sampler: RoomSampler<RoomPost>,
    /// Time of the choice among the messages that wait; `None` if none waits for it.
    due: Option<Time>,
    /// Rate at the last choice.
    rate: u32,
    /// Messages of the numbering in flight.
    numbering: Vec<RoomPost>,
    /// Number that follows the last one of this shard.
    next_number: Option<u64>,
    /// Messages left out since the last report to the members, and the time of that.
    left_out: u64,
    reported_at: Time,
}

impl RoomQueue {
    /// Returns how long the next choice or numbering can wait; `None` if no message waits.
    pub(in crate::shard) fn wait(&self, now: Time) -> Option<Duration> {
        let due = |room: &ConversationId| self.rooms.get(room)?.due;
        let waits = self.ready.iter().map(|room| due(room).map_or(Duration::ZERO, |due| due.since(now)));
        waits.min().or((!self.left_out.is_empty()).then_some(Duration::ZERO))
    }

    /// Returns whether the message of a sender of this class may not be queued. If there are too many rooms, those without
    /// waiting messages are forgotten, the ones that were used longest ago first.
    pub(super) fn is_full(&mut self, submit: &Submit, class: u8, rules: &RoomRules, now: Time) -> bool {
        if self.bytes >= class_share(ROOM_QUEUE_BYTES_MAX, class) {
            return true;
        }
        let Some(queue) = self.rooms.get(&submit.conversation) else {
            return self.rooms.len() >= ROOMS_MAX && !self.evict(now);
        };
        // A room without a rate leaves nothing out.
        let waiting = queue.sampler.bytes();
        waiting > 0
            && waiting + weight(submit) > ROOM_BYTES_MAX
            && rules.of_room(&submit.conversation).rate == 0
    }

    /// Forgets rooms that only have a budget; returns whether there was one.
    fn evict(&mut self, now: Time) -> bool {
        if now < self.evict_at {
            return false;
        }
        let unused = self.rooms.values().filter(|queue| !queue.is_used());
        let mut times: Vec<Time> = unused.map(|queue| queue.sampler.used_at()).collect();
        if times.is_empty() {
            self.evict_at = now + EVICTION_RETRY;
            return false;
        }
        let last = times.len().min(ROOMS_EVICTED) - 1;
        let (_, oldest, _) = times.select_nth_unstable(last);
        let oldest = *oldest;
        self.rooms.retain(|_, queue| queue.is_used() || queue.sampler.used_at() > oldest);
        true
    }

    /// Adds a message; one that it displaces is left out, or itself.
    pub(super) fn add(&mut self, post: RoomPost, address: IpAddr, rules: &RoomRules, now: Time) {
        let bytes = weight(&post.submit);
        let candidate = RoomCandidate {
            class: post.class,
            sender: self.hasher.hash_one(&post.sender),
            address: self.hasher.hash_one(address),
            bytes,
        };
        let room = post.submit.conversation.clone();
        let queue = self.rooms.entry(room.clone()).or_insert_with(|| PostQueue::new(rules, &room, now));
        let was_empty = queue.sampler.is_empty();
        self.bytes += bytes;
        for post in queue.sampler.handle_message(candidate, post) {
            self.bytes -= weight(&post.submit);
            queue.left_out += 1;
            self.left_out.push((post.origin, post.submit.ticket));
        }
        if was_empty && queue.numbering.is_empty() {
            self.ready.push(room);
        }
    }

    /// Takes the rooms with waiting messages.
    pub(super) fn take_ready(&mut self) -> Vec<ConversationId> {
        self.ready.append(&mut self.blocked);
        std::mem::take(&mut self.ready)
    }

    /// Returns a room whose messages have to wait for the fan-out to those with waiting ones. [`Self::wait`] does not count it.
    pub(super) fn put_back(&mut self, room: ConversationId) {
        self.blocked.push(room);
    }

    /// Moves messages of the room into a new numbering, and returns their count; `None` if none is chosen now.
    pub(super) fn start_numbering(
        &mut self,
        room: &ConversationId,
        rules: &RoomRules,
        now: Time,
    ) -> Option<NonZeroU64> {
        let queue = self.rooms.get_mut(room)?;
        let rate = rules.of_room(room).rate;
        let (numbered, left_out) = queue.choose(rate, now);
        queue.left_out += left_out.len() as u64;
        for post in left_out {
            self.bytes -= weight(&post.submit);
            self.left_out.push((post.origin, post.submit.ticket));
        }
        queue.numbering = numbered;
        let count = NonZeroU64::new(queue.numbering.len() as u64);
        if count.is_none() && !queue.sampler.is_empty() {
            self.ready.push(room.clone());
        }
        count
    }

    /// Ends the numbering in flight, and returns its messages. `first` is the number of the first one; what was numbered
    /// elsewhere since the last numbering counts for the rate.
    pub(super) fn finish_numbering(
        &mut self,
        room: &ConversationId,
        first: Option<u64>,
        rules: &RoomRules,
    ) -> Vec<RoomPost> {
        let Some(queue) = self.rooms.get_mut(room) else { return Vec::new() };
        let numbered = std::mem::take(&mut queue.numbering);
        self.bytes -= numbered.iter().map(|post| weight(&post.submit)).sum::<usize>();
        if let Some(first) = first {
            let others = queue.next_number.map_or(0, |next| first.saturating_sub(next));
            queue.sampler.handle_others(others, rules.of_room(room).rate);
            queue.next_number = Some(first.saturating_add(numbered.len() as u64));
        }
        if !queue.sampler.is_empty() {
            self.ready.push(room.clone());
        } else if queue.rate == 0 && !queue.is_used() {
            self.rooms.remove(room);
        }
        numbered
    }

    /// Takes the messages that are left out and not answered yet.
    pub(super) fn take_left_out(&mut self) -> Vec<(ConnKey, u64)> {
        std::mem::take(&mut self.left_out)
    }

    /// Takes the number of messages of the room that were left out, if it is time to report it to the members.
    pub(super) fn take_report(&mut self, room: &ConversationId, now: Time) -> Option<NonZeroU64> {
        self.rooms.get_mut(room)?.take_report(now)
    }

    /// Takes the numbers of messages that were left out for all rooms of which it is time to report it, because no numbering
    /// did.
    pub(in crate::shard) fn take_reports(&mut self, now: Time) -> Vec<(ConversationId, NonZeroU64)> {
        let due =
            self.rooms.iter_mut().filter_map(|(room, queue)| Some((room.clone(), queue.take_report(now)?)));
        due.collect()
    }

    /// Forgets the rooms that have had no messages for a while, and of which nothing is to be reported.
    pub(in crate::shard) fn forget_idle(&mut self, now: Time) {
        self.rooms.retain(|_, queue| queue.is_used() || !queue.sampler.is_idle(queue.rate, now));
    }
}

impl PostQueue {
    fn new(rules: &RoomRules, room: &ConversationId, now: Time) -> Self {
        let mut sampler = RoomSampler::new(ROOM_BYTES_MAX, now);
        let rate = rules.of_room(room).rate;
        sampler.fill(rate);
        Self {
            sampler,
            due: None,
            rate,
            numbering: Vec::new(),
            next_number: None,
            left_out: 0,
            reported_at: now,
        }
    }

    /// Returns whether it has messages, or something to report.
    fn is_used(&self) -> bool {
        !self.sampler.is_empty() || !self.numbering.is_empty() || self.left_out > 0
    }

    fn take_report(&mut self, now: Time) -> Option<NonZeroU64> {
        if now < self.reported_at + LEFT_OUT_INTERVAL {
            return None;
        }
        let count = NonZeroU64::new(std::mem::take(&mut self.left_out))?;
        self.reported_at = now;
        Some(count)
    }

    /// Returns the messages to number now, and those to leave out.
    fn choose(&mut self, rate: u32, now: Time) -> (Vec<RoomPost>, Vec<RoomPost>) {
        self.rate = rate;
        if rate == 0 {
            self.due = None;
            return (self.sampler.take_all(now), Vec::new());
        }
        if self.due.is_some_and(|due| due <= now) {
            self.due = None;
            let tick = self.sampler.handle_tick(rate, now);
            return (tick.numbered, tick.left_out);
        }
        let numbered = self.sampler.poll_ready(rate, now);
        let due = self.due.unwrap_or(now + SAMPLE_TICK);
        self.due = (!self.sampler.is_empty()).then_some(due);
        (numbered, Vec::new())
    }
}

fn weight(submit: &Submit) -> usize {
    submit.content.len() + POST_OVERHEAD_BYTES
}

#[cfg(test)]
mod tests;
