//! Consistent reads: they see everything that was acked or pushed before they began, or are refused (ADR 16).

use std::{hash::Hash, sync::Arc, time::Duration};

use tidegate_protocol::{
    Code,
    id::{ConversationId, UserId},
    machine::session::{Pull, Query, Which},
    pb::{self, server_frame::Body as FrameBody},
    settings::Push,
};
use tokio::time::timeout;

use super::{
    clear, hide,
    history::{self, FoundPage, PageBytes},
    mark_read,
    read_budget::{ReadBudget, ReadTurn},
    read_position::{BeyondHead, NO_MESSAGES, NOT_STORED, OwnConversation},
    reader::{Reader, Viewer},
};
use crate::{
    bus::partition_of,
    cluster::Cluster,
    mail::Refusal,
    store::{Personal, Store},
};

/// Reads of one caller, each in its turn among those of other callers.
pub struct ConsistentReads<'a, K: Clone + Eq + Hash = UserId> {
    cluster: &'a Cluster,
    store: &'a dyn Store,
    budget: &'a Arc<ReadBudget<K>>,
    caller: &'a K,
    /// Longest wait of a change for the read barrier; `None` waits for as long as it takes.
    barrier_max: Option<Duration>,
}

impl<'a, K: Clone + Eq + Hash + Send + Sync> ConsistentReads<'a, K> {
    /// Creates the reads of a caller.
    pub fn new(cluster: &'a Cluster, budget: &'a Arc<ReadBudget<K>>, caller: &'a K) -> Self {
        Self { cluster, store: &*cluster.ports.store, budget, caller, barrier_max: None }
    }

    /// Uses this handle of the store.
    pub fn over(self, store: &'a dyn Store) -> Self {
        Self { store, ..self }
    }

    /// Lets a change wait no longer than this for the read barrier; what is still in doubt then is `NOT_YET`.
    pub fn waiting_at_most(self, barrier_max: Duration) -> Self {
        Self { barrier_max: Some(barrier_max), ..self }
    }

    /// Waits for the turn of a read.
    ///
    /// # Errors
    /// `BUSY` if the caller has too many reads; `OVERLOADED` if the node has too many, or the turn does not come in time.
    pub async fn turn(&self) -> Result<ReadTurn<K>, Refusal> {
        self.budget.turn(self.caller).await
    }

    /// Reads a page of a history for a client. A user whom the store does not show as a member is refused permanently only
    /// if the store has everything that was published in the partition.
    ///
    /// # Errors
    /// Those of [`history::pull_where`] and of [`Self::turn`].
    pub async fn page(&self, reader: &Reader, pull: &Pull) -> Result<pb::Page, Refusal> {
        self.read(&pull.conversation, |above| history::pull_where(self.store, reader, pull, above)).await
    }

    /// Returns the number of members of a conversation that the user is a member of now. Like [`Self::page`], it refuses
    /// permanently only what the store is sure of.
    ///
    /// # Errors
    /// Those of [`Viewer::view`] and of [`Self::turn`]; `NOT_A_MEMBER` also for a former member.
    pub async fn members(&self, user: &UserId, conversation: &ConversationId) -> Result<u64, Refusal> {
        self.read(conversation, |above| self.members_where(user, conversation, above)).await
    }

    async fn members_where(
        &self,
        user: &UserId,
        conversation: &ConversationId,
        above: BeyondHead,
    ) -> Result<u64, Refusal> {
        let summary = above.summary(self.store, Some(user), conversation).await?;
        let is_in = summary.member_view.is_some_and(|it| it.member.is_in()) && summary.head.deleted_seq == 0;
        if is_in { Ok(summary.members) } else { Err(above.not_a_member(summary.archived)) }
    }

