//! The end of a partition's log: what is appended and not on the disk yet.

use std::{collections::VecDeque, time::Instant};

use bytes::Bytes;

use super::Kept;

#[derive(Default)]
pub(super) struct Tail {
    /// All records below are on the disk, or archived.
    durable_to: u64,
    /// Those from there on.
    waiting: VecDeque<Bytes>,
    /// When the oldest of them came, or the last of them before it went.
    since: Option<Instant>,
    /// Offsets of the records in the log on disk, rising.
    on_disk: VecDeque<u64>,
    /// How often writing has failed; every append that waited then is in doubt.
    failures: u64,
    /// What was on the disk at the start, for the bus.
    kept: Vec<Bytes>,
}

impl Tail {
    /// The tail of a log that was archived up to `position` and holds `kept`. None: it has a hole.
    pub(super) fn resume(position: u64, kept: Kept) -> Option<Self> {
        let first = kept.first().map_or(position, |(offset, _)| *offset);
        let whole = (first..).zip(&kept).all(|(expected, (offset, _))| expected == *offset);
        let durable_to = first + kept.len() as u64;
        let on_disk = (first..durable_to).collect();
        let kept = kept.into_iter().map(|(_, bytes)| bytes).collect();
        let fits = whole && durable_to >= position;
        fits.then(|| Self { durable_to, on_disk, kept, ..Self::default() })
    }

    /// Learns what is on the disk after a write of which nobody knew whether it came there. False: there is a hole, or
    /// something is gone that was confirmed.
    pub(super) fn learn(&mut self, position: u64, kept: Kept) -> bool {
        let Some(found) = Self::resume(position, kept).filter(|it| it.durable_to >= self.durable_to) else {
            return false;
        };
        self.on_disk = found.on_disk;
        self.settle(found.durable_to);
        true
    }

    pub(super) fn take_kept(&mut self) -> (u64, Vec<Bytes>) {
        let kept = std::mem::take(&mut self.kept);
        (self.durable_to - kept.len() as u64, kept)
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

    /// Since when something waits.
    pub(super) fn since(&self) -> Option<Instant> {
        self.since
    }

    /// What waits, with its offsets.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (u64, &Bytes)> {
        (self.durable_to..).zip(&self.waiting)
    }

    /// The record at `offset`, if it waits.
    pub(super) fn at(&self, offset: u64) -> Option<&Bytes> {
        let index = usize::try_from(offset.checked_sub(self.durable_to)?).ok()?;
        self.waiting.get(index)
    }

    /// The offsets on disk that an archive up to `to` makes needless: all before its last record.
    pub(super) fn needless(&self, to: u64) -> impl Iterator<Item = u64> {
        self.on_disk.iter().copied().take_while(move |offset| offset + 1 < to)
    }

    /// Notes that the log on disk has the records up to `to`.
    pub(super) fn spilled(&mut self, to: u64) {
        self.on_disk.extend(self.durable_to..to);
        self.settle(to);
    }

    /// Notes that everything below `to` is archived; `last` = its last record went to the log on disk.
    pub(super) fn archived(&mut self, to: u64, last: bool) {
        while self.on_disk.front().is_some_and(|offset| offset + 1 < to) {
            self.on_disk.pop_front();
        }
        if last {
            self.on_disk.push_back(to - 1);
        }
        self.settle(to);
    }

    fn settle(&mut self, to: u64) {
        if to > self.durable_to {
            let count = usize::try_from(to - self.durable_to).unwrap_or(usize::MAX);
            self.waiting.drain(..count.min(self.waiting.len()));
            self.durable_to = to;
            self.since = (!self.waiting.is_empty()).then(Instant::now);
        }
    }
}
