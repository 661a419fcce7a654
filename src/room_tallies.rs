//! Tallies of live rooms: members and reactions of this node's rooms, with those of the other nodes.
//!
//! Shards set the members of their connections and add reactions; a task of the node polls what is due for members and peers
//! (`room/publish.rs`). Each stay of a node in a room, from its first member to its last, has a run of its own, so that the
//! other nodes keep what an earlier stay has counted. At most [`TALLIES_MAX`] rooms are counted: in further ones, members are
//! not, and reactions are refused.
//!
//! **Memory.** About 300 bytes for a room, 1 KiB more with reactions of 16 kinds, and 560 bytes for each other node that has
//! reported such ones. At most [`REACTING_ROOMS_MAX`] rooms have reactions, of which
//! one user has begun [`USER_ROOMS_MAX`] at most. All rooms together hold [`ENTRIES_MAX`] kinds of
//! other nodes; above that, reactions of a node that is new to a room are not counted until there is space. Each of the runs, at most
//! 128 of a room with reactions, takes 48 bytes in addition.

use std::{
    collections::HashMap,
    hash::{BuildHasher as _, RandomState},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use dashmap::{DashMap, Entry, mapref::one::RefMut};
use parking_lot::Mutex;
use smallvec::SmallVec;
use tidegate_protocol::{
    Time,
    id::{ConversationId, UserId},
    machine::{
        reactions::{REACTION_INTERVAL, ReactionCount, ReactionKind, ReactionSum, RoomReactions},
        room_members::RoomMembers,
    },
    pb,
};
use tokio::time::Instant;

use crate::{link::RoomTallyReport, live::Live, room_rules::RoomRules};

/// Most rooms with a tally on one node.
pub const TALLIES_MAX: usize = 16_384;

/// Most rooms with reactions on one node.
const REACTING_ROOMS_MAX: usize = 4_096;

/// Most kinds of other nodes that are held, one per room, node and kind, of 32 bytes.
const ENTRIES_MAX: usize = 262_144;

/// Most rooms with reactions on one node that one user has begun, so that it takes no place from others. Fewer than a
/// connection may join; rooms in which others have reacted first do not count.
const USER_ROOMS_MAX: u32 = 32;

/// Reason why a reaction is not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReactionRefusal {
    /// The room has as many kinds as it can have.
    TooManyKinds,
    /// Too many rooms of the node have reactions.
    TooManyRooms,
    /// The user has begun reactions in as many rooms of the node as it may.
    TooManyRoomsOfUser,
}

/// Tallies of the rooms with members on this node.
pub struct RoomTallies {
    rooms: DashMap<ConversationId, RoomTally, RandomState>,
    began: Instant,
    /// Source of the runs, and their number.
    random: RandomState,
    runs: AtomicU64,
    /// Number of rooms, and of those with reactions.
    count: AtomicUsize,
    reacting: AtomicUsize,
    /// Rooms with reactions by the user that has begun them; at most as many users as such rooms.
    begun: Mutex<HashMap<UserId, u32, RandomState>>,
    /// Number of kinds of other nodes that are held in all rooms.
    entries: AtomicUsize,
    rooms_max: usize,
    entries_max: usize,
    rules: OnceLock<Arc<Live<RoomRules>>>,
}

/// Tally of one room.
#[derive(Default)]
struct RoomTally {
    run: u64,
    /// Members by shard, while they are counted.
    shards: SmallVec<[(usize, u64); 2]>,
    members: Option<RoomMembers>,
    reactions: Option<Box<RoomReactions>>,
    /// User of this node that has reacted first; `None` if reactions of another node came first.
    begun_by: Option<UserId>,
    framed_at: Option<Time>,
    /// Whether a shard did not take the last frame.
    is_unposted: bool,
}

