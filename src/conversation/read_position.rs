//! Read positions: a seq with the message counts that make unread a subtraction, for read marks, clears and bounds.

use tidegate_protocol::{
    Code,
    id::{ConversationId, UserId},
    machine::ledger::Head,
    record::Body,
};

use super::{refusal::store_unavailable, unread::View};
use crate::{
    mail::Refusal,
    store::{Direction, Mark, MemberView, PageQuery, Personal, Store, StoredRow, Summary},
};

/// Rows read at a time while counting a user's own messages.
const COUNT_PAGE_ROWS: usize = 64;

/// Approximate limit on the bytes of these rows.
const COUNT_PAGE_BYTES: usize = 1 << 20;

/// Knowledge of what lies above the last seq in the store (ADR 16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BeyondHead {
    /// There is nothing.
    Nothing,
    /// There is nothing if the store has archived the partition below this offset, as its owner has. A store that fell
    /// back to an older state has not.
    NothingIfArchived {
        /// Partition of the conversation.
        partition: u32,
        /// Offset below which the owner has archived it.
        below: u64,
    },
    /// There may be entries that were pushed to the user. A seq there is refused, since a change up to the last stored
    /// seq would not be the requested one.
    Unknown,
}

impl BeyondHead {
    /// Refuses a seq above the last stored one, while the store may lack entries; `archived` is the offset below which
    /// the store had archived the partition when it was read.
    pub(crate) fn check(self, view: &View, archived: Option<u64>, seq: u64) -> Result<(), Refusal> {
        // A user who was removed may have been added again since. What a bound keeps from the user is stored.
        if seq > view.end() && self.may_be_more(archived) { Err(NOT_STORED) } else { Ok(()) }
    }

    /// Returns the refusal of a user whom the store does not show as a member.
    pub(crate) fn not_a_member(self, archived: Option<u64>) -> Refusal {
        if self.may_be_more(archived) { NOT_STORED } else { (Code::NotAMember, "") }
    }

    /// Returns whether there may be entries that the store lacks.
    pub(crate) fn may_be_more(self, archived: Option<u64>) -> bool {
        match self {
            Self::Nothing => false,
            Self::NothingIfArchived { below, .. } => archived.is_none_or(|archived| archived < below),
            Self::Unknown => true,
        }
    }

    /// Reads the summary of a conversation; `user` is `None` for an administrator.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE` if the store can't be read; `NOT_A_MEMBER`, `NOT_FOUND` or `NOT_YET` if there is no such
    /// conversation, and `NOT_YET` if the store may lack it.
    pub(crate) async fn summary(
        self,
        store: &dyn Store,
        user: Option<&UserId>,
        conversation: &ConversationId,
    ) -> Result<Summary, Refusal> {
        match store.summary(conversation, user).await.map_err(store_unavailable)? {
            Some(summary) => Ok(summary),
            None => Err(self.no_conversation(store, user, conversation).await),
        }
    }

    /// Returns the refusal for a conversation that the store lacks altogether, as a copy from before its creation does.
    async fn no_conversation(
        self,
        store: &dyn Store,
        user: Option<&UserId>,
        conversation: &ConversationId,
    ) -> Refusal {
        let archived = match self {
            // It may have been archived since the store was found to lack it.
            Self::NothingIfArchived { partition, .. } => {
                match store.archived_without(partition, conversation).await {
                    Ok(archived) => archived,
                    Err(error) => return store_unavailable(error),
                }
            }
            _ => None,
        };
        match user {
            _ if self.may_be_more(archived) => NOT_STORED,
            None => (Code::NotFound, ""),
            Some(user) if conversation.is_direct_of(user) => NO_MESSAGES,
            Some(_) => (Code::NotAMember, ""),
        }
    }
}

/// Refusal of a seq that may not be stored yet.
pub(crate) const NOT_STORED: Refusal =
    (Code::NotYet, "this may not be stored yet, and nothing was changed; retry");

/// Refusal of a direct conversation without a message.
pub(crate) const NO_MESSAGES: Refusal = (Code::NotYet, "the conversation has no messages yet");

/// Conversation of one user, as a store has it.
#[derive(Clone, Copy)]
pub struct OwnConversation<'a> {
    pub(super) store: &'a dyn Store,
    pub(super) user: &'a UserId,
    pub(super) conversation: &'a ConversationId,
    pub(super) above: BeyondHead,
}

