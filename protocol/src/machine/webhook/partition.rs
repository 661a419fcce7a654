//! State of an endpoint in one partition: its lanes, its parked conversations, and when its cursor is saved.

use std::{collections::VecDeque, ops::RangeInclusive, time::Duration};

use super::{
    WebhookChange, WebhookPage, WebhookSave, WebhookSettings, WebhookStep,
    cursor::{LANES_MAX, WebhookCursor},
    lane::Lane,
    missing::MissingNumbers,
    parking::Parking,
};
use crate::{Time, id::ConversationId};

/// Longest time for which a change is not saved, and a save may take until requests wait for it.
pub const SAVE_INTERVAL: Duration = Duration::from_secs(1);

/// Most events that were taken and are not saved; then requests wait for the save.
pub const UNSAVED_MAX: u64 = 1_000;

/// Time until a cursor is saved that only passed events that are not wanted.
const PASSED_SAVE_INTERVAL: Duration = Duration::from_secs(10);

/// Time that requests in flight get when a partition is handed over.
pub const RELEASE_MAX: Duration = Duration::from_secs(2);

/// Most orders that wait in a partition. Further ones are not taken, and can be given again later.
pub const WEBHOOK_ORDERS_MAX: usize = 64;

/// Endpoint in one partition.
#[derive(Debug)]
pub(super) struct Partition {
    pub(super) lanes: Vec<Lane>,
    pub(super) parking: Parking,
    /// Newest number of the feed, as far as known.
    newest: u64,
    /// Whether the newest number was lower than what a lane has read: the store may have fallen back to an older state.
    is_in_doubt: bool,
    is_reading: bool,
    read_at: Time,
    read_turn: usize,
    pub(super) in_flight: usize,
    /// End of the time for requests in flight, while the partition is handed over.
    release_at: Option<Time>,
    /// Numbers that were reported as missing in the feed.
    missing: MissingNumbers,
    /// Orders that wait for the end of the requests in flight, at most [`WEBHOOK_ORDERS_MAX`].
    orders: VecDeque<WebhookStep>,
    /// Last order that was carried out.
    last_order: u64,
    /// Whether the receiver wants no events any more.
    pub(super) is_disabled: bool,
    unsaved: Unsaved,
}

/// Changes that the saved cursor lacks.
#[derive(Debug, Default)]
struct Unsaved {
    /// Events that were taken, parked or set aside since the last saved cursor.
    events: u64,
    since: Option<Time>,
    /// Time since which the cursor has passed events that are not wanted.
    passed_since: Option<Time>,
    /// Last order whose effect is saved.
    order: u64,
    saving: Option<Saving>,
    /// Time of the next try after a failed one.
    retry_at: Option<Time>,
    is_final_saved: bool,
}

#[derive(Debug)]
struct Saving {
    events: u64,
    since: Time,
    is_final: bool,
    order: u64,
}

/// Returns the lane of a conversation. Part of the cursor's format: FNV-1a, 64 bits.
fn lane_of(conversation: &ConversationId, lanes: usize) -> usize {
    let hash = conversation.as_str().bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    usize::try_from(hash % lanes.max(1) as u64).unwrap_or(0)
}

impl Partition {
    /// Starts at a cursor. If it has another number of lanes, all start at its lowest number.
    pub(super) fn new(cursor: WebhookCursor, settings: &WebhookSettings, now: Time) -> Self {
        let lanes = settings.parallel.clamp(1, LANES_MAX);
        let numbers = match cursor.lanes.len() == lanes {
            true => cursor.lanes,
            false => vec![cursor.lowest(); lanes],
        };
        Self {
            newest: numbers.iter().copied().max().unwrap_or(0),
            lanes: numbers.into_iter().map(|number| Lane::new(number, settings.batch_max)).collect(),
            parking: Parking::restore(&cursor.parked, cursor.aside, now),
            is_in_doubt: false,
            is_reading: false,
            read_at: now,
            read_turn: 0,
            in_flight: 0,
            release_at: None,
            missing: MissingNumbers::new(),
            orders: VecDeque::new(),
            last_order: cursor.last_order,
            is_disabled: cursor.is_disabled,
            unsaved: Unsaved { order: cursor.last_order, ..Unsaved::default() },
        }
    }

    /// Starts again at the lowest number with another number of lanes.
    pub(super) fn reshape(&mut self, settings: &WebhookSettings, now: Time) {
        let new = Self::new(self.cursor(), settings, now);
        (self.lanes, self.parking) = (new.lanes, new.parking);
        (self.read_turn, self.in_flight) = (0, 0);
        self.unsaved.add(1, now);
    }

    /// Returns what the receiver has taken.
    pub(super) fn cursor(&self) -> WebhookCursor {
        let (parked, aside) = self.parking.save();
        WebhookCursor {
            lanes: self.lanes.iter().map(Lane::done).collect(),
            last_order: self.last_order,
            is_disabled: self.is_disabled,
            parked,
            aside,
        }
    }

