//! Reader: a user with the settings that limit what the user sees of conversations (SPEC 3); an administrator sees all.
//!
//! A setting narrows the user's own view on each read. It deletes nothing and has no effect for other users (ADR 7).

use std::time::Duration;

use tidegate_protocol::{
    id::{ConversationId, ConversationKind, UserId},
    machine::ledger::Head,
    settings::{Retention, Unread, UserSettings, Viewing},
};

use super::{
    read_position::BeyondHead,
    time_search::{TimeSearch, search},
    unread::View,
};
use crate::{
    mail::Refusal,
    store::{MemberView, Membership, Store},
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

    /// Creates a reader with these stored settings.
    pub fn with_settings(user: UserId, settings: &UserSettings, now_ms: u64) -> Self {
        let (unread, retention) =
            (settings.unread.unwrap_or_default(), settings.retention.unwrap_or_default());
        Self { user, viewing: Viewing { unread, retention }, now_ms }
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
        self.limit_views(store, &mut [(conversation, &mut view)]).await?;
        Ok(view)
    }

    /// Returns the conversations as this user sees them now, in order.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE` if the store can't be read.
    pub(crate) async fn views(
        &self,
        store: &dyn Store,
        memberships: &[Membership],
    ) -> Result<Vec<View>, Refusal> {
        let view = |it: &Membership| View::new(&it.conversation, &it.head, &it.member_view);
        let mut views: Vec<View> = memberships.iter().map(view).collect();
        let mut named: Vec<(&ConversationId, &mut View)> =
            memberships.iter().map(|it| &it.conversation).zip(&mut views).collect();
        self.limit_views(store, &mut named).await?;
        Ok(views)
    }

    /// Hides what the user's retention setting hides.
    async fn limit_views(
        &self,
        store: &dyn Store,
        views: &mut [(&ConversationId, &mut View)],
    ) -> Result<(), Refusal> {
        let hide = |view: &mut View, hidden_to: u64| view.pruned_to = view.pruned_to.max(hidden_to);
        match (self.viewing.retention, self.viewing.retention.age()) {
            (Retention::None, _) => {
                for (_, view) in views {
                    let marked_to = view.mark().seq;
                    hide(view, marked_to);
                }
            }
            (_, Some(age)) => {
                let time = self.limit(age);
                let young = |(conversation, view): &(&ConversationId, &mut View)| TimeSearch {
                    conversation: (*conversation).clone(),
                    low: view.min(),
                    high: view.max().saturating_add(1),
                    time,
                };
                let mut searches: Vec<TimeSearch> = views.iter().map(young).collect();
                search(store, &mut searches).await?;
                for ((_, view), found) in views.iter_mut().zip(searches) {
                    hide(view, found.low.saturating_sub(1));
                }
            }
            (_, None) => {}
        }
        Ok(())
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

/// Viewer of a history.
#[derive(Clone, Copy, Debug)]
pub enum Viewer<'a> {
    /// Administrator, who sees everything that is stored, and no personal state.
    Admin,
    /// User.
    User(&'a Reader),
}

impl Viewer<'_> {
    /// Returns the view of the conversation, and the offset below which the store had archived the partition when it was
    /// read.
    ///
    /// # Errors
    /// `NOT_A_MEMBER` if the user never was a member, `NOT_FOUND` or `NOT_YET` if there is no such conversation, and
    /// `NOT_YET` if the store may lack what would change that.
    pub(super) async fn view(
        self,
        store: &dyn Store,
        conversation: &ConversationId,
        above: BeyondHead,
    ) -> Result<(View, Option<u64>), Refusal> {
        let user = match self {
            Self::Admin => None,
            Self::User(reader) => Some(&reader.user),
        };
        let summary = above.summary(store, user, conversation).await?;
        let archived = summary.archived;
        let view = match self {
            Self::Admin => View::of_all(&summary.head),
            Self::User(reader) => {
                let member_view = summary.member_view.ok_or_else(|| above.not_a_member(archived))?;
                reader.view(store, conversation, &summary.head, &member_view).await?
            }
        };
        Ok((view, archived))
    }
}
