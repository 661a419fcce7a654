//! Delivery of the feed to one endpoint of the application, from one node.
//!
//! **Promise.** An event is sent only after the receiver has taken every earlier event of its conversation, except those
//! that were set aside and reported. Each event is taken at least once, whatever crashes, and if two nodes deliver at the
//! same time: a cursor only claims what its writer saw taken, so every saved one is safe to start from.
//!
//! **Lanes.** The conversations of a partition are spread over lanes by their hash. Of all partitions, a lane has one
//! request in flight at a time.
//!
//! **Failures.** A failed request is repeated with a growing random delay and half of its events. An event that fails alone
//! while other requests succeed parks its conversation: the lane goes on without it, and the conversation is delivered
//! alone, seq by seq, until it has caught up. A parked event that keeps failing while others succeed is set aside. While
//! nothing succeeds, the endpoint is failing: one event at a time probes it, and neither parks nor is set aside.
//!
//! **Bounds.** Events in memory, parked conversations, events set aside, requests in flight and unsaved events are bounded;
//! what does not fit stays in the feed.

mod cursor;
mod health;
mod lane;
mod missing;
mod outcome;
mod parking;
mod partition;
mod types;

pub use self::{
    cursor::{
        ASIDE_MAX, CURSOR_BYTES_MAX, LANES_MAX, PARKED_MAX, ParkedConversation, WebhookAside, WebhookCursor,
        WebhookCursorError,
    },
    health::{FAILING_AFTER, RETRY_AFTER_MAX},
    missing::MissingNumbers,
    parking::REFUSED_ASIDE,
    partition::{RELEASE_MAX, SAVE_INTERVAL, UNSAVED_MAX, WEBHOOK_ORDERS_MAX},
    types::{
        WebhookBatch, WebhookChange, WebhookEvent, WebhookEventKind, WebhookFailure, WebhookItem,
        WebhookNotice, WebhookOutcome, WebhookPage, WebhookRead, WebhookSave, WebhookSettings, WebhookState,
        WebhookStep,
    },
};

use std::{
    collections::{BTreeMap, VecDeque},
    ops::{Bound, RangeInclusive},
    time::Duration,
};

use self::{health::Health, partition::Partition};
use crate::Time;

/// Most events of an endpoint in memory, except that each lane of each partition may have one.
pub const WEBHOOK_EVENTS_MAX: usize = 4_096;

/// Delay until a feed is read again that could not be read, or a request made that could not be.
const NODE_RETRY: Duration = Duration::from_secs(1);

/// Time between two lanes that go on after the endpoint has recovered.
const RESUME_INTERVAL: Duration = Duration::from_secs(1);

/// Delivery to one endpoint from the partitions that a node owns.
#[derive(Debug)]
pub struct WebhookDelivery {
    settings: WebhookSettings,
    partitions: BTreeMap<u32, Partition>,
    /// Lanes as requests see them, over all partitions.
    slots: Vec<Slot>,
    health: Health,
    in_flight: BTreeMap<u64, Sent>,
    parked_in_flight: usize,
    next_ticket: u64,
    turn: usize,
    /// End of a wait that the receiver asked for.
    wait_until: Time,
    is_paused: bool,
    /// Time of [`Time::ZERO`], in ms since 1970; only shown.
    wall_at_zero: u64,
    notices: VecDeque<WebhookNotice>,
}

/// One lane over all partitions.
#[derive(Clone, Debug)]
struct Slot {
    is_busy: bool,
    /// Whether a request of the lane has failed since the last success of any.
    has_failed: bool,
    resume_at: Time,
    /// Partition of the last request.
    turn: u32,
}

/// Request in flight.
#[derive(Clone, Debug)]
struct Sent {
    partition: u32,
    /// Last order that the partition had carried out.
    order: u64,
    is_probe: bool,
    of: SentOf,
}