    /// Returns the last order that was taken.
    pub(super) fn last_order(&self) -> u64 {
        self.orders.back().map_or(self.last_order, |last| last.number)
    }

    /// Returns the last order that was carried out.
    pub(super) const fn last_carried_out(&self) -> u64 {
        self.last_order
    }

    /// Takes an order. Those that were taken before, and those that no longer fit, change nothing.
    pub(super) fn handle_order(&mut self, step: WebhookStep) {
        if step.number > self.last_order() && self.orders.len() < WEBHOOK_ORDERS_MAX {
            self.orders.push_back(step);
        }
    }

    /// Carries out the orders once no request is in flight, which could arrive after what follows them. Nothing is sent
    /// until the cursor with their effect is durable, so that no crash repeats or forgets them.
    pub(super) fn carry_out_orders(&mut self, settings: &WebhookSettings, now: Time) {
        if self.in_flight > 0 || self.release_at.is_some() {
            return;
        }
        while let Some(WebhookStep { number, change }) = self.orders.pop_front() {
            match change {
                WebhookChange::Replay { after } => self.replay(after, settings, now),
                WebhookChange::Drop { conversation, seq } => self.parking.drop_aside(&conversation, seq),
                WebhookChange::Resume => self.is_disabled = false,
            }
            self.last_order = number;
            self.unsaved.add(1, now);
        }
    }

    /// Begins again after the feed number. What is parked stays so, unless all of it is before that number.
    fn replay(&mut self, after: u64, settings: &WebhookSettings, now: Time) {
        let lanes = &self.lanes;
        self.parking.retain(|conversation| lanes[lane_of(conversation, lanes.len())].read() > after);
        self.parking.await_replay(now);
        self.lanes = lanes.iter().map(|_| Lane::new(after, settings.batch_max)).collect();
        self.missing.forget_above(after);
    }

    /// Notes that the newest number of the feed is this: the store fell back to an older state. What it lacks comes again, and
    /// is delivered again. Requests in flight no longer count.
    pub(super) fn handle_fell_back(&mut self, newest: u64, now: Time) {
        (self.newest, self.is_in_doubt) = (newest, false);
        self.lanes.iter_mut().for_each(|lane| lane.fall_back(newest));
        self.parking.await_replay(now);
        self.missing.forget_above(newest);
        self.in_flight = 0;
        self.unsaved.add(1, now);
    }

    /// Returns whether a lane has read numbers above this one.
    pub(super) fn is_ahead_of(&self, newest: u64) -> bool {
        self.lanes.iter().any(|lane| lane.read() > newest)
    }

    /// Notes the newest number. A lower one than before may be an old answer; only a read of the feed is certain.
    pub(super) fn handle_newest(&mut self, newest: u64) {
        self.newest = self.newest.max(newest);
        self.is_in_doubt |= self.is_ahead_of(newest);
    }

    /// Returns the number after which the feed is read next, for lanes with fewer than `capacity` events.
    pub(super) fn poll_read(&mut self, now: Time, capacity: usize) -> Option<u64> {
        if self.is_reading || self.release_at.is_some() || now < self.read_at {
            return None;
        }
        if std::mem::take(&mut self.is_in_doubt) {
            self.is_reading = true;
            return self.lanes.iter().map(Lane::read).max();
        }
        let count = self.lanes.len();
        let wants = |lane: &Lane| !lane.is_full(capacity) && lane.read() < self.newest;
        let next = (0..count).map(|nth| (self.read_turn + nth) % count).find(|at| wants(&self.lanes[*at]))?;
        (self.read_turn, self.is_reading) = (next + 1, true);
        Some(self.lanes[next].read())
    }

    /// Returns when the feed is read again after a failure.
    pub(super) fn read_timeout(&self, now: Time) -> Option<Time> {
        (!self.is_reading && self.read_at > now).then_some(self.read_at)
    }

    pub(super) fn handle_read_failed(&mut self, retry_at: Time) {
        (self.is_reading, self.read_at) = (false, retry_at);
    }

    /// Distributes a page of the feed over the lanes that it continues.
    pub(super) fn handle_page(&mut self, page: &WebhookPage, capacity: usize, now: Time) {
        // This may be lower than before: then nothing is read until it rises again.
        (self.is_reading, self.newest) = (false, page.newest);
        let continues = |lane: &Lane| page.after <= lane.read() && lane.read() < page.end;
        let mut open: Vec<bool> = self.lanes.iter().map(continues).collect();
        for item in &page.items {
            let at = lane_of(&item.event.conversation, self.lanes.len());
            let lane = &mut self.lanes[at];
            if !open[at] || item.number <= lane.read() {
                continue;
            }
            if !item.is_wanted {
                lane.advance(item.number);
            } else if self.parking.absorb(&item.event, now) {
                lane.advance(item.number);
                self.unsaved.add(0, now);
            } else if lane.len() < capacity {
                lane.push(item, now);
            } else {
                lane.advance(item.number.saturating_sub(1));
                open[at] = false;
            }
        }
        for (lane, _) in self.lanes.iter_mut().zip(&open).filter(|(_, is_open)| **is_open) {
            lane.advance(page.end);
        }
        self.unsaved.passed_since.get_or_insert(now);
    }

