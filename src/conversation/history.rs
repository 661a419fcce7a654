//! Pull: a page of a conversation's history, limited to what the user may see (SPEC 7).
//!
//! Pages use exclusive seq cursors, so that messages of one millisecond and concurrent arrivals are neither repeated
//! nor skipped (flaw S17). A page names recalled and expired seqs, so a page without messages always states the reason.

pub mod sent;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use prost::Message as _;
use tidegate_protocol::{
    Code,
    content::Content,
    machine::session::{Pull, Which},
    pb,
    record::{Body, Message},
};

use super::{
    entry_size::entry_bytes,
    read_position::{BeyondHead, NOT_STORED},
    reader::{Reader, Viewer},
    refusal::store_unavailable,
    seek,
    unread::{Span, View},
};
use crate::{
    delivery::push::{edit_push, event_push, recall_push},
    mail::Refusal,
    store::{Direction, Page, PageQuery, Store, StoredRow},
};

/// Approximate limits on the bytes of one page; the first entry is returned whatever its size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageBytes {
    /// Bytes of the contents of messages.
    pub(crate) content: usize,
    /// Bytes of all entries as JSON.
    pub(crate) entries: usize,
}

/// Limits of a page for a client.
const CLIENT_PAGE: PageBytes = PageBytes { content: 48 * 1024, entries: usize::MAX };

/// Part of the bytes of a page's contents that the contents of edits may take as well.
const EDITS_SHARE: usize = 4;

/// Most reads of messages whose edits are in a page. Each ends with a message that does not fit.
const EDIT_READS_MAX: usize = 4;

/// Reads the page that `reader` requests, from a store that has everything that was published.
///
/// # Errors
/// `NOT_A_MEMBER` if the user never was a member, or pulls beyond the end of the
/// membership; `NOT_YET` beyond the last seq.
pub async fn pull(store: &dyn Store, reader: &Reader, pull: &Pull) -> Result<pb::Page, Refusal> {
    pull_where(store, reader, pull, BeyondHead::Nothing).await
}

/// Reads the page that `reader` requests; `above` says what the store may lack.
///
/// # Errors
/// Those of [`pull`], but `NOT_YET` in place of `NOT_A_MEMBER` if the store may lack what made the user a member.
pub async fn pull_where(
    store: &dyn Store,
    reader: &Reader,
    pull: &Pull,
    above: BeyondHead,
) -> Result<pb::Page, Refusal> {
    let found = read(store, Viewer::User(reader), pull, CLIENT_PAGE, above).await?;
    let (page, complete_to) = match found.page {
        Some(page) => {
            // Backward from above the bound, the page names what it passes over.
            let last = page.expired.iter().map(|range| range.last).max().unwrap_or(0);
            (page, last.max(found.view.max()))
        }
        None => above_bound(&found.view, pull).ok_or_else(|| beyond(&found.view, above, found.archived))?,
    };
    Ok(pb::Page {
        conversation: pull.conversation.to_string(),
        messages: page.rows.iter().filter_map(|row| page.push_of(row)).collect(),
        recalled: page.recalled,
        expired: page.expired,
        complete_to,
    })
}

/// Answer to a pull, with the view from which it was made.
pub(crate) struct FoundPage {
    /// Page; `None` if the pull is beyond the last seq of the view.
    pub(crate) page: Option<HistoryPage>,
    /// View of the conversation.
    pub(crate) view: View,
    /// Offset below which the store had archived the partition when it was read.
    pub(crate) archived: Option<u64>,
}

/// Rows of a page, and the seqs of which the viewer gets none.
#[derive(Debug, Default)]
pub(crate) struct HistoryPage {
    /// Messages, membership changes, recalls and edits, in the direction of the page.
    pub(crate) rows: Vec<StoredRow>,
    /// Encoded contents of edited messages, by the seqs of their newest edits, as far as these are in `rows`.
    pub(crate) edits: BTreeMap<u64, Bytes>,
    /// Seqs of recalled messages.
    pub(crate) recalled: Vec<u64>,
    /// Seqs that are removed, hidden, or outside the view.
    pub(crate) expired: Vec<pb::SeqRange>,
    /// Single seqs that were requested and do not fit into the page.
    pub(crate) left: Vec<u64>,
}

