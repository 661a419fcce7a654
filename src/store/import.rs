//! Fills an empty store from an export, through the port: what one node kept becomes the partitions of a cluster.
//!
//! Seqs stay. Offsets are those of another log, so here they all mean "before everything"; until [`Filling::finish`] no
//! partition is at a position that an owner would take for its log's, so what is half filled is never gone on from.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use tidegate_protocol::{
    id::{ConversationId, UserId},
    machine::ledger::{Delta, Head, LEDGER_NEWEST, Recalled, message_key, request_key},
    record::{Body, Hash16, Position, Rules},
    settings::UserSettings,
};

use super::{
    Fence, Level, Personal, Store, StoreError,
    dump::{BodyLine, Entry, KeyLine, LogLine, MarkLine, PartitionLine, RowLine},
};
use crate::bus::Bounds;

/// Lines of one partition that go together, and about their bytes.
const PART_LINES: usize = 1_000;
const PART_BYTES: usize = 1 << 20;

/// What waits in memory at most, of all partitions together.
const ALL_BYTES: usize = 64 << 20;

/// Marks and wishes that go together.
const PERSONAL: usize = 1_000;

/// A line besides its content, about.
const LINE_BYTES: usize = 256;

/// How often the store is asked while it is away, and how long between.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(200);

/// Why a store could not be filled; each text names the cure.
#[derive(Debug, thiserror::Error)]
pub enum FillError {
    /// Somebody archived there before.
    #[error("partition {0} was archived to {1:?} already; an import needs a store without anything in it")]
    NotEmpty(u32, Position),
    /// A node took a partition over.
    #[error("a node was started meanwhile; stop all nodes and import again")]
    Disturbed,
    /// The store failed.
    #[error(transparent)]
    Store(StoreError),
    /// The line can't be taken over.
    #[error("{0}")]
    Line(String),
}

impl From<StoreError> for FillError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Fenced => Self::Disturbed,
            other => Self::Store(other),
        }
    }
}

/// A partition that is being filled.
struct Part {
    fence: Fence,
    /// Where the log begins: where the first owner starts.
    start: Position,
    at: Position,
    pending: Delta,
    lines: usize,
    bytes: usize,
}

/// The conversation whose lines come now.
struct Here {
    id: ConversationId,
    part: usize,
    head: Head,
    /// The last row taken, or what retention took before the first.
    seq: u64,
}

/// A store that is being filled from the entries of an export, in their order.
pub struct Filling<'a> {
    store: &'a dyn Store,
    place: fn(&ConversationId, u32) -> u32,
    parts: Vec<Part>,
    here: Option<Here>,
    /// Below it a partition of the export has forgotten its keys; and where it was archived to.
    forgotten: BTreeMap<u32, (u64, u64)>,
    /// The partitions of keys, known by the rows that they are computed from.
    keys: HashMap<Hash16, usize>,
    marks: Vec<(UserId, ConversationId, Personal)>,
    wishes: Vec<(UserId, UserSettings)>,
}

impl<'a> Filling<'a> {
    /// For the partitions of an empty log; `place` says in which of so many a conversation lives.
    pub fn new(store: &'a dyn Store, log: &[Bounds], place: fn(&ConversationId, u32) -> u32) -> Self {
        let part = |bounds: &Bounds| {
            let start = Position { offset: bounds.next, hash: Hash16::default() };
            let (at, fence) = (Position::START, Fence(rand::random()));
            Part { fence, start, at, pending: nothing(at), lines: 0, bytes: 0 }
        };
        Self {
            store,
            place,
            parts: log.iter().map(part).collect(),
            here: None,
            forgotten: BTreeMap::new(),
            keys: HashMap::new(),
            marks: Vec::new(),
            wishes: Vec::new(),
        }
    }

    /// Takes all partitions over, in the order of `log`, and leaves each where no owner goes on from.
    ///
    /// # Errors
    /// One was archived before; the store is away for 10 s.
    pub async fn take_over(&mut self, log: &[Bounds]) -> Result<(), FillError> {
        for (number, bounds) in (0..).zip(log) {
            let Some(part) = self.parts.get_mut(number as usize) else { break };
            let (store, fence) = (self.store, part.fence);
            let taken = retry(|| store.take_over(number, fence, bounds.topic)).await?;
            if taken.position != Position::START {
                return Err(FillError::NotEmpty(number, taken.position));
            }
            part.at = taken.position;
            self.flush(number as usize).await?;
        }
        Ok(())
    }

