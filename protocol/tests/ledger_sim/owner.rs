//! Simulated owner of the partition, driving the ledger as its module documentation requires, in small steps so that
//! owners interleave.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use tidegate_protocol::{
    machine::ledger::{Delta, Key, Ledger, Loaded, Mutation, Need, Outcome, Stop},
    record::{Position, Record},
};

use crate::{
    rng::Rng,
    store::{Commit, Store, absent},
};

/// Fault planted in a run, which the checker must catch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// A rule of the ledger itself is broken.
    Ledger(Mutation),
    /// A new owner loads no earlier ids.
    DedupForgotten,
    /// A new owner loads the accepted ids, but not the refused ones.
    RefusalForgotten,
    /// The archive does not check the fence.
    ArchiveWithoutFence,
    /// The archive does not check the position.
    ArchiveWithoutPosition,
    /// Rows are read from a lagging copy of the store.
    StaleHead,
    /// A former owner continues with rows that the new owner wrote.
    ZombieReadsNewer,
    /// An evicted row counts as absent.
    EvictedIsAbsent,
    /// A replaced log is read from its start.
    LogReplacedIgnored,
    /// Rows may be evicted as soon as their archive is started, not when it is known to be done.
    UnpinnedTooEarly,
    /// The store drops old keys by itself, not by the rules.
    StoreDropsKeys,
    /// A node of an earlier version skips unknown rules and continues.
    UnknownRulesIgnored,
}

impl Fault {
    /// Returns whether a new owner does not load this key.
    fn forgets(self, key: &Key) -> bool {
        match self {
            Self::DedupForgotten => true,
            Self::RefusalForgotten => key.refused.is_some(),
            _ => false,
        }
    }
}

/// One partition of the log.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// True identity of the log.
    pub(crate) topic: u64,
    /// Identity that the log reports.
    pub(crate) topic_id: u64,
    pub(crate) entries: Vec<(Bytes, Option<Arc<Record>>)>,
}

impl Log {
    pub(crate) fn push(&mut self, bytes: Bytes) -> Option<Arc<Record>> {
        let record = Record::decode(bytes.clone()).ok().map(Arc::new);
        self.entries.push((bytes, record.clone()));
        record
    }

    fn before(&self, offset: u64) -> Option<&[u8]> {
        let index = offset.checked_sub(1)?;
        self.entries.get(index as usize).map(|(bytes, _)| bytes.as_ref())
    }
}

/// Answer of an owner to a record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub(crate) topic: u64,
    pub(crate) offset: u64,
    pub(crate) outcome: Outcome,
}

/// Consistent read of the store: rows with fence and position.
struct Snapshot {
    /// Whether it was read from a lagging copy, which the owner must recognise; it is no fault of the store.
    lags: bool,
    fence: u64,
    position: Position,
    rows: Vec<Loaded>,
}

pub(crate) struct Owner {
    fence: u64,
    topic: u64,
    fault: Fault,
    ledger: Ledger,
    /// Offset of the take-over; earlier state comes from the store only.
    since: u64,
    /// Position after the last applied record.
    end: Position,
    batch: Option<(u64, Option<Snapshot>)>,
    delta: Option<Delta>,
    requested: BTreeSet<Need>,
    pub(crate) stopped: bool,
    /// Whether it stopped because of unknown rules.
    pub(crate) stopped_by_rules: bool,
    pub(crate) evicted: usize,
}

