//! Import of an export into an empty store, through the port: one node's data becomes the partitions of a cluster.
//!
//! Seqs are kept. Offsets belong to another log, so they all become "before everything". Until [`Filling::finish`], no
//! partition is at a position that matches its log, so no owner continues from a partial import. Afterwards each is behind
//! a marker in its log, so no owner continues from a store that is older than the import.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use bytes::Bytes;
use tidegate_protocol::{
    id::{ConversationId, IdError, NodeId, UserId},
    machine::ledger::{Delta, Edited, Head, LEDGER_NEWEST, Recalled, edit_key, message_key, request_key},
    record::{Body, Hash16, Origin, Position, Record, RuleChange},
    settings::UserSettings,
};

use super::{
    Fence, GUARD_BATCH_MAX, GuardBatch, GuardOutcome, GuardPut, InvalidGuard, Personal, Store, StoreError,
    StoredRow,
    dump::{BlockLine, BodyLine, Entry, KeyLine, LogLine, MarkLine, PartitionLine, RowLine},
};
use crate::{bus::Bounds, revocation::Revocation};

/// Lines of one partition that are written together.
const PARTITION_LINES_MAX: usize = 1_000;

/// Approximate bytes of one partition that are written together.
const PARTITION_BYTES_MAX: usize = 1 << 20;

/// Bytes staged in memory, of all partitions together; above it, all partitions are written.
const STAGED_BYTES_MAX: usize = 64 << 20;

/// Mark changes, users' settings, and revocations, that are written together.
const PERSONAL_LINES_MAX: usize = 1_000;

/// Estimated size of a line without its content.
const LINE_BYTES: usize = 256;

/// Retries while the store is unavailable: 10 s in total, at [`RETRY_INTERVAL`].
const RETRIES_MAX: u32 = 50;

/// Delay between retries.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// Error of an import into a store; each text names the cure.
#[derive(Debug, thiserror::Error)]
pub enum FillError {
    /// A partition already has an archive.
    #[error("partition {0} is already archived up to {1:?}; import into an empty store")]
    NotEmpty(u32, Position),
    /// A node took a partition over during the import.
    #[error("a node was started during the import; stop all nodes and import again")]
    Disturbed,
    /// The store failed.
    #[error(transparent)]
    Store(StoreError),
    /// A line can't be imported.
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

/// Import state of one partition.
struct PartitionImport {
    fence: Fence,
    /// Beginning of the log, from which the first owner continues.
    start: Position,
    /// Position of the partition in the store.
    at: Position,
    pending: Delta,
    lines: usize,
    bytes: usize,
}

/// Conversation whose lines are being read.
struct OpenConversation {
    id: ConversationId,
    part: usize,
    head: Head,
    /// Seq of the last row staged; before the first row, the last seq that retention removed.
    seq: u64,
}

/// Returns the marker of an import, as the first record of each partition of its log: a record without effect.
///
/// A store that is older than the import begins before it, and its owner would number the conversations from 1 again.
///
/// # Errors
/// Fails only if the name of no node is no longer accepted.
pub fn marker(now_ms: u64) -> Result<Bytes, IdError> {
    let origin = Origin { node: NodeId::new("-")?, boot: 0, conn: 0, request: u64::MAX };
    let body = Body::Rules(RuleChange::default());
    Ok(Record { origin, received_at: now_ms, body, trace: None }.encode())
}

/// Returns whether a record is the marker of an import. Owners append no other record without effect.
pub fn is_marker(record: &Bytes) -> bool {
    let body = Record::decode(record.clone()).map(|record| record.body);
    matches!(body, Ok(Body::Rules(change)) if change == RuleChange::default())
}

/// Import of the entries of an export into a store, in their order.
pub struct Filling<'a> {
    store: &'a dyn Store,
    partition_of: fn(&ConversationId, u32) -> u32,
    parts: Vec<PartitionImport>,
    conversation: Option<OpenConversation>,
    /// Per partition of the export: the offset below which keys have expired, and the archived offset.
    exported: BTreeMap<u32, (u64, u64)>,
    /// Partition of each key, determined by the row that the key is computed from.
    keys: HashMap<Hash16, usize>,
    marks: Vec<(UserId, ConversationId, Personal)>,
    settings: Vec<(UserId, UserSettings)>,
    revocations: Vec<Revocation>,
    blocks: Vec<BlockLine>,
    guard: Vec<GuardPut>,
}

