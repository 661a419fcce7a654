//! State of an endpoint in one partition: its lanes, its parked conversations, and when its cursor is saved.

use std::{ops::RangeInclusive, time::Duration};

use super::{
    WebhookPage, WebhookSave, WebhookSettings,
    cursor::{LANES_MAX, WebhookCursor},
    lane::Lane,
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

/// Endpoint in one partition.
#[derive(Debug)]
pub(super) struct Partition {
    pub(super) lanes: Vec<Lane>,
    pub(super) parking: Parking,
    /// Newest number of the feed, as far as known.
    newest: u64,
    is_reading: bool,
    read_at: Time,
    read_turn: usize,
    pub(super) in_flight: usize,
    /// End of the time for requests in flight, while the partition is handed over.
    release_at: Option<Time>,
    /// Last number that was reported as missing in the feed.
    gap_end: u64,
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
            is_reading: false,
            read_at: now,
            read_turn: 0,
            in_flight: 0,
            release_at: None,
            gap_end: 0,
            unsaved: Unsaved::default(),
        }
    }

    /// Starts again at the lowest number with another number of lanes.
    pub(super) fn reshape(&mut self, settings: &WebhookSettings, now: Time) {
        let new = Self::new(self.cursor(now), settings, now);
        (self.lanes, self.parking) = (new.lanes, new.parking);
        (self.read_turn, self.in_flight) = (0, 0);
        self.unsaved.add(1, now);
    }

    /// Returns what the receiver has taken.
    pub(super) fn cursor(&self, now: Time) -> WebhookCursor {
        let (parked, aside) = self.parking.save(now);
        WebhookCursor { lanes: self.lanes.iter().map(Lane::done).collect(), parked, aside }
    }

    pub(super) fn handle_newest(&mut self, newest: u64) {
        self.newest = self.newest.max(newest);
    }

    /// Returns the number after which the feed is read next, for lanes with fewer than `capacity` events.
    pub(super) fn poll_read(&mut self, now: Time, capacity: usize) -> Option<u64> {
        if self.is_reading || self.release_at.is_some() || now < self.read_at {
            return None;
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
        self.is_reading = false;
        self.handle_newest(page.newest);
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
            } else if self.parking.absorb(&item.event) {
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
        let is_new = last > self.gap_end;
        self.gap_end = self.gap_end.max(last);
        is_new
    }

    /// Returns whether requests may be sent: the cursor is not too old.
    pub(super) fn may_send(&self, now: Time) -> bool {
        let unsaved = &self.unsaved;
        let is_late = unsaved.saving.as_ref().is_some_and(|saving| now.since(saving.since) > SAVE_INTERVAL);
        self.release_at.is_none() && unsaved.retry_at.is_none() && unsaved.events < UNSAVED_MAX && !is_late
    }

    /// Notes that so many events were taken, parked or set aside; 0 for another change, which repeats no event if it is lost.
    pub(super) fn handle_changed(&mut self, events: usize, now: Time) {
        self.unsaved.add(events as u64, now);
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
            None if unsaved.events >= UNSAVED_MAX => Some(Time::ZERO),
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
        unsaved.saving = Some(Saving { events: unsaved.events, since: now, is_final });
        (unsaved.since, unsaved.passed_since) = (None, None);
        Some(WebhookSave { partition: number, bytes: self.cursor(now).encode(), is_final })
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
        unsaved.events = unsaved.events.saturating_sub(saving.events);
        if unsaved.events > 0 {
            unsaved.since.get_or_insert(now);
        }
        unsaved.is_final_saved = saving.is_final;
        saving.is_final
    }

    /// Returns the events of the feed that are behind the slowest lane, as far as known.
    pub(super) fn behind(&self) -> u64 {
        let done = self.lanes.iter().map(Lane::done).min().unwrap_or(self.newest);
        self.newest.saturating_sub(done)
    }
}

impl Unsaved {
    fn add(&mut self, events: u64, now: Time) {
        self.events = self.events.saturating_add(events);
        self.since.get_or_insert(now);
    }
}
