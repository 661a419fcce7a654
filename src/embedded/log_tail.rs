//! Log tail of a partition: appended records that are not on the disk yet.

use std::{collections::VecDeque, time::Instant};

use bytes::Bytes;

use super::LogRecords;

#[derive(Default)]
pub(super) struct LogTail {
    /// Offset below which all records are on the disk or archived.
    durable_to: u64,
    /// Records from that offset on.
    waiting: VecDeque<Bytes>,
    /// Time at which the oldest of them was appended, or at which its predecessor became durable.
    since: Option<Instant>,
    /// Offsets of the records in the log on disk, rising.
    on_disk: VecDeque<u64>,
    /// Number of failed writes; appends that were waiting at a failure are in doubt.
    failures: u64,
    /// Records that were on the disk at the start, for the bus.
    initial: Vec<Bytes>,
}

impl LogTail {
    /// Creates the tail of a log that is archived up to `position` and has `records` on the disk. `None` if there is
    /// a hole.
    pub(super) fn resume(position: u64, records: LogRecords) -> Option<Self> {
        let first = records.first().map_or(position, |(offset, _)| *offset);
        let whole = (first..).zip(&records).all(|(expected, (offset, _))| expected == *offset);
        let durable_to = first + records.len() as u64;
        let on_disk = (first..durable_to).collect();
        let initial = records.into_iter().map(|(_, bytes)| bytes).collect();
        let fits = whole && durable_to >= position;
        fits.then(|| Self { durable_to, on_disk, initial, ..Self::default() })
    }

    /// Takes over the records found on the disk after a write in doubt. Returns false if there is a hole, or a
    /// confirmed record is missing.
    pub(super) fn reload(&mut self, position: u64, records: LogRecords) -> bool {
        let Some(found) = Self::resume(position, records).filter(|it| it.durable_to >= self.durable_to)
        else {
            return false;
        };
        self.on_disk = found.on_disk;
        self.set_durable_to(found.durable_to);
        true
    }

    pub(super) fn take_initial(&mut self) -> (u64, Vec<Bytes>) {
        let initial = std::mem::take(&mut self.initial);
        (self.durable_to - initial.len() as u64, initial)
    }

    pub(super) fn push(&mut self, records: Vec<Bytes>) {
        self.since.get_or_insert_with(Instant::now);
        self.waiting.extend(records);
    }

    pub(super) fn durable_to(&self) -> u64 {
        self.durable_to
    }

    pub(super) fn failures(&self) -> u64 {
        self.failures
    }

    pub(super) fn fail(&mut self) {
        self.failures += 1;
    }

    /// Returns the time since which records wait.
    pub(super) fn since(&self) -> Option<Instant> {
        self.since
    }

    /// Iterates over the waiting records and their offsets.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (u64, &Bytes)> {
        (self.durable_to..).zip(&self.waiting)
    }

    /// Returns the waiting record at `offset`.
    pub(super) fn at(&self, offset: u64) -> Option<&Bytes> {
        let index = usize::try_from(offset.checked_sub(self.durable_to)?).ok()?;
        self.waiting.get(index)
    }

    /// Iterates over the offsets on disk that an archive up to `to` makes obsolete: all before its last record.
    pub(super) fn obsolete(&self, to: u64) -> impl Iterator<Item = u64> {
        self.on_disk.iter().copied().take_while(move |offset| offset + 1 < to)
    }

    /// Marks the records below `to` as written to the log on disk.
    pub(super) fn mark_spilled(&mut self, to: u64) {
        self.on_disk.extend(self.durable_to..to);
        self.set_durable_to(to);
    }

    /// Marks everything below `to` as archived; `last`: the archive wrote its last record to the log on disk.
    pub(super) fn mark_archived(&mut self, to: u64, last: bool) {
        while self.on_disk.front().is_some_and(|offset| offset + 1 < to) {
            self.on_disk.pop_front();
        }
        if last {
            self.on_disk.push_back(to - 1);
        }
        self.set_durable_to(to);
    }

    fn set_durable_to(&mut self, to: u64) {
        if to > self.durable_to {
            let count = usize::try_from(to - self.durable_to).unwrap_or(usize::MAX);
            self.waiting.drain(..count.min(self.waiting.len()));
            self.durable_to = to;
            self.since = (!self.waiting.is_empty()).then(Instant::now);
        }
    }
}
