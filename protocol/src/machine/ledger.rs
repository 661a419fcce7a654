//! The ledger: a pure function from the records of a log partition to outcomes and seqs (ADR 3).
//!
//! **Promise.** The outcome of a record depends only on the earlier records of its partition: not on a clock, the
//! configuration, Redis, or a row from elsewhere. So every owner, whenever it took over and whatever it has in memory,
//! returns the same outcomes and assigns the same seqs: 1, 2, 3, … in every conversation.
//!
//! **Cache.** The state is a cache over a store that is tied to a [`Position`]. Rows that changed above the archived
//! position are pinned; others may be evicted at any time and are reloaded by [`Ledger::load`]. "Not in the store" is
//! cached like a value. If a needed row is not cached, the result is [`Stop::Missing`]; it never counts as absent.
//!
//! | the driver | calls |
//! |---|---|
//! | takes over: new fence, reads position and rules, checks [`Position::matches`] | [`Ledger::resume`] |
//! | reads a batch, queries the store once in a snapshot with its position | [`Ledger::needs`], [`Ledger::load`] |
//! | runs the batch and keeps the outcomes | [`Ledger::apply`], or [`Ledger::skip`] for an undecodable record |
//! | archives in one transaction, `WHERE fence = mine AND position = delta.from` | [`Ledger::take_delta`] |
//! | after the commit | [`Ledger::archived`], [`Ledger::evict`] |
//!
//! **Choices.**
//! - A refusal creates no row, and a duplicate none except the device's. The exception is a chained message that is the
//!   next of its chain: it takes its number whatever the outcome.
//! - The id of a permanent refusal is remembered (before version 3 only for chained messages, before version 4 not for
//!   membership requests), because the chain continues after it, and because copies of the record may follow in the log.
//! - A user learns nothing about groups that it is not in, not even whether they exist (before version 4 it did).
//! - A recall and an edit take a seq, pruning does not.
//! - There is one key per id. If an id is used again past the window, its key moves to the newer acceptance, so the
//!   older one need not be known.
//! - Old keys are dropped only by a `Rules` record (`keys_from`). If a store dropped them by its own clock, two owners
//!   would return different outcomes.
//! - The id of a deleted group is never free again, so none of its seqs is assigned twice.
//!
//! **Limits.** The dedup window must exceed the time for which a producer can delay a first attempt; otherwise a late
//! copy counts as a new message.
//!
//! **Defeats** flaws S6-S12 (seqs from a counter, a lock, a stale allocator), S20-S22 (dedup keys evicted, claimed
//! before the append, kept too briefly), S16 and S32 (clocks that decide), S23-S24 (counts that drift), S29 (a producer
//! that reorders or loses within a chain), S37 (forks of the chain: epoch and n).

mod cache;
mod edit;
mod group;
mod message;
mod mutation;
mod rows;

use std::collections::{BTreeSet, VecDeque};

use self::cache::Cache;
#[doc(hidden)]
pub use self::mutation::Mutation;
pub use self::rows::{
    Delta, Device, Edited, Head, Key, Loaded, Member, Need, Outcome, Pruned, Recalled, Row, RowHead, Stay,
    Stop, edit_key, message_key, request_key,
};
use crate::{
    code::Code,
    id::{ConversationId, UserId},
    record::{Body, MemberAction, Position, Record, RuleChange, Rules},
};

/// Newest version of the rules that this code implements, along with all earlier ones; a later one stops the ledger.
///
/// | version | change |
/// |---|---|
/// | 1 | everything above |
/// | 2 | a `Rules` record without a dedup window leaves it unchanged; under version 1 it sets it to 0 |
/// | 3 | permanent refusals are remembered for unchained messages too; before, only for chained ones |
/// | 4 | refusals of membership requests are remembered too; for strangers, a missing group is `NOT_A_MEMBER` |
/// | 5 | edits; messages that are silent, transient, by the operator or denied (ADR 32) |
/// | 6 | denials with a code of the application (ADR 37) |
pub const LEDGER_NEWEST: u32 = 6;

/// Version of the rules from which on there are edits, and messages with a mode.
pub const MODES_RULES: u32 = 5;

/// Version of the rules from which on a message or an edit may be denied with a code of the application.
pub const APP_DENIALS_RULES: u32 = 6;

/// Returns the version of the rules from which on a record of this kind may decide anything.
///
/// Nodes that do not know a kind skip its records. So under rules that such nodes can follow, nodes that know it must
/// not apply it either: a new kind, or a new action, needs a version above all that were released before it.
pub fn kind_version(body: &Body) -> u32 {
    match body {
        Body::Edit(edit) => denial_version(edit.denied),
        Body::Message(message) if !message.mode.is_ordinary() => denial_version(message.mode.denied),
        Body::Message(_) | Body::Recall(_) | Body::Prune(_) | Body::Rules(_) => 1,
        Body::Member(change) => match change.action {
            MemberAction::Create
            | MemberAction::Join
            | MemberAction::Leave
            | MemberAction::Kick
            | MemberAction::Role
            | MemberAction::Settings
            | MemberAction::Delete
            | MemberAction::Mute
            | MemberAction::Unmute => 1,
        },
    }
}

