//! Undiscovered groups: they became large in a record that this node missed. Their local members were indexed by name,
//! and nothing else would declare them to the other nodes.

use std::sync::Arc;

use tidegate_protocol::id::ConversationId;

use super::{GroupHead, JobResult, SubscriberTask};
use crate::{
    log_limit::log_limited,
    mail::Audience,
    store::{Store, StoreError},
    supervised,
};

/// Groups checked in one batch.
const GROUPS_PAGE: usize = 500;

impl GroupHead {
    /// Reads the head of a group; `None` if the group is not archived.
    pub(super) async fn read(
        store: &dyn Store,
        group: &ConversationId,
        small_max: u64,
    ) -> Result<Option<Self>, StoreError> {
        let summary = store.summary(group, None).await?;
        Ok(summary.map(|it| Self {
            group: group.clone(),
            seq: it.head.last_seq,
            is_large: it.members > small_max,
        }))
    }
}

impl SubscriberTask {
    /// Reads the heads of some undiscovered groups in the background; those that can't be read are tried again.
    pub(super) fn check_undiscovered(&mut self) {
        let page: Vec<ConversationId> = self.undiscovered.iter().take(GROUPS_PAGE).cloned().collect();
        if page.is_empty() {
            return;
        }
        for group in &page {
            self.undiscovered.remove(group);
        }
        let (cluster, small_max) = (Arc::clone(&self.cluster), self.small_max);
        supervised::spawn_in(&mut self.jobs, "a job of the subscriber", async move {
            let mut found = Vec::new();
            for group in page {
                match GroupHead::read(&*cluster.ports.store, &group, small_max).await {
                    Ok(Some(head)) if head.is_large => found.push((group, Some(head))),
                    Ok(_) => {}
                    Err(_) => found.push((group, None)),
                }
            }
            JobResult::Undiscovered(found)
        });
    }

    /// Tracks the groups that are large; their local members get `Behind` with the head.
    pub(super) async fn adopt(&mut self, found: Vec<(ConversationId, Option<GroupHead>)>) {
        for (group, head) in found {
            if self.groups.contains_key(&group) || self.directory.conversation(&group).is_empty() {
                continue;
            }
            let seq = head.map(|head| head.seq);
            match seq {
                Some(seq) if self.ensure_state(&group, seq, seq).await.is_ok() => {
                    log_limited!(info, %group, "group became large in a record that this node missed; tracking it");
                    self.metrics.behind.increment(1);
                    self.out.behind(&group, seq, Audience::Members);
                }
                _ => {
                    self.undiscovered.insert(group);
                }
            }
        }
    }
}
