//! Durable entry of a storm in force: written and removed only over the version that this owner wrote last or found when it
//! began, so that it never replaces the entry of its successor.

use std::time::Duration;

use tidegate_protocol::id::ConversationId;
use tokio::time::timeout;

use super::{StepError, StormActor};
use crate::{
    log_limit::log_limited,
    store::{GuardEntry, GuardKey, GuardKind, GuardOutcome, GuardPut},
    storms::StormEntry,
};

/// Longest wait for the archive to have what this owner has published.
const ARCHIVE_WAIT: Duration = Duration::from_secs(1);

impl StormActor {
    /// Stores the entry of a storm that this owner acts on, for a time.
    ///
    /// # Errors
    /// [`StepError::Changed`] if another entry was stored since; it is replaced with the next try, unless its owner is the
    /// successor of this one. The store can't be reached.
    pub(super) async fn store_entry(
        &mut self,
        group: &ConversationId,
        entry: StormEntry,
        hold: Duration,
    ) -> Result<(), StepError> {
        let hold_ms = u64::try_from(hold.as_millis()).unwrap_or(u64::MAX);
        let until_ms = self.cluster.guard.now_ms().saturating_add(hold_ms);
        let key = GuardKey::new(GuardKind::Storm, group.as_str())?;
        let expected = self.acting.get(group).map(|acting| acting.version);
        let put = GuardPut { entry: GuardEntry::new(key, entry.encode(), Some(until_ms))?, expected };
        let change = self.cluster.put_guard(&put.into()).await?;
        match change.outcome {
            GuardOutcome::Stored(version) => self.note_version(group, version),
            GuardOutcome::Conflict(_, version) => {
                self.check_owner().await?;
                self.note_version(group, version);
                return Err(StepError::Changed);
            }
            GuardOutcome::Full(_) => {
                log_limited!(warn, %group, "too many storms in force; this one is not limited");
            }
            GuardOutcome::Unchanged => {}
        }
        Ok(())
    }

    /// Removes the entry of a storm that this owner acts on.
    ///
    /// # Errors
    /// As [`Self::store_entry`].
    pub(super) async fn remove_entry(&mut self, group: &ConversationId) -> Result<(), StepError> {
        let key = GuardKey::new(GuardKind::Storm, group.as_str())?;
        let expected = self.acting.get(group).map(|acting| acting.version);
        match self.cluster.remove_guard(&key, expected).await?.outcome {
            GuardOutcome::Conflict(_, version) if version > 0 => {
                self.check_owner().await?;
                self.note_version(group, version);
                Err(StepError::Changed)
            }
            _ => Ok(()),
        }
    }

    fn note_version(&mut self, group: &ConversationId, version: u64) {
        if let Some(acting) = self.acting.get_mut(group) {
            acting.version = version;
        }
    }

    /// Checks that the partition has no other owner.
    ///
    /// # Errors
    /// It has, or the store can't be reached.
    pub(super) async fn check_owner(&self) -> Result<(), StepError> {
        self.cluster.ports.store.load(self.scope.partition, self.scope.fence, &[]).await?;
        Ok(())
    }

    /// Waits until the archive has all that the log has now, such as the decision of a person about a group.
    ///
    /// # Errors
    /// It does not within [`ARCHIVE_WAIT`], for which a pass waits once, or the log can't be reached.
    pub(super) async fn wait_archived(&mut self) -> Result<(), StepError> {
        let wait = if self.archive_lags { Duration::ZERO } else { ARCHIVE_WAIT };
        let (cluster, partition) = (&self.cluster, self.scope.partition);
        let archived = async {
            let end = cluster.ports.bus.bounds(partition).await.map_err(|_| StepError::Log)?.next;
            cluster.owned.unarchived().wait_offset(partition, end).await;
            Ok(())
        };
        let outcome = timeout(wait, archived).await.unwrap_or(Err(StepError::ArchiveLag));
        self.archive_lags = outcome.is_err();
        outcome
    }
}