    /// Takes an entry; true = [`Self::write`] is to be called before the next one.
    ///
    /// # Errors
    /// What makes no sense in another log, with the cure.
    pub fn stage(&mut self, entry: Entry) -> Result<bool, FillError> {
        if matches!(entry, Entry::Conversation(_) | Entry::Mark(_) | Entry::Wishes(_) | Entry::Key(_)) {
            self.end_conversation();
        }
        match entry {
            Entry::TidegateExport(_) => {}
            Entry::End(_) => self.end_conversation(),
            Entry::Partition(it) => self.partition(&it)?,
            Entry::Log(it) => self.log(&it)?,
            Entry::Conversation(it) => {
                let part = self.part_of(&it.id);
                self.here = Some(Here { part, head: it.head(), seq: it.pruned_to, id: it.id });
                self.count(part, LINE_BYTES);
            }
            Entry::Member(it) => {
                let (id, part) = self.here()?;
                let delta = &mut self.parts[part].pending;
                delta.stays.extend(it.stays().map(|stay| (id.clone(), it.user.clone(), stay)));
                delta.members.push((id, it.user.clone(), it.member()));
                self.count(part, LINE_BYTES * (1 + it.stays.len()));
            }
            Entry::Device(it) => {
                let (id, part) = self.here()?;
                let row = it.row();
                self.parts[part].pending.devices.push((id, it.user, it.device, row));
                self.count(part, LINE_BYTES);
            }
            Entry::Row(it) => self.row(&it)?,
            Entry::Mark(it) => self.mark(it),
            Entry::Wishes(it) => {
                let wishes = it.wishes().map_err(|error| FillError::Line(error.to_string()))?;
                self.wishes.push((it.user, wishes));
            }
            Entry::Key(it) => self.key(&it),
        }
        Ok(self.is_full())
    }

    fn partition(&mut self, it: &PartitionLine) -> Result<(), FillError> {
        if it.ledger_version > LEDGER_NEWEST {
            return Err(FillError::Line(format!(
                "the rules of the export are those of ledger {}, this tidegate knows them up to {LEDGER_NEWEST}; import it with the \
                 tidegate that wrote it",
                it.ledger_version
            )));
        }
        self.forgotten.insert(it.number, (it.keys_from, it.offset));
        Ok(())
    }

    /// What is archived needs no log. What is not was answered to nobody, but may be of somebody who asks again.
    fn log(&self, it: &LogLine) -> Result<(), FillError> {
        let archived = self.forgotten.get(&it.partition).is_some_and(|(_, archived)| it.offset < *archived);
        archived.then_some(()).ok_or_else(|| {
            FillError::Line(format!(
                "record {} was not decided when the node stopped: start the node on its data once more, stop it, and \
                 export again",
                it.offset
            ))
        })
    }

    fn row(&mut self, it: &RowLine) -> Result<(), FillError> {
        let (id, part) = self.here()?;
        let stored = it.stored(&id).map_err(|error| FillError::Line(error.to_string()))?;
        let (mut row, recalled) = (stored.row, stored.recalled);
        let key = match &row.body {
            Body::Message(message) => Some(message_key(message)),
            Body::Member(change) => Some(request_key(change)),
            Body::Recall(_) | Body::Prune(_) | Body::Rules(_) => None,
        };
        // Only of those that still have one: memory is for some days of messages, not for all.
        let kept = self.forgotten.values().map(|(keys_from, _)| *keys_from).min().unwrap_or(0);
        if let Some(key) = key.filter(|_| row.offset >= kept) {
            self.keys.insert(key, part);
        }
        let weight = match (&row.body, &it.body) {
            (Body::Message(message), _) => message.content.len(),
            (_, BodyLine::Change(change)) => change.users.iter().map(String::len).sum(),
            _ => 0,
        };
        let to = &mut self.parts[part];
        row.offset = to.offset();
        if let Some(by) = recalled {
            to.pending.recalled.push(Recalled { conversation: id, seq: row.seq, by });
        }
        if let Some(here) = &mut self.here {
            here.seq = row.seq;
        }
        to.pending.rows.push(row);
        self.count(part, LINE_BYTES + weight);
        Ok(())
    }

    fn mark(&mut self, it: MarkLine) {
        let Level { mark, cleared, hidden } = it.level();
        let (user, id) = (it.user, it.conversation);
        let changes = [
            (mark.seq > 0).then_some(Personal::Read(mark)),
            (cleared.seq > 0).then_some(Personal::Cleared(cleared)),
            (!hidden.is_empty()).then_some(Personal::Hidden { seqs: hidden, forget: 0 }),
        ];
        self.marks.extend(changes.into_iter().flatten().map(|it| (user.clone(), id.clone(), it)));
    }

    /// A key whose row is gone, or that was refused and has none, may be of any conversation: its hash says which, and
    /// matches in no other partition.
    fn key(&mut self, it: &KeyLine) {
        if self.forgotten.get(&it.partition).is_some_and(|(keys_from, _)| it.offset < *keys_from) {
            return;
        }
        let parts = match self.keys.remove(&it.key) {
            Some(part) => part..part + 1,
            None => 0..self.parts.len(),
        };
        for part in parts {
            let to = &mut self.parts[part];
            let mut row = it.row();
            row.offset = to.offset();
            to.pending.keys.push((it.key, row));
            self.count(part, LINE_BYTES);
        }
    }