/// Events that a request delivers.
#[derive(Clone, Debug)]
enum SentOf {
    /// First events of a lane.
    Lane { lane: usize, count: usize },
    /// First event of a conversation in a lane, as a probe.
    Head { lane: usize, event: WebhookEvent },
    /// Next event of a parked conversation.
    Parked(WebhookEvent),
}

impl WebhookDelivery {
    /// Creates a delivery without partitions. The seed chooses the jitter; `wall_at_zero` is the time of [`Time::ZERO`] in ms
    /// since 1970, for what operators see.
    pub fn new(settings: WebhookSettings, seed: u64, wall_at_zero: u64) -> Self {
        Self {
            slots: slots(&settings),
            settings: checked(settings),
            partitions: BTreeMap::new(),
            health: Health::new(seed),
            in_flight: BTreeMap::new(),
            parked_in_flight: 0,
            next_ticket: 0,
            turn: 0,
            wait_until: Time::ZERO,
            is_paused: false,
            wall_at_zero,
            notices: VecDeque::new(),
        }
    }

    /// Begins to deliver a partition from its saved cursor.
    pub fn handle_owned(&mut self, partition: u32, cursor: WebhookCursor, now: Time) {
        self.handle_lost(partition);
        self.partitions.insert(partition, Partition::new(cursor, &self.settings, now));
    }

    /// Ends the delivery of a partition whose fence has passed to another owner.
    pub fn handle_lost(&mut self, partition: u32) {
        self.partitions.remove(&partition);
        self.forget_requests(|sent| sent.partition == partition);
    }

    /// Begins to hand a partition over: no new requests, and a final cursor. [`WebhookNotice::Released`] follows.
    pub fn handle_release(&mut self, partition: u32, now: Time) {
        if let Some(partition) = self.partitions.get_mut(&partition) {
            partition.handle_release(now);
        }
    }

    /// Takes new settings. If the number of lanes changes, all start again at the lowest number, and requests in flight
    /// no longer count.
    pub fn handle_settings(&mut self, settings: WebhookSettings, now: Time) {
        let settings = checked(settings);
        if settings.parallel != self.settings.parallel {
            self.forget_requests(|_| true);
            self.slots = slots(&settings);
            for partition in self.partitions.values_mut() {
                partition.reshape(&settings, now);
                partition.carry_out_orders(&settings, now);
            }
        }
        for lane in self.partitions.values_mut().flat_map(|it| &mut it.lanes) {
            lane.limit = lane.limit.min(settings.batch_max);
        }
        self.settings = settings;
    }

    /// Pauses, or sends again after a pause.
    pub const fn handle_paused(&mut self, is_paused: bool) {
        self.is_paused = is_paused;
    }

    /// Returns the last order that a partition has taken; `None` if it is not delivered here.
    pub fn last_order(&self, partition: u32) -> Option<u64> {
        self.partitions.get(&partition).map(Partition::last_order)
    }

    /// Takes an order for a partition, if its number is above [`Self::last_order`]. It is carried out once no request of the
    /// partition is in flight, and nothing is sent until its effect is durable.
    pub fn handle_order(&mut self, partition: u32, step: WebhookStep, now: Time) {
        if let Some(partition) = self.partitions.get_mut(&partition) {
            partition.handle_order(step);
            partition.carry_out_orders(&self.settings, now);
        }
    }

    /// Notes the newest number of a partition's feed.
    pub fn handle_newest(&mut self, partition: u32, newest: u64) {
        if let Some(partition) = self.partitions.get_mut(&partition) {
            partition.handle_newest(newest);
        }
    }

    /// Returns a feed that should be read. Each needs one [`Self::handle_page`], [`Self::handle_gap`] or
    /// [`Self::handle_read_failed`].
    pub fn poll_read(&mut self, now: Time) -> Option<WebhookRead> {
        let capacity = self.capacity();
        self.partitions.iter_mut().find_map(|(number, partition)| {
            Some(WebhookRead { partition: *number, after: partition.poll_read(now, capacity)? })
        })
    }