/// What is due for one room.
#[derive(Debug, PartialEq)]
pub struct DueTally {
    /// Room of the numbers.
    pub room: ConversationId,
    /// Frame for the members on this node.
    pub stats: Option<pb::RoomStats>,
    /// Report to the other nodes with members.
    pub report: Option<RoomTallyReport>,
}

impl Default for RoomTallies {
    fn default() -> Self {
        Self::new(TALLIES_MAX)
    }
}

impl RoomTallies {
    /// Creates the tallies of at most `rooms_max` rooms.
    pub fn new(rooms_max: usize) -> Self {
        Self {
            rooms: DashMap::default(),
            began: Instant::now(),
            random: RandomState::new(),
            runs: AtomicU64::default(),
            count: AtomicUsize::default(),
            reacting: AtomicUsize::default(),
            begun: Mutex::default(),
            entries: AtomicUsize::default(),
            rooms_max,
            entries_max: ENTRIES_MAX,
            rules: OnceLock::new(),
        }
    }

    /// Returns the time since the tallies were created, which all inputs share.
    pub fn now(&self) -> Time {
        Time::from_millis(u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// Sets the number of a room's members on one shard; `None` if the shard does not count them. Returns `false` if there
    /// are too many rooms.
    pub fn set_members(&self, room: &ConversationId, shard: usize, members: Option<u64>) -> bool {
        let has_members = members.is_some_and(|it| it > 0);
        let Some(mut tally) = self.tally(room, has_members) else { return !has_members };
        let tally = &mut *tally;
        tally.shards.retain(|(other, _)| *other != shard);
        if let Some(members) = members.filter(|_| has_members) {
            tally.shards.push((shard, members));
        }
        if members.is_none() && tally.shards.is_empty() {
            tally.members = None;
            return true;
        }
        let own = tally.shards.iter().map(|(_, members)| members).sum();
        if let Some(counted) = &mut tally.members {
            counted.set_own(own);
        } else if members.is_some() {
            let counted = tally.members.insert(RoomMembers::default());
            counted.spread_repeats(tally.run);
            counted.set_own(own);
        }
        true
    }

    /// Counts a reaction of a user of this node.
    ///
    /// # Errors
    /// The room has too many kinds, or the node or the user too many rooms.
    pub fn react(
        &self,
        room: &ConversationId,
        kind: ReactionKind,
        user: &UserId,
    ) -> Result<(), ReactionRefusal> {
        // A refused one must not take the place of a tally either.
        let may_create = self.rooms.contains_key(room) || self.may_begin(user)?;
        let mut tally = self.tally(room, may_create).ok_or(ReactionRefusal::TooManyRooms)?;
        if tally.reactions.is_none() {
            self.begin(&mut tally, user)?;
        }
        let reactions = self.reactions(&mut tally).ok_or(ReactionRefusal::TooManyRooms)?;
        reactions.handle_reaction(kind).then_some(()).ok_or(ReactionRefusal::TooManyKinds)
    }

    /// Takes the numbers of another node for a room with members on this one. Returns how many kinds are not counted.
    pub fn handle_report(&self, room: &ConversationId, report: &RoomTallyReport, now: Time) -> usize {
        let sent = report.reactions.counts.len();
        let Some(mut tally) = self.tally(room, sent > 0) else { return sent };
        let counted = report.members.zip(tally.members.as_mut());
        let is_new = counted.is_some_and(|(members, it)| it.handle_exchange(report.run, members, now));
        let refused = if sent > 0 { self.count_exchange(&mut tally, report, now) } else { 0 };
        if is_new && let Some(reactions) = &mut tally.reactions {
            reactions.repeat_exchange();
        }
        refused
    }

    fn count_exchange(&self, tally: &mut RoomTally, report: &RoomTallyReport, now: Time) -> usize {
        let sent = report.reactions.counts.len();
        let Some(reactions) = self.reactions(tally) else { return sent };
        let before = reactions.entries();
        let is_full = self.entries.load(Ordering::Relaxed) + sent > self.entries_max;
        if is_full && !reactions.has_run(report.run) {
            return sent;
        }
        let mut listed = report.reactions.clone();
        if let Some(rules) = self.rules.get() {
            let rules = rules.get();
            listed.counts.retain(|it| rules.has_reaction(it.kind));
        }
        let unlisted = sent - listed.counts.len();
        let refused = reactions.handle_exchange(report.run, &listed, now);
        self.entries.fetch_add(reactions.entries(), Ordering::Relaxed);
        self.entries.fetch_sub(before, Ordering::Relaxed);
        unlisted + refused
    }

    /// Counts only kinds of other nodes that are listed in the rules of this one.
    pub fn follow_rules(&self, rules: Arc<Live<RoomRules>>) {
        self.rules.get_or_init(|| rules);
    }

    /// Returns the numbers of a room as of its last frame, for a connection that has joined.
    pub fn latest(&self, room: &ConversationId) -> Option<pb::RoomStats> {
        self.rooms.get(room)?.latest(room)
    }

    /// Notes that a shard did not take the last frame of a room, which is then repeated.
    pub fn note_unposted(&self, room: &ConversationId) {
        if let Some(mut tally) = self.rooms.get_mut(room) {
            tally.is_unposted = true;
        }
    }

    /// Returns what is due. Rooms without members on this node, as `is_occupied` returns, end with a last report.
    pub fn poll(&self, now: Time, is_occupied: impl Fn(&ConversationId) -> bool) -> Vec<DueTally> {
        let mut due = Vec::new();
        self.rooms.retain(|room, tally| {
            let is_kept = is_occupied(room);
            let (stats, report) = if is_kept { tally.poll(room, now) } else { (None, tally.last_report()) };
            if stats.is_some() || report.is_some() {
                due.push(DueTally { room: room.clone(), stats, report });
            }
            if !is_kept {
                self.count.fetch_sub(1, Ordering::Relaxed);
                if let Some(reactions) = &tally.reactions {
                    tally.begun_by.take().inspect(|user| self.release(user));
                    self.reacting.fetch_sub(1, Ordering::Relaxed);
                    self.entries.fetch_sub(reactions.entries(), Ordering::Relaxed);
                }
            }
            is_kept
        });
        due
    }

    /// Returns the tally of a room, which is created if `may_create` and there are not too many.
    fn tally(
        &self,
        room: &ConversationId,
        may_create: bool,
    ) -> Option<RefMut<'_, ConversationId, RoomTally>> {
        if let Some(tally) = self.rooms.get_mut(room) {
            return Some(tally);
        }
        if !may_create || !reserve(&self.count, self.rooms_max) {
            return None;
        }
        match self.rooms.entry(room.clone()) {
            // Another thread was first.
            Entry::Occupied(entry) => {
                self.count.fetch_sub(1, Ordering::Relaxed);
                Some(entry.into_ref())
            }
            Entry::Vacant(entry) => {
                let run = self.random.hash_one(self.runs.fetch_add(1, Ordering::Relaxed));
                Some(entry.insert(RoomTally { run, ..RoomTally::default() }))
            }
        }
    }

    fn may_begin(&self, user: &UserId) -> Result<bool, ReactionRefusal> {
        let is_full = self.begun.lock().get(user).is_some_and(|rooms| *rooms >= USER_ROOMS_MAX);
        if is_full { Err(ReactionRefusal::TooManyRoomsOfUser) } else { Ok(true) }
    }

    /// Begins the reactions of a room for a user.
    fn begin(&self, tally: &mut RoomTally, user: &UserId) -> Result<(), ReactionRefusal> {
        let mut begun = self.begun.lock();
        let rooms = begun.get(user).copied().unwrap_or_default();
        if rooms >= USER_ROOMS_MAX {
            return Err(ReactionRefusal::TooManyRoomsOfUser);
        }
        self.reactions(tally).ok_or(ReactionRefusal::TooManyRooms)?;
        begun.insert(user.clone(), rooms + 1);
        tally.begun_by = Some(user.clone());
        Ok(())
    }

    /// Releases the place of a room that a user has begun.
    fn release(&self, user: &UserId) {
        let mut begun = self.begun.lock();
        let left = begun.get_mut(user).map_or(0, |rooms| {
            *rooms -= 1;
            *rooms
        });
        if left == 0 {
            begun.remove(user);
        }
    }

    fn reactions<'a>(&self, tally: &'a mut RoomTally) -> Option<&'a mut RoomReactions> {
        if tally.reactions.is_none() {
            if !reserve(&self.reacting, REACTING_ROOMS_MAX) {
                return None;
            }
            tally.reactions.insert(Box::default()).spread_repeats(tally.run);
        }
        tally.reactions.as_deref_mut()
    }
}

