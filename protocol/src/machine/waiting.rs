//! Notices that messages wait for users: which are pending, when each is decided, and how far the feed is done with.
//!
//! **Promise.** Each message that the driver names for a user is decided at least once after it was named, whatever crashes:
//! the saved number of a partition never passes a message that is pending or in a round. Between two notices about a
//! conversation to a user lies at least the repeat interval, as long as no owner changes; what comes meanwhile is one
//! notice, about the newest message. A full machine sends some earlier, see **Bounds**. A crash repeats decisions, and so at
//! most a notice of each user and conversation.
//!
//! **Rounds.** The driver decides a round of pending notices at a time, and sends those that are due. While a partition is
//! behind, it is read before anything of it is decided, so that a long outage ends with one notice and not with all. While
//! nothing succeeds, a round is one notice, each time another one, and rounds are further and further apart. While the
//! receiver answers that it refuses them, a round is a few notices, each alone, and rounds are at most [`ANSWERED_WAIT_MAX`]
//! apart. Of notices that have failed before, a round has few, and a further failure of one says nothing about a receiver
//! that answers, or that has taken others a while ago, so that they do not delay the others.
//!
//! **Bounds.** [`WAITING_MAX`] pending notices stop the reads: the rest stays in the feed. Those that wait for the repeat
//! interval are then decided early, the oldest first, so that they keep no other message from its notice, and those that
//! have been refused for [`REFUSED_MAX`] are dropped although no other succeeds. Of more than [`RECENT_MAX`] pairs whose
//! last notice is recent, the oldest is forgotten, and its next notice may come early.

mod rounds;
mod types;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

pub use self::{
    rounds::{ANSWERED_WAIT_MAX, REFUSED_MAX, ROUND_MAX, SUCCESS_RECENT},
    types::{
        DroppedNotice, MentionSeqs, WaitingLook, WaitingMessage, WaitingNotice, WaitingOutcome, WaitingPage,
        WaitingRecipient, WaitingRound, WaitingSave, WaitingSettings,
    },
};
use crate::{
    Time,
    id::{ConversationId, UserId},
};

/// Pending notices from which on no feed is read.
pub const WAITING_MAX: usize = 16_384;

/// Most pairs of user and conversation whose last notice is kept for the repeat interval.
pub const RECENT_MAX: usize = 65_536;

/// Delay until a feed is read again that could not be read, a cursor saved, or a round decided.
const NODE_RETRY: Duration = Duration::from_secs(1);

/// Shortest time between two saves of a partition.
pub const WAITING_SAVE_INTERVAL: Duration = Duration::from_secs(1);

/// Notices of one endpoint from the partitions that a node owns.
#[derive(Debug)]
pub struct Waiting {
    settings: WaitingSettings,
    partitions: BTreeMap<u32, Partition>,
    pairs: BTreeMap<PairKey, Pair>,
    /// Pairs with a pending notice that is in no round, by the time from which it may be decided.
    due: BTreeSet<(Time, PairKey)>,
    /// Pairs without a pending notice, by the time at which the last one is no longer recent.
    recent: BTreeSet<(Time, PairKey)>,
    /// Pairs of the round that is being decided.
    round: Option<(u64, Vec<PairKey>)>,
    next_ticket: u64,
    /// Pending notices, and those in the round.
    held: usize,
    /// Pairs whose notice has failed, each of which is pending or in the round.
    apart: usize,
    /// Rounds that have failed since the last notice that was taken.
    failures: u32,
    /// Whether the last failed round was refused only: the receiver answers.
    is_answering: bool,
    wait_until: Time,
    last_success: Option<Time>,
    is_paused: bool,
    /// Whether the receiver wants no events any more.
    is_refused: bool,
}

/// Feed of an owned partition.
#[derive(Debug)]
struct Partition {
    /// Feed number up to which messages were named.
    read_to: u64,
    /// Feed number that was saved last.
    saved: u64,
    /// Feed number of the save whose outcome is awaited, or of the last one.
    saving: u64,
    /// Time of the next read; `None` until the owner archives.
    look_at: Option<Time>,
    /// Whether the last read has left out nothing that is due.
    is_caught_up: bool,
    /// Whether the last save failed: nothing is decided meanwhile.
    has_failed: bool,
    is_leaving: bool,
    save_at: Time,
    /// Pairs in [`Waiting::due`] whose notice has not failed.
    fresh: usize,
    /// First feed numbers of the notices that are pending or in a round, and how many begin with each.
    held: BTreeMap<u64, usize>,
}

impl Partition {
    fn hold(&mut self, first: u64) {
        *self.held.entry(first).or_default() += 1;
    }

    fn let_go(&mut self, first: u64) {
        if let Some(count) = self.held.get_mut(&first) {
            *count -= 1;
            if *count == 0 {
                self.held.remove(&first);
            }
        }
    }

    /// Returns the number up to which everything is decided.
    fn done(&self) -> u64 {
        self.held.keys().next().map_or(self.read_to, |first| self.read_to.min(first.saturating_sub(1)))
    }
}