    /// Skips these numbers, which the feed does not have. Returns whether that is to be reported: lanes meet a hole one by
    /// one.
    pub(super) fn handle_gap(&mut self, missing: &RangeInclusive<u64>, now: Time) -> bool {
        self.is_reading = false;
        let (first, last) = (*missing.start(), *missing.end());
        for lane in self.lanes.iter_mut().filter(|lane| lane.read() >= first.saturating_sub(1)) {
            lane.advance(last);
        }
        self.handle_newest(last);
        self.unsaved.add(1, now);
        self.missing.note(missing) > 0
    }

    /// Returns whether requests may be sent: the cursor is not too old.
    pub(super) fn may_send(&self, now: Time) -> bool {
        let unsaved = &self.unsaved;
        let is_late = unsaved.saving.as_ref().is_some_and(|saving| now.since(saving.since) > SAVE_INTERVAL);
        let is_stopped = self.is_disabled || self.release_at.is_some() || !self.orders.is_empty();
        let is_saved = unsaved.retry_at.is_none() && unsaved.order == self.last_order && !is_late;
        !is_stopped && is_saved && unsaved.events < UNSAVED_MAX
    }

    /// Notes that so many events were taken, parked or set aside; 0 for another change, which repeats no event if it is lost.
    pub(super) fn handle_changed(&mut self, events: usize, now: Time) {
        self.unsaved.add(events as u64, now);
    }

    /// Notes that events were passed that are not wanted.
    pub(super) fn handle_passed(&mut self, now: Time) {
        self.unsaved.passed_since.get_or_insert(now);
    }

    pub(super) fn handle_release(&mut self, now: Time) {
        self.release_at.get_or_insert(now + RELEASE_MAX);
    }

    /// Returns when the cursor is saved next; `None` for no reason to.
    pub(super) fn save_at(&self) -> Option<Time> {
        let unsaved = &self.unsaved;
        if unsaved.saving.is_some() || unsaved.is_final_saved {
            return None;
        }
        let due = match self.release_at {
            Some(_) if self.in_flight == 0 => Some(Time::ZERO),
            Some(at) => Some(at),
            None if unsaved.events >= UNSAVED_MAX || unsaved.order != self.last_order => Some(Time::ZERO),
            None => {
                let changed = unsaved.since.map(|since| since + SAVE_INTERVAL);
                let passed = unsaved.passed_since.map(|since| since + PASSED_SAVE_INTERVAL);
                changed.into_iter().chain(passed).min()
            }
        };
        due.map(|due| unsaved.retry_at.map_or(due, |retry_at| due.max(retry_at)))
    }

    /// Returns the cursor, if it is due.
    pub(super) fn poll_save(&mut self, number: u32, now: Time) -> Option<WebhookSave> {
        self.save_at().filter(|at| *at <= now)?;
        let is_final = self.release_at.is_some();
        let unsaved = &mut self.unsaved;
        let (order, is_durable) = (self.last_order, unsaved.order != self.last_order);
        unsaved.saving = Some(Saving { events: unsaved.events, since: now, is_final, order });
        (unsaved.since, unsaved.passed_since) = (None, None);
        Some(WebhookSave { partition: number, bytes: self.cursor().encode(), is_final, is_durable })
    }

    /// Notes that the cursor was saved, or was not. Returns whether the partition is handed over.
    pub(super) fn handle_save(&mut self, is_saved: bool, now: Time) -> bool {
        let unsaved = &mut self.unsaved;
        let Some(saving) = unsaved.saving.take() else { return false };
        if !is_saved {
            unsaved.since.get_or_insert(now);
            unsaved.retry_at = Some(now + SAVE_INTERVAL);
            return false;
        }
        unsaved.retry_at = None;
        unsaved.order = saving.order;
        unsaved.events = unsaved.events.saturating_sub(saving.events);
        if unsaved.events > 0 {
            unsaved.since.get_or_insert(now);
        }
        unsaved.is_final_saved = saving.is_final;
        saving.is_final
    }

    /// Returns the events of the feed that are behind the slowest lane, as far as known.
    pub(super) fn behind(&self) -> u64 {
        self.newest.saturating_sub(self.done())
    }

    /// Returns the number up to which all lanes have taken the feed.
    pub(super) fn done(&self) -> u64 {
        self.lanes.iter().map(Lane::done).min().unwrap_or(self.newest)
    }
}

impl Unsaved {
    fn add(&mut self, events: u64, now: Time) {
        self.events = self.events.saturating_add(events);
        self.since.get_or_insert(now);
    }
}