/// Returns the version of an edit, or of a message with a mode: nodes of version 5 skip one whose code they do not know.
const fn denial_version(denied: Option<Code>) -> u32 {
    match denied {
        Some(Code::Application(_)) => APP_DENIALS_RULES,
        _ => MODES_RULES,
    }
}

/// Ledger of one partition.
#[derive(Debug)]
pub struct Ledger {
    rules: Rules,
    /// Newest version that this ledger accepts.
    newest: u32,
    /// Lowest offset of the next record.
    next: u64,
    /// Position up to which the store is known to be archived.
    archived: Position,
    /// Ends of the deltas that are taken but not known to be archived, oldest first.
    taken: VecDeque<Position>,
    cache: Cache,
    mutation: Option<Mutation>,
}

impl Ledger {
    /// Creates the ledger of a store at `position` under `rules`, with an empty cache.
    ///
    /// `seed` randomises the hash maps, against ids constructed to collide; it never affects an outcome.
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

    /// Accepts no version above `newest`, for tests with nodes of two versions.
    pub fn know_up_to(&mut self, newest: u32) {
        self.newest = newest.min(LEDGER_NEWEST);
    }

    /// Plants a fault, to test that the tests catch it.
    #[cfg(debug_assertions)]
    #[doc(hidden)]
    pub fn mutate(&mut self, mutation: Mutation) {
        self.mutation = Some(mutation);
    }

    /// Returns the lowest offset that the next record may have.
    pub fn next_offset(&self) -> u64 {
        self.next
    }

    /// Returns the position up to which the store is known to be archived.
    pub fn archived_position(&self) -> Position {
        self.archived
    }

    /// Returns the rules in force.
    pub fn rules(&self) -> Rules {
        self.rules
    }

    /// Returns a conversation's head after all applied records: `Ok(None)` if there is none, `Err` if it is not cached.
    pub fn head(&self, conversation: &ConversationId) -> Result<Option<&Head>, Stop> {
        self.cache.head(conversation)
    }

    /// Returns a member's row after all applied records: `Ok(None)` if there is none, `Err` if it is not cached.
    pub fn member(&self, conversation: &ConversationId, user: &UserId) -> Result<Option<&Member>, Stop> {
        self.cache.member(conversation, user)
    }

    /// Adds the uncached rows that are required to decide `record` to `needs`.
    pub fn needs(&self, record: &Record, needs: &mut BTreeSet<Need>) {
        let mut need = |row: Need| {
            if !self.cache.contains(&row) {
                needs.insert(row);
            }
        };
        match &record.body {
            Body::Message(message) => {
                let (conversation, sender) = (&message.conversation, &message.sender);
                need(Need::Head(conversation.clone()));
                need(Need::Member(conversation.clone(), sender.clone()));
                need(Need::Device(conversation.clone(), sender.clone(), message.device.clone()));
                if self.key_matters(message.attempt, self.next) {
                    need(Need::Key(message_key(message)));
                }
            }
            Body::Member(change) => {
                need(Need::Head(change.conversation.clone()));
                need(Need::Key(request_key(change)));
                for user in change.users.iter().chain(&change.by) {
                    need(Need::Member(change.conversation.clone(), user.clone()));
                }
            }
            Body::Recall(recall) => {
                need(Need::Head(recall.conversation.clone()));
                need(Need::Row(recall.conversation.clone(), recall.seq));
                if let Some(by) = &recall.by {
                    need(Need::Member(recall.conversation.clone(), by.clone()));
                }
            }
            Body::Edit(edit) => {
                need(Need::Head(edit.conversation.clone()));
                need(Need::Row(edit.conversation.clone(), edit.seq));
                need(Need::Key(edit_key(edit)));
                if let Some(by) = &edit.by {
                    need(Need::Member(edit.conversation.clone(), by.clone()));
                }
            }
            Body::Prune(prune) => need(Need::Head(prune.conversation.clone())),
            Body::Rules(_) => {}
        }
    }

    /// Returns whether an uncached key could decide at `offset`: not for a first attempt if all keys of its window are
    /// cached.
    fn key_matters(&self, attempt: u32, offset: u64) -> bool {
        let window = self.rules.dedup_window;
        attempt > 0 || window == 0 || self.cache.keys_complete_from > offset.saturating_sub(window)
    }