    /// Takes a part of the feed.
    pub fn handle_page(&mut self, partition: u32, page: &WebhookPage, now: Time) {
        let capacity = self.capacity();
        self.handle_fell_back(partition, page.newest, now);
        if let Some(partition) = self.partitions.get_mut(&partition) {
            partition.handle_page(page, capacity, now);
        }
    }

    /// Notes the newest number of a feed that is lower than that of an entry already read: the store fell back to an older
    /// state. What is above it comes again, and is delivered again, because the receiver may have taken something else.
    pub fn handle_ahead(&mut self, partition: u32, newest: u64, now: Time) {
        self.handle_fell_back(partition, newest, now);
        self.handle_read_failed(partition, now);
    }

    fn handle_fell_back(&mut self, number: u32, newest: u64, now: Time) {
        let Some(partition) = self.partitions.get_mut(&number).filter(|it| it.is_ahead_of(newest)) else {
            return;
        };
        partition.handle_fell_back(newest, now);
        self.forget_requests(|sent| sent.partition == number);
        if let Some(partition) = self.partitions.get_mut(&number) {
            partition.carry_out_orders(&self.settings, now);
        }
    }

    /// Skips numbers that the feed does not have, and reports them.
    pub fn handle_gap(&mut self, partition: u32, missing: &RangeInclusive<u64>, now: Time) {
        let is_new = self.partitions.get_mut(&partition).is_some_and(|it| it.handle_gap(missing, now));
        if is_new {
            let (first, last) = (*missing.start(), *missing.end());
            self.notices.push_back(WebhookNotice::Gap { partition, first, last });
        }
    }

    /// Notes that the feed could not be read; it is tried again.
    pub fn handle_read_failed(&mut self, partition: u32, now: Time) {
        if let Some(partition) = self.partitions.get_mut(&partition) {
            partition.handle_read_failed(now + NODE_RETRY);
        }
    }

    /// Returns a request that should be sent. Each needs one [`Self::handle_outcome`].
    pub fn poll_send(&mut self, now: Time) -> Option<WebhookBatch> {
        if self.is_paused || now < self.wait_until {
            return None;
        }
        if self.health.is_failing() {
            return self.poll_probe(now);
        }
        // Turns, so that neither kind waits for the other while the driver has few permits.
        match self.next_ticket % 2 {
            0 => self.poll_lane(now).or_else(|| self.poll_parked(now)),
            _ => self.poll_parked(now).or_else(|| self.poll_lane(now)),
        }
    }

    /// Returns a cursor that should be saved. Each needs one [`Self::handle_save`].
    pub fn poll_save(&mut self, now: Time) -> Option<WebhookSave> {
        self.partitions.iter_mut().find_map(|(number, partition)| partition.poll_save(*number, now))
    }

    /// Notes whether a cursor was saved. Until one is saved again, nothing of the partition is sent. If the store refused
    /// the fence, report [`Self::handle_lost`] instead.
    pub fn handle_save(&mut self, partition: u32, is_saved: bool, now: Time) {
        let is_released = self.partitions.get_mut(&partition).is_some_and(|it| it.handle_save(is_saved, now));
        if is_released {
            self.handle_lost(partition);
            self.notices.push_back(WebhookNotice::Released(partition));
        }
    }

    /// Returns the next report. Poll after each input.
    pub fn poll_notice(&mut self) -> Option<WebhookNotice> {
        self.notices.pop_front()
    }

    /// Returns the time at which to poll again, whatever happens before.
    pub fn poll_timeout(&self, now: Time) -> Option<Time> {
        let sends = match (self.is_paused, self.health.is_failing()) {
            (true, _) => None,
            (false, true) => self.health.probe_at(),
            (false, false) => self.send_at(now),
        };
        let sends = sends.map(|at| at.max(self.wait_until));
        let others = self.partitions.values().flat_map(|it| [it.save_at(), it.read_timeout(now)]);
        others.flatten().chain(sends).min()
    }