/// User and conversation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PairKey {
    conversation: ConversationId,
    user: UserId,
}

/// Messages of a conversation that wait for a user.
#[derive(Debug)]
struct Pair {
    partition: u32,
    /// Time of the last notice.
    noticed_at: Option<Time>,
    /// Time in [`Waiting::due`] or [`Waiting::recent`].
    listed_at: Time,
    pending: Option<Pending>,
    in_round: Option<Pending>,
    /// Time of the first failure, and of the last one.
    failing: Option<(Time, Time)>,
    tries: u32,
}

/// Messages since the last notice.
#[derive(Clone, Debug)]
struct Pending {
    oldest: WaitingMessage,
    newest: WaitingMessage,
    count: u64,
    /// Seqs of the oldest and the newest of them that mention the user.
    mentioned: Option<MentionSeqs>,
}

impl Pending {
    /// Returns the feed number of the first of them.
    const fn first(&self) -> u64 {
        self.oldest.number
    }

    /// Adds other messages, later or earlier ones.
    fn add(&mut self, other: Self) {
        self.count = self.count.saturating_add(other.count);
        self.mentioned = match (self.mentioned, other.mentioned) {
            (Some(one), Some(two)) => Some(one.with(two)),
            (one, two) => one.or(two),
        };
        if other.oldest.number < self.oldest.number {
            self.oldest = other.oldest;
        }
        if other.newest.seq > self.newest.seq {
            self.newest = other.newest;
        }
    }
}

impl Waiting {
    /// Creates notices without partitions.
    pub const fn new(settings: WaitingSettings) -> Self {
        Self {
            settings,
            partitions: BTreeMap::new(),
            pairs: BTreeMap::new(),
            due: BTreeSet::new(),
            recent: BTreeSet::new(),
            round: None,
            next_ticket: 1,
            held: 0,
            apart: 0,
            failures: 0,
            is_answering: false,
            wait_until: Time::ZERO,
            last_success: None,
            is_paused: false,
            is_refused: false,
        }
    }

    /// Applies settings to what is decided from now on.
    pub const fn handle_settings(&mut self, settings: WaitingSettings) {
        self.settings = settings;
    }

    /// Stops reads and rounds, or lets them go on.
    pub const fn handle_paused(&mut self, is_paused: bool) {
        self.is_paused = is_paused;
    }

    /// Lets rounds go on after the receiver had answered that it wants no events.
    pub const fn handle_resumed(&mut self) {
        self.is_refused = false;
    }

    /// Begins a partition, behind the saved feed number.
    pub fn handle_owned(&mut self, partition: u32, number: u64, now: Time) {
        self.handle_lost(partition);
        let begun = Partition {
            read_to: number,
            saved: number,
            saving: number,
            look_at: Some(now),
            is_caught_up: false,
            has_failed: false,
            is_leaving: false,
            save_at: now,
            fresh: 0,
            held: BTreeMap::new(),
        };
        self.partitions.insert(partition, begun);
    }

    /// Forgets a partition, which another owner goes on with.
    pub fn handle_lost(&mut self, partition: u32) {
        if self.partitions.remove(&partition).is_none() {
            return;
        }
        let (held, apart) = (&mut self.held, &mut self.apart);
        self.pairs.retain(|_, pair| {
            let stays = pair.partition != partition;
            if !stays {
                *held -= usize::from(pair.pending.is_some()) + usize::from(pair.in_round.is_some());
                *apart -= usize::from(pair.tries > 0);
            }
            stays
        });
        let pairs = &self.pairs;
        self.due.retain(|(_, key)| pairs.contains_key(key));
        self.recent.retain(|(_, key)| pairs.contains_key(key));
    }

    /// Ends reads and rounds of a partition that is handed over; its number is to be saved once more, at once.
    pub fn handle_release(&mut self, partition: u32, now: Time) {
        if let Some(it) = self.partitions.get_mut(&partition).filter(|it| !it.is_leaving) {
            (it.is_leaving, it.save_at) = (true, now);
        }
    }

    /// Notes that the partition has archived: its feed is read at that time, unless a read is due before.
    pub fn handle_archived(&mut self, partition: u32, at: Time) {
        if let Some(it) = self.partitions.get_mut(&partition) {
            it.look_at = Some(it.look_at.map_or(at, |look| look.min(at)));
        }
    }

    /// Returns a partition that is to be read, and the number behind which: the one that is due for the longest time. It is
    /// read again only after the answer.
    pub fn poll_read(&mut self, now: Time) -> Option<(u32, u64)> {
        if self.is_paused || self.is_full() {
            return None;
        }
        let is_due = |it: &Partition| !it.is_leaving && it.look_at.is_some_and(|at| at <= now);
        let due = self.partitions.iter_mut().filter(|(_, it)| is_due(it));
        let (partition, it) = due.min_by_key(|(_, it)| it.look_at)?;
        it.look_at = None;
        Some((*partition, it.read_to))
    }

