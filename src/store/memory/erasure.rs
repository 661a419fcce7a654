//! Removal of marks and settings in memory.

use async_trait::async_trait;
use tidegate_protocol::id::{ConversationId, UserId};

use super::MemoryStore;
use crate::store::{PersonalErasure, StoreError};

#[async_trait]
impl PersonalErasure for MemoryStore {
    async fn forget_marks(&self, user: &UserId, conversations: &[ConversationId]) -> Result<(), StoreError> {
        let mut state = self.lock();
        for id in conversations {
            if let Some(kept) = state.conversations.get_mut(id) {
                kept.user_states.remove(user);
            }
        }
        Ok(())
    }

    async fn forget_settings(&self, user: &UserId) -> Result<(), StoreError> {
        self.lock().settings.remove(user);
        Ok(())
    }
}
