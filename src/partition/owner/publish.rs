//! Publishing of decided records: the answer to the origin, and the push to all recipients.

use tidegate_protocol::{
    id::{ConversationId, ConversationKind, UserId},
    machine::ledger::Outcome,
    record::{Body, MemberAction, Record},
};
use tokio_util::sync::CancellationToken;

use super::{Decided, Owner};
use crate::{
    delivery::trace_steps,
    fault::planted::{Planted, is_planted},
    partition::{
        dispatcher::Dispatcher,
        exit::{OwnerExit, retry, wait_for_store},
        membership::Recipients,
    },
};

const MEMBERS_PAGE_ROWS: usize = 1_000;

/// Awaits the archive and the publication of a batch, even if the partition is lost meanwhile.
pub(super) async fn to_the_end(
    publishing: impl Future<Output = Result<(), OwnerExit>>,
    lost: &CancellationToken,
) -> Result<(), OwnerExit> {
    if !is_planted(Planted::ArchivedUnpublished) {
        return publishing.await;
    }
    tokio::select! {
        biased;
        () = lost.cancelled() => Err(OwnerExit::Revoked),
        done = publishing => done,
    }
}

/// Returns the records of a batch with the membership changes at the end, where they do not belong; a planted fault.
pub(super) fn messages_first(decided: &[Decided]) -> Vec<Decided> {
    let mut records = decided.to_vec();
    records.sort_by_key(|(record, _)| matches!(record.body, Body::Member(_)));
    records
}

impl Owner {
    /// Counts the accepted messages and edits of groups for storms, before any of them is published: both go to all members.
    pub(super) fn count_messages(&self, decided: &[Decided]) {
        self.storms.count(decided.iter().filter_map(|(record, outcome)| {
            let conversation = match &record.body {
                Body::Message(message) => &message.conversation,
                Body::Edit(edit) => &edit.conversation,
                Body::Member(_) | Body::Recall(_) | Body::Prune(_) | Body::Rules(_) => return None,
            };
            let is_group = matches!(conversation.kind(), ConversationKind::Group(_));
            match outcome {
                Outcome::Accepted { seq, .. } if is_group => Some((conversation, *seq, record.received_at)),
                _ => None,
            }
        }));
    }

    pub(super) async fn publish(
        &mut self,
        record: &Record,
        outcome: Outcome,
        out: &mut Dispatcher,
    ) -> Result<(), OwnerExit> {
        match outcome {
            Outcome::Accepted { seq, .. } => {
                self.metrics.accepts.increment(1);
                self.deliver(record, seq, out).await?;
            }
            Outcome::Duplicate { .. } => self.metrics.duplicates.increment(1),
            Outcome::Refused { .. } | Outcome::RefusedBefore { .. } => self.metrics.refusals.increment(1),
            Outcome::Void { .. } | Outcome::Noted => {}
        }
        out.outcome(record, outcome);
        trace_steps::note_answer(&self.cluster.trace, record, outcome);
        Ok(())
    }

    async fn deliver(&mut self, record: &Record, seq: u64, out: &mut Dispatcher) -> Result<(), OwnerExit> {
        let Some(conversation) = record.conversation() else { return Ok(()) };
        if matches!(record.body, Body::Prune(_) | Body::Rules(_)) {
            return Ok(());
        }
        let recipients = match &record.body {
            _ if !out.is_clustered() => None,
            Body::Member(change) => Some(self.members.change(change, seq)),
            _ => Some(self.members.recipients(conversation)),
        };
        let named = match recipients {
            Some(Recipients::LargeGroup(meta)) => {
                out.fan_out(record, seq, meta);
                return Ok(());
            }
            Some(Recipients::Named(users)) => Some(users),
            None => None,
        };
        if let Body::Member(change) = &record.body {
            // Empty on a cluster, where the recipients show whether the group is small.
            self.sizes.change(change);
        }
        let tracked = self.is_tracked(conversation, out).await?;
        match &record.body {
            Body::Message(message) => out.message(record, message, seq, tracked, named.as_ref()),
            Body::Member(change) => {
                out.change(record, change, seq, tracked, named.as_ref());
                if change.action == MemberAction::Delete {
                    self.unindex_all_members(conversation, out).await?;
                }
            }
            Body::Recall(recall) => out.recall(record, recall, seq, tracked, named.as_ref()),
            Body::Edit(edit) => out.edit(record, edit, seq, tracked, named.as_ref()),
            Body::Prune(_) | Body::Rules(_) => {}
        }
        Ok(())
    }

    /// Returns whether pushes are tracked until acked: those of direct conversations and small groups.
    async fn is_tracked(
        &mut self,
        conversation: &ConversationId,
        out: &Dispatcher,
    ) -> Result<bool, OwnerExit> {
        match conversation.kind() {
            ConversationKind::Direct(..) => Ok(true),
            ConversationKind::Room(_) => Ok(false),
            // In a cluster, large groups go through `fan_out`.
            ConversationKind::Group(_) if out.is_clustered() => Ok(true),
            ConversationKind::Group(_) => loop {
                match self.sizes.is_small(&*self.cluster.ports.store, conversation).await {
                    Ok(is_small) => return Ok(is_small),
                    Err(error) => wait_for_store(error).await?,
                }
            },
        }
    }

    async fn unindex_all_members(
        &self,
        conversation: &ConversationId,
        out: &mut Dispatcher,
    ) -> Result<(), OwnerExit> {
        let store = &self.cluster.ports.store;
        let mut after: Option<UserId> = None;
        loop {
            let page = retry(|| store.members(conversation, after.as_ref(), MEMBERS_PAGE_ROWS)).await?;
            let Some((last, _)) = page.last() else { return Ok(()) };
            after = Some(last.clone());
            out.unindex_members(conversation, page.into_iter().map(|(user, _)| user).collect());
        }
    }
}
