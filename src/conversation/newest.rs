//! Newest messages of a user over all conversations: one stream for each conversation, from its end downwards, merged by time.
//!
//! A stream has the rows that the user may see. A row counts as no newer than the row above it, so that the order of a
//! conversation stays that of its seqs whatever clocks do. A page continues in each stream at the highest row that is older
//! than the last row of the page before: an earlier page has returned a row if and only if no row at or above it is older.
//! So no row that existed before the first page is skipped.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    time::Duration,
};

use tidegate_protocol::{
    id::{ConversationId, UserId},
    record::Body,
};
use tokio::time::Instant;

use super::{
    entry_size::entry_bytes,
    history::is_pushed,
    overview::{Listed, Memberships, all, times},
    reader::Reader,
    refusal::store_unavailable,
    unread::counts_as_unread,
};
use crate::{
    mail::Refusal,
    store::{ConversationSeq, Direction, PageQuery, Store, StoredRow},
};

/// Most messages on all pages together. Older ones are read conversation by conversation.
pub const NEWEST_MAX: usize = 1_000;

/// Most rows, bytes, calls and time that one page takes; it is returned as far as it is then.
const ROWS_MAX: usize = 4_096;
const BYTES_READ_MAX: usize = 8 << 20;
const CALLS_MAX: usize = 64;
const TIME_MAX: Duration = Duration::from_secs(2);

/// Most rows whose times are read to continue after a page. A stream whose next row is not found by then is left out.
const PROBES_MAX: usize = 16_384;

/// Rows whose times are read in one call, of all streams and of one.
const PROBES_PER_CALL: usize = 1_024;
const STREAM_PROBES: usize = 256;

/// Streams of which rows are read in advance in one call, and their rows and bytes.
const STREAMS_AHEAD: usize = 64;
const FIRST_ROWS: usize = 8;
const FIRST_BYTES: usize = 16 * 1024;

/// Rows that are read at once of a stream that continues; they double each time.
const NEXT_ROWS: usize = 16;
const NEXT_ROWS_MAX: usize = 256;
const NEXT_BYTES: usize = 128 * 1024;

/// Last row of the page before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewestPosition {
    /// Time by which the row was merged.
    pub time: u64,
    /// Conversation of the row.
    pub conversation: ConversationId,
    /// Seq of the row.
    pub seq: u64,
    /// Messages on this page and all before.
    pub count: usize,
}

/// Request for a page.
#[derive(Clone, Copy, Debug)]
pub struct NewestRequest {
    /// Most messages.
    pub limit: usize,
    /// Approximate limit on the bytes of content.
    pub max_bytes: usize,
    /// Whether to return only messages that count as unread.
    pub only_unread: bool,
}

/// Page of messages.
#[derive(Debug)]
pub struct NewestPage {
    /// Messages, the newest first.
    pub rows: Vec<StoredRow>,
    /// Position to continue after, if there are more messages and [`NEWEST_MAX`] is not reached.
    pub next: Option<NewestPosition>,
    /// Whether some conversations are left out: the user has very many, or very much was sent in them since the page before.
    pub is_cut: bool,
}

/// Rows of one conversation that are not returned yet.
struct Stream {
    listed: Listed,
    /// Seq up to which no row is returned.
    floor: u64,
    /// Next rows, the newest first; more may follow.
    rows: VecDeque<StoredRow>,
    /// Seq of the next row.
    seq: u64,
    /// Time of the next row, at most that of the rows above.
    time: u64,
    rows_at_once: usize,
    /// Whether its first rows were read in advance.
    is_ahead: bool,
}

impl Stream {
    /// Returns the seq of the next row below `seq`.
    fn below(&self, seq: u64) -> Option<u64> {
        self.listed.view.below(seq).filter(|found| *found > self.floor)
    }

    fn conversation(&self) -> &ConversationId {
        &self.listed.membership.conversation
    }

    /// Returns whether a row is a message to return.
    fn returns(&self, row: &StoredRow, user: &UserId, only_unread: bool) -> bool {
        let Body::Message(message) = &row.row.body else { return false };
        let view = &self.listed.view;
        let is_shown = view.shows(row.row.seq) && view.may_have(row) && is_pushed(row);
        is_shown && (!only_unread || (counts_as_unread(message, user) && view.was_in(row.row.ordinal)))
    }

    /// Moves to the row below the present one, if it is among the rows that were read. Returns its seq.
    fn advance(&mut self) -> Option<u64> {
        let next = self.below(self.seq)?;
        while self.rows.front().is_some_and(|row| row.row.seq > next) {
            self.rows.pop_front();
        }
        self.seq = next;
        if let Some(row) = self.rows.front() {
            self.time = self.time.min(row.row.time);
        }
        Some(next)
    }

    /// Reads rows from the present one on.
    async fn read(&mut self, store: &dyn Store) -> Result<(), Refusal> {
        let (cursor, limit) = (self.seq.saturating_add(1), self.rows_at_once);
        let query = PageQuery { cursor, direction: Direction::Backward, limit, max_bytes: NEXT_BYTES };
        let page = store.page(self.conversation(), query).await.map_err(store_unavailable)?;
        self.rows_at_once = (self.rows_at_once * 2).min(NEXT_ROWS_MAX);
        self.rows = page.rows.into();
        Ok(())
    }
}

