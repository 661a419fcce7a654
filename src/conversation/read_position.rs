//! Point: a place in a conversation with the counts that make unread a subtraction, for Read and Clear.

use tidegate_protocol::{
    Code,
    id::{ConversationId, UserId},
    record::Body,
};

use super::{
    history::{Refusal, away},
    unread::View,
};
use crate::store::{Direction, Mark, PageQuery, Store, StoredRow};

/// Rows looked at in a turn while own messages are counted.
const STEP: usize = 64;
const STEP_BYTES: usize = 1 << 20;

/// What lies above the last seq that the store has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Above {
    /// Nothing.
    Nothing,
    /// Perhaps something that the user was told: it is refused, for what was done up to the last seq is not what was asked.
    Unknown,
}

impl Above {
    /// Refuses what lies above what the store has, as long as it may not have all.
    pub(crate) fn check(self, view: &View, seq: u64) -> Result<(), Refusal> {
        // Who was put out was told nothing since, and the store had that first (ADR 16).
        match self {
            Self::Unknown if view.is_in && seq > view.max() => Err(NOT_STORED),
            _ => Ok(()),
        }
    }
}

/// What is said to who names a seq that the store may get yet.
pub(crate) const NOT_STORED: Refusal =
    (Code::NotYet, "this may not be stored yet: nothing was changed, ask again");

/// The place at `seq`, as far as there is something and the user may see it; none where the user is there already, as
/// `reached` says.
///
/// # Errors
/// `NOT_A_MEMBER` for who was never in; `NOT_YET` where nothing was said yet, or `seq` lies above what is known.
pub(crate) async fn reach(
    store: &dyn Store,
    user: &UserId,
    conversation: &ConversationId,
    (seq, above): (u64, Above),
    reached: impl Fn(&View) -> u64,
) -> Result<Option<Mark>, Refusal> {
    loop {
        let view = look(store, user, conversation).await?;
        above.check(&view, seq)?;
        // Below what retention took nothing can be counted.
        let seq = seq.max(view.pruned_to).min(view.max());
        if seq <= reached(&view) {
            return Ok(None);
        }
        match at(store, user, conversation, &view, seq).await {
            // It looks seldom: the next look comes in between.
            Err(Stop::Pruned) => {}
            Err(Stop::Refused(refusal)) => return Err(refusal),
            Ok(mark) => return Ok(Some(mark)),
        }
    }
}

/// Why nothing was counted.
enum Stop {
    Refused(Refusal),
    /// Retention took rows since the look: what is missing would be counted wrong, and for good, as marks only rise.
    Pruned,
}

/// How the user sees the conversation now.
///
/// # Errors
/// `NOT_A_MEMBER` for who was never in; `NOT_YET` where nothing was said yet.
pub(crate) async fn look(
    store: &dyn Store,
    user: &UserId,
    conversation: &ConversationId,
) -> Result<View, Refusal> {
    let summary = store.summary(conversation, Some(user)).await.map_err(away)?;
    let direct = conversation.is_direct_of(user);
    let Some(summary) = summary else {
        return Err(if direct {
            (Code::NotYet, "nothing was said here yet")
        } else {
            (Code::NotAMember, "")
        });
    };
    let standing = summary.standing.ok_or((Code::NotAMember, ""))?;
    Ok(View::new(conversation, &summary.head, &standing))
}

/// The place at `seq`, which retention had not passed at the look and which there is.
async fn at(
    store: &dyn Store,
    user: &UserId,
    conversation: &ConversationId,
    view: &View,
    seq: u64,
) -> Result<Mark, Stop> {
    let counting = Counting { store, user, conversation, view };
    let messages = counting.messages(seq).await?;
    let own = counting.own(seq).await?;
    Ok(Mark { seq, messages, own })
}

struct Counting<'a> {
    store: &'a dyn Store,
    user: &'a UserId,
    conversation: &'a ConversationId,
    view: &'a View,
}

impl Counting<'_> {
    /// How many messages the conversation has up to `seq`.
    async fn messages(&self, seq: u64) -> Result<u64, Stop> {
        // What came after a former member's last seq is not theirs to count; and retention may have taken the next rows.
        if seq >= self.view.max() {
            return Ok(self.view.messages());
        }
        let rows = self.rows(seq, Direction::Forward, 1).await?;
        // The ordinal of the next row, less itself.
        Ok(rows.first().map_or(self.view.messages(), |row| row.row.ordinal - u64::from(is_message(row))))
    }

    /// How many of them are the user's own: found at the next own message to either side, or at a place that is known
    /// already. So marks that follow each other look at no row twice, and most look at none.
    async fn own(&self, seq: u64) -> Result<u64, Stop> {
        let (level, sent) = (self.view.level(), self.view.sent());
        let known = [Mark::default(), level.mark, level.cleared];
        let below = known.iter().filter(|it| it.seq <= seq).max_by_key(|it| it.seq);
        let mark = below.copied().unwrap_or_default();
        let above = known.iter().filter(|it| it.seq > seq).map(|it| it.own).min().unwrap_or(sent);
        if mark.own == above || mark.seq == seq {
            return Ok(mark.own);
        }
        if seq >= self.view.max() {
            return Ok(sent);
        }
        let (mut up, mut down) = (seq, seq + 1);
        loop {
            let above = self.rows(up, Direction::Forward, STEP).await?;
            if let Some(own) = above.iter().find_map(|row| self.own_of(row)) {
                return Ok(own - 1);
            }
            let below = self.rows(down, Direction::Backward, STEP).await?;
            let unread = below.iter().take_while(|row| row.row.seq > mark.seq);
            if let Some(own) = unread.clone().find_map(|row| self.own_of(row)) {
                return Ok(own);
            }
            match above.last() {
                Some(row) => up = row.row.seq,
                None => return Ok(sent),
            }
            // All rows down to the mark were looked at. With retention in between, the search goes on above.
            match below.last() {
                Some(row) if unread.count() == below.len() => down = row.row.seq,
                Some(_) => return Ok(mark.own),
                None if self.view.pruned_to <= mark.seq => return Ok(mark.own),
                None => {}
            }
        }
    }

    async fn rows(&self, cursor: u64, direction: Direction, limit: usize) -> Result<Vec<StoredRow>, Stop> {
        let query = PageQuery { cursor, direction, limit, max_bytes: STEP_BYTES };
        let page = self.store.page(self.conversation, query).await;
        let page = page.map_err(|error| Stop::Refused(away(error)))?;
        let pruned_to = page.head.map_or(0, |head| head.pruned_to);
        if pruned_to > self.view.pruned_to { Err(Stop::Pruned) } else { Ok(page.rows) }
    }

    /// The user's count of own messages, if the row is one.
    fn own_of(&self, row: &StoredRow) -> Option<u64> {
        match &row.row.body {
            Body::Message(message) if message.sender == *self.user => Some(row.row.own),
            _ => None,
        }
    }
}

fn is_message(row: &StoredRow) -> bool {
    matches!(row.row.body, Body::Message(_))
}
