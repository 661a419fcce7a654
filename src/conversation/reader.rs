//! Reader: a user with the settings that limit what the user sees of conversations (SPEC 3).
//!
//! A setting narrows the user's own view on each read. It deletes nothing and has no effect for other users (ADR 7).

use std::time::Duration;

use tidegate_protocol::{
    id::{ConversationId, ConversationKind, UserId},
    machine::ledger::Head,
    settings::{Retention, Unread, Viewing},
};

use super::{refusal::store_unavailable, unread::View};
use crate::{
    mail::Refusal,
    store::{Direction, MemberView, PageQuery, Store},
};

/// User who reads conversations.
#[derive(Clone, Debug)]
pub struct Reader {
    /// Id of the user.
    pub user: UserId,
    /// Settings of the user for viewing conversations.
    pub viewing: Viewing,
    /// Wall clock in ms since 1970, from which the age of entries is counted.
    pub now_ms: u64,
}

impl Reader {
    /// Creates a reader with default settings.
    pub fn new(user: UserId) -> Self {
        Self { user, viewing: Viewing::default(), now_ms: 0 }
    }

    /// Returns the conversation as this user sees it now.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE` if the store can't be read.
    pub async fn view(
        &self,
        store: &dyn Store,
        conversation: &ConversationId,
        head: &Head,
        member_view: &MemberView,
    ) -> Result<View, Refusal> {
        let mut view = View::new(conversation, head, member_view);
        let hidden_to = match (self.viewing.retention, self.viewing.retention.age()) {
            (Retention::None, _) => view.mark().seq,
            (_, Some(age)) => older(store, conversation, &view, self.limit(age)).await?,
            (_, None) => 0,
        };
        view.pruned_to = view.pruned_to.max(hidden_to);
        Ok(view)
    }

    /// Returns the number of unread messages, according to the user's `unread` setting.
    pub fn unread(&self, conversation: &ConversationId, view: &View) -> u64 {
        let direct = matches!(conversation.kind(), ConversationKind::Direct(..));
        match self.viewing.unread {
            Unread::All => view.unread(),
            Unread::Direct if direct => view.unread(),
            Unread::Direct | Unread::None => 0,
        }
    }

    /// Returns the time before which entries are too old to be shown.
    fn limit(&self, age: Duration) -> u64 {
        self.now_ms.saturating_sub(u64::try_from(age.as_millis()).unwrap_or(u64::MAX))
    }
}

/// Returns the highest seq that the user can pull and that was received before `limit`; 0 if there is none.
///
/// The binary search may end on either side of a point where the clock went back.
async fn older(
    store: &dyn Store,
    conversation: &ConversationId,
    view: &View,
    limit: u64,
) -> Result<u64, Refusal> {
    let (mut old, mut young) = (view.min().saturating_sub(1), view.max().saturating_add(1));
    // Usually nothing is too old, so the first read decides.
    let mut middle = old + 1;
    while old + 1 < young {
        let query = PageQuery { cursor: middle - 1, direction: Direction::Forward, limit: 1, max_bytes: 1 };
        let page = store.page(conversation, query).await.map_err(store_unavailable)?;
        match page.rows.first() {
            // Rows that retention removed meanwhile count as older than any other.
            Some(row) if row.row.time < limit => old = row.row.seq.max(middle),
            Some(_) => young = middle,
            None => break,
        }
        middle = old + (young - old) / 2;
    }
    Ok(old)
}
