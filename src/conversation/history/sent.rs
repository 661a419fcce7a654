//! Messages that a user has sent, conversation by conversation and by rising seq, in steps of a bounded size.
//!
//! The conversations are those in which the user is or was a member. No index leads from a user to messages: each step
//! reads rows of the time in which the user could send.

use tidegate_protocol::{
    id::{ConversationId, UserId},
    record::Body,
};

use crate::{
    conversation::unread::View,
    store::{ConversationSeq, Direction, Membership, PageQuery, Store, StoreError, StoredRow},
};

/// Most rows that a step reads.
const STEP_ROWS: u64 = 500;

/// Approximate most bytes of the contents of these rows; the first is read whatever its size.
const STEP_BYTES: usize = 1 << 20;

/// Seq of a position that has the whole conversation behind it.
const END: u64 = u64::MAX;

/// Part of one conversation.
#[derive(Debug)]
pub struct SentStep {
    /// Conversation, with the state of the user.
    pub membership: Membership,
    /// Whether no earlier step was in the conversation.
    pub is_first: bool,
    /// Messages of the user, recalled ones too.
    pub rows: Vec<StoredRow>,
    /// Number of rows that were read.
    pub visited: usize,
    /// Position after which the next step begins.
    pub next: ConversationSeq,
}

impl SentStep {
    /// Returns whether no later step is in the conversation.
    pub fn is_last(&self) -> bool {
        self.next.seq == END
    }
}

/// Reads the step after a position: of its conversation above its seq, or else of the next conversation by key. `None` if
/// none is left.
///
/// # Errors
/// The store can't be read.
pub async fn step(
    store: &dyn Store,
    user: &UserId,
    after: Option<&ConversationSeq>,
) -> Result<Option<SentStep>, StoreError> {
    let begun = match after.filter(|it| it.seq != END) {
        Some(at) => membership(store, user, &at.conversation).await?.map(|found| (found, at.seq)),
        None => None,
    };
    let is_first = begun.is_none();
    let (membership, from) = match begun {
        Some(begun) => begun,
        None => match store.memberships(user, after.map(|it| &it.conversation), 1).await?.pop() {
            Some(next) => (next, 0),
            None => return Ok(None),
        },
    };
    let conversation = membership.conversation.clone();
    let view = View::whole(&conversation, &membership.head, &membership.member_view);
    let from = from.max(view.pruned_to);
    let mut step = SentStep {
        membership,
        is_first,
        rows: Vec::new(),
        visited: 0,
        next: ConversationSeq { conversation: conversation.clone(), seq: END },
    };
    let Some(span) = view.spans.iter().find(|span| span.last > from) else { return Ok(Some(step)) };
    let cursor = from.max(span.first.saturating_sub(1));
    let limit = (span.last - cursor).min(STEP_ROWS) as usize;
    let query = PageQuery { cursor, direction: Direction::Forward, limit, max_bytes: STEP_BYTES };
    let rows = store.page(&conversation, query).await?.rows;
    // Without rows, retention has removed all of them.
    let reached = rows.last().map_or(span.last, |last| last.row.seq.min(span.last));
    if reached < view.max() {
        step.next.seq = reached;
    }
    step.visited = rows.len();
    step.rows.extend(rows.into_iter().filter(|stored| stored.row.seq <= span.last && is_of(stored, user)));
    Ok(Some(step))
}

fn is_of(stored: &StoredRow, user: &UserId) -> bool {
    matches!(&stored.row.body, Body::Message(message) if message.sender == *user)
}

async fn membership(
    store: &dyn Store,
    user: &UserId,
    conversation: &ConversationId,
) -> Result<Option<Membership>, StoreError> {
    let Some(summary) = store.summary(conversation, Some(user)).await? else { return Ok(None) };
    let of = |member_view| Membership {
        conversation: conversation.clone(),
        member_view,
        head: summary.head,
        members: summary.members,
    };
    Ok(summary.member_view.map(of))
}