    /// Takes messages that the driver has read, with their recipients. Reads of a former owner are ignored.
    pub fn handle_page(&mut self, partition: u32, page: WaitingPage, now: Time) {
        let Some(it) = self.partitions.get_mut(&partition).filter(|it| it.read_to == page.after) else {
            return;
        };
        it.read_to = page.end.max(page.after);
        it.is_caught_up = page.next != WaitingLook::Now;
        let next = match page.next {
            WaitingLook::Now => Some(now),
            WaitingLook::At(at) => Some(at),
            WaitingLook::Archived => None,
        };
        it.look_at = it.look_at.into_iter().chain(next).min();
        for (message, recipients) in page.messages {
            for WaitingRecipient { user, is_mentioned } in recipients {
                let (oldest, newest) = (message.clone(), message.clone());
                let key = PairKey { conversation: message.conversation.clone(), user };
                let mentioned = is_mentioned.then(|| MentionSeqs::of(message.seq));
                let pending = Pending { oldest, newest, count: 1, mentioned };
                self.add(key, partition, pending, now);
            }
        }
    }

    fn add(&mut self, key: PairKey, number: u32, pending: Pending, now: Time) {
        let Some(partition) = self.partitions.get_mut(&number) else { return };
        let pair = self.pairs.entry(key.clone()).or_insert_with(|| Pair {
            partition: number,
            noticed_at: None,
            listed_at: now,
            pending: None,
            in_round: None,
            failing: None,
            tries: 0,
        });
        if let Some(former) = &mut pair.pending {
            former.add(pending);
            return;
        }
        partition.hold(pending.first());
        pair.pending = Some(pending);
        self.held += 1;
        if pair.in_round.is_none() {
            self.recent.remove(&(pair.listed_at, key.clone()));
            let repeat = self.settings.repeat;
            pair.listed_at = pair.noticed_at.map_or(now, |at| now.max(at + repeat));
            partition.fresh += usize::from(pair.tries == 0);
            self.due.insert((pair.listed_at, key));
        }
    }

    /// Notes that the feed could not be read.
    pub fn handle_read_failed(&mut self, partition: u32, now: Time) {
        self.handle_archived(partition, now + NODE_RETRY);
    }

    /// Notes that the feed has nothing up to this number, or that it ends there, since the store fell back.
    pub fn handle_moved(&mut self, partition: u32, number: u64, now: Time) {
        if let Some(it) = self.partitions.get_mut(&partition) {
            (it.read_to, it.look_at) = (number, Some(now));
            it.saved = it.saved.min(number);
        }
    }

    /// Returns a number that is to be saved. The save is answered before the next call.
    pub fn poll_save(&mut self, now: Time) -> Option<WaitingSave> {
        let is_due = |it: &Partition| it.save_at <= now && it.done() != it.saved;
        let (partition, it) = self.partitions.iter_mut().find(|(_, it)| is_due(it))?;
        it.saving = it.done();
        Some(WaitingSave { partition: *partition, number: it.saving })
    }

    /// Takes the outcome of the save of a partition.
    pub fn handle_save(&mut self, partition: u32, is_saved: bool, now: Time) {
        let Some(it) = self.partitions.get_mut(&partition) else { return };
        it.has_failed = !is_saved;
        if is_saved {
            it.saved = it.saving;
        }
        it.save_at = now + if is_saved { WAITING_SAVE_INTERVAL } else { NODE_RETRY };
    }

    /// Returns the number up to which everything of a partition is decided; `None` if it is not owned.
    pub fn decided(&self, partition: u32) -> Option<u64> {
        self.partitions.get(&partition).map(Partition::done)
    }

    /// Returns whether so much is pending that no feed is read.
    fn is_full(&self) -> bool {
        self.held >= WAITING_MAX
    }

    /// Returns the number of pairs whose notice has failed, and that is sent alone.
    pub const fn apart(&self) -> usize {
        self.apart
    }

    /// Returns the number of notices that are pending or in a round.
    pub const fn held(&self) -> usize {
        self.held
    }

    /// Returns whether the receiver fails, or wants no events any more.
    pub const fn is_failing(&self) -> bool {
        self.failures > 0 || self.is_refused
    }

    /// Returns the time of the next input of time; `None` if there is none.
    pub fn poll_timeout(&self, now: Time) -> Option<Time> {
        let may_read = !self.is_paused && !self.is_full();
        let reads = self.partitions.values().filter(|it| may_read && !it.is_leaving);
        let reads = reads.filter_map(|it| it.look_at);
        let saves = self.partitions.values().filter(|it| it.done() != it.saved).map(|it| it.save_at);
        let round = self.next_round();
        reads.chain(saves).chain(round).min().map(|at| at.max(now))
    }

    /// Forgets pairs whose last notice is no longer recent, and the oldest of too many.
    fn forget(&mut self, now: Time) {
        while let Some((at, key)) = self.recent.first() {
            if *at > now && self.recent.len() <= RECENT_MAX {
                break;
            }
            self.pairs.remove(key);
            self.recent.pop_first();
        }
    }
}
