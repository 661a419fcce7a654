//! Revocations in memory.

use async_trait::async_trait;

use super::MemoryStore;
use crate::{
    revocation::{Revocation, add_to},
    store::{RevocationPage, RevocationStore, StoreError},
};

#[async_trait]
impl RevocationStore for MemoryStore {
    async fn revoke(&self, revocation: &Revocation, now_ms: u64) -> Result<bool, StoreError> {
        let mut state = self.lock();
        state.revocations.retain(|_, it| it.user != revocation.user || !it.is_over(now_ms));
        let of_user = state.revocations.values().filter(|it| it.user == revocation.user);
        let mut all: Vec<Revocation> = of_user.cloned().collect();
        if !add_to(&mut all, revocation) {
            return Ok(false);
        }
        state.revocations.retain(|_, it| it.user != revocation.user || all.contains(it));
        if all.last() == Some(revocation) {
            state.revocations.retain(|_, it| it != revocation);
            state.newest_revocation += 1;
            let number = state.newest_revocation;
            state.revocations.insert(number, revocation.clone());
        }
        Ok(true)
    }

    async fn revocations(&self, above: u64, limit: usize) -> Result<RevocationPage, StoreError> {
        let state = self.lock();
        let rows = state.revocations.range(above.saturating_add(1)..).take(limit);
        let rows = rows.map(|(number, it)| (*number, it.clone())).collect();
        Ok(RevocationPage { newest: state.newest_revocation, rows })
    }
}
