//! Entries of the guard in memory.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;

use super::MemoryStore;
use crate::store::{
    GUARD_PAGE_MAX, GuardBatch, GuardKey, GuardKind, GuardOutcome, GuardPage, GuardRow, GuardStore,
    StoreError,
    guard::{ENDED_AT_ONCE, FoundGuard, GuardCounts, GuardEdit, check_edits},
};

/// All rows, with their indexes.
#[derive(Clone, Default)]
pub(super) struct GuardRows {
    newest: u64,
    rows: BTreeMap<GuardKey, GuardRow>,
    counts: GuardCounts,
    by_version: BTreeMap<u64, GuardKey>,
    /// Rows that end, by their ends.
    by_end: BTreeMap<GuardKind, BTreeSet<(u64, GuardKey)>>,
}

impl GuardRows {
    fn remove(&mut self, key: &GuardKey) {
        let Some(row) = self.rows.remove(key) else { return };
        self.by_version.remove(&row.version);
        if let (Some(until), Some(ends)) = (row.until_ms, self.by_end.get_mut(&key.kind())) {
            ends.remove(&(until, row.key));
        }
        if let Some(count) = self.counts.get_mut(&key.kind().number()) {
            *count -= 1;
        }
    }

    fn insert(&mut self, row: GuardRow) {
        let key = &row.key;
        self.by_version.insert(row.version, key.clone());
        if let Some(until) = row.until_ms {
            self.by_end.entry(key.kind()).or_default().insert((until, key.clone()));
        }
        *self.counts.entry(key.kind().number()).or_default() += 1;
        self.rows.insert(key.clone(), row);
    }

    fn remove_ended(&mut self, now_ms: u64) {
        let ended = |ends: &BTreeSet<(u64, GuardKey)>| {
            let ended = ends.iter().take(ENDED_AT_ONCE).take_while(|(until, _)| *until <= now_ms);
            ended.map(|(_, key)| key.clone()).collect::<Vec<_>>()
        };
        let ended: Vec<_> = self.by_end.values().flat_map(ended).collect();
        ended.iter().for_each(|key| self.remove(key));
    }

    fn change(&mut self, edits: &[GuardEdit], now_ms: u64) -> GuardOutcome {
        self.remove_ended(now_ms);
        let find = |edit: &GuardEdit| {
            let row = self.rows.get(&edit.key)?;
            Some(FoundGuard { version: row.version, is_live: row.value.is_some() && !row.has_ended(now_ms) })
        };
        let found: Vec<_> = edits.iter().map(find).collect();
        if let Err(refused) = check_edits(edits, &found, &self.counts) {
            return refused;
        }
        for edit in edits {
            self.remove(&edit.key);
            self.newest += 1;
            let (key, value, until_ms) = (edit.key.clone(), edit.value.clone(), edit.until_ms(now_ms));
            self.insert(GuardRow { version: self.newest, key, value, until_ms });
        }
        GuardOutcome::Stored(self.newest)
    }
}

impl MemoryStore {
    fn guard_now_ms(&self) -> u64 {
        self.now_ms.lock().unwrap_or_else(self.wall_ms)
    }
}

#[async_trait]
impl GuardStore for MemoryStore {
    async fn put_guard(&self, batch: &GuardBatch) -> Result<GuardOutcome, StoreError> {
        Ok(self.lock().guard.change(batch.edits(), self.guard_now_ms()))
    }

    async fn remove_guard(&self, key: &GuardKey, expected: Option<u64>) -> Result<GuardOutcome, StoreError> {
        Ok(self.lock().guard.change(&[GuardEdit::removal(key, expected)], self.guard_now_ms()))
    }

    async fn guard_since(&self, after: u64, limit: usize) -> Result<GuardPage, StoreError> {
        let guard = &self.lock().guard;
        let (limit, now_ms) = (limit.clamp(1, GUARD_PAGE_MAX), self.guard_now_ms());
        let found: Vec<_> = guard.by_version.range(after.saturating_add(1)..).take(limit).collect();
        let last = found.last().filter(|_| found.len() == limit).map(|(version, _)| **version);
        let rows =
            found.iter().filter_map(|(_, key)| guard.rows.get(*key)).filter(|it| !it.has_ended(now_ms));
        let rows = rows.cloned().collect();
        Ok(GuardPage { newest: guard.newest, read_to: last.unwrap_or(guard.newest), now_ms, rows })
    }

    async fn guard_get(&self, key: &GuardKey) -> Result<Option<GuardRow>, StoreError> {
        let row = self.lock().guard.rows.get(key).cloned();
        let now_ms = self.guard_now_ms();
        Ok(row.filter(|it| it.value.is_some() && !it.has_ended(now_ms)))
    }
}