/// Reads the page that `viewer` requests, within these limits.
///
/// # Errors
/// `NOT_A_MEMBER` if the user never was a member, `NOT_FOUND` or `NOT_YET` if there is no such conversation, and
/// `NOT_YET` if the store may lack what would change that.
pub(crate) async fn read(
    store: &dyn Store,
    viewer: Viewer<'_>,
    pull: &Pull,
    bytes: PageBytes,
    above: BeyondHead,
) -> Result<FoundPage, Refusal> {
    let (view, archived) = viewer.view(store, &pull.conversation, above).await?;
    let since = match pull.which {
        Which::Since(time) => Some(seek::since(store, &pull.conversation, &view, time).await?),
        _ => None,
    };
    let is_beyond = match &pull.which {
        Which::After(cursor) => *cursor >= view.max(),
        Which::Before(_) => false,
        Which::Since(_) => since.is_some_and(|first| first > view.max()),
        Which::Seqs(seqs) => seqs.iter().all(|seq| *seq > view.max()),
        Which::Around(seq) => *seq > view.max(),
    };
    if is_beyond {
        return Ok(FoundPage { page: None, view, archived });
    }
    let mut page = Paging { store, pull, bytes, page: HistoryPage::default() };
    match &pull.which {
        Which::After(cursor) => page.after(&view, *cursor, pull.limit, bytes).await?,
        Which::Before(cursor) => page.before(&view, *cursor, pull.limit, bytes).await?,
        Which::Seqs(seqs) => page.seqs(&view, seqs).await?,
        Which::Around(seq) => page.around(&view, *seq).await?,
        Which::Since(_) => {
            let cursor = since.map_or(0, |first| first.saturating_sub(1));
            page.after(&view, cursor, pull.limit, bytes).await?;
        }
    }
    page.edits(&view).await?;
    Ok(FoundPage { page: Some(page.page), view, archived })
}

/// Returns a page that names stored seqs above the bound of a member as unavailable, and the last of them; `None` if the pull asks
/// for none.
///
/// Pushes go on above the bound. With `NOT_YET` a client would wait for ever for what is missing below them.
fn above_bound(view: &View, pull: &Pull) -> Option<(HistoryPage, u64)> {
    if !view.is_in {
        return None;
    }
    let range = |first: u64, last: u64| (first <= last).then_some(pb::SeqRange { first, last });
    let expired: Vec<pb::SeqRange> = match &pull.which {
        Which::After(cursor) => range(cursor.saturating_add(1), view.end()).into_iter().collect(),
        Which::Around(seq) => range(*seq, view.end()).into_iter().collect(),
        Which::Seqs(seqs) => {
            seqs.iter().filter(|seq| **seq <= view.end()).filter_map(|seq| range(*seq, *seq)).collect()
        }
        Which::Since(_) | Which::Before(_) => Vec::new(),
    };
    let last = expired.last()?.last;
    Some((HistoryPage { expired, ..HistoryPage::default() }, last))
}

/// Returns the refusal of a pull beyond the last seq.
fn beyond(view: &View, above: BeyondHead, archived: Option<u64>) -> Refusal {
    if view.is_in {
        (Code::NotYet, "there is nothing after your position yet")
    } else if above.may_be_more(archived) {
        // The user may have been added again.
        NOT_STORED
    } else {
        (Code::NotAMember, "your membership or the group has ended, and you have everything up to then")
    }
}

/// Builder of one page.
struct Paging<'a> {
    store: &'a dyn Store,
    pull: &'a Pull,
    bytes: PageBytes,
    page: HistoryPage,
}

