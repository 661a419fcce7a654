//! The nextId chain: releases the messages of one device in the order that the device declared (SPEC section 6).
//!
//! A chained message names itself and its successor. The chain expects one id and holds messages that arrive early.
//! When the expected id arrives, it releases that message and every held successor. The failures of flaw S37 and their
//! answers:
//!
//! | S37 | answer |
//! |---|---|
//! | one lost frame blocks all later ones | an alarm after `order_timeout`, an explicit skip after a second one |
//! | two devices fork one chain | one chain per (user, device); a successor claimed twice is [`Offer::BadLink`] |
//! | the retry of a delivered id is stuck | [`Offer::Done`]: forwarded unchained, never held |
//! | state lost and frames reordered: stuck | [`Chain::adopt`] takes the client's declared id; else the skip resumes |
//! | `id == next_id` loops forever | [`Offer::BadLink`], as are longer cycles; each release consumes a held item |
//! | a withheld id buffers without bound | [`Offer::Full`] past `hold_max` items or `hold_bytes_max` bytes |
//!
//! [`ChainAlarm`] names the expected id, the skipped id and the id where the chain continues. [`Chain::retract`]
//! and [`Chain::give_back`] keep the order behind a message that is refused temporarily.
//!
//! The timeout counts from the last progress: a chain is not blocked while predecessors of a long hold keep arriving.

mod ring;

use self::ring::{IdHash, Ring};
use crate::{Time, id::MsgId};
use foldhash::{HashMap, HashMapExt};
use std::time::Duration;

/// Maximum number of remembered ids, for released and for skipped ids each.
pub const REMEMBERED_MAX: usize = 256;

/// Capacity that an empty hold keeps: in-order messages allocate nothing, and an idle chain has no large buffers.
const EMPTY_HOLD_CAPACITY: usize = 3;

/// Limits of one chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainLimits {
    /// Maximum number of held messages; at least 1.
    pub hold_max: usize,
    /// Maximum size of the held messages, in bytes. A larger single message is accepted into an empty hold, because
    /// otherwise it could be neither held nor skipped to.
    pub hold_bytes_max: usize,
    /// Time without progress until the alarm, and again until the skip.
    pub order_timeout: Duration,
}

impl Default for ChainLimits {
    fn default() -> Self {
        Self { hold_max: 256, hold_bytes_max: 256 << 10, order_timeout: Duration::from_secs(10) }
    }
}

/// Outcome of an offered message. The item is returned unless the chain took it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offer<T> {
    /// The message is early and is held until its predecessor arrives.
    Held,
    /// The message was expected: [`Chain::poll_release`] now returns it and its held successors.
    Ready,
    /// The id was released before. Forward the message unchained: the ledger recognises the retry and acks it.
    Done(T),
    /// The id was skipped: refuse with `ORDER_SKIPPED`.
    Skipped(T),
    /// The message links to itself, a used id, or a successor that another message claims: refuse with `BAD_LINK`.
    BadLink(T),
    /// The same id is already held: a retry that came too early.
    Waiting(T),
    /// The hold is full. Keep the item, stop reading, and offer it again after a release.
    Full {
        /// The returned item.
        item: T,
        /// Id that the hold waits for.
        expected: MsgId,
    },
}

/// Result of [`Chain::handle_timeout`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChainAlarm {
    /// Held messages have waited too long for `expected`. Raised once until there is progress.
    Blocked {
        /// Missing id.
        expected: MsgId,
    },
    /// `expected` is refused from now on; the chain continues at `resumed_at`, which is ready for release.
    Skipped {
        /// Skipped id.
        expected: MsgId,
        /// Oldest held message, or the first of the held messages that lead to it.
        resumed_at: MsgId,
    },
}

/// Chain of one (user, device); the module documentation states its rules.
///
/// After [`Chain::offer`] returned `Ready`, and after a [`ChainAlarm::Skipped`], call [`Chain::poll_release`] until it
/// returns `None`. Stopping earlier is allowed: ready messages stay ready, and the timer is paused.
#[derive(Clone, Debug)]
pub struct Chain<T> {
    limits: ChainLimits,
    expected: MsgId,
    held: HashMap<MsgId, Held<T>>,
    /// From a successor to the held message that names it: at most one does, and none names `expected`.
    claims: HashMap<MsgId, MsgId>,
    /// Size of the held messages, in bytes.
    bytes: usize,
    arrivals: u64,
    done: Ring,
    skipped: Ring,
    /// Saved id that was replaced by the declared one.
    overtaken: Option<MsgId>,
    /// Id where the last skip resumed; a late message that links to it belongs to the skipped part.
    resumed_at: Option<MsgId>,
    /// Whether `expected` last moved by a release.
    retractable: bool,
    /// Time of the last progress; meaningful only while blocked.
    progressed: Time,
    /// End of the current stage of waiting; meaningful only while blocked.
    deadline: Time,
    alarmed: bool,
}

