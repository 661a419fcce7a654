//! The writer's part for what users keep for themselves: marks and wishes.

use std::collections::{HashMap, hash_map::Entry};

use fjall::PersistMode;
use tidegate_protocol::{
    id::{ConversationId, UserId},
    settings::UserSettings,
};

use super::{Trouble, codec, writer::Writer};
use crate::store::{Level, Personal, StoreError};

impl Writer {
    /// Marks go to the system without a sync of their own: the next archive's takes them along, or one for all that
    /// gathered ([`super::pending_confirms`]). They are confirmed after it.
    pub(super) fn save_marks(
        &mut self,
        changes: &[(UserId, ConversationId, Personal)],
    ) -> Result<(), StoreError> {
        self.usable()?;
        self.write(PersistMode::Buffer, |database, _, batch| {
            let mut levels: HashMap<Vec<u8>, (Level, bool)> = HashMap::new();
            for (user, conversation, change) in changes {
                let (level, changed) = match levels.entry(codec::mark_key(conversation, user)) {
                    Entry::Occupied(entry) => entry.into_mut(),
                    Entry::Vacant(entry) => {
                        let value = database.state.get(entry.key()).map_err(Trouble::from)?;
                        let level = value.map(|value| codec::level(&value)).transpose()?.unwrap_or_default();
                        entry.insert((level, false))
                    }
                };
                *changed |= level.apply(change);
            }
            for (key, (level, _)) in levels.into_iter().filter(|(_, (_, changed))| *changed) {
                batch.insert(&database.state, key, codec::put_level(&level));
            }
            Ok(())
        })
    }

    /// As marks go; the wishes that hold now.
    pub(super) fn save_wishes(
        &mut self,
        user: &UserId,
        now: UserSettings,
    ) -> Result<UserSettings, StoreError> {
        self.usable()?;
        let mut wishes = now;
        self.write(PersistMode::Buffer, |database, _, batch| {
            let key = codec::wishes_key(user);
            let before = database.state.get(&key).map_err(Trouble::from)?;
            wishes = now.over(before.map(|value| codec::wishes(&value)).transpose()?.unwrap_or_default());
            batch.insert(&database.state, key, codec::put_wishes(&wishes));
            Ok(())
        })?;
        Ok(wishes)
    }
}