/// Reads a page of the user's newest messages.
///
/// # Errors
/// `STORE_UNAVAILABLE` if the store can't be read.
pub async fn newest(
    store: &dyn Store,
    reader: &Reader,
    after: Option<&NewestPosition>,
    request: NewestRequest,
) -> Result<NewestPage, Refusal> {
    let before = after.map_or(0, |after| after.count);
    let limit = request.limit.min(NEWEST_MAX.saturating_sub(before));
    let Memberships { listed, is_cut } = all(store, reader).await?;
    let mut merge = Merge {
        store,
        user: &reader.user,
        request,
        streams: streams(listed, request.only_unread),
        heap: BinaryHeap::new(),
        spent: Spent { until: Instant::now() + TIME_MAX, rows: 0, bytes: 0, calls: 0 },
        bytes: 0,
        last: None,
        rows: Vec::new(),
    };
    let is_whole = merge.start(after).await?;
    merge.read_ahead(limit).await?;
    let has_more = merge.run(limit).await?;
    let count = before + merge.rows.len();
    let next = merge.last.take().filter(|_| has_more && count < NEWEST_MAX);
    Ok(NewestPage {
        next: next.map(|it| NewestPosition { count, ..it }),
        rows: merge.rows,
        is_cut: is_cut || !is_whole,
    })
}

/// Returns the streams, sorted by conversation.
fn streams(listed: Vec<Listed>, only_unread: bool) -> Vec<Stream> {
    let stream = |listed: Listed| {
        let floor = if only_unread { listed.view.user_state().floor().seq } else { 0 };
        Stream {
            listed,
            floor,
            rows: VecDeque::new(),
            seq: 0,
            time: 0,
            rows_at_once: NEXT_ROWS,
            is_ahead: false,
        }
    };
    let is_wanted = |it: &Listed| !only_unread || it.unread > 0;
    listed.into_iter().filter(is_wanted).map(stream).collect()
}

/// Search of the row at which a stream continues.
struct Start {
    stream: usize,
    /// Next row to test.
    seq: u64,
    /// Rows at this time or later were returned.
    before: u64,
}

/// What a page has taken so far.
struct Spent {
    until: Instant,
    rows: usize,
    bytes: usize,
    calls: usize,
}

impl Spent {
    fn add<'a>(&mut self, rows: impl IntoIterator<Item = &'a StoredRow>) {
        for row in rows {
            self.rows += 1;
            self.bytes += entry_bytes(row);
        }
    }

    fn is_all(&self) -> bool {
        let is_read = self.rows >= ROWS_MAX || self.bytes >= BYTES_READ_MAX || self.calls >= CALLS_MAX;
        is_read || Instant::now() >= self.until
    }
}

/// Merge of the streams of a user.
struct Merge<'a> {
    store: &'a dyn Store,
    user: &'a UserId,
    request: NewestRequest,
    streams: Vec<Stream>,
    /// Streams with a next row, by its time; among equals, the first stream is on top.
    heap: BinaryHeap<(u64, Reverse<usize>)>,
    spent: Spent,
    /// Bytes of the rows of the page.
    bytes: usize,
    /// Last row that was merged.
    last: Option<NewestPosition>,
    rows: Vec<StoredRow>,
}

