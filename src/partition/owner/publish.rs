//! Telling what was decided: the origin its answer, everybody concerned what happened (DESIGN 6.4).

use tidegate_protocol::{
    id::{ConversationId, ConversationKind, UserId},
    machine::ledger::Outcome,
    record::{Body, MemberAction, Record},
};

use super::Owner;
use crate::{
    delivery::{local::Outbound, trace_steps},
    partition::{
        exit::{GivenUp, retry},
        membership::Told,
    },
};

/// Memberships read from the store at a time.
const MEMBERSHIP_PAGE: usize = 1_000;

impl Owner {
    pub(super) async fn tell(
        &mut self,
        record: &Record,
        outcome: Outcome,
        out: &mut Outbound,
    ) -> Result<(), GivenUp> {
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
        trace_steps::note_answer(&self.ports.trace, record, outcome);
        Ok(())
    }

    async fn deliver(&mut self, record: &Record, seq: u64, out: &mut Outbound) -> Result<(), GivenUp> {
        let Some(conversation) = record.conversation() else { return Ok(()) };
        if matches!(record.body, Body::Prune(_) | Body::Rules(_)) {
            return Ok(());
        }
        let told = match &record.body {
            _ if !out.has_reach() => None,
            Body::Member(change) => Some(self.members.change(change, seq)),
            _ => Some(self.members.told(conversation)),
        };
        let named = match told {
            Some(Told::Everybody(crowd)) => {
                out.fan_out(record, seq, crowd);
                return Ok(());
            }
            Some(Told::Named(users)) => Some(users),
            None => None,
        };
        let tracked = self.is_small(conversation, out).await?;
        match &record.body {
            Body::Message(message) => out.message(record, message, seq, tracked, named.as_ref()),
            Body::Member(change) => {
                out.change(record, change, seq, tracked, named.as_ref());
                if change.action == MemberAction::Delete {
                    self.part_all(conversation, out).await?;
                }
            }
            Body::Recall(recall) => out.recall(record, recall, seq, tracked, named.as_ref()),
            Body::Prune(_) | Body::Rules(_) => {}
        }
        Ok(())
    }

    /// Direct conversations and small groups are tracked until acked.
    async fn is_small(&self, conversation: &ConversationId, out: &Outbound) -> Result<bool, GivenUp> {
        let max = self.settings.small_group_max;
        match conversation.kind() {
            ConversationKind::Direct(..) => Ok(true),
            ConversationKind::Room(_) => Ok(false),
            // Others are told another way.
            ConversationKind::Group(_) if out.has_reach() => Ok(true),
            ConversationKind::Group(_) => {
                let store = &self.ports.store;
                let summary = retry(|| store.summary(conversation, None)).await?;
                Ok(summary.is_none_or(|summary| summary.members <= max as u64))
            }
        }
    }

    async fn part_all(&self, conversation: &ConversationId, out: &mut Outbound) -> Result<(), GivenUp> {
        let store = &self.ports.store;
        let mut after: Option<UserId> = None;
        loop {
            let page = retry(|| store.members(conversation, after.as_ref(), MEMBERSHIP_PAGE)).await?;
            let Some((last, _)) = page.last() else { return Ok(()) };
            after = Some(last.clone());
            out.part(conversation, page.into_iter().map(|(user, _)| user).collect());
        }
    }
}
