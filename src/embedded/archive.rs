//! What a delta writes, as one batch.

use std::collections::HashMap;

use tidegate_protocol::{
    id::{ConversationId, UserId},
    machine::ledger::{Delta, Head, Member},
};

use super::{
    Database, Trouble,
    batch::WriteBatch,
    codec::{self, Pair},
};
use crate::store::StoreError;

/// Entries that [`Known`] may hold before it starts anew.
const KNOWN_MAX: usize = 200_000;

/// What the writer knows of the database without looking: it wrote it.
#[derive(Default)]
pub(super) struct Known {
    /// The last seq and the count of members; none = there is no head.
    heads: HashMap<ConversationId, Option<(u64, u64)>>,
    /// Whether the user is in; none = never was.
    members: HashMap<(ConversationId, UserId), Option<bool>>,
}

impl Known {
    /// Forgets everything: what was staged did not come to the disk, or nobody knows.
    pub(super) fn clear(&mut self) {
        self.heads.clear();
        self.members.clear();
    }

    fn head(&mut self, id: &ConversationId, database: &Database) -> Result<Option<(u64, u64)>, Trouble> {
        if let Some(known) = self.heads.get(id) {
            return Ok(*known);
        }
        let value = database.state.get(codec::head_key(id)).map_err(Trouble::from)?;
        let known = value.map(|value| codec::head(&value)).transpose()?;
        let known = known.map(|(head, members)| (head.last_seq, members));
        self.heads.insert(id.clone(), known);
        Ok(known)
    }

    fn member(
        &mut self,
        id: &ConversationId,
        user: &UserId,
        database: &Database,
    ) -> Result<Option<bool>, Trouble> {
        let name = (id.clone(), user.clone());
        if let Some(known) = self.members.get(&name) {
            return Ok(*known);
        }
        let value = database
            .state
            .get(codec::pair(Pair::Member, id.as_str(), user.as_str()))
            .map_err(Trouble::from)?;
        let known = value.map(|value| codec::member(&value)).transpose()?.map(|member| member.is_in());
        self.members.insert(name, known);
        Ok(known)
    }
}

/// Puts the delta's rows into the batch; everything but the position.
pub(super) fn stage(
    database: &Database,
    known: &mut Known,
    partition: u32,
    delta: &Delta,
    batch: &mut WriteBatch,
) -> Result<(), StoreError> {
    if known.heads.len() + known.members.len() > KNOWN_MAX {
        known.clear();
    }
    refuse_conflicts(database, known, delta)?;
    history(database, delta, batch)?;
    let mut counts = HashMap::new();
    for (id, user, member) in &delta.members {
        put_member(database, known, (id, user, member), &mut counts, batch)?;
    }
    for (id, user, stay) in &delta.stays {
        batch.insert(&database.state, codec::stay_key(id, user, stay), codec::put_stay(stay));
    }
    for (id, head) in &delta.heads {
        let members = count(database, known, id, counts.remove(id))?;
        put_head(database, known, (id, head, members), batch);
    }
    for (id, change) in counts {
        let value = database.state.get(codec::head_key(&id)).map_err(Trouble::from)?;
        if let Some((head, _)) = value.map(|value| codec::head(&value)).transpose()? {
            let members = count(database, known, &id, Some(change))?;
            put_head(database, known, (&id, &head, members), batch);
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

/// Rows have the seqs 1, 2, 3, …: one at or below the last that was written is there, or was.
fn refuse_conflicts(database: &Database, known: &mut Known, delta: &Delta) -> Result<(), StoreError> {
    let mut ends: HashMap<&ConversationId, u64> = HashMap::new();
    for row in &delta.rows {
        let Some(id) = row.body.conversation() else { continue };
        let end = match ends.get(id) {
            Some(end) => *end,
            None => known.head(id, database)?.map_or(0, |(last_seq, _)| last_seq),
        };
        if row.seq <= end {
            return Err(StoreError::Conflict(id.clone(), row.seq));
        }
        ends.insert(id, row.seq);
    }
    Ok(())
}

fn history(database: &Database, delta: &Delta, batch: &mut WriteBatch) -> Result<(), Trouble> {
    let pruned: HashMap<_, _> = delta.pruned.iter().map(|(id, up_to)| (id, *up_to)).collect();
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
    for (id, up_to) in &delta.pruned {
        // What went before is not looked through again: the database walks over the traces of removed rows one by one.
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
    known: &mut Known,
    (id, user, member): (&ConversationId, &UserId, &Member),
    counts: &mut HashMap<ConversationId, i64>,
    batch: &mut WriteBatch,
) -> Result<(), Trouble> {
    let before = known.member(id, user, database)?;
    if before.is_none() {
        batch.insert(&database.state, codec::pair(Pair::OfUser, user.as_str(), id.as_str()), []);
    }
    let change = i64::from(member.is_in()) - i64::from(before.unwrap_or(false));
    if change != 0 {
        *counts.entry(id.clone()).or_default() += change;
    }
    known.members.insert((id.clone(), user.clone()), Some(member.is_in()));
    batch.insert(
        &database.state,
        codec::pair(Pair::Member, id.as_str(), user.as_str()),
        codec::put_member(member),
    );
    Ok(())
}

fn count(
    database: &Database,
    known: &mut Known,
    id: &ConversationId,
    change: Option<i64>,
) -> Result<u64, Trouble> {
    let before = known.head(id, database)?.map_or(0, |(_, members)| members);
    Ok(before.saturating_add_signed(change.unwrap_or(0)))
}

fn put_head(
    database: &Database,
    known: &mut Known,
    (id, head, members): (&ConversationId, &Head, u64),
    batch: &mut WriteBatch,
) {
    known.heads.insert(id.clone(), Some((head.last_seq, members)));
    batch.insert(&database.state, codec::head_key(id), codec::put_head(head, members));
}