impl Merge<'_> {
    /// Finds the first row of each stream. Returns whether it found those of all.
    async fn start(&mut self, after: Option<&NewestPosition>) -> Result<bool, Refusal> {
        let start = |(nth, stream): (usize, &Stream)| {
            let (top, before) = match after {
                None => (u64::MAX, u64::MAX),
                // Whatever its time, the next row of that conversation is the one below.
                Some(after) if *stream.conversation() == after.conversation => (after.seq, u64::MAX),
                // Among rows of one time, those of the first conversations were returned.
                Some(after) if *stream.conversation() < after.conversation => (u64::MAX, after.time),
                Some(after) => (u64::MAX, after.time.saturating_add(1)),
            };
            Some(Start { stream: nth, seq: stream.below(top)?, before })
        };
        let mut open: Vec<Start> = self.streams.iter().enumerate().filter_map(start).collect();
        let (mut at_once, mut probed) = (1, 0);
        while !open.is_empty() {
            if probed > PROBES_MAX {
                return Ok(false);
            }
            let mut probes = Vec::new();
            let mut counts = Vec::with_capacity(open.len());
            for it in &open {
                let Some(stream) = self.streams.get(it.stream) else { continue };
                let seqs = std::iter::successors(Some(it.seq), |seq| stream.below(*seq));
                let conversation = stream.conversation();
                let probe = |seq| ConversationSeq { conversation: conversation.clone(), seq };
                let first = probes.len();
                probes.extend(seqs.take(at_once).map(probe));
                counts.push(probes.len() - first);
            }
            let found = times(self.store, &probes).await?;
            // The newest row of each stream costs the same on every page.
            probed += if at_once > 1 { probes.len() } else { 0 };
            let mut tested = probes.iter().zip(found);
            let mut left = Vec::new();
            for (it, count) in open.into_iter().zip(counts) {
                let of_stream: Vec<(u64, Option<u64>)> =
                    tested.by_ref().take(count).map(|(probe, time)| (probe.seq, time)).collect();
                left.extend(self.begin(it, &of_stream, after));
            }
            open = left;
            at_once = (PROBES_PER_CALL / open.len().max(1)).clamp(1, STREAM_PROBES);
            // Streams that are not at their newest row are few, or the bound is reached soon.
            at_once = at_once.max(2);
        }
        Ok(true)
    }

    /// Begins a stream at the first of these rows that was not returned; otherwise returns where the search continues.
    fn begin(
        &mut self,
        start: Start,
        rows: &[(u64, Option<u64>)],
        after: Option<&NewestPosition>,
    ) -> Option<Start> {
        let stream = self.streams.get_mut(start.stream)?;
        for (seq, time) in rows {
            // Without a time, retention has removed the row, and those below.
            let time = (*time)?;
            if time < start.before {
                let is_same = after.filter(|after| after.conversation == *stream.conversation());
                stream.seq = *seq;
                stream.time = is_same.map_or(time, |after| time.min(after.time));
                self.heap.push((stream.time, Reverse(start.stream)));
                return None;
            }
        }
        let seq = rows.last().and_then(|(seq, _)| stream.below(*seq))?;
        Some(Start { seq, ..start })
    }

    /// Reads the first rows of up to `count` of the streams that come first and have none, in one call.
    async fn read_ahead(&mut self, count: usize) -> Result<(), Refusal> {
        let mut first: Vec<(u64, Reverse<usize>)> = self.heap.iter().copied().collect();
        first.sort_unstable_by(|one, other| other.cmp(one));
        let is_new = |(_, Reverse(nth)): &(u64, Reverse<usize>)| {
            self.streams.get(*nth).is_some_and(|stream| !stream.is_ahead).then_some(*nth)
        };
        let first: Vec<usize> = first.iter().filter_map(is_new).take(count).collect();
        let of = |nth: &usize| {
            let stream = self.streams.get(*nth)?;
            let seq = stream.seq.saturating_add(1);
            Some(ConversationSeq { conversation: stream.conversation().clone(), seq })
        };
        let ends: Vec<ConversationSeq> = first.iter().filter_map(of).collect();
        let found = self.store.newest(&ends, FIRST_ROWS, FIRST_BYTES).await.map_err(store_unavailable)?;
        self.spent.calls += 1;
        for (nth, rows) in first.into_iter().zip(found) {
            self.spent.add(&rows);
            if let Some(stream) = self.streams.get_mut(nth) {
                stream.rows = rows.into();
                stream.is_ahead = true;
            }
        }
        Ok(())
    }

    /// Merges rows until the page is full. Returns whether there may be more.
    async fn run(&mut self, limit: usize) -> Result<bool, Refusal> {
        while self.rows.len() < limit && self.bytes < self.request.max_bytes {
            let Some((_, Reverse(nth))) = self.heap.peek().copied() else { return Ok(false) };
            // Each page merges a row, so that the next one begins after it.
            if self.last.is_some() && self.spent.is_all() {
                break;
            }
            if self.streams.get(nth).is_some_and(|stream| !stream.is_ahead) {
                self.read_ahead(STREAMS_AHEAD).await?;
            }
            self.heap.pop();
            self.merge(nth).await?;
        }
        Ok(!self.heap.is_empty())
    }

    /// Merges the next row of a stream.
    async fn merge(&mut self, nth: usize) -> Result<(), Refusal> {
        let Some(stream) = self.streams.get_mut(nth) else { return Ok(()) };
        if stream.rows.front().is_none_or(|row| row.row.seq != stream.seq) {
            stream.read(self.store).await?;
            self.spent.add(&stream.rows);
            self.spent.calls += 1;
        }
        // A row that is not there was removed by retention just now, and so were those below.
        let Some(row) = stream.rows.front().filter(|row| row.row.seq == stream.seq) else { return Ok(()) };
        if stream.returns(row, self.user, self.request.only_unread) {
            self.bytes += entry_bytes(row);
            self.rows.push(row.clone());
        }
        let (time, conversation, seq) = (stream.time, stream.conversation().clone(), stream.seq);
        self.last = Some(NewestPosition { time, conversation, seq, count: 0 });
        if stream.advance().is_none() {
            return Ok(());
        }
        if stream.rows.is_empty() {
            stream.read(self.store).await?;
            self.spent.add(&stream.rows);
            self.spent.calls += 1;
            let Some(row) = stream.rows.front() else { return Ok(()) };
            stream.time = stream.time.min(row.row.time);
        }
        self.heap.push((stream.time, Reverse(nth)));
        Ok(())
    }
}