    /// Reads in a turn after the read barrier, and reads again if a refusal may be wrong.
    async fn read<T, F: Future<Output = Result<T, Refusal>>>(
        &self,
        conversation: &ConversationId,
        read: impl Fn(BeyondHead) -> F,
    ) -> Result<T, Refusal> {
        self.cluster.barrier_in(partition_in(self.cluster, conversation)).await;
        let turn = self.turn().await?;
        let found = read(BeyondHead::Nothing).await;
        drop(turn);
        if !self.may_be_missing(&found) {
            return found;
        }
        let above = beyond_head_after_barrier(self.cluster, conversation).await;
        let _turn = self.turn().await?;
        read(above).await
    }

    /// Changes the user's own state of a conversation; returns the seq and the frame for the user's devices, if it changed.
    ///
    /// # Errors
    /// Those of [`Self::turn`], and of the change.
    pub async fn change(
        &self,
        user: &UserId,
        conversation: &ConversationId,
        query: &Query,
    ) -> Result<Option<(u64, FrameBody)>, Refusal> {
        let own = |above| OwnConversation::new(self.store, user, conversation, above);
        self.checked(conversation, |above| self.change_where(own(above), query)).await
    }

    /// Sets or removes the bound of what the user can read of a conversation.
    ///
    /// # Errors
    /// Those of [`Self::turn`] and of [`clear::bound`].
    pub async fn bound(
        &self,
        user: &UserId,
        conversation: &ConversationId,
        seq: Option<u64>,
    ) -> Result<(), Refusal> {
        let own = |above| OwnConversation::new(self.store, user, conversation, above);
        self.checked(conversation, |above| clear::bound(own(above), seq)).await
    }

    /// Sets or removes the preference of a user for push notices of a conversation that the user is or was in.
    ///
    /// # Errors
    /// Those of [`Self::turn`]; `NOT_A_MEMBER` if the user never was a member; `NOT_YET` if the conversation has no message
    /// yet.
    pub async fn prefer(
        &self,
        user: &UserId,
        conversation: &ConversationId,
        push: Option<Push>,
    ) -> Result<(), Refusal> {
        self.checked(conversation, |above| async move {
            let own = OwnConversation::new(self.store, user, conversation, above);
            own.whole_view(0).await?;
            own.save(Some(Personal::Push(push))).await
        })
        .await
    }

    /// Makes a check or a change in a turn, and makes it again after the read barrier if the store may lack what it needs.
    ///
    /// # Errors
    /// Those of [`Self::turn`], and of the change.
    pub(crate) async fn checked<T, F: Future<Output = Result<T, Refusal>>>(
        &self,
        conversation: &ConversationId,
        change: impl Fn(BeyondHead) -> F,
    ) -> Result<T, Refusal> {
        let first = beyond_head_before_barrier(self.cluster);
        let turn = self.turn().await?;
        let changed = change(first).await;
        drop(turn);
        if first != BeyondHead::Unknown || !matches!(changed, Err((Code::NotYet, _))) {
            return changed;
        }
        let barrier = beyond_head_after_barrier(self.cluster, conversation);
        let above = match self.barrier_max {
            Some(max) => timeout(max, barrier).await.unwrap_or(BeyondHead::Unknown),
            None => barrier.await,
        };
        let _turn = self.turn().await?;
        change(above).await
    }

    async fn change_where(
        &self,
        of: OwnConversation<'_>,
        query: &Query,
    ) -> Result<Option<(u64, FrameBody)>, Refusal> {
        let OwnConversation { user, conversation, .. } = of;
        Ok(match query {
            Query::Read { seq, .. } => {
                let moved = mark_read::read(of, *seq).await?;
                moved.map(|mark| {
                    self.cluster.events.read(user, conversation, mark.seq);
                    mark_read::receipt(user, conversation, mark)
                })
            }
            Query::Clear { seq, .. } => {
                let moved = clear::clear(of, *seq).await?;
                moved.map(|mark| clear::cleared(conversation, mark))
            }
            Query::Hide { seqs, .. } => {
                let hidden = hide::hide(of, seqs).await?;
                (!hidden.is_empty()).then(|| hide::hidden(conversation, hidden))
            }
            Query::Pull(_)
            | Query::Sync(_)
            | Query::Positions(_)
            | Query::Recall { .. }
            | Query::Edit { .. }
            | Query::Leave(_)
            | Query::Watch { .. } => None,
        })
    }

