//! Encoding of one batch of the feed, the same in all stores, and pages of such batches.
//!
//! Format 1: the byte 1; the number of conversations, each as length and text; the number of entries, each as (index of the
//! conversation × 16 + kind), seq and time. Seqs are the difference from the conversation's entry before, times from the
//! entry before; both are zigzag encoded. All numbers are varints.

use std::{collections::HashMap, ops::RangeInclusive};

use prost::encoding::{decode_varint, encode_varint};
use tidegate_protocol::{id::ConversationId, machine::ledger::Delta};

use super::{FEED_PAGE_MAX, FeedBounds, FeedEntry, FeedKind, FeedLimits, FeedPage, FeedRead, StoreError};

/// First byte of a batch.
const FORMAT: u8 = 1;

/// Kinds that fit into the number of an entry, in bits.
const KIND_BITS: u32 = 4;

/// Approximate bytes of an entry in memory, without the id of its conversation.
const ENTRY_BYTES: usize = 64;

/// Stored batch that can't be read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DamagedFeed;

impl From<DamagedFeed> for StoreError {
    fn from(_: DamagedFeed) -> Self {
        Self::Damaged("a batch of the feed".to_owned())
    }
}

/// Entries of one archived batch, as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EncodedBatch {
    /// Number of entries.
    pub(crate) count: u64,
    /// Latest receive time of an entry, in ms since 1970.
    pub(crate) time: u64,
    /// Encoded entries.
    pub(crate) bytes: Vec<u8>,
}

/// Stored batch, with the number of its last entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FeedRow<B> {
    pub(crate) last: u64,
    pub(crate) entries: B,
}

/// Counters of a partition's feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FeedState {
    /// Number of the newest entry.
    pub(crate) newest: u64,
    /// Lowest number that retention has kept.
    pub(crate) oldest: u64,
    /// Bytes of all batches ever written.
    pub(crate) bytes: u64,
    /// Bytes of the batches that were removed.
    pub(crate) removed_bytes: u64,
    /// Log offset up to which the records have numbers; `None` before the first archive.
    pub(crate) offset: Option<u64>,
}

impl Default for FeedState {
    fn default() -> Self {
        Self { newest: 0, oldest: 1, bytes: 0, removed_bytes: 0, offset: None }
    }
}

impl FeedState {
    /// Returns the state after an archive of the batch. A number without an entry stands for records that were archived
    /// without numbers before it.
    pub(crate) fn after(self, delta: &Delta, count: u64, bytes: u64) -> Self {
        let is_interrupted = self.offset.is_some_and(|offset| offset != delta.from.offset);
        Self {
            newest: self.newest + u64::from(is_interrupted) + count,
            bytes: self.bytes + bytes,
            offset: Some(delta.to.offset),
            ..self
        }
    }
}

/// Returns whether retention removes a batch that was written when the partition's feed had `bytes_end` bytes in all.
pub(crate) fn is_expired(time: u64, bytes_end: u64, len: u64, state_bytes: u64, bounds: FeedBounds) -> bool {
    let kept = (state_bytes + len).saturating_sub(bytes_end);
    time < bounds.before_ms || kept > bounds.bytes_max
}

const fn zigzag(from: u64, to: u64) -> u64 {
    let change = to.wrapping_sub(from).cast_signed();
    ((change << 1) ^ (change >> 63)).cast_unsigned()
}

const fn unzigzag(from: u64, coded: u64) -> u64 {
    from.wrapping_add((coded >> 1) ^ (coded & 1).wrapping_neg())
}

impl EncodedBatch {
    /// Returns the number of entries of a delta, without encoding them.
    pub(crate) fn count(delta: &Delta) -> u64 {
        let rows = delta.rows.iter().filter(|row| FeedKind::of(&row.body).is_some()).count();
        (rows + delta.pruned.len()) as u64
    }

    /// Encodes the entries of a delta, in log order; `None` if it has none.
    pub(crate) fn of(delta: &Delta) -> Option<Self> {
        let mut writer = BatchWriter::default();
        let mut pruned = delta.pruned.iter().peekable();
        for row in &delta.rows {
            let (Some(id), Some(kind)) = (row.body.conversation(), FeedKind::of(&row.body)) else { continue };
            while let Some(it) = pruned.next_if(|it| it.offset < row.offset) {
                writer.push(&it.conversation, FeedKind::Prune, it.up_to, it.time);
            }
            writer.push(id, kind, row.seq, row.time);
        }
        pruned.for_each(|it| writer.push(&it.conversation, FeedKind::Prune, it.up_to, it.time));
        writer.finish()
    }
}

#[derive(Default)]
struct BatchWriter<'a> {
    /// Index and last seq of each conversation.
    conversations: HashMap<&'a ConversationId, (u64, u64)>,
    names: Vec<u8>,
    entries: Vec<u8>,
    count: u64,
    last_time: u64,
    latest: u64,
}

impl<'a> BatchWriter<'a> {
    fn push(&mut self, id: &'a ConversationId, kind: FeedKind, seq: u64, time: u64) {
        let next = self.conversations.len() as u64;
        let names = &mut self.names;
        let known = self.conversations.entry(id).or_insert_with(|| {
            encode_varint(id.as_str().len() as u64, names);
            names.extend_from_slice(id.as_str().as_bytes());
            (next, 0)
        });
        encode_varint(known.0 << KIND_BITS | u64::from(kind.number()), &mut self.entries);
        encode_varint(zigzag(known.1, seq), &mut self.entries);
        encode_varint(zigzag(self.last_time, time), &mut self.entries);
        known.1 = seq;
        self.last_time = time;
        self.latest = self.latest.max(time);
        self.count += 1;
    }

