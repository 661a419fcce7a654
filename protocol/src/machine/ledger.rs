//! The ledger: the pure function that turns a partition of the log into seqs (DESIGN 6.1).
//!
//! **Promise.** What is answered to a record depends on the records before it in its partition and on nothing else: no
//! clock, no config, no Redis, no row that came from elsewhere. So every owner, whenever it took over and whatever it
//! had in memory, gives the same answers and hands out the same seqs: 1, 2, 3, … in every conversation.
//!
//! **Cache.** Its state is a cache over a store that is tied to a [`Position`]. Rows that changed above the archived
//! position are pinned; others may be evicted at any time and come back by [`Ledger::load`]. "Not in the store" is
//! known and kept like a value. A row that decides but is not known is [`Stop::Missing`], never taken as absent.
//!
//! | the driver | calls |
//! |---|---|
//! | takes over: new fence, reads position and rules, checks [`Position::matches`] | [`Ledger::resume`] |
//! | reads a batch, asks the store once, in a snapshot with fence and position | [`Ledger::needs`], [`Ledger::load`] |
//! | runs the batch and keeps the answers | [`Ledger::apply`], or [`Ledger::skip`] for what did not decode |
//! | archives in one transaction, `WHERE fence = mine AND position = delta.from` | [`Ledger::take_delta`] |
//! | after the commit | [`Ledger::archived`], [`Ledger::evict`] |
//!
//! **Choices.** A refusal leaves no row where there was none, a duplicate none but the device's; the exception is a chained
//! message that is the next of its chain: it takes its number whatever the answer. The id of what is refused for good is remembered as refused (before version 3
//! only of a chained message), because what follows it in its chain goes on, and copies of it may follow in the log. A recall takes a seq, pruning does not. One key per id: an id used again
//! past the window moves its key to the newer acceptance (no second key, and no need to know the older one). Old keys
//! are forgotten by a `Rules` record (`keys_from`) only: a store that dropped them by its own clock would make two
//! owners answer differently. A deleted group's id stays taken, so none of its seqs can come twice.
//!
//! **Limits.** W must be longer than a producer can hold a first attempt back, or a late copy of it counts as a new message.
//!
//! **Defeats** S6-S12 (seqs from a counter, a lock, a stale allocator), S20-S22 (dedup keys evicted, claimed before
//! the append, too short), S16 and S32 (clocks that decide), S23-S24 (counts that drift), S29 (a producer that
//! reorders or loses within a chain), S37 (forks of the chain: epoch and n).

mod cache;
mod group;
mod message;
mod mutation;
mod rows;

use std::collections::{BTreeSet, VecDeque};

use self::cache::Cache;
#[doc(hidden)]
pub use self::mutation::Mutation;
pub use self::rows::{
    Delta, Device, Head, Key, Loaded, Member, Need, Outcome, Recalled, Row, RowHead, Stay, Stop, message_key,
    request_key,
};
use crate::{
    id::{ConversationId, UserId},
    record::{Body, Position, Record, RuleChange, Rules},
};

/// The newest version of this function; it knows all from 1 on, and a record that asks for a later one stops it.
///
/// | version | what it brought |
/// |---|---|
/// | 1 | all of the above |
/// | 2 | a `Rules` record that names no dedup window leaves it as it is; under version 1 it sets it to 0 |
/// | 3 | what is refused for good stays refused, also of a message without a chain; before, only of a chained one |
pub const LEDGER_NEWEST: u32 = 3;

/// The state of one partition.
#[derive(Debug)]
pub struct Ledger {
    rules: Rules,
    /// The newest version that it takes.
    newest: u32,
    /// The next offset.
    next: u64,
    /// What the store is known to hold.
    archived: Position,
    /// The ends of the deltas taken and not known to be archived, oldest first.
    taken: VecDeque<Position>,
    cache: Cache,
    mutation: Option<Mutation>,
}