impl<'a> Filling<'a> {
    /// Creates an import into the partitions of an empty log; `partition_of` returns a conversation's partition, given
    /// their number.
    pub fn new(store: &'a dyn Store, log: &[Bounds], partition_of: fn(&ConversationId, u32) -> u32) -> Self {
        let part = |bounds: &Bounds| {
            let start = Position { offset: bounds.next, hash: Hash16::default() };
            let (at, fence) = (Position::START, Fence(rand::random()));
            PartitionImport { fence, start, at, pending: Delta::new(at, at), lines: 0, bytes: 0 }
        };
        Self {
            store,
            partition_of,
            parts: log.iter().map(part).collect(),
            conversation: None,
            exported: BTreeMap::new(),
            keys: HashMap::new(),
            marks: Vec::new(),
            settings: Vec::new(),
            revocations: Vec::new(),
            blocks: Vec::new(),
            guard: Vec::new(),
        }
    }

    /// Takes all partitions over, in the order of `log`, and moves each to a position from which no owner continues.
    ///
    /// # Errors
    /// A partition was archived before, or the store is unavailable for 10 s.
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

    /// Stages an entry. Returns whether [`Self::write`] must be called before the next one.
    ///
    /// # Errors
    /// The entry has no meaning in another log; the text has the cure.
    pub fn stage(&mut self, entry: Entry) -> Result<bool, FillError> {
        // Lines that follow the last one of a conversation.
        if !matches!(entry, Entry::Member(_) | Entry::Device(_) | Entry::Row(_)) {
            self.end_conversation();
        }
        match entry {
            Entry::TidegateExport(_) => {}
            Entry::End(_) => self.end_conversation(),
            Entry::Partition(it) => self.partition(&it)?,
            Entry::Log(it) => self.log(&it)?,
            Entry::Conversation(it) => {
                let part = self.part_of(&it.id);
                self.conversation =
                    Some(OpenConversation { part, head: it.head(), seq: it.pruned_to, id: it.id });
                self.count(part, LINE_BYTES);
            }
            Entry::Member(it) => {
                let (id, part) = self.current()?;
                let delta = &mut self.parts[part].pending;
                delta.stays.extend(it.stays().map(|stay| (id.clone(), it.user.clone(), stay)));
                delta.members.push((id, it.user.clone(), it.member()));
                self.count(part, LINE_BYTES * (1 + it.stays.len()));
            }
            Entry::Device(it) => {
                let (id, part) = self.current()?;
                let row = it.row();
                self.parts[part].pending.devices.push((id, it.user, it.device, row));
                self.count(part, LINE_BYTES);
            }
            Entry::Row(it) => self.row(&it)?,
            Entry::Mark(it) => self.mark(&it),
            Entry::Settings(it) => {
                let settings = it.settings().map_err(|error| FillError::Line(error.to_string()))?;
                self.settings.push((it.user, settings));
            }
            Entry::Revocation(it) => {
                let revocation = it.revocation().map_err(|error| FillError::Line(error.to_owned()))?;
                self.revocations.push(revocation);
            }
            Entry::Block(it) => self.blocks.push(it),
            Entry::Guard(it) => {
                self.guard.push(GuardPut { entry: it.entry().map_err(FillError::Line)?, expected: None });
            }
            Entry::Key(it) => self.key(&it),
        }
        Ok(self.is_full())
    }

    fn partition(&mut self, it: &PartitionLine) -> Result<(), FillError> {
        if it.ledger_version > LEDGER_NEWEST {
            return Err(FillError::Line(format!(
                "the export has rules of ledger {}, this tidegate supports them up to {LEDGER_NEWEST}; import it with the tidegate \
                 that wrote it",
                it.ledger_version
            )));
        }
        self.exported.insert(it.number, (it.keys_from, it.offset));
        Ok(())
    }