    fn finish(self) -> Option<EncodedBatch> {
        let Self { conversations, names, entries, count, latest, .. } = self;
        if count == 0 {
            return None;
        }
        let mut bytes = Vec::with_capacity(names.len() + entries.len() + 8);
        bytes.push(FORMAT);
        encode_varint(conversations.len() as u64, &mut bytes);
        bytes.extend_from_slice(&names);
        encode_varint(count, &mut bytes);
        bytes.extend_from_slice(&entries);
        Some(EncodedBatch { count, time: latest, bytes })
    }
}

/// Reader of the entries of a batch, in order.
struct BatchReader<'a> {
    conversations: Vec<(ConversationId, u64)>,
    left: u64,
    rest: &'a [u8],
    time: u64,
    number: u64,
}

fn int(rest: &mut &[u8]) -> Result<u64, DamagedFeed> {
    decode_varint(rest).map_err(|_| DamagedFeed)
}

fn text<'a>(rest: &mut &'a [u8]) -> Result<&'a str, DamagedFeed> {
    let length = usize::try_from(int(rest)?).map_err(|_| DamagedFeed)?;
    let (text, left) = rest.split_at_checked(length).ok_or(DamagedFeed)?;
    *rest = left;
    std::str::from_utf8(text).map_err(|_| DamagedFeed)
}

impl<'a> BatchReader<'a> {
    fn new(last: u64, bytes: &'a [u8]) -> Result<Self, DamagedFeed> {
        let (format, mut rest) = bytes.split_first().ok_or(DamagedFeed)?;
        if *format != FORMAT {
            return Err(DamagedFeed);
        }
        let mut conversations = Vec::new();
        for _ in 0..int(&mut rest)? {
            let id = ConversationId::parse(text(&mut rest)?).map_err(|_| DamagedFeed)?;
            conversations.push((id, 0));
        }
        let left = int(&mut rest)?;
        let number = last.checked_sub(left).ok_or(DamagedFeed)? + 1;
        Ok(Self { conversations, left, rest, time: 0, number })
    }

    /// Returns the number of the next entry.
    const fn number(&self) -> u64 {
        self.number
    }
}

impl Iterator for BatchReader<'_> {
    type Item = Result<FeedEntry, DamagedFeed>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        Some(self.entry())
    }
}

impl BatchReader<'_> {
    fn entry(&mut self) -> Result<FeedEntry, DamagedFeed> {
        let named = int(&mut self.rest)?;
        let index = usize::try_from(named >> KIND_BITS).map_err(|_| DamagedFeed)?;
        let kind = FeedKind::from_number((named & ((1 << KIND_BITS) - 1)) as u8);
        let (seq, time) = (int(&mut self.rest)?, int(&mut self.rest)?);
        let (conversation, last_seq) = self.conversations.get_mut(index).ok_or(DamagedFeed)?;
        *last_seq = unzigzag(*last_seq, seq);
        self.time = unzigzag(self.time, time);
        let number = self.number;
        self.number += 1;
        Ok(FeedEntry { number, conversation: conversation.clone(), seq: *last_seq, kind, time: self.time })
    }
}

/// Returns what a reader of the entries after `after` gets, from the numbers that are kept and the batches that end above
/// it, in order. `rows` must have at least one batch, if there is one.
pub(crate) fn page<E: From<DamagedFeed>, B: AsRef<[u8]>>(
    after: u64,
    kept: RangeInclusive<u64>,
    limits: FeedLimits,
    rows: impl Iterator<Item = Result<FeedRow<B>, E>>,
) -> Result<FeedRead, E> {
    let (oldest, newest) = kept.into_inner();
    if after > newest {
        return Ok(FeedRead::Ahead(newest));
    }
    let next = after.saturating_add(1);
    let mut page = FeedPage { entries: Vec::new(), oldest, newest };
    let (mut bytes, entries_max) = (0, limits.entries.clamp(1, FEED_PAGE_MAX));
    if after == newest {
        return Ok(FeedRead::Page(page));
    }
    'rows: for row in rows {
        let FeedRow { last, entries } = row?;
        let batch = BatchReader::new(last, entries.as_ref())?;
        let expected = page.entries.last().map_or(next, |it: &FeedEntry| it.number + 1);
        if batch.number() > expected {
            if page.entries.is_empty() {
                return Ok(FeedRead::Missing(next..=batch.number() - 1));
            }
            break;
        }
        for entry in batch {
            let entry = entry?;
            if entry.number < expected {
                continue;
            }
            bytes += ENTRY_BYTES + entry.conversation.as_str().len();
            if page.entries.len() == entries_max || !page.entries.is_empty() && bytes > limits.bytes {
                break 'rows;
            }
            page.entries.push(entry);
        }
    }
    Ok(if page.entries.is_empty() { FeedRead::Missing(next..=newest) } else { FeedRead::Page(page) })
}

#[cfg(test)]
mod tests;
