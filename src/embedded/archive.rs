//! Staging of a ledger delta as one write batch.

use std::collections::HashMap;

use tidegate_protocol::{
    id::{ConversationId, UserId},
    machine::ledger::{Delta, Head, Member, Pruned},
};

use super::{
    Database, DatabaseError,
    batch::WriteBatch,
    codec::{self, Pair},
};
use crate::store::StoreError;

/// Entries above which the [`WriteCache`] is cleared.
const CACHE_ENTRIES_MAX: usize = 200_000;

/// Writer's cache of heads and memberships, valid because only the writer changes them.
#[derive(Default)]
pub(super) struct WriteCache {
    /// Last seq and member count of each conversation; `None` if it has no head.
    heads: HashMap<ConversationId, Option<(u64, u64)>>,
    /// Whether each user is a member; `None` if the user never was.
    members: HashMap<(ConversationId, UserId), Option<bool>>,
}

impl WriteCache {
    /// Clears the cache, after a write that did not reach the disk or may not have.
    pub(super) fn clear(&mut self) {
        self.heads.clear();
        self.members.clear();
    }

    fn head(
        &mut self,
        id: &ConversationId,
        database: &Database,
    ) -> Result<Option<(u64, u64)>, DatabaseError> {
        if let Some(cached) = self.heads.get(id) {
            return Ok(*cached);
        }
        let value = database.state.get(codec::head_key(id)).map_err(DatabaseError::from)?;
        let loaded = value.map(|value| codec::head(&value)).transpose()?;
        let loaded = loaded.map(|(head, members)| (head.last_seq, members));
        self.heads.insert(id.clone(), loaded);
        Ok(loaded)
    }

    fn member(
        &mut self,
        id: &ConversationId,
        user: &UserId,
        database: &Database,
    ) -> Result<Option<bool>, DatabaseError> {
        let name = (id.clone(), user.clone());
        if let Some(cached) = self.members.get(&name) {
            return Ok(*cached);
        }
        let value = database
            .state
            .get(codec::pair(Pair::Member, id.as_str(), user.as_str()))
            .map_err(DatabaseError::from)?;
        let loaded = value.map(|value| codec::member(&value)).transpose()?.map(|member| member.is_in());
        self.members.insert(name, loaded);
        Ok(loaded)
    }
}

/// Adds the delta to the batch, except its position.
pub(super) fn stage(
    database: &Database,
    cache: &mut WriteCache,
    partition: u32,
    delta: &Delta,
    batch: &mut WriteBatch,
) -> Result<(), StoreError> {
    if cache.heads.len() + cache.members.len() > CACHE_ENTRIES_MAX {
        cache.clear();
    }
    refuse_conflicts(database, cache, delta)?;
    history(database, delta, batch)?;
    let mut counts = HashMap::new();
    for row in &delta.members {
        put_member(database, cache, row, &mut counts, batch)?;
    }
    for (id, user, stay) in &delta.stays {
        batch.insert(&database.state, codec::stay_key(id, user, stay), codec::put_stay(stay));
    }
    for (id, head) in &delta.heads {
        let members = count(database, cache, id, counts.remove(id))?;
        put_head(database, cache, id, head, members, batch);
    }
    for (id, change) in counts {
        let value = database.state.get(codec::head_key(&id)).map_err(DatabaseError::from)?;
        if let Some((head, _)) = value.map(|value| codec::head(&value)).transpose()? {
            let members = count(database, cache, &id, Some(change))?;
            put_head(database, cache, &id, &head, members, batch);
        }
    }
    for (id, user, device, row) in &delta.devices {
        let key = codec::device_key(id.as_str(), user.as_str(), device.as_str());
        batch.insert(&database.state, key, codec::put_device(row));
    }
    for (hash, key) in &delta.keys {
        batch.insert(&database.keys, codec::key_key(partition, hash), codec::put_key(key));
    }
    Ok(())
}