impl Ledger {
    /// The ledger of a store that is at `position` under `rules`; remembers nothing else yet.
    ///
    /// `seed` randomises the hash maps, against ids made to collide; it never shows in a result.
    pub fn resume(position: Position, rules: Rules, seed: u64) -> Self {
        Self {
            rules,
            newest: LEDGER_NEWEST,
            next: position.offset,
            archived: position,
            taken: VecDeque::new(),
            cache: Cache::new(position.offset, seed),
            mutation: None,
        }
    }

    /// Acts as a ledger that knows no version above `newest`, for tests of nodes of two versions.
    pub fn know_up_to(&mut self, newest: u32) {
        self.newest = newest.min(LEDGER_NEWEST);
    }

    /// Breaks a rule, for tests of the tests.
    #[cfg(feature = "mutants")]
    #[doc(hidden)]
    pub fn mutate(&mut self, mutation: Mutation) {
        self.mutation = Some(mutation);
    }

    /// The lowest offset that may come next.
    pub fn next_offset(&self) -> u64 {
        self.next
    }

    /// Where the store is known to be.
    pub fn archived_position(&self) -> Position {
        self.archived
    }

    /// The rules in force.
    pub fn rules(&self) -> Rules {
        self.rules
    }

    /// A conversation's head with everything applied so far: `Ok(None)` = there is none, `Err` = not in memory.
    pub fn head(&self, conversation: &ConversationId) -> Result<Option<&Head>, Stop> {
        self.cache.head(conversation)
    }

    /// A member's row with everything applied so far: `Ok(None)` = there is none, `Err` = not in memory.
    pub fn member(&self, conversation: &ConversationId, user: &UserId) -> Result<Option<&Member>, Stop> {
        self.cache.member(conversation, user)
    }

    /// Adds the rows that memory lacks to decide `record`.
    pub fn needs(&self, record: &Record, needs: &mut BTreeSet<Need>) {
        let mut need = |it: Need| {
            if !self.cache.knows(&it) {
                needs.insert(it);
            }
        };
        match &record.body {
            Body::Message(it) => {
                need(Need::Head(it.conversation.clone()));
                need(Need::Member(it.conversation.clone(), it.sender.clone()));
                need(Need::Device(it.conversation.clone(), it.sender.clone(), it.device.clone()));
                if self.key_matters(it.attempt, self.next) {
                    need(Need::Key(message_key(it)));
                }
            }
            Body::Member(it) => {
                need(Need::Head(it.conversation.clone()));
                need(Need::Key(request_key(it)));
                for user in it.users.iter().chain(&it.by) {
                    need(Need::Member(it.conversation.clone(), user.clone()));
                }
            }
            Body::Recall(it) => {
                need(Need::Head(it.conversation.clone()));
                need(Need::Row(it.conversation.clone(), it.seq));
                if let Some(by) = &it.by {
                    need(Need::Member(it.conversation.clone(), by.clone()));
                }
            }
            Body::Prune(it) => need(Need::Head(it.conversation.clone())),
            Body::Rules(_) => {}
        }
    }

    /// Whether a key that memory does not have could decide at `offset`: not when the attempt is a first one and
    /// memory has all keys of its window.
    fn key_matters(&self, attempt: u32, offset: u64) -> bool {
        let window = self.rules.dedup_window;
        attempt > 0 || window == 0 || self.cache.keys_complete_from > offset.saturating_sub(window)
    }

    /// Takes over rows that were read in one snapshot, together with fence and `position`.
    ///
    /// The snapshot must be at the archived position, or at the end of a delta that was taken (its commit is known
    /// then). Otherwise somebody else writes, or the store went back: nothing is taken over and the owner stops.
    pub fn load(&mut self, position: Position, rows: impl IntoIterator<Item = Loaded>) -> Result<(), Stop> {
        self.archived(position)?;
        for row in rows {
            self.cache.load(row);
        }
        Ok(())
    }

    /// Says that memory now has all keys of the records from `offset` on, because they were loaded at take-over.
    pub fn keys_complete_from(&mut self, offset: u64) {
        self.cache.keys_complete_from = self.cache.keys_complete_from.min(offset);
    }

