//! Tallies of live rooms: members and reactions of this node's rooms, with those of the other nodes.
//!
//! Shards set the members of their connections and add reactions; a task of the node polls what is due for members and peers
//! (`room/publish.rs`). Each stay of a node in a room, from its first member to its last, has a run of its own, so that the
//! other nodes keep what an earlier stay has counted. At most [`TALLIES_MAX`] rooms are counted: in further ones, members are
//! not, and reactions are refused.
//!
//! **Memory.** About 300 bytes for a room, 1 KiB more with reactions of 16 kinds, and 560 bytes for each other node that has
//! reported such ones. At most [`REACTING_ROOMS_MAX`] rooms have reactions. All rooms together hold [`ENTRIES_MAX`] kinds of
//! other nodes; above that, reactions of a node that is new to a room are not counted until there is space. Each of the runs, at most
//! 128 of a room with reactions, takes 48 bytes in addition.

use std::{
    hash::{BuildHasher as _, RandomState},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use dashmap::{DashMap, Entry, mapref::one::RefMut};
use smallvec::SmallVec;
use tidegate_protocol::{
    Time,
    id::ConversationId,
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

/// Reason why a reaction is not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReactionRefusal {
    /// The room has as many kinds as it can have.
    TooManyKinds,
    /// Too many rooms of the node have reactions.
    TooManyRooms,
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

    /// Counts a reaction of a connection of this node.
    ///
    /// # Errors
    /// The room has too many kinds, or the node too many rooms.
    pub fn react(&self, room: &ConversationId, kind: ReactionKind) -> Result<(), ReactionRefusal> {
        let mut tally = self.tally(room, true).ok_or(ReactionRefusal::TooManyRooms)?;
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
mod tests {
    use tidegate_protocol::machine::reactions::ReactionExchange;

    use super::*;

    fn room(name: &str) -> ConversationId {
        ConversationId::parse(&format!("r:{name}")).unwrap()
    }

    fn kind(name: &str) -> ReactionKind {
        ReactionKind::new(name).unwrap()
    }

    fn at(ms: u64) -> Time {
        Time::from_millis(ms)
    }

    /// Polls with all rooms occupied, and returns what is due for the hall.
    fn poll(tallies: &RoomTallies, ms: u64) -> (Option<pb::RoomStats>, Option<RoomTallyReport>) {
        tallies.poll(at(ms), |_| true).pop().map_or((None, None), |due| (due.stats, due.report))
    }

    #[test]
    fn members_of_all_shards_and_nodes_are_summed() {
        let (here, there, hall) = (RoomTallies::default(), RoomTallies::default(), room("hall"));
        for (shard, members) in [(0, 3), (1, 4), (0, 5)] {
            here.set_members(&hall, shard, Some(members));
        }
        there.set_members(&hall, 0, Some(20));
        let (stats, report) = poll(&here, 0);
        assert_eq!((stats, report.as_ref().unwrap().members), (None, Some(9)), "the first frame waits");
        there.handle_report(&hall, &report.unwrap(), at(0));
        // A node that is new to another one gets its numbers.
        let (_, answer) = poll(&there, 1);
        here.handle_report(&hall, &answer.unwrap(), at(1));
        assert_eq!(poll(&here, 2_000).0.unwrap().members, Some(29));
        assert_eq!(here.latest(&hall).unwrap().members, Some(29));
        let due = there.poll(at(2_000), |_| false).pop().unwrap();
        here.handle_report(&hall, due.report.as_ref().unwrap(), at(2_000));
        assert_eq!(poll(&here, 4_000).0.unwrap().members, Some(9), "the other node has none left");
        assert_eq!(there.rooms.len() + there.count.load(Ordering::Relaxed), 0);
        here.set_members(&hall, 1, None);
        assert_eq!(poll(&here, 6_000).0.unwrap().members, Some(5), "one shard counts them still");
        here.set_members(&hall, 0, None);
        assert_eq!((poll(&here, 60_000), here.latest(&hall)), ((None, None), None), "no longer counted");
    }

    #[test]
    fn reactions_of_two_nodes_are_summed_and_survive_an_empty_room() {
        let (here, there, hall) = (RoomTallies::default(), RoomTallies::default(), room("hall"));
        here.react(&hall, kind("like")).unwrap();
        let first = poll(&here, 0).0.unwrap();
        assert_eq!((first.reactions[0].sum, first.reactions[0].total), (1, 1));
        for ms in [20_000, 40_000] {
            (0..3).for_each(|_| there.react(&hall, kind("like")).unwrap());
            let due = there.poll(at(ms), |_| false).pop().unwrap();
            assert_eq!(due.report.as_ref().unwrap().reactions.counts[0].count, 3, "a run of its own");
            here.handle_report(&hall, due.report.as_ref().unwrap(), at(ms));
        }
        let second = poll(&here, 40_000).0.unwrap();
        assert_eq!((second.reactions[0].sum, second.reactions[0].total), (6, 7));
        assert_eq!(here.latest(&hall).unwrap().reactions[0].total, 7);
    }

    #[test]
    fn frames_are_a_second_apart_and_repeated_if_a_shard_is_full() {
        let (tallies, hall) = (RoomTallies::default(), room("hall"));
        tallies.set_members(&hall, 0, Some(1));
        assert_eq!(poll(&tallies, 0).0, None);
        tallies.react(&hall, kind("like")).unwrap();
        assert!(poll(&tallies, 1_500).0.is_some());
        assert_eq!(poll(&tallies, 2_499).0, None, "the members wait for the second");
        assert_eq!(poll(&tallies, 2_500).0.unwrap().members, Some(1));
        tallies.note_unposted(&hall);
        assert_eq!(poll(&tallies, 3_000).0, None);
        assert_eq!(poll(&tallies, 3_500).0, tallies.latest(&hall));
        assert_eq!(poll(&tallies, 4_500).0, None, "once");
    }

    #[test]
    fn tallies_are_bounded_in_rooms_and_kinds() {
        let tallies = RoomTallies::new(2);
        let is_counted = |name| tallies.set_members(&room(name), 0, Some(1));
        assert_eq!(["a", "b", "c"].map(is_counted), [true, true, false]);
        assert!(tallies.set_members(&room("c"), 0, Some(0)) && tallies.set_members(&room("c"), 0, None));
        assert_eq!(tallies.rooms.len(), 2);
        assert_eq!(tallies.react(&room("c"), kind("like")), Err(ReactionRefusal::TooManyRooms));
        for n in 0..16 {
            tallies.react(&room("a"), kind(&format!("k{n}"))).unwrap();
        }
        assert_eq!(tallies.react(&room("a"), kind("like")), Err(ReactionRefusal::TooManyKinds));
        tallies.poll(at(0), |it| *it == room("b"));
        assert_eq!(tallies.react(&room("c"), kind("like")), Ok(()), "room a is over");
        assert_eq!(tallies.reacting.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn reports_of_other_nodes_are_bounded_in_kinds() {
        let (tallies, hall) = (RoomTallies { entries_max: 4, ..RoomTallies::default() }, room("hall"));
        let report = |run, kinds: &[&str], is_last| {
            let counts = kinds.iter().map(|name| ReactionCount { kind: kind(name), count: 1 }).collect();
            let reactions = ReactionExchange { counts, is_first: true, is_last };
            tallies.handle_report(&hall, &RoomTallyReport { run, members: None, reactions }, at(0))
        };
        assert_eq!((report(1, &["a", "b", "c"], false), report(2, &["a", "b"], false)), (0, 2));
        assert_eq!(report(1, &["a", "b", "c"], true), 0);
        assert_eq!((tallies.entries.load(Ordering::Relaxed), report(2, &["a", "b"], false)), (0, 0));
        let listed = RoomRules::default().with_reactions(&["a".to_owned()]).unwrap();
        tallies.follow_rules(Arc::new(Live::new(listed)));
        assert_eq!(report(3, &["a", "x"], false), 1, "one is not listed");
        tallies.poll(at(0), |_| false);
        assert_eq!(tallies.entries.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn member_that_joins_gets_totals_of_the_last_frame() {
        let (tallies, hall) = (RoomTallies::default(), room("hall"));
        let like = || tallies.react(&hall, kind("like")).unwrap();
        like();
        assert_eq!(tallies.latest(&hall), None, "no frame yet");
        assert!(poll(&tallies, 0).0.is_some());
        like();
        assert_eq!(tallies.latest(&hall).unwrap().reactions[0].total, 1);
        let next = poll(&tallies, 1_000).0.unwrap();
        assert_eq!((next.reactions[0].sum, next.reactions[0].total), (1, 2));
    }
}