    /// Returns the state.
    pub fn state(&self) -> WebhookState {
        let is_disabled = self.partitions.values().any(|it| it.is_disabled);
        match (is_disabled, self.is_paused, self.health.is_failing()) {
            (true, ..) => WebhookState::Disabled,
            (false, true, _) => WebhookState::Paused,
            (false, false, true) => WebhookState::Failing,
            (false, false, false) => WebhookState::Active,
        }
    }

    /// Returns the number of parked conversations.
    pub fn parked(&self) -> usize {
        self.partitions.values().map(|it| it.parking.parked()).sum()
    }

    /// Returns the events that were set aside.
    pub fn aside(&self) -> impl Iterator<Item = &WebhookAside> {
        self.partitions.values().flat_map(|it| it.parking.aside())
    }

    /// Returns the feed numbers between the slowest lane and the newest entry, summed over the partitions.
    pub fn behind(&self) -> u64 {
        self.partitions.values().map(Partition::behind).sum()
    }

    /// Returns the number up to which all entries of a partition were taken; `None` if it is not delivered here.
    pub fn done(&self, partition: u32) -> Option<u64> {
        self.partitions.get(&partition).map(Partition::done)
    }

    /// Returns the number of requests in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Returns the number of events of the lanes in memory.
    pub fn events(&self) -> usize {
        self.partitions.values().flat_map(|it| &it.lanes).map(lane::Lane::len).sum()
    }

    /// Returns the most events of one lane in one partition.
    fn capacity(&self) -> usize {
        let lanes = self.slots.len() * self.partitions.len().max(1);
        (WEBHOOK_EVENTS_MAX / lanes).clamp(1, self.settings.batch_max * 2)
    }

    fn send_at(&self, now: Time) -> Option<Time> {
        let sending = || self.partitions.values().filter(|it| it.may_send(now));
        let lanes = sending().flat_map(|it| self.slots.iter().zip(&it.lanes));
        let free = lanes.filter(|(slot, _)| !slot.is_busy);
        let lanes = free
            .filter_map(|(slot, lane)| Some(lane.ready_at(self.settings.batch_wait)?.max(slot.resume_at)));
        let parked = sending().filter_map(|it| it.parking.retry_at());
        lanes.chain(parked.filter(|_| self.parked_in_flight < self.parked_max())).min()
    }

    /// Returns the most requests of parked conversations in flight.
    fn parked_max(&self) -> usize {
        self.slots.len().div_ceil(2)
    }

    fn poll_lane(&mut self, now: Time) -> Option<WebhookBatch> {
        let count = self.slots.len();
        for lane in (0..count).map(|nth| (self.turn + nth) % count) {
            let slot = &self.slots[lane];
            if slot.is_busy || slot.resume_at > now {
                continue;
            }
            let after = self.partitions.range((Bound::Excluded(slot.turn), Bound::Unbounded));
            let ready = after.chain(self.partitions.range(..=slot.turn)).find(|(_, partition)| {
                let ready_at = partition.lanes[lane].ready_at(self.settings.batch_wait);
                partition.may_send(now) && ready_at.is_some_and(|at| at <= now)
            });
            let Some(number) = ready.map(|(number, _)| *number) else { continue };
            self.turn = lane + 1;
            return self.send_lane(number, lane);
        }
        None
    }

    fn send_lane(&mut self, number: u32, lane: usize) -> Option<WebhookBatch> {
        let slot = &mut self.slots[lane];
        (slot.is_busy, slot.turn) = (true, number);
        let state = &mut self.partitions.get_mut(&number)?.lanes[lane];
        state.is_in_flight = true;
        let (events, attempt) = (state.batch(), state.failures.saturating_add(1));
        let sent = Sent {
            partition: number,
            order: 0,
            is_probe: false,
            of: SentOf::Lane { lane, count: events.len() },
        };
        Some(self.send(sent, events, attempt))
    }