#[derive(Clone, Debug)]
struct Held<T> {
    item: T,
    next_id: MsgId,
    bytes: usize,
    arrival: u64,
}

impl<T> Chain<T> {
    /// Creates a chain that expects `expected`.
    pub fn new(expected: MsgId, limits: ChainLimits) -> Self {
        Self::resume(expected, [], limits)
    }

    /// Resumes a saved chain, for a client at the same position or an earlier one. `done` lists the last released ids,
    /// oldest first.
    pub fn resume(expected: MsgId, done: impl IntoIterator<Item = MsgId>, limits: ChainLimits) -> Self {
        let mut ring = Ring::default();
        // If the expected id were listed as done, the chain would refuse the only message that can move it.
        done.into_iter().filter(|id| *id != expected).for_each(|id| ring.push(&id));
        Self {
            limits,
            expected,
            held: HashMap::new(),
            claims: HashMap::new(),
            bytes: 0,
            arrivals: 0,
            done: ring,
            skipped: Ring::default(),
            overtaken: None,
            resumed_at: None,
            retractable: false,
            progressed: Time::ZERO,
            deadline: Time::ZERO,
            alarmed: false,
        }
    }

    /// Creates a chain that expects the client's declared id instead of the saved one.
    ///
    /// Call it if the declared id is not among those saved as done: then the saved state is outdated, not the client's.
    /// Either the last saves were lost or the client has started over, so the saved id may never arrive.
    ///
    /// One case looks the same: the declared id was skipped, and the client did not learn of it. Its message then links
    /// to an id that is done; it is refused as skipped, and the chain continues at the saved id.
    pub fn adopt(
        declared: MsgId,
        saved: MsgId,
        done: impl IntoIterator<Item = MsgId>,
        limits: ChainLimits,
    ) -> Self {
        Self { overtaken: Some(saved), ..Self::resume(declared, done, limits) }
    }

    /// Refuses these ids from now on: earlier connections of the device skipped them. Oldest first.
    pub fn add_skipped(&mut self, ids: impl IntoIterator<Item = MsgId>) {
        ids.into_iter().filter(|id| *id != self.expected).for_each(|id| self.skipped.push(&id));
    }

    /// Returns whether this id was skipped and is refused permanently.
    pub fn is_skipped(&self, id: &MsgId) -> bool {
        self.skipped.contains(IdHash::of(id))
    }

    /// Returns the id that the chain expects next.
    pub fn expected(&self) -> &MsgId {
        &self.expected
    }

    /// Returns the number of held messages: at most `hold_max`, plus one that was ready on arrival.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Returns the size of the held messages, in bytes.
    pub fn held_bytes(&self) -> usize {
        self.bytes
    }

    /// Returns whether [`Chain::poll_release`] would return a message.
    pub fn is_ready(&self) -> bool {
        self.held.contains_key(&self.expected)
    }

    /// Accepts a message, or returns why it can't be accepted.
    pub fn offer(&mut self, id: MsgId, next_id: MsgId, item: T, bytes: usize, now: Time) -> Offer<T> {
        if self.held.contains_key(&id) {
            return Offer::Waiting(item);
        }
        let due = id == self.expected;
        let next_hash = IdHash::of(&next_id);
        if due && self.done.contains(next_hash) && self.yield_to_saved(now) {
            return Offer::Skipped(item);
        }
        if !due {
            let hash = IdHash::of(&id);
            if self.done.contains(hash) {
                return Offer::Done(item);
            }
            if self.skipped.contains(hash) {
                return Offer::Skipped(item);
            }
            if self.resumed_at.as_ref() == Some(&next_id) {
                // The successor of a held message may still become expected, so it is not refused permanently.
                if !self.claims.contains_key(&id) {
                    self.skipped.push(&id);
                }
                return Offer::Skipped(item);
            }
        }
        if self.is_bad_link(&id, &next_id, next_hash) {
            return Offer::BadLink(item);
        }
        if !due && !self.fits(bytes) {
            return Offer::Full { item, expected: self.expected.clone() };
        }
        if self.held.is_empty() {
            self.restart_timer(now);
        }
        self.arrivals += 1;
        self.bytes += bytes;
        self.claims.insert(next_id.clone(), id.clone());
        self.held.insert(id, Held { item, next_id, bytes, arrival: self.arrivals });
        if due { Offer::Ready } else { Offer::Held }
    }

    /// Releases the expected message if it has arrived; its successor is expected next.
    pub fn poll_release(&mut self, now: Time) -> Option<T> {
        let held = self.held.remove(&self.expected)?;
        self.claims.remove(&held.next_id);
        self.bytes -= held.bytes;
        if self.held.is_empty() && self.held.capacity() > EMPTY_HOLD_CAPACITY {
            self.held = HashMap::new();
            self.claims = HashMap::new();
        }
        let released = std::mem::replace(&mut self.expected, held.next_id);
        self.done.push(&released);
        self.retractable = true;
        self.restart_timer(now);
        Some(held.item)
    }