    /// Checks that a log record is archived, so that the new log need not contain it.
    ///
    /// The sender of an undecided record got no answer and may retry, so the record must not be dropped.
    fn log(&self, it: &LogLine) -> Result<(), FillError> {
        let archived = self.exported.get(&it.partition).is_some_and(|(_, archived)| it.offset < *archived);
        archived.then_some(()).ok_or_else(|| {
            FillError::Line(format!(
                "record {} was not decided when the node stopped: start the node on its data once more, stop it, and \
                 export again",
                it.offset
            ))
        })
    }

    fn row(&mut self, it: &RowLine) -> Result<(), FillError> {
        let (id, part) = self.current()?;
        let stored = it.stored(&id).map_err(|error| FillError::Line(error.to_string()))?;
        let StoredRow { mut row, recalled, edited } = stored;
        let key = match &row.body {
            Body::Message(message) => Some(message_key(message)),
            Body::Member(change) => Some(request_key(change)),
            Body::Edit(edit) => Some(edit_key(edit)),
            Body::Recall(_) | Body::Prune(_) | Body::Rules(_) => None,
        };
        // Only rows whose key has not expired: memory must hold the keys of some days, not of the whole history.
        let keys_from = self.exported.values().map(|(keys_from, _)| *keys_from).min().unwrap_or(0);
        if let Some(key) = key.filter(|_| row.offset >= keys_from) {
            self.keys.insert(key, part);
        }
        let weight = match (&row.body, &it.body) {
            (Body::Message(message), _) => message.content.len(),
            (_, BodyLine::Change(change)) => change.users.iter().map(String::len).sum(),
            _ => 0,
        };
        let to = &mut self.parts[part];
        row.offset = to.offset();
        if let (Body::Message(message), Some(at)) = (&row.body, edited) {
            let (conversation, content) = (id.clone(), message.content.clone());
            to.pending.edited.push(Edited { conversation, seq: row.seq, at, content });
        }
        if let Some(by) = recalled {
            to.pending.recalled.push(Recalled { conversation: id, seq: row.seq, by });
        }
        if let Some(conversation) = &mut self.conversation {
            conversation.seq = row.seq;
        }
        to.pending.rows.push(row);
        self.count(part, LINE_BYTES + weight);
        Ok(())
    }

    fn mark(&mut self, it: &MarkLine) {
        let of_user = |change| (it.user.clone(), it.conversation.clone(), change);
        self.marks.extend(it.changes().map(of_user));
    }