/// Refuses rows that exist or existed: seqs are consecutive, so any seq up to the last written one.
fn refuse_conflicts(database: &Database, cache: &mut WriteCache, delta: &Delta) -> Result<(), StoreError> {
    let mut ends: HashMap<&ConversationId, u64> = HashMap::new();
    for row in &delta.rows {
        let Some(id) = row.body.conversation() else { continue };
        let end = match ends.get(id) {
            Some(end) => *end,
            None => cache.head(id, database)?.map_or(0, |(last_seq, _)| last_seq),
        };
        if row.seq <= end {
            return Err(StoreError::Conflict(id.clone(), row.seq));
        }
        ends.insert(id, row.seq);
    }
    Ok(())
}

fn history(database: &Database, delta: &Delta, batch: &mut WriteBatch) -> Result<(), DatabaseError> {
    let pruned: HashMap<_, _> = delta.pruned.iter().map(|it| (&it.conversation, it.up_to)).collect();
    let is_gone = |id: &ConversationId, seq: u64| pruned.get(id).is_some_and(|up_to| seq <= *up_to);
    let mut recalled: HashMap<_, _> =
        delta.recalled.iter().map(|it| ((&it.conversation, it.seq), it.by)).collect();
    for row in &delta.rows {
        let Some(id) = row.body.conversation() else { continue };
        let by = recalled.remove(&(id, row.seq));
        if !is_gone(id, row.seq) {
            batch.insert(&database.rows, codec::row_key(id, row.seq), codec::put_row(row, by)?);
        }
    }
    for ((id, seq), by) in recalled {
        let key = codec::row_key(id, seq);
        if !is_gone(id, seq)
            && let Some(value) = database.rows.get(&key)?
        {
            let stored = codec::row(seq, &value)?;
            batch.insert(&database.rows, key, codec::put_row(&stored.row, Some(by))?);
        }
    }
    for Pruned { conversation: id, up_to, .. } in &delta.pruned {
        // Start above the rows pruned before: a scan visits the tombstones of removed rows one by one.
        let stored = database.state.get(codec::head_key(id))?.map(|value| codec::head(&value)).transpose()?;
        let first = stored.map_or(0, |(head, _)| head.pruned_to) + 1;
        if first > *up_to {
            continue;
        }
        for entry in database.rows.range(codec::row_key(id, first)..=codec::row_key(id, *up_to)) {
            batch.remove(&database.rows, entry.key()?);
        }
    }
    Ok(())
}

fn put_member(
    database: &Database,
    cache: &mut WriteCache,
    row: &(ConversationId, UserId, Member),
    counts: &mut HashMap<ConversationId, i64>,
    batch: &mut WriteBatch,
) -> Result<(), DatabaseError> {
    let (id, user, member) = row;
    let before = cache.member(id, user, database)?;
    if before.is_none() {
        batch.insert(&database.state, codec::pair(Pair::OfUser, user.as_str(), id.as_str()), []);
    }
    let change = i64::from(member.is_in()) - i64::from(before.unwrap_or(false));
    if change != 0 {
        *counts.entry(id.clone()).or_default() += change;
    }
    cache.members.insert((id.clone(), user.clone()), Some(member.is_in()));
    batch.insert(
        &database.state,
        codec::pair(Pair::Member, id.as_str(), user.as_str()),
        codec::put_member(member),
    );
    Ok(())
}

fn count(
    database: &Database,
    cache: &mut WriteCache,
    id: &ConversationId,
    change: Option<i64>,
) -> Result<u64, DatabaseError> {
    let before = cache.head(id, database)?.map_or(0, |(_, members)| members);
    Ok(before.saturating_add_signed(change.unwrap_or(0)))
}

fn put_head(
    database: &Database,
    cache: &mut WriteCache,
    id: &ConversationId,
    head: &Head,
    members: u64,
    batch: &mut WriteBatch,
) {
    cache.heads.insert(id.clone(), Some((head.last_seq, members)));
    batch.insert(&database.state, codec::head_key(id), codec::put_head(head, members));
}
