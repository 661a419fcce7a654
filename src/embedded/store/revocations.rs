//! Revocations in the embedded store.

use async_trait::async_trait;
use fjall::Readable as _;

use super::EmbeddedStore;
use crate::{
    embedded::{self, Database, DatabaseError},
    revocation::Revocation,
    store::{RevocationPage, RevocationStore, StoreError},
};

#[async_trait]
impl RevocationStore for EmbeddedStore {
    async fn revoke(&self, revocation: &Revocation, now_ms: u64) -> Result<bool, StoreError> {
        self.0.revoke(revocation.clone(), now_ms).await
    }

    /// Reads all of them for each page: a node of this store reads them at its start only, in large pages.
    async fn revocations(&self, above: u64, limit: usize) -> Result<RevocationPage, StoreError> {
        self.0.read(move |it| Ok(page(it, above, limit)?)).await
    }
}

fn page(database: &Database, above: u64, limit: usize) -> Result<RevocationPage, DatabaseError> {
    let view = database.snapshot();
    let newest = view.get(&database.state, embedded::NEWEST_REVOCATION)?;
    let newest = newest.map(|value| embedded::number(&value)).transpose()?.unwrap_or(0);
    let mut rows = Vec::new();
    for entry in view.prefix(&database.state, b"x") {
        let (key, value) = entry.into_inner()?;
        let row = embedded::revocation(&key, &value)?;
        if row.0 > above {
            rows.push(row);
        }
    }
    rows.sort_by_key(|(number, _)| *number);
    rows.truncate(limit);
    Ok(RevocationPage { newest, rows })
}
