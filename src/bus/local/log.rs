//! One partition of the in-memory log.

use std::collections::VecDeque;

use bytes::Bytes;

use super::super::{AppendError, Appended, Batch, Bounds, LogRecord, ReadError, TopicId};

pub(super) struct Log {
    topic: TopicId,
    max_records: usize,
    max_bytes: usize,
    /// Offset of the first retained record.
    first: u64,
    records: VecDeque<Bytes>,
    bytes: usize,
    pub(super) owned: bool,
    pub(super) closed: bool,
}

impl Log {
    pub(super) fn new(topic: TopicId, max_records: usize, max_bytes: usize) -> Self {
        let records = VecDeque::new();
        Self { topic, max_records, max_bytes, first: 0, records, bytes: 0, owned: false, closed: false }
    }

    /// Replaces the records by existing ones, of which the first has the offset `first`.
    pub(super) fn starting_with(mut self, first: u64, records: Vec<Bytes>) -> Self {
        self.first = first;
        self.bytes = records.iter().map(Bytes::len).sum();
        self.records = records.into();
        self
    }

    fn next(&self) -> u64 {
        self.first + self.records.len() as u64
    }

    /// Returns whether the log is over half full: records in flight still fit, but new sends should be refused.
    pub(super) fn is_over_half_full(&self) -> bool {
        self.records.len() > self.max_records / 2 || self.bytes > self.max_bytes / 2
    }

    pub(super) fn bounds(&self) -> Bounds {
        Bounds { topic: self.topic, first: self.first, next: self.next() }
    }

    pub(super) fn append(&mut self, records: Vec<Bytes>) -> Result<Appended, AppendError> {
        let bytes: usize = records.iter().map(Bytes::len).sum();
        let refusal = if self.closed {
            "the bus is closed; connect to another node"
        } else if records.is_empty() {
            "empty batch; append at least one record"
        } else if records.len() > self.max_records / 2 || bytes > self.max_bytes / 2 {
            // Trimming keeps the last record, so a larger batch might never fit.
            "batch exceeds half of the log's capacity; append it in parts, or raise the limit"
        } else if self.records.len() + records.len() > self.max_records || self.bytes + bytes > self.max_bytes
        {
            return Err(AppendError::Unavailable("log is full until more is archived".to_owned()));
        } else {
            let appended = Appended { first: self.next(), last: self.next() + records.len() as u64 - 1 };
            self.bytes += bytes;
            self.records.extend(records);
            return Ok(appended);
        };
        Err(AppendError::Rejected(refusal.to_owned()))
    }

    /// Reads from `from` on; `None` if there is no record yet.
    pub(super) fn read(
        &self,
        from: u64,
        max_records: usize,
        max_bytes: usize,
    ) -> Result<Option<Batch>, ReadError> {
        if self.closed {
            return Err(ReadError::Unavailable("the bus is closed".to_owned()));
        }
        if !self.owned {
            return Err(ReadError::NotOwner);
        }
        let bounds = self.bounds();
        if from < bounds.first || from > bounds.next {
            return Err(ReadError::OutOfRange(bounds));
        }
        let skipped = usize::try_from(from - bounds.first).expect("no more than the records in memory");
        let mut records = Vec::new();
        let mut bytes = 0;
        for (offset, record) in (from..).zip(self.records.range(skipped..)) {
            bytes += record.len();
            if !records.is_empty() && (records.len() >= max_records || bytes > max_bytes) {
                break;
            }
            records.push(LogRecord { offset, bytes: record.clone() });
        }
        Ok((!records.is_empty()).then_some(Batch { bounds, records }))
    }

    pub(super) fn trim(&mut self, archived: u64) {
        let keep_from = archived.min(self.next()).saturating_sub(1);
        while self.first < keep_from {
            let Some(record) = self.records.pop_front() else { break };
            self.bytes -= record.len();
            self.first += 1;
        }
    }
}