    /// Loads rows that were read in one snapshot, together with fence and `position`.
    ///
    /// The snapshot must be at the archived position, or at the end of a taken delta, which then counts as committed.
    /// Otherwise another owner writes or the store was rolled back: nothing is loaded, and this owner must stop.
    pub fn load(&mut self, position: Position, rows: impl IntoIterator<Item = Loaded>) -> Result<(), Stop> {
        self.archived(position)?;
        for row in rows {
            self.cache.load(row);
        }
        Ok(())
    }

    /// Declares that all keys of the records from `offset` on are cached, because they were loaded at take-over.
    pub fn keys_complete_from(&mut self, offset: u64) {
        self.cache.keys_complete_from = self.cache.keys_complete_from.min(offset);
    }

    /// Applies the record at `offset` and returns its outcome. On `Err` nothing has changed.
    pub fn apply(&mut self, offset: u64, record: &Record) -> Result<Outcome, Stop> {
        self.begin(offset)?;
        let time = record.received_at;
        let outcome = match &record.body {
            // Owners that do not know the kind skip the record, so this answer may depend on nothing and change nothing.
            newer if kind_version(newer) > self.rules.ledger_version => {
                Outcome::Refused { code: Code::NotYet }
            }
            Body::Message(it) => message::apply(self, offset, record, it)?,
            Body::Member(it) => group::member(self, offset, time, it)?,
            Body::Recall(it) => group::recall(self, offset, time, it)?,
            Body::Edit(it) => edit::edit(self, offset, time, it)?,
            Body::Prune(it) => group::prune(self, offset, time, it)?,
            Body::Rules(it) => self.set_rules(offset, it)?,
        };
        self.next = offset + 1;
        Ok(outcome)
    }

    /// Skips a record that can't be decoded; it voids only itself.
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

    /// Returns whether refusals of membership requests are remembered, as they are since version 4.
    fn remembers_requests(&self) -> bool {
        self.rules.ledger_version >= 4 && self.mutation != Some(Mutation::RequestRefusalForgotten)
    }

    /// Checks that rules of this version are implemented; a new owner calls it before it starts.
    ///
    /// # Errors
    /// [`Stop::UnknownRules`] if they are not: only a newer node can own the partition.
    pub fn knows(&self, version: u32) -> Result<(), Stop> {
        if version > self.newest { Err(Stop::UnknownRules(version)) } else { Ok(()) }
    }

    fn set_rules(&mut self, offset: u64, change: &RuleChange) -> Result<Outcome, Stop> {
        let before = self.rules;
        let ledger_version = before.ledger_version.max(change.ledger_version);
        self.knows(ledger_version)?;
        // A version-1 reader can't distinguish a window of 0 from none.
        let keeps_window = ledger_version >= 2 && self.mutation != Some(Mutation::RulesReplaced);
        let dedup_window = change.dedup_window.unwrap_or(if keeps_window { before.dedup_window } else { 0 });
        let keys_from = change.keys_from.min(offset).max(before.keys_from);
        self.rules = Rules { ledger_version, dedup_window, keys_from };
        Ok(Outcome::Noted)
    }

    /// Takes the changes since the last delta, to be archived in one transaction. `to` is the position after the last
    /// applied or skipped record ([`Position::behind`]), which the driver hashes once per batch.
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
            edited: changed.fresh.edited,
            recalled: changed.fresh.recalled,
            pruned: changed.fresh.pruned,
            heads: changed.heads,
            members: changed.members,
            stays: changed.fresh.stays,
            devices: changed.devices,
            keys: changed.keys,
        })
    }

    /// Records that the store is at `position`, so that rows below it may be evicted.
    pub fn archived(&mut self, position: Position) -> Result<(), Stop> {
        if position == self.archived {
            return Ok(());
        }
        let index = self.taken.iter().position(|taken| *taken == position).ok_or(Stop::NotMine)?;
        self.taken.drain(..=index);
        self.archived = position;
        Ok(())
    }

    /// Evicts archived rows that no record at or above offset `before` has used, and as long as the cache is larger
    /// than `bytes_max` also the least recently used of the others. Returns the number of evicted rows.
    ///
    /// One call does work in proportion to the records since the last one, so a call after each batch keeps up with any
    /// load; after a lower `bytes_max` it takes several calls. To keep first attempts free of reads, `before` must be at
    /// most `next_offset() - dedup_window`.
    pub fn evict(&mut self, before: u64, bytes_max: usize) -> usize {
        self.cache.evict(before, self.archived.offset, bytes_max)
    }

    /// Returns the estimated heap of the cache, in bytes.
    pub fn cached_bytes(&self) -> usize {
        self.cache.bytes()
    }

    /// Returns the numbers of cached conversations and keys.
    pub fn cached(&self) -> (usize, usize) {
        self.cache.len()
    }
}