impl Paging<'_> {
    /// Adds entries after `cursor` from at most one of the user's ranges, and the gap before it.
    async fn after(
        &mut self,
        view: &View,
        cursor: u64,
        limit: usize,
        bytes: PageBytes,
    ) -> Result<(), Refusal> {
        let from = cursor.max(view.removed_to());
        let Some(span) = view.spans.iter().find(|span| span.last > from) else {
            self.expired(cursor + 1, view.max());
            return Ok(());
        };
        let from = from.max(span.first - 1);
        let rows = self.read(from, Direction::Forward, limit, bytes).await?;
        let mut next = cursor + 1;
        for row in rows.into_iter().filter(|row| row.row.seq <= span.last) {
            // Seqs before the first row are outside the user's ranges, or removed by retention, perhaps just now.
            let seq = row.row.seq;
            self.expired(next, seq - 1);
            self.row(view, row);
            next = seq + 1;
        }
        if next == cursor + 1 {
            self.expired(next, span.last);
        }
        Ok(())
    }

    /// Adds entries before `cursor` from at most one of the user's ranges, and the gap after it, also that above a bound. With
    /// the lowest range it also adds the gap before it.
    async fn before(
        &mut self,
        view: &View,
        cursor: u64,
        limit: usize,
        bytes: PageBytes,
    ) -> Result<(), Refusal> {
        let end = cursor.saturating_sub(1).min(view.max());
        // From its end on, the conversation is that of the bound; a pushed entry is above it.
        if view.is_bounded() && cursor < u64::MAX {
            self.expired(view.max() + 1, view.end().min(cursor.saturating_sub(1)));
        }
        let is_there = |span: &&Span| span.first <= end && span.last.min(end) > view.removed_to();
        let Some(span) = view.spans.iter().rev().find(is_there) else {
            self.expired(1, end);
            return Ok(());
        };
        let last = span.last.min(end);
        let rows = self.read(last + 1, Direction::Backward, limit, bytes).await?;
        let mut next = end;
        let first = span.first.max(view.removed_to() + 1);
        for row in rows.into_iter().filter(|row| row.row.seq >= first) {
            let seq = row.row.seq;
            self.expired(seq + 1, next);
            self.row(view, row);
            next = seq - 1;
        }
        if next < view.min() || next == end {
            self.expired(1, next);
        }
        Ok(())
    }

    /// Adds the entries before `seq`, reversed, and those from `seq` on, so that every seq in between is named.
    async fn around(&mut self, view: &View, seq: u64) -> Result<(), Refusal> {
        let PageBytes { content, entries } = self.bytes;
        let half = PageBytes { content: content / 2, entries: entries / 2 };
        self.before(view, seq, self.pull.limit, half).await?;
        self.page.rows.reverse();
        self.page.recalled.reverse();
        self.page.expired.reverse();
        let is_there = view.sees(seq) && seq > view.removed_to();
        self.after(view, seq - 1, self.pull.limit + usize::from(is_there), half).await
    }

    /// Adds single seqs, read at once. Seqs that no longer fit are left.
    async fn seqs(&mut self, view: &View, seqs: &[u64]) -> Result<(), Refusal> {
        let wanted: Vec<u64> = seqs.iter().copied().filter(|seq| *seq <= view.max()).collect();
        let shown: Vec<u64> =
            wanted.iter().copied().filter(|seq| view.shows(*seq)).take(self.pull.limit).collect();
        let found = match shown.is_empty() {
            true => Page { head: None, rows: Vec::new() },
            false => {
                let found = self.store.rows_at(&self.pull.conversation, &shown, self.bytes.content);
                found.await.map_err(store_unavailable)?
            }
        };
        // Rows have no holes, so other seqs that are missing did not fit.
        let pruned_to = found.head.map_or(u64::MAX, |head| head.pruned_to);
        let mut rows = fitting(found.rows, self.bytes.entries).into_iter().peekable();
        for seq in wanted {
            match rows.next_if(|row| row.row.seq == seq) {
                Some(row) => self.row(view, row),
                None if seq <= pruned_to || !view.shows(seq) => self.expired(seq, seq),
                None => self.page.left.push(seq),
            }
        }
        Ok(())
    }

    async fn read(
        &self,
        cursor: u64,
        direction: Direction,
        limit: usize,
        bytes: PageBytes,
    ) -> Result<Vec<StoredRow>, Refusal> {
        let query = PageQuery { cursor, direction, limit, max_bytes: bytes.content };
        let found = self.store.page(&self.pull.conversation, query).await.map_err(store_unavailable)?;
        Ok(fitting(found.rows, bytes.entries))
    }

    fn row(&mut self, view: &View, row: StoredRow) {
        let seq = row.row.seq;
        if !view.shows(seq) || !view.may_have(&row) {
            self.expired(seq, seq);
        } else if is_pushed(&row) {
            self.page.rows.push(row);
        } else if row.recalled.is_some() {
            self.page.recalled.push(seq);
        } else {
            self.expired(seq, seq);
        }
    }

    /// Adds the contents for the edits of the page: those of messages of the page, and others that are read at once. Other
    /// messages that do not fit have to be pulled.
    async fn edits(&mut self, view: &View) -> Result<(), Refusal> {
        let edited = |row: &StoredRow| match &row.row.body {
            Body::Edit(edit) if view.shows(edit.seq) => Some(edit.seq),
            _ => None,
        };
        let mut wanted: BTreeSet<u64> = self.page.rows.iter().filter_map(edited).collect();
        if wanted.is_empty() {
            return Ok(());
        }
        let shown: BTreeSet<u64> = self.page.rows.iter().map(|row| row.row.seq).collect();
        for row in &self.page.rows {
            wanted.remove(&row.row.seq);
        }
        let max = self.bytes.content / EDITS_SHARE;
        let mut left = max;
        // One that does not fit leaves its place to the others.
        let mut fitting = |row: &StoredRow| {
            let (seq, content) = newest_content(row, &shown)?;
            left = left.checked_sub(content.len())?;
            Some((seq, content))
        };
        let mut edits: BTreeMap<u64, Bytes> = self.page.rows.iter().filter_map(&mut fitting).collect();
        for _ in 0..EDIT_READS_MAX {
            if wanted.is_empty() {
                break;
            }
            let seqs: Vec<u64> = wanted.iter().copied().collect();
            let found = self.store.rows_at(&self.pull.conversation, &seqs, max).await;
            let rows = found.map_err(store_unavailable)?.rows;
            let Some(last) = rows.last().map(|row| row.row.seq) else { break };
            edits.extend(rows.iter().filter_map(&mut fitting));
            // What the read left out comes after the last row, or is removed.
            wanted = wanted.split_off(&(last + 1));
        }
        self.page.edits = edits;
        Ok(())
    }

    /// Names a range of seqs that the user can't get, merged with an adjacent range.
    fn expired(&mut self, first: u64, last: u64) {
        if first > last {
            return;
        }
        match self.page.expired.last_mut() {
            Some(range) if range.last + 1 == first => range.last = last,
            Some(range) if last + 1 == range.first => range.first = first,
            _ => self.page.expired.push(pb::SeqRange { first, last }),
        }
    }
}