    /// Retracts the release of `id` and returns whether that was possible; only the last release can be retracted.
    ///
    /// For a message that was refused temporarily before it reached the log: it is expected again. The caller then
    /// gives back its successors.
    pub fn retract(&mut self, id: &MsgId, now: Time) -> bool {
        if !self.retractable || self.done.last() != Some(IdHash::of(id)) {
            return false;
        }
        self.retractable = false;
        self.done.pop();
        self.expected = id.clone();
        self.restart_timer(now);
        true
    }

    /// Removes and returns the held messages: those that follow from `first` in chain order, then the others in order
    /// of arrival. No message is held afterwards, so the timer rests.
    pub fn give_back(&mut self, first: Option<&MsgId>) -> Vec<T> {
        let mut items = Vec::with_capacity(self.held.len());
        let mut at = first.cloned();
        while let Some(held) = at.as_ref().and_then(|id| self.held.remove(id)) {
            items.push(held.item);
            at = Some(held.next_id);
        }
        let mut others: Vec<_> = std::mem::take(&mut self.held).into_values().collect();
        others.sort_unstable_by_key(|held| held.arrival);
        items.extend(others.into_iter().map(|held| held.item));
        self.claims = HashMap::new();
        self.bytes = 0;
        items
    }

    /// Returns since when messages are held without progress; `None` unless messages are held and none is ready.
    pub fn blocked_since(&self) -> Option<Time> {
        (!self.held.is_empty() && !self.is_ready()).then_some(self.progressed)
    }

    /// Returns when to call [`Chain::handle_timeout`], `None` unless messages are held and none is ready.
    pub fn poll_timeout(&self) -> Option<Time> {
        (!self.held.is_empty() && !self.is_ready()).then_some(self.deadline)
    }

    /// Raises the alarm, or skips to the oldest held message, if the deadline has passed.
    pub fn handle_timeout(&mut self, now: Time) -> Option<ChainAlarm> {
        if self.poll_timeout()? > now {
            return None;
        }
        if !self.alarmed {
            self.start_stage(now);
            self.alarmed = true;
            return Some(ChainAlarm::Blocked { expected: self.expected.clone() });
        }
        let (oldest, _) = self.held.iter().min_by_key(|(_, held)| held.arrival)?;
        let resumed_at = self.first_before(oldest).clone();
        let expected = std::mem::replace(&mut self.expected, resumed_at.clone());
        self.skipped.push(&expected);
        self.resumed_at = Some(resumed_at.clone());
        self.retractable = false;
        self.restart_timer(now);
        Some(ChainAlarm::Skipped { expected, resumed_at })
    }

    /// Returns the first of the held messages that lead to `id`; skipping past it would break the declared order.
    fn first_before<'a>(&'a self, mut id: &'a MsgId) -> &'a MsgId {
        while let Some(claimer) = self.claims.get(id) {
            id = claimer;
        }
        id
    }

    /// Expects the saved id after all, because the adopted one links to an id that is done.
    ///
    /// Returns false if there is no saved id, or it can't be expected any more.
    fn yield_to_saved(&mut self, now: Time) -> bool {
        let Some(saved) = self.overtaken.take() else { return false };
        if self.claims.contains_key(&saved) || self.done.contains(IdHash::of(&saved)) {
            return false;
        }
        let declared = std::mem::replace(&mut self.expected, saved);
        self.skipped.push(&declared);
        self.retractable = false;
        self.restart_timer(now);
        true
    }

    fn fits(&self, bytes: usize) -> bool {
        self.held.is_empty()
            || (self.held.len() < self.limits.hold_max && self.bytes + bytes <= self.limits.hold_bytes_max)
    }

    fn restart_timer(&mut self, now: Time) {
        self.progressed = now;
        self.start_stage(now);
    }

    fn start_stage(&mut self, now: Time) {
        // At least a millisecond, so that a timer handled now lies in the future.
        self.deadline = now + self.limits.order_timeout.max(Duration::from_millis(1));
        self.alarmed = false;
    }

    /// Returns whether `next_id` is used, claimed by another message, or leads back to `id` through held messages.
    fn is_bad_link(&self, id: &MsgId, next_id: &MsgId, next_hash: IdHash) -> bool {
        if next_id == id
            || *next_id == self.expected
            || self.claims.contains_key(next_id)
            || self.done.contains(next_hash)
            || self.skipped.contains(next_hash)
        {
            return true;
        }
        // Terminates: held messages form no cycle, because this check refuses those that would close one.
        let mut at = next_id;
        while let Some(held) = self.held.get(at) {
            if held.next_id == *id {
                return true;
            }
            at = &held.next_id;
        }
        false
    }
}