impl<'a> OwnConversation<'a> {
    /// Creates the conversation of the user; `above` is what the store may lack of it.
    pub fn new(
        store: &'a dyn Store,
        user: &'a UserId,
        conversation: &'a ConversationId,
        above: BeyondHead,
    ) -> Self {
        Self { store, user, conversation, above }
    }

    /// Reads the user's current view without a bound, in which the seq is stored or known not to exist.
    ///
    /// # Errors
    /// `NOT_A_MEMBER` if the user never was a member; `NOT_YET` if the conversation has no message yet, or may have
    /// unstored messages up to `seq`.
    pub(crate) async fn whole_view(self, seq: u64) -> Result<View, Refusal> {
        self.view(seq, View::whole).await
    }

    async fn view(self, seq: u64, new: ViewConstructor) -> Result<View, Refusal> {
        let Self { store, user, conversation, above } = self;
        let summary = above.summary(store, Some(user), conversation).await?;
        let member_view = summary.member_view.ok_or(above.not_a_member(summary.archived))?;
        let view = new(conversation, &summary.head, &member_view);
        above.check(&view, summary.archived, seq)?;
        Ok(view)
    }

    /// Stores a change of the user's state. Without one, waits until what is visible is durable: an earlier change may not be.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE` if the store can't be written.
    pub(super) async fn save(self, change: Option<Personal>) -> Result<(), Refusal> {
        let change = change.map(|change| (self.user.clone(), self.conversation.clone(), change));
        self.store.save_marks(change.as_slice()).await.map_err(store_unavailable)
    }
}

/// Returns the position at `seq`, limited to the seqs that the user may read; `None` unless it is above the read mark.
///
/// # Errors
/// `NOT_A_MEMBER` if the user never was a member; `NOT_YET` if the conversation has no message yet, or may have
/// unstored messages up to `seq`.
pub(crate) async fn read(of: OwnConversation<'_>, seq: u64) -> Result<Option<Mark>, Refusal> {
    let marked = |view: &View, seq: u64| Some(view.mark()).filter(|mark| seq <= mark.seq);
    Ok(position(of, seq, View::new, marked).await?.if_new())
}

/// Returns the position at `seq`, limited to the seqs that the user may see without a bound, above which messages are pushed;
/// `None` unless it is above what the user has cleared.
///
/// # Errors
/// Those of [`read`].
pub(crate) async fn clear(of: OwnConversation<'_>, seq: u64) -> Result<Option<Mark>, Refusal> {
    let cleared = |view: &View, seq: u64| Some(view.user_state().cleared).filter(|mark| seq <= mark.seq);
    Ok(position(of, seq, View::whole, cleared).await?.if_new())
}

/// Returns the position at `seq`, limited to the seqs that the user may see without a bound.
///
/// # Errors
/// Those of [`read`].
pub(crate) async fn bound(of: OwnConversation<'_>, seq: u64) -> Result<Mark, Refusal> {
    let bound = |view: &View, seq: u64| view.user_state().bound.filter(|mark| mark.seq == seq);
    Ok(match position(of, seq, View::whole, bound).await? {
        Position::Known(mark) | Position::New(mark) => mark,
    })
}

/// Position of a user.
enum Position {
    /// Position that the user's state has, or has passed.
    Known(Mark),
    /// Position that was counted.
    New(Mark),
}

impl Position {
    fn if_new(self) -> Option<Mark> {
        match self {
            Self::Known(_) => None,
            Self::New(mark) => Some(mark),
        }
    }
}

/// Constructor of a view, with or without the bound of the user.
type ViewConstructor = fn(&ConversationId, &Head, &MemberView) -> View;

/// Returns the position at `seq`, limited to the seqs of the view, or what is known of it.
async fn position(
    of: OwnConversation<'_>,
    seq: u64,
    new: ViewConstructor,
    known: impl Fn(&View, u64) -> Option<Mark>,
) -> Result<Position, Refusal> {
    loop {
        let view = of.view(seq, new).await?;
        // Rows that retention has removed can't be counted.
        let seq = seq.max(view.pruned_to).min(view.max());
        if let Some(mark) = known(&view, seq) {
            return Ok(Position::Known(mark));
        }
        let counting = Counting { of, view: &view };
        match counting.at(seq).await {
            // Retention runs rarely, so the retry succeeds.
            Err(CountError::Pruned) => {}
            Err(CountError::Refused(refusal)) => return Err(refusal),
            Ok(mark) => return Ok(Position::New(mark)),
        }
    }
}

