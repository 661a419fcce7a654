//! Entries of the guard in the embedded store, by the clock of its node.

use async_trait::async_trait;
use fjall::Readable as _;

use super::EmbeddedStore;
use crate::{
    clock::wall_ms,
    embedded::{self, Database, DatabaseError},
    store::{
        GUARD_PAGE_MAX, GuardBatch, GuardKey, GuardOutcome, GuardPage, GuardRow, GuardStore, StoreError,
        guard::GuardEdit,
    },
};

#[async_trait]
impl GuardStore for EmbeddedStore {
    async fn put_guard(&self, batch: &GuardBatch) -> Result<GuardOutcome, StoreError> {
        self.0.change_guard(batch.edits().to_vec()).await
    }

    async fn remove_guard(&self, key: &GuardKey, expected: Option<u64>) -> Result<GuardOutcome, StoreError> {
        self.0.change_guard(vec![GuardEdit::removal(key, expected)]).await
    }

    async fn guard_since(&self, after: u64, limit: usize) -> Result<GuardPage, StoreError> {
        self.0.read(move |it| Ok(page(it, after, limit.clamp(1, GUARD_PAGE_MAX))?)).await
    }

    async fn guard_get(&self, key: &GuardKey) -> Result<Option<GuardRow>, StoreError> {
        let key = embedded::guard_key(key.kind().number(), key.name());
        self.0.read(move |it| Ok(one(it, &key)?)).await
    }
}

fn page(database: &Database, after: u64, rows_max: usize) -> Result<GuardPage, DatabaseError> {
    let (view, state, now_ms) = (database.snapshot(), &database.state, wall_ms());
    let newest = view.get(state, embedded::GUARD_VERSION)?;
    let newest = newest.map(|value| embedded::number(&value)).transpose()?.unwrap_or(0);
    let mut page = GuardPage { newest, read_to: newest, now_ms, rows: Vec::new() };
    let versions =
        embedded::guard_version_key(after.saturating_add(1))..=embedded::guard_version_key(u64::MAX);
    for (nth, entry) in view.range(state, versions).take(rows_max).enumerate() {
        let (version, key) = entry.into_inner()?;
        let value = view.get(state, &key)?.ok_or_else(embedded::damaged)?;
        page.rows.extend(embedded::guard_row(&key, &value)?.filter(|it| !it.has_ended(now_ms)));
        if nth + 1 == rows_max {
            page.read_to = embedded::log_offset(&version)?;
        }
    }
    Ok(page)
}

fn one(database: &Database, key: &[u8]) -> Result<Option<GuardRow>, DatabaseError> {
    let value = database.state.get(key)?;
    let row = value.map(|value| embedded::guard_row(key, &value)).transpose()?.flatten();
    let now_ms = wall_ms();
    Ok(row.filter(|it| it.value.is_some() && !it.has_ended(now_ms)))
}
