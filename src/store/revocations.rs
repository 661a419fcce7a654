//! Part of the port `Store` that keeps revocations of tokens.

use async_trait::async_trait;

use super::StoreError;
use crate::{fault::Faulty, revocation::Revocation, store::Store};

/// Revocations as stored, in the order in which they were stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RevocationPage {
    /// Number of the newest revocation that was ever stored; 0 if there was none.
    pub newest: u64,
    /// Revocations with their numbers, ascending.
    pub rows: Vec<(u64, Revocation)>,
}

/// Store of revocations. Each gets a number above all earlier ones when it is stored, so that a reader who has seen all
/// up to a number finds the later ones, and misses none.
#[async_trait]
pub trait RevocationStore: Send + Sync {
    /// Stores a revocation, as durably as an archive, and removes those of the same user that it replaces or that are
    /// over at `now_ms`. One that is superfluous is not stored. Returns false, and stores nothing, if the user has the
    /// maximum number ([`crate::revocation::add_to`]).
    async fn revoke(&self, revocation: &Revocation, now_ms: u64) -> Result<bool, StoreError>;

    /// Returns up to `limit` revocations with a number above `above`, in one snapshot with the newest number. A store
    /// that fell back to an older state may have a lower one than before.
    async fn revocations(&self, above: u64, limit: usize) -> Result<RevocationPage, StoreError>;
}

#[async_trait]
impl RevocationStore for Faulty<dyn Store> {
    async fn revoke(&self, revocation: &Revocation, now_ms: u64) -> Result<bool, StoreError> {
        self.call("revoke", self.inner.revoke(revocation, now_ms)).await
    }

    async fn revocations(&self, above: u64, limit: usize) -> Result<RevocationPage, StoreError> {
        self.call("revocations", self.inner.revocations(above, limit)).await
    }
}
