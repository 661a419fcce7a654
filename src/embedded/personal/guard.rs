//! Writes of the guard's entries, by the writer thread.

use fjall::PersistMode;
use tokio::sync::oneshot;

use crate::{
    clock::wall_ms,
    embedded::{
        Database, DatabaseError, Engine, Job,
        batch::WriteBatch,
        codec::{self, GuardValue},
        writer::Writer,
    },
    store::{
        GuardOutcome, StoreError,
        guard::{ENDED_AT_ONCE, FoundGuard, GuardCounts, GuardEdit, check_edits},
    },
};

impl Engine {
    /// Changes entries of the guard, all or none.
    pub(crate) async fn change_guard(&self, edits: Vec<GuardEdit>) -> Result<GuardOutcome, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.send(Job::Guard(edits, reply))?;
        answer.await.unwrap_or_else(|_| Err(StoreError::Unknown("the writer ended".to_owned())))
    }
}

impl Writer {
    /// Removes some ended rows, then writes the changes and syncs them.
    pub(in crate::embedded) fn change_guard(
        &mut self,
        edits: &[GuardEdit],
    ) -> Result<GuardOutcome, StoreError> {
        self.check_usable()?;
        let now_ms = wall_ms();
        // A batch of its own, so that the changes find what it leaves.
        self.write(PersistMode::Buffer, |database, _, batch| Ok(stage_ended(database, now_ms, batch)?))?;
        let mut outcome = GuardOutcome::Unchanged;
        self.write(PersistMode::SyncData, |database, _, batch| {
            outcome = stage(database, edits, now_ms, batch)?;
            Ok(())
        })?;
        Ok(outcome)
    }
}

fn counts(database: &Database) -> Result<GuardCounts, DatabaseError> {
    let mut counts = GuardCounts::new();
    for entry in database.state.prefix(codec::GUARD_COUNT_PREFIX) {
        let (key, value) = entry.into_inner()?;
        let [_, kind] = key[..] else { return Err(codec::damaged()) };
        counts.insert(kind, codec::number(&value)?);
    }
    Ok(counts)
}

fn stage_ended(database: &Database, now_ms: u64, batch: &mut WriteBatch) -> Result<(), DatabaseError> {
    let state = &database.state;
    for (kind, count) in counts(database)? {
        let mut removed = 0;
        let ends =
            codec::guard_end_key(kind, 0, "")..codec::guard_end_key(kind, now_ms.saturating_add(1), "");
        for entry in state.range(ends).take(ENDED_AT_ONCE) {
            let end = entry.key()?;
            let key = codec::guard_key(kind, codec::guard_end(&end)?.2);
            let row = state.get(&key)?.ok_or_else(codec::damaged)?;
            batch.remove(state, codec::guard_version_key(codec::guard_value(&row)?.version));
            batch.remove(state, key);
            batch.remove(state, end);
            removed += 1;
        }
        if removed > 0 {
            let left = count.saturating_sub(removed);
            batch.insert(state, codec::guard_count_key(kind), codec::put_number(left));
        }
    }
    Ok(())
}

fn stage(
    database: &Database,
    edits: &[GuardEdit],
    now_ms: u64,
    batch: &mut WriteBatch,
) -> Result<GuardOutcome, DatabaseError> {
    let state = &database.state;
    let mut stored = Vec::with_capacity(edits.len());
    for edit in edits {
        let row = state.get(codec::guard_key(edit.key.kind().number(), edit.key.name()))?;
        stored.push(row.map(|value| codec::guard_value(&value)).transpose()?);
    }
    let found = |row: &Option<GuardValue>| {
        let row = row.as_ref()?;
        let is_live = row.value.is_some() && row.until_ms.is_none_or(|until| until > now_ms);
        Some(FoundGuard { version: row.version, is_live })
    };
    let found: Vec<_> = stored.iter().map(found).collect();
    let changed = match check_edits(edits, &found, &counts(database)?) {
        Ok(changed) => changed,
        Err(refused) => return Ok(refused),
    };
    let newest = state.get(codec::GUARD_VERSION)?;
    let mut version = newest.map(|value| codec::number(&value)).transpose()?.unwrap_or(0);
    for (edit, old) in edits.iter().zip(stored) {
        version += 1;
        let (kind, name) = (edit.key.kind().number(), edit.key.name());
        if let Some(old) = old {
            batch.remove(state, codec::guard_version_key(old.version));
            if let Some(until) = old.until_ms {
                batch.remove(state, codec::guard_end_key(kind, until, name));
            }
        }
        let row = GuardValue { version, until_ms: edit.until_ms(now_ms), value: edit.value.clone() };
        stage_row(database, codec::guard_key(kind, name), &row, batch)?;
    }
    for (kind, count) in changed {
        batch.insert(state, codec::guard_count_key(kind), codec::put_number(count));
    }
    Ok(GuardOutcome::Stored(version))
}

/// Adds a row with its indexes, and its version as the newest one.
pub(in crate::embedded) fn stage_row(
    database: &Database,
    key: Vec<u8>,
    row: &GuardValue,
    batch: &mut WriteBatch,
) -> Result<(), DatabaseError> {
    let state = &database.state;
    batch.insert(state, codec::guard_version_key(row.version), key.clone());
    if let Some(until) = row.until_ms {
        let (kind, name) = codec::guard_name(&key)?;
        batch.insert(state, codec::guard_end_key(kind, until, name), Vec::new());
    }
    batch.insert(state, key, codec::put_guard_value(row));
    batch.insert(state, codec::GUARD_VERSION, codec::put_number(row.version));
    Ok(())
}
