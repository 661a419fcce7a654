//! Writes of revocations of tokens, by the writer thread.

use std::sync::Arc;

use fjall::PersistMode;
use tokio::sync::oneshot;

use crate::{
    clock::wall_ms,
    embedded::{Database, DatabaseError, Engine, Job, batch::WriteBatch, codec, writer::Writer},
    revocation::{Revocation, add_to},
    store::StoreError,
};

/// Revocations that one write removes.
const REMOVED_AT_ONCE: usize = 10_000;

impl Engine {
    /// Stores a revocation; returns false if its user has the maximum number.
    pub(crate) async fn revoke(&self, revocation: Revocation, now_ms: u64) -> Result<bool, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.send(Job::Revoke(Box::new(revocation), now_ms, reply))?;
        answer.await.unwrap_or_else(|_| Err(StoreError::Unknown("the writer ended".to_owned())))
    }
}

impl Writer {
    /// Writes a revocation and syncs it.
    pub(in crate::embedded) fn revoke(&mut self, new: &Revocation, now_ms: u64) -> Result<bool, StoreError> {
        self.check_usable()?;
        let mut fits = true;
        self.write(PersistMode::SyncData, |database, _, batch| {
            fits = stage(database, new, now_ms, batch)?;
            Ok(())
        })?;
        Ok(fits)
    }

    /// Removes the revocations of all users that are over. A failure keeps them until the next start.
    pub(in crate::embedded) fn remove_over_revocations(&mut self) {
        let over = {
            let core = Arc::clone(&self.core);
            let database = core.database.read();
            database.as_ref().map(|database| keys_over(database, wall_ms()))
        };
        // Damage is reported by the node that reads all of them at its start.
        let Some(Ok(over)) = over else { return };
        for keys in over.chunks(REMOVED_AT_ONCE) {
            let removed = self.write(PersistMode::Buffer, |database, _, batch| {
                keys.iter().for_each(|key| batch.remove(&database.state, key.clone()));
                Ok(())
            });
            if let Err(error) = removed {
                tracing::warn!(%error, "revocations that are over not removed");
                return;
            }
        }
    }
}

fn keys_over(database: &Database, now_ms: u64) -> Result<Vec<Vec<u8>>, DatabaseError> {
    let mut keys = Vec::new();
    for entry in database.state.prefix(b"x") {
        let (key, value) = entry.into_inner()?;
        if codec::revocation(&key, &value)?.1.is_over(now_ms) {
            keys.push(key.to_vec());
        }
    }
    Ok(keys)
}

fn stage(
    database: &Database,
    new: &Revocation,
    now_ms: u64,
    batch: &mut WriteBatch,
) -> Result<bool, DatabaseError> {
    let mut stored = Vec::new();
    for entry in database.state.prefix(codec::revocations_prefix(&new.user)) {
        let (key, value) = entry.into_inner()?;
        stored.push(codec::revocation(&key, &value)?.1);
    }
    let mut all: Vec<Revocation> = stored.iter().filter(|it| !it.is_over(now_ms)).cloned().collect();
    if !add_to(&mut all, new) {
        return Ok(false);
    }
    for old in stored.iter().filter(|old| !all.contains(old)) {
        batch.remove(&database.state, codec::revocation_key(old));
    }
    if all.last() == Some(new) {
        let newest = database.state.get(codec::NEWEST_REVOCATION)?;
        let number = newest.map(|value| codec::number(&value)).transpose()?.unwrap_or(0) + 1;
        batch.insert(&database.state, codec::revocation_key(new), codec::put_revocation(number, new));
        batch.insert(&database.state, codec::NEWEST_REVOCATION, codec::put_number(number));
    }
    Ok(true)
}
