//! Groups that became large while this node missed what said so: their members here came by name, and nobody else would tell
//! the other nodes of them.

use std::sync::Arc;

use tidegate_protocol::id::ConversationId;

use super::{Done, Head, Keeper};
use crate::{
    mail::Audience,
    store::{Store, StoreError},
};

/// Groups looked at in one go.
const PAGE: usize = 500;

impl Head {
    /// Where the group stands; none = it is not archived.
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

impl Keeper {
    /// Reads where some of them stand; what can't be read is looked at again.
    pub(super) fn look_at_strange(&mut self) {
        let page: Vec<ConversationId> = self.strange.iter().take(PAGE).cloned().collect();
        if page.is_empty() {
            return;
        }
        for group in &page {
            self.strange.remove(group);
        }
        let (ports, small_max) = (Arc::clone(&self.ports), self.small_max);
        self.jobs.spawn(async move {
            let mut found = Vec::new();
            for group in page {
                match Head::read(&*ports.store, &group, small_max).await {
                    Ok(Some(head)) if head.is_large => found.push((group, Some(head))),
                    Ok(_) => {}
                    Err(_) => found.push((group, None)),
                }
            }
            Done::Strange(found)
        });
    }

    /// Large ones are this node's from here on; their members hear how far they are.
    pub(super) async fn adopt(&mut self, found: Vec<(ConversationId, Option<Head>)>) {
        for (group, head) in found {
            if self.groups.contains_key(&group) || self.directory.conversation(&group).is_empty() {
                continue;
            }
            let seq = head.map(|head| head.seq);
            match seq {
                Some(seq) if self.found(&group, seq, seq).await.is_ok() => {
                    tracing::info!(%group, "a group became large, and this node had not heard of it");
                    self.metrics.behind.increment(1);
                    self.out.behind(&group, seq, Audience::Members);
                }
                _ => {
                    self.strange.insert(group);
                }
            }
        }
    }
}
