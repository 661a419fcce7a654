//! Part of the port `Store` that reads when the newest messages were received, without their content.

use async_trait::async_trait;
use tidegate_protocol::machine::storm::PastMessage;

use super::{ConversationSeq, Store, StoreError};
use crate::fault::Faulty;

/// Returns how many of the newest rows of a conversation are read to find `limit` messages: a group may have any number of
/// membership changes above them.
pub const fn message_rows_max(limit: usize) -> usize {
    limit.saturating_mul(4).saturating_add(256)
}

/// Positions and times of messages, for a new owner that counts them.
#[async_trait]
pub trait MessageTimes: Send + Sync {
    /// Returns the newest `limit` messages before each of these places, newest first, in the order of `ends`, as far as the
    /// newest [`message_rows_max`] rows have them. Recalled messages count; membership changes, recalls and messages that
    /// were removed do not.
    async fn message_times(
        &self,
        ends: &[ConversationSeq],
        limit: usize,
    ) -> Result<Vec<Vec<PastMessage>>, StoreError>;
}

#[async_trait]
impl MessageTimes for Faulty<dyn Store> {
    async fn message_times(
        &self,
        ends: &[ConversationSeq],
        limit: usize,
    ) -> Result<Vec<Vec<PastMessage>>, StoreError> {
        self.call("message_times", self.inner.message_times(ends, limit)).await
    }
}
