//! The nextId chain: one device's messages, released in the order in which the device linked them (DESIGN 6.3).
//!
//! A chained message names itself and its successor. The chain expects one id; what comes early is held, and when the
//! expected id arrives the walk releases it and every held successor. The failures of S37, and their answers:
//!
//! | S37 | here |
//! |---|---|
//! | one lost frame blocks everything behind it | after `order_timeout` an alarm, after a second one an explicit skip |
//! | two devices fork one chain | a chain belongs to one (user, device); a successor claimed twice is [`Offer::BadLink`] |
//! | the retry of a delivered id is stuck | [`Offer::Done`]: sent on unchained, never held |
//! | state lost and frames reordered: stuck | the client's declared id is adopted: [`Chain::adopt`]; else the skip resumes |
//! | `id == next_id` walks for ever | [`Offer::BadLink`]; so are longer circles, and each release consumes a held item |
//! | a withheld id buffers without bound | [`Offer::Full`] past `hold_max` items or `hold_bytes_max` bytes |
//!
//! [`ChainAlarm`] says what is expected, what was skipped and where the chain goes on, so nobody has to guess; and
//! [`Chain::retract`] keeps successors behind a message that was refused for now.
//!
//! The timeout counts from the last progress: a long hold whose predecessors keep coming is not blocked.

mod ring;

use self::ring::{Mark, Ring};
use crate::{Time, id::MsgId};
use foldhash::{HashMap, HashMapExt};
use std::time::Duration;

/// How many released and how many skipped ids are remembered.
pub const REMEMBERED_MAX: usize = 256;

/// An empty hold keeps room for this many, so that a client in order costs no allocations and an idle one no buffers.
const ROOM_KEPT: usize = 3;

/// The bounds of one chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainLimits {
    /// The most messages held; at least 1.
    pub hold_max: usize,
    /// The most bytes held. A single message larger than this is still held when nothing else is, because a message
    /// that fits nowhere could neither be held nor be skipped to.
    pub hold_bytes_max: usize,
    /// How long the chain may stand still before the alarm, and again before the skip.
    pub order_timeout: Duration,
}

impl Default for ChainLimits {
    fn default() -> Self {
        Self { hold_max: 256, hold_bytes_max: 256 << 10, order_timeout: Duration::from_secs(10) }
    }
}

/// What became of an offered message. The item comes back whenever the chain did not take it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offer<T> {
    /// Early: kept until its predecessor comes.
    Held,
    /// Expected: [`Chain::poll_release`] now gives it, and what follows it.
    Ready,
    /// Released before. Send it on unchained: the ledger knows the retry and acks it.
    Done(T),
    /// Given up by a skip: refuse with `ORDER_SKIPPED`.
    Skipped(T),
    /// Links to itself, to a used id, or to a successor that another message claims: refuse with `BAD_LINK`.
    BadLink(T),
    /// The same id is held already: a retry that came too soon.
    Waiting(T),
    /// No room. Keep the item, stop reading, offer it again after a release.
    Full {
        /// The item, back.
        item: T,
        /// What the hold waits for.
        expected: MsgId,
    },
}

/// What [`Chain::handle_timeout`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChainAlarm {
    /// Held messages wait too long for `expected`. Raised once until there is progress.
    Blocked {
        /// The id that does not come.
        expected: MsgId,
    },
    /// `expected` is refused from now on; the chain goes on at `resumed_at`, which is ready for release.
    Skipped {
        /// The id that was given up.
        expected: MsgId,
        /// The oldest held message, or the first of the held messages that lead to it.
        resumed_at: MsgId,
    },
}

/// The chain of one (user, device). See the module for its rules.
///
/// After [`Chain::offer`] answered `Ready`, and after a [`ChainAlarm::Skipped`], call [`Chain::poll_release`] until
/// it gives nothing (or stop in between: what is ready stays ready, and the timer rests).
#[derive(Clone, Debug)]
pub struct Chain<T> {
    limits: ChainLimits,
    expected: MsgId,
    held: HashMap<MsgId, Held<T>>,
    /// Who names an id as its successor, among what is held: at most one message does, and none names `expected`.
    claims: HashMap<MsgId, MsgId>,
    /// Bytes of what is held.
    bytes: usize,
    arrivals: u64,
    done: Ring,
    skipped: Ring,
    /// The saved id that the declared one was taken instead of.
    overtaken: Option<MsgId>,
    /// Where the last skip resumed: what still links to it is part of what was skipped.
    resumed_at: Option<MsgId>,
    /// Whether the last thing that moved `expected` was a release.
    retractable: bool,
    /// When the current stage of waiting ends; meaningful only while blocked.
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
    /// A chain that expects `expected`.
    pub fn new(expected: MsgId, limits: ChainLimits) -> Self {
        Self::resume(expected, [], limits)
    }

