//! Who looks at conversations: a user, and what this user wishes to see of them (SPEC 3).
//!
//! A wish narrows the user's own view when it is read; it deletes nothing, and nobody else notices.

use std::time::Duration;

use tidegate_protocol::{
    id::{ConversationId, ConversationKind, UserId},
    machine::ledger::Head,
    settings::{Retention, Unread, Viewing},
};

use super::{
    history::{Refusal, away},
    unread::View,
};
use crate::store::{Direction, PageQuery, Standing, Store};

/// A user who asks.
#[derive(Clone, Debug)]
pub struct Reader {
    /// Who.
    pub user: UserId,
    /// How the user looks at conversations.
    pub viewing: Viewing,
    /// The wall clock, in ms since 1970: the age of entries is counted from here.
    pub now_ms: u64,
}

impl Reader {
    /// A user who wishes nothing.
    pub fn new(user: UserId) -> Self {
        Self { user, viewing: Viewing::default(), now_ms: 0 }
    }

    /// The conversation as this user sees it now.
    ///
    /// # Errors
    /// When the store can't be read.
    pub async fn view(
        &self,
        store: &dyn Store,
        conversation: &ConversationId,
        head: &Head,
        standing: &Standing,
    ) -> Result<View, Refusal> {
        let mut view = View::new(conversation, head, standing);
        let hidden_to = match (self.viewing.retention, self.viewing.retention.age()) {
            (Retention::None, _) => view.mark().seq,
            (_, Some(age)) => older(store, conversation, &view, self.limit(age)).await?,
            (_, None) => 0,
        };
        view.pruned_to = view.pruned_to.max(hidden_to);
        Ok(view)
    }

    /// Unread messages as the user wishes to count them.
    pub fn unread(&self, conversation: &ConversationId, view: &View) -> u64 {
        let direct = matches!(conversation.kind(), ConversationKind::Direct(..));
        match self.viewing.unread {
            Unread::All => view.unread(),
            Unread::Direct if direct => view.unread(),
            Unread::Direct | Unread::None => 0,
        }
    }

    /// Entries of an earlier time are too old.
    fn limit(&self, age: Duration) -> u64 {
        self.now_ms.saturating_sub(u64::try_from(age.as_millis()).unwrap_or(u64::MAX))
    }
}

/// The highest seq, among those that the user can pull, that came before `limit`; 0 if there is none. Found by halving,
/// so where the clock went back between two entries it may be that of either side.
async fn older(
    store: &dyn Store,
    conversation: &ConversationId,
    view: &View,
    limit: u64,
) -> Result<u64, Refusal> {
    let (mut old, mut young) = (view.min().saturating_sub(1), view.max().saturating_add(1));
    // Most often nothing is too old: the first look decides.
    let mut look = old + 1;
    while old + 1 < young {
        let query = PageQuery { cursor: look - 1, direction: Direction::Forward, limit: 1, max_bytes: 1 };
        let page = store.page(conversation, query).await.map_err(away)?;
        match page.rows.first() {
            // What retention took meanwhile is older than everything.
            Some(row) if row.row.time < limit => old = row.row.seq.max(look),
            Some(_) => young = look,
            None => break,
        }
        look = old + (young - old) / 2;
    }
    Ok(old)
}