/// Reason why a position could not be counted.
enum CountError {
    Refused(Refusal),
    /// Retention removed rows after the view was read. The count would be wrong permanently, since marks only rise.
    Pruned,
}

/// Counts of messages in one conversation, for one user.
struct Counting<'a> {
    of: OwnConversation<'a>,
    view: &'a View,
}

impl Counting<'_> {
    /// Counts the position at `seq`, which must exist in the view, above the rows that retention has removed.
    async fn at(&self, seq: u64) -> Result<Mark, CountError> {
        let messages = self.messages(seq).await?;
        let own = self.own(seq).await?;
        Ok(Mark { seq, messages, own })
    }

    /// Returns the number of messages up to `seq`.
    async fn messages(&self, seq: u64) -> Result<u64, CountError> {
        // Rows after a former member's last seq must not count, and retention may have removed them.
        if seq >= self.view.max() {
            return Ok(self.view.messages());
        }
        let rows = self.rows(seq, Direction::Forward, 1).await?;
        // The next row's ordinal includes that row if it is a message.
        Ok(rows.first().map_or(self.view.messages(), |row| row.row.ordinal - u64::from(is_message(row))))
    }

    /// Returns the number of the user's own messages up to `seq`.
    ///
    /// It is read from the nearest own message on either side, or derived from a known position. So successive marks
    /// read no row twice, and most marks read none.
    async fn own(&self, seq: u64) -> Result<u64, CountError> {
        let (state, sent) = (self.view.user_state(), self.view.sent());
        let positions = [Mark::default(), state.mark, state.cleared];
        let below = positions.iter().filter(|it| it.seq <= seq).max_by_key(|it| it.seq);
        let mark = below.copied().unwrap_or_default();
        let above = positions.iter().filter(|it| it.seq > seq).map(|it| it.own).min().unwrap_or(sent);
        if mark.own == above || mark.seq == seq {
            return Ok(mark.own);
        }
        if seq >= self.view.max() {
            return Ok(sent);
        }
        let (mut up, mut down) = (seq, seq + 1);
        loop {
            let above = self.rows(up, Direction::Forward, COUNT_PAGE_ROWS).await?;
            if let Some(own) = above.iter().find_map(|row| self.own_of(row)) {
                return Ok(own.before);
            }
            let below = self.rows(down, Direction::Backward, COUNT_PAGE_ROWS).await?;
            let unread = below.iter().take_while(|row| row.row.seq > mark.seq);
            if let Some(own) = unread.clone().find_map(|row| self.own_of(row)) {
                return Ok(own.up_to);
            }
            match above.last() {
                Some(row) => up = row.row.seq,
                None => return Ok(sent),
            }
            // Without an own message down to the mark, the mark's count holds. If retention removed rows in between, only
            // the search upwards continues.
            match below.last() {
                Some(row) if unread.count() == below.len() => down = row.row.seq,
                Some(_) => return Ok(mark.own),
                None if self.view.pruned_to <= mark.seq => return Ok(mark.own),
                None => {}
            }
        }
    }

    async fn rows(
        &self,
        cursor: u64,
        direction: Direction,
        limit: usize,
    ) -> Result<Vec<StoredRow>, CountError> {
        let query = PageQuery { cursor, direction, limit, max_bytes: COUNT_PAGE_BYTES };
        let page = self.of.store.page(self.of.conversation, query).await;
        let page = page.map_err(|error| CountError::Refused(store_unavailable(error)))?;
        let pruned_to = page.head.map_or(0, |head| head.pruned_to);
        if pruned_to > self.view.pruned_to { Err(CountError::Pruned) } else { Ok(page.rows) }
    }

    /// Returns the user's counts of own messages, if the user has sent the row.
    fn own_of(&self, row: &StoredRow) -> Option<OwnCount> {
        let up_to = row.row.own;
        match &row.row.body {
            Body::Message(message) if message.sender == *self.of.user => {
                Some(OwnCount { before: up_to - u64::from(message.is_own()), up_to })
            }
            _ => None,
        }
    }
}

/// Numbers of a user's own messages before a row of the user, and up to it.
struct OwnCount {
    before: u64,
    up_to: u64,
}

fn is_message(row: &StoredRow) -> bool {
    matches!(&row.row.body, Body::Message(message) if message.counts())
}