    /// Returns whether a refusal may be wrong because the store lacks something.
    fn may_be_missing<T>(&self, found: &Result<T, Refusal>) -> bool {
        let Err(refusal) = found else { return false };
        let is_missing = *refusal == NO_MESSAGES || matches!(refusal.0, Code::NotAMember | Code::NotFound);
        is_missing && beyond_head_before_barrier(self.cluster) == BeyondHead::Unknown
    }
}

/// Reads a page of a history within these limits, for an administrator or as a user sees it; `above` says what the store
/// may lack. A page beyond the end is empty.
///
/// # Errors
/// `NOT_FOUND` or `NOT_A_MEMBER` if the store has everything that was published in the partition. `NOT_YET` if it may not
/// have, and that could change the response: the page reaches the end, or there is no such conversation or member.
pub(crate) async fn read_history(
    store: &dyn Store,
    viewer: Viewer<'_>,
    pull: &Pull,
    bytes: PageBytes,
    above: BeyondHead,
) -> Result<FoundPage, Refusal> {
    let found = history::read(store, viewer, pull, bytes, above).await?;
    // Whatever the store lacks lies above a bound that it reaches.
    let may_be_more = !found.view.is_bounded() && above.may_be_more(found.archived);
    let is_in_doubt = may_be_more && reaches_end(pull, &found);
    if is_in_doubt { Err(NOT_STORED) } else { Ok(found) }
}

/// Returns whether entries above the last one of the view could change the page.
fn reaches_end(pull: &Pull, found: &FoundPage) -> bool {
    let max = found.view.max();
    let Some(page) = &found.page else { return true };
    match &pull.which {
        // The page before the first seq that is not stored has no more entries than it should.
        Which::Before(cursor) => *cursor > max.saturating_add(1),
        Which::Seqs(seqs) => seqs.iter().any(|seq| *seq > max),
        Which::After(_) | Which::Since(_) | Which::Around(_) => {
            let rows = page.rows.iter().map(|row| row.row.seq).chain(page.recalled.iter().copied());
            let mut named = rows.chain(page.expired.iter().map(|range| range.last));
            named.any(|seq| seq >= max)
        }
    }
}

fn partition_in(cluster: &Cluster, conversation: &ConversationId) -> u32 {
    partition_of(conversation, cluster.ports.bus.partitions())
}

/// Returns what is known of seqs above the store's last one, without the read barrier; lower seqs need no barrier.
pub(crate) fn beyond_head_before_barrier(cluster: &Cluster) -> BeyondHead {
    let may_lag = cluster.owned.unarchived().is_allowed() || cluster.ports.store.may_fall_back();
    if may_lag { BeyondHead::Unknown } else { BeyondHead::Nothing }
}

/// Returns what is known of seqs above the store's last one for a read of the conversation. Passes the read barrier unless
/// the store has everything anyway.
pub(crate) async fn beyond_head(cluster: &Cluster, conversation: &ConversationId) -> BeyondHead {
    match beyond_head_before_barrier(cluster) {
        BeyondHead::Unknown => beyond_head_after_barrier(cluster, conversation).await,
        known => known,
    }
}

/// Passes the read barrier of the partition, then returns what is known of seqs above the store's last one (ADR 16).
async fn beyond_head_after_barrier(cluster: &Cluster, conversation: &ConversationId) -> BeyondHead {
    let partition = partition_in(cluster, conversation);
    match cluster.barrier_of(partition).await {
        Some(below) => BeyondHead::NothingIfArchived { partition, below },
        None => BeyondHead::Unknown,
    }
}
