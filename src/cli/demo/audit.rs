//! Pull of a history from a seq on, page by page, for a comparison with what was acked and shown. Pure.

use tidegate_protocol::{
    content::{Content, ContentBody},
    pb,
};

use super::judge::Stored;

/// Pulled part of a history.
#[derive(Debug)]
pub(super) struct Audit {
    base: u64,
    entries: Vec<Stored>,
    last: u64,
    is_complete: bool,
}

impl Audit {
    /// Creates an audit of what follows `base`.
    pub(super) const fn new(base: u64) -> Self {
        Self { base, entries: Vec::new(), last: base, is_complete: false }
    }

    /// Returns the cursor of the next page.
    pub(super) const fn cursor(&self) -> u64 {
        self.last
    }

    /// Returns whether the last page has arrived.
    pub(super) const fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Returns the entries, as the broker listed them.
    pub(super) fn into_entries(self) -> Vec<Stored> {
        self.entries
    }

    /// Begins again, unless it is complete: the connection of the pending page has ended.
    pub(super) fn restart(&mut self) {
        if !self.is_complete {
            *self = Self::new(self.base);
        }
    }

    /// Adds a page.
    pub(super) fn add(&mut self, page: pb::Page) {
        let begin = self.entries.len();
        let is_mixed = !(page.recalled.is_empty() && page.expired.is_empty());
        self.entries.extend(page.messages.into_iter().map(|push| {
            let message = text_of(push.content).map(|text| (push.msg_id, text));
            Stored { seq: push.seq, message }
        }));
        let ranges = page.expired.iter().flat_map(|range| range.first..=range.last.min(page.complete_to));
        let without_content = page.recalled.iter().copied().chain(ranges);
        self.entries.extend(without_content.map(|seq| Stored { seq, message: None }));
        if is_mixed {
            // The three lists of a page are ascending, each by itself.
            self.entries[begin..].sort_by_key(|entry| entry.seq);
        }
        let last = self.entries[begin..].iter().map(|entry| entry.seq).max();
        self.is_complete = last.is_none_or(|last| last >= page.complete_to || last <= self.last);
        self.last = last.unwrap_or(self.last);
    }

    /// Notes that nothing follows.
    pub(super) const fn end(&mut self) {
        self.is_complete = true;
    }
}

/// Returns the text of a content.
pub(super) fn text_of(content: Option<Content>) -> Option<String> {
    match content?.body? {
        ContentBody::Text(text) => Some(text),
        ContentBody::Data(_) => None,
    }
}
