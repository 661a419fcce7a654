//! What a user has of the conversation of a notice: whether a message waits that the user may see, and which one is the newest.
//!
//! Notices are made without regard to the bound of what a user can read, which may move until one is decided. If messages
//! above the bound are among those of a notice, the newest entries within the bound are read, a bounded number of them.

use std::ops::RangeInclusive;

use tidegate_protocol::{
    machine::waiting::{MentionSeqs, WaitingMessage, WaitingNotice},
    settings::Push,
};

use super::recipients::{NoticedMessage, Recipients, noticed, push_preference};
use crate::{
    conversation::{reader::Reader, unread::View},
    store::{Direction, PageQuery, StoreError, StoredRow, Summary},
};

/// Most entries that are read for a notice.
pub(super) const ENTRIES_MAX: u64 = 256;

/// Most bytes of their content, unless the newest entry alone has more.
const CONTENT_BYTES_MAX: usize = 256 * 1024;

/// What a user has of the conversation of a notice.
pub(super) enum Standing {
    /// The store could not be read.
    Unknown,
    /// Nothing waits, or the user wants no notice.
    Settled,
    /// A message waits.
    Waits(Unread),
}

/// Unread messages of the conversation of a notice.
pub(super) struct Unread {
    /// Notice, about the newest message that the user may see.
    pub(super) notice: WaitingNotice,
    pub(super) count: u64,
    /// Whether one of those of the notice mentions the user.
    pub(super) is_mentioned: bool,
    /// Highest seq that the user may see.
    pub(super) max: u64,
    /// Seq up to which a device must have acked for nothing to wait.
    pub(super) acked: u64,
}

/// Question what a user has of the conversation of a notice.
pub(super) struct StandingQuery<'a> {
    pub(super) recipients: &'a Recipients<'a>,
    pub(super) reader: &'a Reader,
    /// Preference of the user for push notices of all conversations.
    pub(super) push: Option<Push>,
    pub(super) notice: &'a WaitingNotice,
}

/// Messages for the user among the newest entries of a range.
struct Found {
    newest: Option<WaitingMessage>,
    count: u64,
    is_mentioned: bool,
    /// Lowest seq that was read.
    from: u64,
}

