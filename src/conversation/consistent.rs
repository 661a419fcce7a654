//! Consistent reads: they see everything that was acked or pushed before they began, or are refused (ADR 16).

use std::{hash::Hash, sync::Arc};

use tidegate_protocol::{
    Code,
    id::{ConversationId, UserId},
    machine::session::{Pull, Query, Which},
    pb::{self, server_frame::Body as FrameBody},
};

use super::{
    clear, hide,
    history::{self, FoundPage},
    mark_read,
    read_budget::{ReadBudget, ReadTurn},
    read_position::{BeyondHead, NO_MESSAGES, NOT_STORED},
    reader::{Reader, Viewer},
    refusal::store_unavailable,
};
use crate::{bus::partition_of, cluster::Cluster, mail::Refusal, store::Store};

/// Reads of one caller, each in its turn among those of other callers.
pub struct ConsistentReads<'a, K: Clone + Eq + Hash = UserId> {
    cluster: &'a Cluster,
    budget: &'a Arc<ReadBudget<K>>,
    caller: &'a K,
}

impl<'a, K: Clone + Eq + Hash + Send + Sync> ConsistentReads<'a, K> {
    /// Creates the reads of a caller.
    pub fn new(cluster: &'a Cluster, budget: &'a Arc<ReadBudget<K>>, caller: &'a K) -> Self {
        Self { cluster, budget, caller }
    }

    /// Returns the store, which shows everything that live owners published if [`Cluster::barrier`] was passed.
    pub fn store(&self) -> &dyn Store {
        &*self.cluster.ports.store
    }

    /// Waits until the store shows everything that live owners of all partitions have published, and then for a turn.
    ///
    /// # Errors
    /// Those of [`Self::turn`].
    pub async fn turn_after_barrier(&self) -> Result<ReadTurn<K>, Refusal> {
        self.cluster.barrier().await;
        self.turn().await
    }

    /// Returns a user as a reader, with the settings that the store has.
    ///
    /// # Errors
    /// Those of [`Self::turn`]; `STORE_UNAVAILABLE` if the store can't be read.
    pub async fn reader(&self, user: &UserId, now_ms: u64) -> Result<Reader, Refusal> {
        let _turn = self.turn().await?;
        let settings = self.store().settings_of(std::slice::from_ref(user)).await;
        let settings = settings.map_err(store_unavailable)?.pop().unwrap_or_default();
        Ok(Reader::with_settings(user.clone(), &settings, now_ms))
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
        self.cluster.barrier_in(partition_in(self.cluster, &pull.conversation)).await;
        let turn = self.turn().await?;
        let found = history::pull(self.store(), reader, pull).await;
        drop(turn);
        if !self.may_be_missing(&found) {
            return found;
        }
        let above = beyond_head_after_barrier(self.cluster, &pull.conversation).await;
        let _turn = self.turn().await?;
        history::pull_where(self.store(), reader, pull, above).await
    }

    /// Reads a page of a history with at most about `max_bytes` of content, for an administrator or as a user sees it. A
    /// page beyond the end is empty.
    ///
    /// # Errors
    /// Those of [`Self::turn`]; `NOT_FOUND` or `NOT_A_MEMBER` if the store has everything that was published in the
    /// partition, and `NOT_YET` if it may not have.
    pub(crate) async fn read(
        &self,
        viewer: Viewer<'_>,
        pull: &Pull,
        max_bytes: usize,
    ) -> Result<FoundPage, Refusal> {
        self.cluster.barrier_in(partition_in(self.cluster, &pull.conversation)).await;
        let turn = self.turn().await?;
        let found = history::read(self.store(), viewer, pull, max_bytes, BeyondHead::Nothing).await;
        drop(turn);
        // What a caller names by its seq is said to be missing only if that is known.
        let is_named = matches!(pull.which, Which::Seqs(_) | Which::Around(_));
        let is_beyond = |found: &Result<FoundPage, Refusal>| {
            is_named && found.as_ref().is_ok_and(|found| found.page.is_none())
        };
        let may_lag = beyond_head_before_barrier(self.cluster) == BeyondHead::Unknown;
        let is_in_doubt = self.may_be_missing(&found) || (may_lag && is_beyond(&found));
        if !is_in_doubt {
            return found;
        }
        let above = beyond_head_after_barrier(self.cluster, &pull.conversation).await;
        let _turn = self.turn().await?;
        let found = history::read(self.store(), viewer, pull, max_bytes, above).await;
        let archived = found.as_ref().ok().and_then(|found| found.archived);
        if is_beyond(&found) && above.may_be_more(archived) { Err(NOT_STORED) } else { found }
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
        let first = beyond_head_before_barrier(self.cluster);
        let changed = self.change_where(user, query, first).await;
        if first != BeyondHead::Unknown || !matches!(changed, Err((Code::NotYet, _))) {
            return changed;
        }
        let above = beyond_head_after_barrier(self.cluster, conversation).await;
        self.change_where(user, query, above).await
    }

    async fn change_where(
        &self,
        user: &UserId,
        query: &Query,
        above: BeyondHead,
    ) -> Result<Option<(u64, FrameBody)>, Refusal> {
        let _turn = self.turn().await?;
        let store = self.store();
        Ok(match query {
            Query::Read { conversation, seq } => {
                let moved = mark_read::read(store, user, conversation, *seq, above).await?;
                moved.map(|mark| {
                    self.cluster.events.read(user, conversation, mark.seq);
                    mark_read::receipt(user, conversation, mark)
                })
            }
            Query::Clear { conversation, seq } => {
                let moved = clear::clear(store, user, conversation, *seq, above).await?;
                moved.map(|mark| clear::cleared(conversation, mark))
            }
            Query::Hide { conversation, seqs } => {
                let hidden = hide::hide(store, user, conversation, seqs, above).await?;
                (!hidden.is_empty()).then(|| hide::hidden(conversation, hidden))
            }
            Query::Pull(_)
            | Query::Sync(_)
            | Query::Positions(_)
            | Query::Recall { .. }
            | Query::Leave(_) => None,
        })
    }

    /// Returns whether a refusal may be wrong because the store lacks something.
    fn may_be_missing<T>(&self, found: &Result<T, Refusal>) -> bool {
        let Err(refusal) = found else { return false };
        let is_missing = *refusal == NO_MESSAGES || matches!(refusal.0, Code::NotAMember | Code::NotFound);
        is_missing && beyond_head_before_barrier(self.cluster) == BeyondHead::Unknown
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

/// Passes the read barrier of the partition, then returns what is known of seqs above the store's last one (ADR 16).
pub(crate) async fn beyond_head_after_barrier(
    cluster: &Cluster,
    conversation: &ConversationId,
) -> BeyondHead {
    let partition = partition_in(cluster, conversation);
    match cluster.barrier_of(partition).await {
        Some(below) => BeyondHead::NothingIfArchived { partition, below },
        None => BeyondHead::Unknown,
    }
}