impl Owner {
    /// Takes the fence and reads position and rules, in one transaction. `None` if the log was replaced.
    pub(crate) fn take_over(
        fence: u64,
        log: &Log,
        store: &mut Store,
        fault: Fault,
        newest: u32,
        rng: &mut Rng,
    ) -> Option<Self> {
        store.now.fence = fence;
        let mut position = store.now.position;
        if store.topic_id != log.topic_id || !position.matches(log.before(position.offset)) {
            if fault != Fault::LogReplacedIgnored {
                return None;
            }
            position = Position::START;
            store.now.position = position;
        }
        let ignores = fault == Fault::UnknownRulesIgnored;
        let mut rules = store.now.rules;
        if ignores {
            rules.ledger_version = rules.ledger_version.min(newest);
        }
        let mut ledger = Ledger::resume(position, rules, rng.next());
        ledger.know_up_to(newest);
        if let Fault::Ledger(mutation) = fault {
            ledger.mutate(mutation);
        }
        let window = store.now.rules.dedup_window;
        if window > 0 && rng.percent(50) && fault != Fault::DedupForgotten {
            let from = position.offset.saturating_sub(window);
            let keys = store.now.keys.iter().filter(|(_, key)| key.offset >= from && !fault.forgets(key));
            let rows: Vec<_> = keys.map(|(hash, key)| Loaded::Key(*hash, Some(*key))).collect();
            ledger.load(position, rows).ok()?;
            ledger.keys_complete_from(from);
        }
        let since = position.offset;
        Some(Self {
            fence,
            topic: log.topic,
            fault,
            ledger,
            since,
            end: position,
            batch: None,
            delta: None,
            requested: BTreeSet::new(),
            stopped: false,
            stopped_by_rules: false,
            evicted: 0,
        })
    }

    /// Returns whether every record is applied and archived.
    pub(crate) fn is_idle(&self, log: &Log) -> bool {
        self.stopped
            || self.end == self.ledger.archived_position() && self.end.offset == log.entries.len() as u64
    }

    /// Does one step. An error is a broken promise; `delayed` collects commits that reach the store later.
    pub(crate) fn step(
        &mut self,
        log: &Log,
        store: &mut Store,
        delayed: &mut Vec<(u64, Delta)>,
        rng: &mut Rng,
    ) -> Result<Vec<Answer>, String> {
        if self.stopped {
            return Ok(Vec::new());
        }
        if let Some((to, snapshot)) = self.batch.take() {
            return self.run(to, snapshot, log, store);
        }
        match rng.below(100) {
            0..60 => self.read(log, store, rng),
            60..85 => self.archive(store, delayed, rng)?,
            _ => {
                let next = self.ledger.next_offset();
                let before = next + 1 - rng.below(next as usize + 1) as u64;
                let bytes_max = *rng.pick(&[0, 2_000, 10_000, usize::MAX]);
                self.evicted += self.ledger.evict(before, bytes_max);
            }
        }
        Ok(Vec::new())
    }

    /// Reads a batch and its rows from the store.
    fn read(&mut self, log: &Log, store: &Store, rng: &mut Rng) {
        if log.topic != self.topic {
            self.stopped = true;
            return;
        }
        let from = self.ledger.next_offset();
        let to = (from + 1 + rng.below(6) as u64).min(log.entries.len() as u64);
        if to <= from {
            return;
        }
        let mut needs = BTreeSet::new();
        for (_, record) in &log.entries[from as usize..to as usize] {
            if let Some(record) = record {
                self.ledger.needs(record, &mut needs);
            }
        }
        let lags = rng.percent(4) && self.fault == Fault::None;
        let snapshot = (!needs.is_empty()).then(|| self.snapshot(&needs, store, lags));
        self.batch = Some((to, snapshot));
    }

    fn snapshot(&mut self, needs: &BTreeSet<Need>, store: &Store, lags: bool) -> Snapshot {
        let tables = if lags || self.fault == Fault::StaleHead { store.older(1) } else { &store.now };
        let mut rows = tables.read(needs);
        if self.fault == Fault::EvictedIsAbsent {
            rows = needs.iter().zip(rows).map(|(need, row)| self.as_if_absent(need, row)).collect();
        }
        for row in &mut rows {
            if let Loaded::Key(_, key) = row {
                *key = key.filter(|key| key.offset >= self.since || !self.fault.forgets(key));
            }
        }
        Snapshot { lags, fence: tables.fence, position: tables.position, rows }
    }

    fn as_if_absent(&mut self, need: &Need, row: Loaded) -> Loaded {
        if self.requested.insert(need.clone()) { row } else { absent(need.clone()) }
    }