impl RoomTally {
    /// Returns the frame and the report that are due.
    fn poll(&mut self, room: &ConversationId, now: Time) -> (Option<pb::RoomStats>, Option<RoomTallyReport>) {
        let is_early = self.framed_at.is_some_and(|at| now < at + REACTION_INTERVAL);
        let stats = if is_early { None } else { self.poll_frame(room, now) };
        if stats.is_some() {
            self.framed_at = Some(now);
        }
        let members = self.members.as_mut().and_then(|it| it.poll_exchange(now));
        let reactions = self.reactions.as_mut().and_then(|it| it.poll_exchange(now));
        let report = (members.is_some() || reactions.is_some()).then(|| RoomTallyReport {
            run: self.run,
            members,
            reactions: reactions.unwrap_or_default(),
        });
        (stats, report)
    }

    fn poll_frame(&mut self, room: &ConversationId, now: Time) -> Option<pb::RoomStats> {
        let members = self.members.as_mut().and_then(|it| it.poll_frame(now));
        let sums = self.reactions.as_mut().and_then(|it| it.poll_frame(now)).unwrap_or_default();
        if members.is_some() || !sums.is_empty() {
            return Some(stats(room, members, sums));
        }
        std::mem::take(&mut self.is_unposted).then(|| self.latest(room)).flatten()
    }

