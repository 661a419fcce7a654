//! Writes of users' personal state by the writer thread: marks and settings.

use std::collections::{HashMap, hash_map::Entry};

use fjall::PersistMode;
use tidegate_protocol::{
    id::{ConversationId, UserId},
    settings::UserSettings,
};
use tokio::sync::oneshot;

use super::{DatabaseError, Engine, Job, Reply, codec, writer::Writer};

mod erasure;
mod guard;
mod revocations;

pub(super) use self::guard::stage_row as stage_guard_row;

use crate::store::{Personal, StoreError, UserState};

impl Engine {
    pub(crate) async fn save_marks(
        &self,
        marks: Vec<(UserId, ConversationId, Personal)>,
    ) -> Result<(), StoreError> {
        let (reply, answer) = oneshot::channel();
        self.send(Job::Marks { marks, reply })?;
        answer.await.unwrap_or_else(|_| Err(StoreError::Unknown("the writer ended".to_owned())))
    }

    pub(crate) async fn save_settings(
        &self,
        user: UserId,
        now: UserSettings,
    ) -> Result<UserSettings, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.send(Job::Settings { user, now, reply })?;
        answer.await.unwrap_or_else(|_| Err(StoreError::Unknown("the writer ended".to_owned())))
    }
}

impl Writer {
    /// Writes marks without a sync of their own.
    ///
    /// They are confirmed after the next archive's sync, or after one for all writes that wait
    /// ([`super::pending_confirms`]).
    pub(super) fn save_marks(
        &mut self,
        changes: &[(UserId, ConversationId, Personal)],
    ) -> Result<(), StoreError> {
        self.check_usable()?;
        self.write(PersistMode::Buffer, |database, _, batch| {
            let mut states: HashMap<Vec<u8>, (UserState, bool)> = HashMap::new();
            for (user, conversation, change) in changes {
                let (state, changed) = match states.entry(codec::mark_key(conversation, user)) {
                    Entry::Occupied(entry) => entry.into_mut(),
                    Entry::Vacant(entry) => {
                        let value = database.state.get(entry.key()).map_err(DatabaseError::from)?;
                        let state =
                            value.map(|value| codec::user_state(&value)).transpose()?.unwrap_or_default();
                        entry.insert((state, false))
                    }
                };
                *changed |= state.apply(change);
            }
            for (key, (state, _)) in states.into_iter().filter(|(_, (_, changed))| *changed) {
                batch.insert(&database.state, key, codec::put_user_state(&state));
            }
            Ok(())
        })
    }

    /// Changes user settings, and replies with the merged ones after the next sync. A change whose caller has left is not
    /// made: a later call may have read the settings without it.
    pub(super) fn change_settings(&mut self, user: &UserId, now: UserSettings, reply: Reply<UserSettings>) {
        if reply.is_closed() {
            return;
        }
        match self.save_settings(user, now) {
            Ok(settings) if self.unsynced == 0 => drop(reply.send(Ok(settings))),
            Ok(settings) => self.confirms.add(reply, settings),
            Err(error) => drop(reply.send(Err(error))),
        }
    }

    /// Writes user settings like marks if they change, and returns the merged settings.
    fn save_settings(&mut self, user: &UserId, now: UserSettings) -> Result<UserSettings, StoreError> {
        let before = self.stored_settings(user)?;
        let settings = now.over(before);
        if settings == before {
            return Ok(settings);
        }
        self.check_usable()?;
        self.write(PersistMode::Buffer, |database, _, batch| {
            let key = codec::user_settings_key(user);
            batch.insert(&database.state, key, codec::put_user_settings(&settings));
            Ok(())
        })?;
        Ok(settings)
    }

    fn stored_settings(&self, user: &UserId) -> Result<UserSettings, StoreError> {
        let database = self.core.database.read();
        let Some(database) = &*database else {
            return Err(StoreError::Unavailable("the database is being reopened".to_owned()));
        };
        let value = database.state.get(codec::user_settings_key(user)).map_err(DatabaseError::from)?;
        Ok(value.map(|value| codec::user_settings(&value)).transpose()?.unwrap_or_default())
    }
}