    fn poll_parked(&mut self, now: Time) -> Option<WebhookBatch> {
        if self.parked_in_flight >= self.parked_max() {
            return None;
        }
        let mut due = self.partitions.iter_mut().filter(|(_, partition)| partition.may_send(now));
        let (number, event) = due.find_map(|(number, it)| Some((*number, it.parking.take_due(now)?)))?;
        Some(self.send_parked(number, event, false))
    }

    fn send_parked(&mut self, number: u32, event: WebhookEvent, is_probe: bool) -> WebhookBatch {
        let parking = self.partitions.get(&number).map(|it| &it.parking);
        let attempt = parking.map_or(0, |it| it.tries(&event.conversation)).saturating_add(1);
        self.parked_in_flight += 1;
        let sent = Sent { partition: number, order: 0, is_probe, of: SentOf::Parked(event.clone()) };
        self.send(sent, vec![event], attempt)
    }

    /// Probes with another conversation each time: the one that was sent last may be the only one that fails.
    fn poll_probe(&mut self, now: Time) -> Option<WebhookBatch> {
        self.health.probe_at().filter(|at| *at <= now)?;
        let mut heads = Vec::new();
        let mut parked = Vec::new();
        for (number, partition) in self.partitions.iter().filter(|(_, it)| it.may_send(now)) {
            for (lane, state) in partition.lanes.iter().enumerate().filter(|(_, it)| !it.is_in_flight) {
                heads.extend(state.heads().into_iter().map(|event| (*number, lane, event)));
            }
            parked.extend(partition.parking.idle().map(|conversation| (*number, conversation.clone())));
        }
        if heads.is_empty() && parked.is_empty() {
            self.health.postpone_probe(now + NODE_RETRY);
            return None;
        }
        let turn = self.health.begin_probe();
        if parked.is_empty() || turn.is_multiple_of(2) && !heads.is_empty() {
            let step = if parked.is_empty() { turn } else { turn / 2 };
            let (number, lane, event) = heads.swap_remove(step % heads.len());
            let state = &mut self.partitions.get_mut(&number)?.lanes[lane];
            state.is_in_flight = true;
            let (attempt, of) =
                (state.failures.saturating_add(1), SentOf::Head { lane, event: event.clone() });
            let sent = Sent { partition: number, order: 0, is_probe: true, of };
            return Some(self.send(sent, vec![event], attempt));
        }
        let (number, conversation) = parked.swap_remove(turn / 2 % parked.len());
        let event = self.partitions.get_mut(&number)?.parking.take(&conversation)?;
        Some(self.send_parked(number, event, true))
    }

    fn send(&mut self, mut sent: Sent, events: Vec<WebhookEvent>, attempt: u32) -> WebhookBatch {
        let (ticket, partition) = (self.next_ticket, sent.partition);
        self.next_ticket += 1;
        if let Some(partition) = self.partitions.get_mut(&partition) {
            partition.in_flight += 1;
            sent.order = partition.last_carried_out();
        }
        self.in_flight.insert(ticket, sent);
        WebhookBatch { ticket, partition, attempt, events }
    }

    /// Forgets requests in flight, whose outcomes no longer count.
    fn forget_requests(&mut self, is_forgotten: impl Fn(&Sent) -> bool) {
        let forgotten: Vec<u64> =
            self.in_flight.iter().filter(|(_, sent)| is_forgotten(sent)).map(|(ticket, _)| *ticket).collect();
        for ticket in forgotten {
            if let Some(sent) = self.in_flight.remove(&ticket) {
                self.free(&sent, Time::ZERO);
            }
        }
    }
}

fn checked(settings: WebhookSettings) -> WebhookSettings {
    WebhookSettings {
        parallel: settings.parallel.clamp(1, LANES_MAX),
        batch_max: settings.batch_max.max(1),
        ..settings
    }
}

fn slots(settings: &WebhookSettings) -> Vec<Slot> {
    let slot = Slot { is_busy: false, has_failed: false, resume_at: Time::ZERO, turn: 0 };
    vec![slot; settings.parallel.clamp(1, LANES_MAX)]
}
