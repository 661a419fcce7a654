//! Part of the port `Store` that removes what users keep outside of the log: marks, hidden entries and settings.

use async_trait::async_trait;
use tidegate_protocol::id::{ConversationId, UserId};

use super::{Store, StoreError};
use crate::fault::Faulty;

/// Removal of what belongs to one user alone. What is not there is no error, so that every call may be repeated.
#[async_trait]
pub trait PersonalErasure: Send + Sync {
    /// Removes read marks, cleared marks, hidden entries, preferences and bounds of the user in these conversations, as
    /// durably as [`Store::save_marks`] writes them. A mark that the user sets later starts from nothing.
    async fn forget_marks(&self, user: &UserId, conversations: &[ConversationId]) -> Result<(), StoreError>;

    /// Removes the settings of the user, as durably as [`Store::merge_settings`] writes them.
    async fn forget_settings(&self, user: &UserId) -> Result<(), StoreError>;
}

#[async_trait]
impl PersonalErasure for Faulty<dyn Store> {
    async fn forget_marks(&self, user: &UserId, conversations: &[ConversationId]) -> Result<(), StoreError> {
        self.call("forget_marks", self.inner.forget_marks(user, conversations)).await
    }

    async fn forget_settings(&self, user: &UserId) -> Result<(), StoreError> {
        self.call("forget_settings", self.inner.forget_settings(user)).await
    }
}