impl HistoryPage {
    /// Returns a row of the page as it is pushed.
    fn push_of(&self, row: &StoredRow) -> Option<pb::Push> {
        let Body::Edit(edit) = &row.row.body else { return push_of(row) };
        let content = self.edits.get(&row.row.seq).and_then(|content| Content::decode(content.clone()).ok());
        Some(edit_push(row.row.time, edit, row.row.seq, content))
    }
}

/// Returns the seq of the newest edit of a message and the content, if the edit is among `shown`.
fn newest_content(row: &StoredRow, shown: &BTreeSet<u64>) -> Option<(u64, Bytes)> {
    let (Body::Message(message), Some((seq, _)), None) = (&row.row.body, row.edited, row.recalled) else {
        return None;
    };
    shown.contains(&seq).then(|| (seq, message.content.clone()))
}

/// Returns the first of the rows whose entries fit into these bytes, at least one.
fn fitting(mut rows: Vec<StoredRow>, max_bytes: usize) -> Vec<StoredRow> {
    let mut bytes = 0;
    let mut fits = |row: &&StoredRow| {
        let is_first = bytes == 0;
        bytes += entry_bytes(row);
        is_first || bytes <= max_bytes
    };
    let count =
        if max_bytes == usize::MAX { rows.len() } else { rows.iter().take_while(|row| fits(row)).count() };
    rows.truncate(count);
    rows
}

/// Returns whether the row has a push: it is no recalled and no transient message.
pub(super) fn is_pushed(row: &StoredRow) -> bool {
    match &row.row.body {
        Body::Message(message) => row.recalled.is_none() && !message.mode.is_transient,
        Body::Member(_) | Body::Recall(_) | Body::Edit(_) => true,
        Body::Prune(_) | Body::Rules(_) => false,
    }
}

/// Returns the row as it was pushed; `None` for a recalled or transient message. An edit has no content, which is in the row of
/// the message.
pub(crate) fn push_of(row: &StoredRow) -> Option<pb::Push> {
    match &row.row.body {
        Body::Message(message) if is_pushed(row) => Some(message_push(row, message)),
        Body::Edit(edit) => Some(edit_push(row.row.time, edit, row.row.seq, None)),
        Body::Member(change) => Some(event_push(row.row.time, change, row.row.seq)),
        Body::Recall(recall) => Some(recall_push(row.row.time, recall, row.row.seq)),
        Body::Message(_) | Body::Prune(_) | Body::Rules(_) => None,
    }
}

fn message_push(row: &StoredRow, message: &Message) -> pb::Push {
    pb::Push {
        conversation: message.conversation.to_string(),
        seq: row.row.seq,
        sender: message.sender.to_string(),
        msg_id: message.msg_id.to_string(),
        time: row.row.time,
        // The content was valid when it was sent; if it can't be decoded now, it is left out, as in a push.
        content: Content::decode(message.content.clone()).ok(),
        edited: row.edited.map(|(seq, time)| pb::Edited { seq, time }),
        flags: message.shown_flags(),
        ..Default::default()
    }
}