    /// Stages a key in the partition of its row, or in all partitions if it has none.
    ///
    /// A key has no row if retention removed it or the record was refused. Its hash includes the conversation, so it
    /// matches in no other partition.
    fn key(&mut self, it: &KeyLine) {
        if self.exported.get(&it.partition).is_some_and(|(keys_from, _)| it.offset < *keys_from) {
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

    fn current(&self) -> Result<(ConversationId, usize), FillError> {
        let current = self.conversation.as_ref().map(|it| (it.id.clone(), it.part));
        current.ok_or_else(|| FillError::Line("the line belongs to no conversation".into()))
    }

    fn part_of(&self, id: &ConversationId) -> usize {
        let count = u32::try_from(self.parts.len()).unwrap_or(u32::MAX);
        (self.partition_of)(id, count) as usize
    }

    /// Stages the complete head of the conversation; until here its stored head ended at the last row written.
    fn end_conversation(&mut self) {
        if let Some(OpenConversation { id, part, head, .. }) = self.conversation.take() {
            self.parts[part].pending.heads.push((id, head));
        }
    }

    fn count(&mut self, part: usize, bytes: usize) {
        let part = &mut self.parts[part];
        part.lines += 1;
        part.bytes += bytes;
    }

    fn is_full(&self) -> bool {
        self.parts.iter().any(PartitionImport::is_full)
            || self.marks.len() >= PERSONAL_LINES_MAX
            || self.settings.len() >= PERSONAL_LINES_MAX
            || self.revocations.len() >= PERSONAL_LINES_MAX
            || self.blocks.len() >= PERSONAL_LINES_MAX
            || self.guard.len() >= GUARD_BATCH_MAX
            || self.parts.iter().map(|part| part.bytes).sum::<usize>() >= STAGED_BYTES_MAX
    }

    /// Writes the full partitions, or all of them above [`STAGED_BYTES_MAX`], and all marks and settings.
    ///
    /// # Errors
    /// The store refuses the write or is unavailable for 10 s, or a node took a partition over.
    pub async fn write(&mut self) -> Result<(), FillError> {
        let all = self.parts.iter().map(|part| part.bytes).sum::<usize>() >= STAGED_BYTES_MAX;
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
        for (user, settings) in self.settings.drain(..) {
            retry(|| store.merge_settings(&user, settings)).await?;
        }
        for revocation in self.revocations.drain(..) {
            // An export has no more of a user than fit.
            retry(|| store.revoke(&revocation, 0)).await?;
        }
        for it in self.blocks.drain(..) {
            retry(|| store.block(&it.user, &it.other, it.time, u64::MAX)).await?;
        }
        if !self.guard.is_empty() {
            let invalid = |error: InvalidGuard| FillError::Line(error.to_string());
            let batch = GuardBatch::new(std::mem::take(&mut self.guard)).map_err(invalid)?;
            if let GuardOutcome::Full(kind) = retry(|| store.put_guard(&batch)).await? {
                return Err(FillError::Line(format!("the guard has too many entries of the kind {kind:?}")));
            }
        }
        Ok(())
    }

    /// Discards the staged entries, for a dry run.
    pub fn forget(&mut self) {
        self.marks.clear();
        self.settings.clear();
        self.revocations.clear();
        self.blocks.clear();
        self.guard.clear();
        for part in &mut self.parts {
            part.take(part.at);
        }
    }

    async fn flush(&mut self, number: usize) -> Result<(), FillError> {
        let part = &mut self.parts[number];
        if let Some(open) = self.conversation.as_ref().filter(|open| open.part == number) {
            let head = Head { last_seq: open.seq, ..open.head.clone() };
            part.pending.heads.push((open.id.clone(), head));
        }
        // No record has such a hash, so no owner's log matches this position.
        let nth = u128::from_be_bytes(part.at.hash) + 1;
        let partial = Position { offset: part.start.offset, hash: nth.to_be_bytes() };
        let delta = part.take(partial);
        self.archive(number, &delta).await
    }

    async fn archive(&self, number: usize, delta: &Delta) -> Result<(), FillError> {
        let (store, fence) = (self.store, self.parts[number].fence);
        let partition = u32::try_from(number).unwrap_or(u32::MAX);
        Ok(retry(|| store.archive(partition, fence, delta)).await?)
    }

    /// Writes all that is left, and moves every partition to the position from which its owner continues: behind the
    /// marker of the import in its log.
    ///
    /// # Errors
    /// See [`Self::write`].
    pub async fn finish(mut self, behind_markers: &[Position]) -> Result<(), FillError> {
        self.end_conversation();
        for number in 0..self.parts.len() {
            self.flush(number).await?;
        }
        self.write_personal().await?;
        for number in 0..self.parts.len() {
            let end = behind_markers.get(number).copied().unwrap_or(self.parts[number].start);
            let delta = self.parts[number].take(end);
            self.archive(number, &delta).await?;
        }
        Ok(())
    }
}

impl PartitionImport {
    /// Returns the offset given to all imported rows and keys.
    fn offset(&self) -> u64 {
        self.start.offset.saturating_sub(1)
    }

    fn is_full(&self) -> bool {
        self.lines >= PARTITION_LINES_MAX || self.bytes >= PARTITION_BYTES_MAX
    }

    /// Takes the staged rows as a delta from the partition's position to `to`.
    fn take(&mut self, to: Position) -> Delta {
        (self.lines, self.bytes) = (0, 0);
        let from = std::mem::replace(&mut self.at, to);
        // Its rules compare with all keys: distances in another log mean nothing here.
        let pending = std::mem::replace(&mut self.pending, Delta::new(to, to));
        Delta { from, to, ..pending }
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
                if tries < RETRIES_MAX =>
            {
                tries += 1;
            }
            done => return done,
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests;
