//! Pull of a history from a seq on, page by page, for a comparison with what was acked and shown. Pure.

use tidegate_protocol::{
    content::{Content, ContentBody},
    pb,
};

use super::{
    judge::{Finding, Stored},
    past::Recheck,
};

/// Outcome of an audit.
#[derive(Debug)]
pub(super) struct Pulled {
    /// Entries after the base, as the broker listed them.
    pub(super) entries: Vec<Stored>,
    /// Entries at or before the base that differ from what was judged.
    pub(super) changed: Vec<Finding>,
}

/// Pulled part of a history.
#[derive(Debug)]
pub(super) struct Audit {
    base: u64,
    /// Comparison of what is at or before the base, if the pull begins there.
    recheck: Option<Recheck>,
    entries: Vec<Stored>,
    last: u64,
    is_complete: bool,
}

impl Audit {
    /// Creates an audit of what follows `base`, and with a recheck of what is before it, too.
    pub(super) fn new(base: u64, recheck: Option<Recheck>) -> Self {
        let last = recheck.as_ref().map_or(base, Recheck::base).min(base);
        Self { base, recheck, entries: Vec::new(), last, is_complete: false }
    }

    /// Returns the cursor of the next page.
    pub(super) const fn cursor(&self) -> u64 {
        self.last
    }

    /// Returns whether the last page has arrived.
    pub(super) const fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Returns what was pulled.
    pub(super) fn into_pulled(self) -> Pulled {
        Pulled { entries: self.entries, changed: self.recheck.map(Recheck::end).unwrap_or_default() }
    }

    /// Begins again, unless it is complete: the connection of the pending page has ended.
    pub(super) fn restart(&mut self) {
        if !self.is_complete {
            let mut recheck = self.recheck.take();
            recheck.iter_mut().for_each(Recheck::restart);
            *self = Self::new(self.base, recheck);
        }
    }

    /// Adds a page.
    pub(super) fn add(&mut self, page: pb::Page) {
        let is_mixed = !(page.recalled.is_empty() && page.expired.is_empty());
        let stored = |push: pb::Push| {
            let message = text_of(push.content).map(|text| (push.msg_id, text));
            Stored { seq: push.seq, message }
        };
        let mut entries: Vec<Stored> = page.messages.into_iter().map(stored).collect();
        let ranges = page.expired.iter().flat_map(|range| range.first..=range.last.min(page.complete_to));
        let without_content = page.recalled.iter().copied().chain(ranges);
        entries.extend(without_content.map(|seq| Stored { seq, message: None }));
        if is_mixed {
            // The three lists of a page are ascending, each by itself.
            entries.sort_by_key(|entry| entry.seq);
        }
        let last = entries.iter().map(|entry| entry.seq).max();
        self.is_complete = last.is_none_or(|last| last >= page.complete_to || last <= self.last);
        self.last = last.unwrap_or(self.last);
        for entry in entries {
            match &mut self.recheck {
                Some(recheck) if entry.seq <= self.base => recheck.add(&entry),
                _ => self.entries.push(entry),
            }
        }
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