impl StandingQuery<'_> {
    /// Returns what the user has, as this summary of the conversation shows it.
    pub(super) async fn run(&self, summary: Option<Summary>) -> Result<Standing, StoreError> {
        // The store fell back to a state without the conversation.
        let Some(summary) = summary else { return Ok(Standing::Unknown) };
        // Or without the message, which its owner decides again.
        if summary.head.last_seq < self.notice.newest.seq {
            return Ok(Standing::Unknown);
        }
        let Some(member_view) = summary.member_view else { return Ok(Standing::Settled) };
        let conversation = &self.notice.newest.conversation;
        let view = View::new(conversation, &summary.head, &member_view);
        let preference = push_preference(&view, &summary.head.settings, self.push);
        let is_cut = view.is_bounded() && self.notice.newest.seq > view.max();
        let may_wait = match is_cut {
            true => self.notice.oldest.seq <= view.max(),
            false => waits(&view, self.notice.newest.seq),
        };
        if !view.is_in || view.unread() == 0 || !may_wait || !preference.wants(true) {
            return Ok(Standing::Settled);
        }
        let unread = match is_cut {
            true => self.below_bound(&view, summary.members).await?,
            false => Some(self.without_cut(&view, summary.members).await?),
        };
        Ok(match unread {
            Some(unread) if preference.wants(unread.is_mentioned) => Standing::Waits(unread),
            _ => Standing::Settled,
        })
    }

    /// Returns what waits if the user may see the newest message.
    async fn without_cut(&self, view: &View, members: u64) -> Result<Unread, StoreError> {
        let mut is_mentioned = self.is_known_mention(view);
        // The user has read or hidden the first and the last one. There may be another between them.
        if let Some(MentionSeqs { oldest, newest }) = self.notice.mentioned.filter(|_| !is_mentioned) {
            let between = oldest.max(floor(view)) + 1..=newest.saturating_sub(1);
            if !between.is_empty() {
                let found = self.read(view, between.clone(), members).await?;
                is_mentioned = found.is_mentioned || self.may_be_mention(*between.start(), found.from);
            }
        }
        let notice = self.notice.clone();
        let acked = notice.newest.seq;
        Ok(self.unread(view, notice, is_mentioned, acked))
    }

    /// Returns what waits if the newest message is above the bound of the user, which silences nothing within it.
    async fn below_bound(&self, view: &View, members: u64) -> Result<Option<Unread>, StoreError> {
        let first = self.notice.oldest.seq.max(floor(view) + 1);
        if first > view.max() {
            return Ok(None);
        }
        let found = self.read(view, first..=view.max(), members).await?;
        let is_whole = found.from <= first;
        let is_mentioned =
            self.is_known_mention(view) || found.is_mentioned || self.may_be_mention(first, found.from);
        let mut notice = self.notice.clone();
        notice.count = match is_whole {
            true => found.count.min(notice.count),
            false => notice.count.min(view.unread()),
        };
        let acked = match found.newest {
            Some(newest) => {
                notice.newest = newest;
                notice.newest.seq
            }
            // Of those that were not read, it is the one that is known.
            None if !is_whole && waits(view, notice.oldest.seq) => {
                notice.newest = notice.oldest.clone();
                view.max()
            }
            None => return Ok(None),
        };
        Ok(Some(self.unread(view, notice, is_mentioned, acked)))
    }

    fn unread(&self, view: &View, notice: WaitingNotice, is_mentioned: bool, acked: u64) -> Unread {
        let count = self.reader.unread(&notice.newest.conversation, view);
        Unread { notice, count, is_mentioned, max: view.max(), acked }
    }

    /// Returns whether the first or the last message of the notice that mentions the user waits.
    fn is_known_mention(&self, view: &View) -> bool {
        self.notice.mentioned.is_some_and(|it| waits(view, it.oldest) || waits(view, it.newest))
    }

    /// Returns whether a message from `first` on and below `end`, none of which was read, may mention the user. A notice too many
    /// is better than one too few.
    fn may_be_mention(&self, first: u64, end: u64) -> bool {
        let is_between = |it: MentionSeqs| first.max(it.oldest + 1) < end.min(it.newest);
        self.notice.mentioned.is_some_and(is_between)
    }

    /// Reads the newest entries of a range, which ends within the view.
    async fn read(&self, view: &View, range: RangeInclusive<u64>, members: u64) -> Result<Found, StoreError> {
        let (first, last) = range.into_inner();
        let limit = usize::try_from((last - first + 1).min(ENTRIES_MAX)).unwrap_or(usize::MAX);
        let (cursor, direction) = (last.saturating_add(1), Direction::Backward);
        let query = PageQuery { cursor, direction, limit, max_bytes: CONTENT_BYTES_MAX };
        let conversation = &self.notice.newest.conversation;
        let page = self.recipients.store.page(conversation, query).await?;
        let lacks = || StoreError::Unavailable("it lacks entries of a conversation; it fell back".to_owned());
        let head = page.head.filter(|head| head.last_seq >= last).ok_or_else(lacks)?;
        // Below that there is none.
        let lowest = first.max(head.pruned_to + 1);
        let reached = page.rows.last().map_or(lowest, |row| row.row.seq);
        let from = if reached <= lowest { first } else { reached };
        let mut found = Found { newest: None, count: 0, is_mentioned: false, from };
        for row in &page.rows {
            if row.row.seq >= first && waits(view, row.row.seq) {
                self.add(&mut found, row, members).await?;
            }
        }
        Ok(found)
    }

    /// Adds a row if it is a message for the user.
    async fn add(&self, found: &mut Found, row: &StoredRow, members: u64) -> Result<(), StoreError> {
        let (user, seq, conversation) = (&self.reader.user, row.row.seq, &self.notice.newest.conversation);
        let is_wanted =
            |it: &NoticedMessage| it.sender != *user && self.recipients.filter.wants_notice(user, &it.sender);
        let Some(message) = noticed(row).filter(is_wanted) else { return Ok(()) };
        // The group may have grown since.
        let reaches_all = self.recipients.reaches_all(conversation, members);
        let is_mention = match self.notice.mentioned {
            Some(MentionSeqs { oldest, newest }) if seq == oldest || seq == newest => true,
            // One more would change nothing, and may cost a read.
            _ if found.is_mentioned && reaches_all => false,
            Some(MentionSeqs { oldest, newest }) if (oldest..newest).contains(&seq) => {
                self.recipients.mentions(conversation, &message, user, members).await?
            }
            _ => false,
        };
        found.is_mentioned |= is_mention;
        let is_known = seq == self.notice.oldest.seq;
        if is_mention || is_known || reaches_all {
            found.count += 1;
            // Rows come with falling seqs. Its number in the feed is not needed any more.
            found.newest.get_or_insert_with(|| WaitingMessage {
                seq,
                time: row.row.time,
                sender: message.sender,
                ..self.notice.newest.clone()
            });
        }
        Ok(())
    }
}

/// Returns the seq up to which nothing is unread.
fn floor(view: &View) -> u64 {
    view.user_state().floor().seq
}

/// Returns whether a message at that seq is unread, and shown to the user.
fn waits(view: &View, seq: u64) -> bool {
    seq > floor(view) && view.shows(seq)
}