    /// Answers the record at `offset`. `Err`: nothing changed, the record was not applied.
    pub fn apply(&mut self, offset: u64, record: &Record) -> Result<Outcome, Stop> {
        self.begin(offset)?;
        let time = record.received_at;
        let outcome = match &record.body {
            Body::Message(it) => message::apply(self, offset, record, it)?,
            Body::Member(it) => group::member(self, offset, time, it)?,
            Body::Recall(it) => group::recall(self, offset, time, it)?,
            Body::Prune(it) => group::prune(self, it)?,
            Body::Rules(it) => self.set_rules(offset, it)?,
        };
        self.next = offset + 1;
        Ok(outcome)
    }

    /// Passes over a record that could not be decoded: it voids only itself.
    pub fn skip(&mut self, offset: u64) -> Result<(), Stop> {
        self.begin(offset)?;
        self.next = offset + 1;
        Ok(())
    }

    fn begin(&mut self, offset: u64) -> Result<(), Stop> {
        self.knows(self.rules.ledger_version)?;
        if offset < self.next || offset == u64::MAX {
            return Err(Stop::OutOfOrder { next: self.next, got: offset });
        }
        self.cache.now = offset;
        Ok(())
    }

    /// Whether rules of that version can be followed; a new owner asks before it starts.
    ///
    /// # Errors
    /// [`Stop::UnknownRules`]: the partition is for a node that knows them.
    pub fn knows(&self, version: u32) -> Result<(), Stop> {
        if version > self.newest { Err(Stop::UnknownRules(version)) } else { Ok(()) }
    }

    fn set_rules(&mut self, offset: u64, change: &RuleChange) -> Result<Outcome, Stop> {
        let before = self.rules;
        let ledger_version = before.ledger_version.max(change.ledger_version);
        self.knows(ledger_version)?;
        // A version-1 reader can't tell a window of 0 from none.
        let stays = ledger_version >= 2 && self.mutation != Some(Mutation::RulesReplaced);
        let dedup_window = change.dedup_window.unwrap_or(if stays { before.dedup_window } else { 0 });
        let keys_from = change.keys_from.min(offset).max(before.keys_from);
        self.rules = Rules { ledger_version, dedup_window, keys_from };
        Ok(Outcome::Noted)
    }

    /// What changed since the last delta, to be archived in one transaction. `to` is the place behind the last
    /// record applied or skipped ([`Position::behind`]), which the driver hashes once a batch.
    pub fn take_delta(&mut self, to: Position) -> Result<Delta, Stop> {
        if to.offset != self.next {
            return Err(Stop::OutOfOrder { next: self.next, got: to.offset });
        }
        let from = self.taken.back().copied().unwrap_or(self.archived);
        let changed = self.cache.take(self.next, self.archived.offset);
        if from != to {
            self.taken.push_back(to);
        }
        Ok(Delta {
            from,
            to,
            rules: self.rules,
            rows: changed.fresh.rows,
            recalled: changed.fresh.recalled,
            pruned: changed.fresh.pruned,
            heads: changed.heads,
            members: changed.members,
            stays: changed.fresh.stays,
            devices: changed.devices,
            keys: changed.keys,
        })
    }

    /// The store is at `position` now: rows below it may be evicted.
    pub fn archived(&mut self, position: Position) -> Result<(), Stop> {
        if position == self.archived {
            return Ok(());
        }
        let place = self.taken.iter().position(|taken| *taken == position).ok_or(Stop::NotMine)?;
        self.taken.drain(..=place);
        self.archived = position;
        Ok(())
    }

    /// Drops archived rows that no record at or above offset `before` has used, looking at up to `budget`
    /// conversations and `budget` keys. Returns how many rows went.
    ///
    /// To keep first attempts free of reads, let `before` be at most `next_offset() - dedup_window`.
    pub fn evict(&mut self, before: u64, budget: usize) -> usize {
        self.cache.evict(before, self.archived.offset, budget)
    }

    /// How many conversations and keys are in memory.
    pub fn cached(&self) -> (usize, usize) {
        self.cache.len()
    }
}
