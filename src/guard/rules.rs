//! Rules of limits by the admin API: stored for all nodes, and put in force on this one as the store shows them.

use std::{collections::BTreeSet, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;

use crate::{
    cluster::{Cluster, GuardChange, GuardHandler},
    limits::{RuleForm, RuleGuard},
    store::{GUARD_VALUE_BYTES_MAX, GuardEntry, GuardKey, GuardKind, GuardPut, GuardRow, StoreError},
};

/// Handler that puts the rules of the store in force on this node.
pub struct StoredRules {
    rules: Arc<RuleGuard>,
    /// Ids since all entries began to follow again; `None` if they did not.
    followed: Mutex<Option<BTreeSet<String>>>,
}

/// Refusal of a change of a rule, which changed nothing.
#[derive(Debug)]
pub enum RuleError {
    /// The id has the wrong form.
    Id,
    /// The rule has too many bytes.
    Large,
    /// The store did not take it, or did not answer.
    Store(StoreError),
}

impl StoredRules {
    /// Creates the handler of the rules of a node.
    pub fn new(rules: Arc<RuleGuard>) -> Self {
        Self { rules, followed: Mutex::new(None) }
    }
}

#[async_trait]
impl GuardHandler for StoredRules {
    fn handles(&self, kind: GuardKind) -> bool {
        kind == GuardKind::Rule
    }

    async fn restarted(&self) {
        *self.followed.lock() = Some(BTreeSet::new());
    }

    async fn changed(&self, rows: &[GuardRow], _: u64) {
        if let Some(ids) = &mut *self.followed.lock() {
            for row in rows {
                match row.value {
                    Some(_) => ids.insert(row.key.name().to_owned()),
                    None => ids.remove(row.key.name()),
                };
            }
        }
        let changed = |row: &GuardRow| row.value.as_ref().map(|value| (row.version, value.clone()));
        let changed: Vec<(&str, Option<(u64, Bytes)>)> =
            rows.iter().map(|row| (row.key.name(), changed(row))).collect();
        self.rules.apply_stored(
            changed
                .iter()
                .map(|(id, stored)| (*id, stored.as_ref().map(|(version, value)| (*version, &value[..])))),
        );
        for overlap in self.rules.overlaps() {
            tracing::debug!(%overlap, "rules overlap");
        }
    }

    async fn caught_up(&self, _: u64) {
        if let Some(ids) = self.followed.lock().take() {
            self.rules.retain_stored(&ids);
        }
    }
}

/// Stores a rule for all nodes, if its stored version is the expected one or that is `None`; 0 stands for no such rule.
///
/// # Errors
/// Nothing changed, unless the store's answer was lost.
pub async fn put_rule(
    cluster: &Cluster,
    id: &str,
    form: &RuleForm,
    expected: Option<u64>,
) -> Result<GuardChange, RuleError> {
    let key = GuardKey::new(GuardKind::Rule, id).map_err(|_| RuleError::Id)?;
    let mut form = form.clone();
    form.id = None;
    let value = serde_json::to_vec(&form).map_err(|_| RuleError::Large)?;
    if value.len() > GUARD_VALUE_BYTES_MAX {
        return Err(RuleError::Large);
    }
    let entry = GuardEntry::new(key, value.into(), None).map_err(|_| RuleError::Large)?;
    cluster.put_guard(&GuardPut { entry, expected }.into()).await.map_err(RuleError::Store)
}

/// Removes a rule of the admin API on all nodes, under the same condition.
///
/// # Errors
/// Nothing changed, unless the store's answer was lost.
pub async fn remove_rule(
    cluster: &Cluster,
    id: &str,
    expected: Option<u64>,
) -> Result<GuardChange, RuleError> {
    let key = GuardKey::new(GuardKind::Rule, id).map_err(|_| RuleError::Id)?;
    cluster.remove_guard(&key, expected).await.map_err(RuleError::Store)
}