    fn here(&self) -> Result<(ConversationId, usize), FillError> {
        let here = self.here.as_ref().map(|here| (here.id.clone(), here.part));
        here.ok_or_else(|| FillError::Line("the line belongs to no conversation".into()))
    }

    fn part_of(&self, id: &ConversationId) -> usize {
        let count = u32::try_from(self.parts.len()).unwrap_or(u32::MAX);
        (self.place)(id, count) as usize
    }

    /// Its head says all of it only now: until then it ends with the last row written.
    fn end_conversation(&mut self) {
        if let Some(Here { id, part, head, .. }) = self.here.take() {
            self.parts[part].pending.heads.push((id, head));
        }
    }

    fn count(&mut self, part: usize, bytes: usize) {
        let part = &mut self.parts[part];
        part.lines += 1;
        part.bytes += bytes;
    }

    fn is_full(&self) -> bool {
        self.parts.iter().any(Part::is_full)
            || self.marks.len() >= PERSONAL
            || self.wishes.len() >= PERSONAL
            || self.parts.iter().map(|part| part.bytes).sum::<usize>() >= ALL_BYTES
    }

    /// Writes what is full; all of it where everything together is.
    ///
    /// # Errors
    /// The store refuses, or is away for 10 s; a node took a partition over.
    pub async fn write(&mut self) -> Result<(), FillError> {
        let all = self.parts.iter().map(|part| part.bytes).sum::<usize>() >= ALL_BYTES;
        for number in 0..self.parts.len() {
            if all || self.parts[number].is_full() {
                self.flush(number).await?;
            }
        }
        self.write_personal().await
    }

    async fn write_personal(&mut self) -> Result<(), FillError> {
        let store = self.store;
        if !self.marks.is_empty() {
            retry(|| store.save_marks(&self.marks)).await?;
            self.marks.clear();
        }
        for (user, wishes) in self.wishes.drain(..) {
            retry(|| store.wishes(&user, wishes)).await?;
        }
        Ok(())
    }

    /// Forgets what is staged: for a try without a store.
    pub fn forget(&mut self) {
        self.marks.clear();
        self.wishes.clear();
        for part in &mut self.parts {
            part.take(part.at);
        }
    }

    async fn flush(&mut self, number: usize) -> Result<(), FillError> {
        let part = &mut self.parts[number];
        if let Some(here) = self.here.as_ref().filter(|here| here.part == number) {
            let head = Head { last_seq: here.seq, ..here.head.clone() };
            part.pending.heads.push((here.id.clone(), head));
        }
        // No record has such a hash.
        let nth = u128::from_be_bytes(part.at.hash) + 1;
        let half = Position { offset: part.start.offset, hash: nth.to_be_bytes() };
        let delta = part.take(half);
        self.archive(number, &delta).await
    }

    async fn archive(&self, number: usize, delta: &Delta) -> Result<(), FillError> {
        let (store, fence) = (self.store, self.parts[number].fence);
        let partition = u32::try_from(number).unwrap_or(u32::MAX);
        Ok(retry(|| store.archive(partition, fence, delta)).await?)
    }

    /// Writes what is left, and puts every partition to the beginning of its log.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub async fn finish(mut self) -> Result<(), FillError> {
        self.end_conversation();
        for number in 0..self.parts.len() {
            self.flush(number).await?;
        }
        self.write_personal().await?;
        for number in 0..self.parts.len() {
            let start = self.parts[number].start;
            let delta = self.parts[number].take(start);
            self.archive(number, &delta).await?;
        }
        Ok(())
    }
}

impl Part {
    /// Where rows and keys of another log stand in this one.
    fn offset(&self) -> u64 {
        self.start.offset.saturating_sub(1)
    }

    fn is_full(&self) -> bool {
        self.lines >= PART_LINES || self.bytes >= PART_BYTES
    }

    /// What waits, as the step from where the partition is to there.
    fn take(&mut self, to: Position) -> Delta {
        (self.lines, self.bytes) = (0, 0);
        let from = std::mem::replace(&mut self.at, to);
        let pending = std::mem::replace(&mut self.pending, nothing(to));
        Delta { from, to, ..pending }
    }
}

/// All keys are compared with: how far back a record lies says nothing of another log.
fn nothing(at: Position) -> Delta {
    Delta {
        from: at,
        to: at,
        rules: Rules::default(),
        rows: Vec::new(),
        recalled: Vec::new(),
        pruned: Vec::new(),
        heads: Vec::new(),
        members: Vec::new(),
        stays: Vec::new(),
        devices: Vec::new(),
        keys: Vec::new(),
    }
}

async fn retry<T, F>(mut call: impl FnMut() -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let mut tries = 0;
    loop {
        match call().await {
            Err(StoreError::Unavailable(_) | StoreError::NoConnection(_) | StoreError::Unknown(_))
                if tries < TRIES =>
            {
                tries += 1;
            }
            done => return done,
        }
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests;