    fn latest(&self, room: &ConversationId) -> Option<pb::RoomStats> {
        let members = self.members.as_ref().and_then(RoomMembers::framed);
        let totals = self.reactions.as_ref().map(|it| it.framed_totals()).unwrap_or_default();
        let of_total = |it: ReactionCount| ReactionSum { kind: it.kind, sum: 0, total: it.count };
        let is_known = members.is_some() || !totals.is_empty();
        is_known.then(|| stats(room, members, totals.into_iter().map(of_total).collect()))
    }

    /// Returns the report that ends the run, if the other nodes know of it or have to.
    fn last_report(&self) -> Option<RoomTallyReport> {
        let reactions = self.reactions.as_ref().map(|it| it.last_exchange()).unwrap_or_default();
        let members = self.members.as_ref().map(|_| 0);
        let is_known = members.is_some() || !reactions.counts.is_empty();
        is_known.then_some(RoomTallyReport { run: self.run, members, reactions })
    }
}

/// Takes one of at most `max`.
fn reserve(count: &AtomicUsize, max: usize) -> bool {
    let taken = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |it| (it < max).then_some(it + 1));
    taken.is_ok()
}

fn stats(room: &ConversationId, members: Option<u64>, sums: Vec<ReactionSum>) -> pb::RoomStats {
    let sum =
        |it: ReactionSum| pb::ReactionSum { kind: it.kind.as_str().into(), sum: it.sum, total: it.total };
    let room = room.as_str().trim_start_matches("r:").to_owned();
    pb::RoomStats { room, left_out: 0, members, reactions: sums.into_iter().map(sum).collect() }
}

#[cfg(test)]
mod tests;