    /// Loads the snapshot, or stops without answers if another owner writes the store now.
    fn load(&mut self, snapshot: Snapshot, store: &Store) -> Result<(), String> {
        let blind = matches!(self.fault, Fault::ZombieReadsNewer | Fault::StaleHead);
        if !blind && snapshot.fence != self.fence {
            self.stopped = true;
            return Ok(());
        }
        let lags = snapshot.lags;
        let position = if blind { self.ledger.archived_position() } else { snapshot.position };
        if self.ledger.load(position, snapshot.rows).is_err() {
            self.stopped = true;
            if !lags && store.now.fence == self.fence {
                return Err(format!("the rightful owner {} finds {position:?} in the store", self.fence));
            }
        }
        Ok(())
    }

    fn run(
        &mut self,
        to: u64,
        snapshot: Option<Snapshot>,
        log: &Log,
        store: &Store,
    ) -> Result<Vec<Answer>, String> {
        if let Some(snapshot) = snapshot {
            self.load(snapshot, store)?;
        }
        let mut answers = Vec::new();
        let from = self.ledger.next_offset();
        for offset in from..to {
            if self.stopped || log.topic != self.topic {
                self.stopped = true;
                break;
            }
            let (bytes, record) = &log.entries[offset as usize];
            match record {
                None => match self.ledger.skip(offset) {
                    Err(Stop::UnknownRules(_)) => (self.stopped, self.stopped_by_rules) = (true, true),
                    other => other.map_err(|stop| stop.to_string())?,
                },
                Some(record) => match self.apply(offset, record, store)? {
                    Some(outcome) => answers.push(Answer { topic: self.topic, offset, outcome }),
                    None => break,
                },
            }
            if self.stopped {
                break;
            }
            self.end = Position::behind(offset, bytes);
        }
        Ok(answers)
    }

    fn apply(&mut self, offset: u64, record: &Record, store: &Store) -> Result<Option<Outcome>, String> {
        match self.ledger.apply(offset, record) {
            Ok(outcome) => return Ok(Some(outcome)),
            Err(Stop::Missing) => {}
            Err(Stop::UnknownRules(_)) if self.fault == Fault::UnknownRulesIgnored => {
                return self
                    .ledger
                    .skip(offset)
                    .map(|()| Some(Outcome::Noted))
                    .map_err(|stop| stop.to_string());
            }
            Err(Stop::UnknownRules(_)) => {
                (self.stopped, self.stopped_by_rules) = (true, true);
                return Ok(None);
            }
            Err(stop) => return Err(stop.to_string()),
        }
        let mut needs = BTreeSet::new();
        self.ledger.needs(record, &mut needs);
        let snapshot = self.snapshot(&needs, store, false);
        self.load(snapshot, store)?;
        if self.stopped {
            return Ok(None);
        }
        self.ledger.apply(offset, record).map(Some).map_err(|stop| format!("{stop}, after {needs:?}"))
    }

    fn archive(
        &mut self,
        store: &mut Store,
        delayed: &mut Vec<(u64, Delta)>,
        rng: &mut Rng,
    ) -> Result<(), String> {
        if self.delta.is_none() && self.end != self.ledger.archived_position() {
            self.delta = Some(self.ledger.take_delta(self.end).map_err(|stop| stop.to_string())?);
        }
        let Some(delta) = &self.delta else { return Ok(()) };
        let known = match rng.below(10) {
            0 => {
                if self.fault == Fault::UnpinnedTooEarly {
                    self.ledger.archived(delta.to).map_err(|stop| stop.to_string())?;
                }
                return Ok(());
            }
            1 => {
                delayed.push((self.fence, delta.clone()));
                rng.percent(50)
            }
            2 => false,
            _ => true,
        };
        let (to, outcome) = (delta.to, store.commit(self.fence, delta)?);
        if outcome == Commit::Refused {
            self.stopped = true;
            if store.now.fence == self.fence {
                return Err(format!("the rightful owner {} may not archive", self.fence));
            }
        } else if known {
            // A load may have found this commit already.
            self.ledger.archived(to).map_err(|stop| stop.to_string())?;
            self.delta = None;
        }
        Ok(())
    }
}