    /// A chain that goes on where a saved one stood, for a client that is there too or behind; `done` are its last released ids, oldest first.
    pub fn resume(expected: MsgId, done: impl IntoIterator<Item = MsgId>, limits: ChainLimits) -> Self {
        let mut ring = Ring::default();
        // A saved state that lists the expected id as done would refuse the one message that can move it.
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
            deadline: Time::ZERO,
            alarmed: false,
        }
    }

    /// A chain that expects what its client declares and not what was saved, because the declared id is none of those
    /// saved as done: then it is not the state of the client that is too old, but the saved one. The last saves were
    /// lost, or the client began anew; the saved id may never come, and nobody should wait for it.
    ///
    /// One case looks the same: a skip gave the declared id up, and the client did not hear of it. Its message then
    /// leads to an id that is done; it is refused as skipped, and the chain goes on at the saved id.
    pub fn adopt(
        declared: MsgId,
        saved: MsgId,
        done: impl IntoIterator<Item = MsgId>,
        limits: ChainLimits,
    ) -> Self {
        Self { overtaken: Some(saved), ..Self::resume(declared, done, limits) }
    }

    /// Refuses these ids from now on, which earlier connections of the device gave up, oldest first.
    pub fn note_skipped(&mut self, ids: impl IntoIterator<Item = MsgId>) {
        ids.into_iter().filter(|id| *id != self.expected).for_each(|id| self.skipped.push(&id));
    }

    /// Whether this id was given up: it is refused for good.
    pub fn is_skipped(&self, id: &MsgId) -> bool {
        self.skipped.contains(Mark::of(id))
    }

    /// The id that moves the chain.
    pub fn expected(&self) -> &MsgId {
        &self.expected
    }

    /// How many messages are held: at most `hold_max`, and besides the one that was ready when it came.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// The bytes of what is held.
    pub fn held_bytes(&self) -> usize {
        self.bytes
    }

    /// Whether [`Chain::poll_release`] would give something.
    pub fn is_ready(&self) -> bool {
        self.held.contains_key(&self.expected)
    }

    /// Takes a message in, or says why not.
    pub fn offer(&mut self, id: MsgId, next_id: MsgId, item: T, bytes: usize, now: Time) -> Offer<T> {
        if self.held.contains_key(&id) {
            return Offer::Waiting(item);
        }
        let due = id == self.expected;
        let next_mark = Mark::of(&next_id);
        if due && self.done.contains(next_mark) && self.yield_to_saved(now) {
            return Offer::Skipped(item);
        }
        if !due {
            let mark = Mark::of(&id);
            if self.done.contains(mark) {
                return Offer::Done(item);
            }
            if self.skipped.contains(mark) {
                return Offer::Skipped(item);
            }
            if self.resumed_at.as_ref() == Some(&next_id) {
                // What a held message names as its successor may still become expected, and is not refused for good.
                if !self.claims.contains_key(&id) {
                    self.skipped.push(&id);
                }
                return Offer::Skipped(item);
            }
        }
        if self.is_bad_link(&id, &next_id, next_mark) {
            return Offer::BadLink(item);
        }
        if !due && !self.has_room(bytes) {
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

    /// Releases the expected message if it is here, and expects its successor from now on.
    pub fn poll_release(&mut self, now: Time) -> Option<T> {
        let held = self.held.remove(&self.expected)?;
        self.claims.remove(&held.next_id);
        self.bytes -= held.bytes;
        if self.held.is_empty() && self.held.capacity() > ROOM_KEPT {
            self.held = HashMap::new();
            self.claims = HashMap::new();
        }
        let released = std::mem::replace(&mut self.expected, held.next_id);
        self.done.push(&released);
        self.retractable = true;
        self.restart_timer(now);
        Some(held.item)
    }

    /// Takes back the release of `id`, which was refused for now before it reached the log: it is expected again and
    /// what follows it stays held. Only the last release can be taken back; says whether it was.
    pub fn retract(&mut self, id: &MsgId, now: Time) -> bool {
        if !self.retractable || self.done.last() != Some(Mark::of(id)) {
            return false;
        }
        self.retractable = false;
        self.done.pop();
        self.expected = id.clone();
        self.restart_timer(now);
        true
    }

    /// When to call [`Chain::handle_timeout`]: only while something is held and nothing is ready.
    pub fn poll_timeout(&self) -> Option<Time> {
        (!self.held.is_empty() && !self.is_ready()).then_some(self.deadline)
    }

    /// Raises the alarm, or skips to the oldest held message, if it is time.
    pub fn handle_timeout(&mut self, now: Time) -> Option<ChainAlarm> {
        if self.poll_timeout()? > now {
            return None;
        }
        if !self.alarmed {
            self.restart_timer(now);
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

    /// The first of the held messages that lead to `id`: skipping past them would break the order that is known.
    fn first_before<'a>(&'a self, mut id: &'a MsgId) -> &'a MsgId {
        while let Some(claimer) = self.claims.get(id) {
            id = claimer;
        }
        id
    }

    /// The adopted id leads to what is done, so the saved one was right: expects that. False when it can't be.
    fn yield_to_saved(&mut self, now: Time) -> bool {
        let Some(saved) = self.overtaken.take() else { return false };
        if self.claims.contains_key(&saved) || self.done.contains(Mark::of(&saved)) {
            return false;
        }
        let declared = std::mem::replace(&mut self.expected, saved);
        self.skipped.push(&declared);
        self.retractable = false;
        self.restart_timer(now);
        true
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.held.is_empty()
            || (self.held.len() < self.limits.hold_max && self.bytes + bytes <= self.limits.hold_bytes_max)
    }

    fn restart_timer(&mut self, now: Time) {
        // At least a millisecond, so that a timer handled now lies in the future.
        self.deadline = now + self.limits.order_timeout.max(Duration::from_millis(1));
        self.alarmed = false;
    }

    /// Whether `next_id` was used, is claimed by another message, or leads back to `id` through what is held.
    fn is_bad_link(&self, id: &MsgId, next_id: &MsgId, next_mark: Mark) -> bool {
        if next_id == id
            || *next_id == self.expected
            || self.claims.contains_key(next_id)
            || self.done.contains(next_mark)
            || self.skipped.contains(next_mark)
        {
            return true;
        }
        // Ends: what is held has no circle, because this check let none in.
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
