//! Removal of marks and settings by the writer thread, confirmed after the next sync.

use async_trait::async_trait;
use fjall::PersistMode;
use tidegate_protocol::id::{ConversationId, UserId};
use tokio::sync::oneshot;

use crate::{
    embedded::{EmbeddedStore, Job, Reply, codec, writer::Writer},
    store::{PersonalErasure, StoreError},
};

impl Writer {
    /// Removes rows of users without a sync of its own, and replies after the next one.
    pub(in crate::embedded) fn forget(&mut self, keys: &[Vec<u8>], reply: Reply<()>) {
        let removed = self.check_usable().and_then(|()| {
            self.write(PersistMode::Buffer, |database, _, batch| {
                keys.iter().for_each(|key| batch.remove(&database.state, key.clone()));
                Ok(())
            })
        });
        match removed {
            Ok(()) => self.confirms.add(reply, ()),
            Err(error) => drop(reply.send(Err(error))),
        }
    }
}

impl EmbeddedStore {
    async fn forget(&self, keys: Vec<Vec<u8>>) -> Result<(), StoreError> {
        let (reply, answer) = oneshot::channel();
        self.0.send(Job::Forget(keys, reply))?;
        answer.await.unwrap_or_else(|_| Err(StoreError::Unknown("the writer ended".to_owned())))
    }
}

#[async_trait]
impl PersonalErasure for EmbeddedStore {
    async fn forget_marks(&self, user: &UserId, conversations: &[ConversationId]) -> Result<(), StoreError> {
        self.forget(conversations.iter().map(|id| codec::mark_key(id, user)).collect()).await
    }

    async fn forget_settings(&self, user: &UserId) -> Result<(), StoreError> {
        self.forget(vec![codec::user_settings_key(user)]).await
    }
}
