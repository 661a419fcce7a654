//! Entries of the guard about storms: storms in force, and rules of single groups. Passes them on to the board of this
//! node.

use std::{collections::HashSet, sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
use tidegate_protocol::id::ConversationId;

use super::guard::GuardHandler;
use crate::{
    log_limit::log_limited,
    store::{GuardKind, GuardRow},
    storms::{GroupStormRule, StormBoard, StormEntry},
};

/// Handler of the guard's entries about storms.
pub struct StormHandler {
    board: Arc<StormBoard>,
    /// Groups with a rule since all entries follow again; `None` while only changes follow.
    ruled: Mutex<Option<HashSet<ConversationId>>>,
}

impl StormHandler {
    /// Creates a handler that passes entries on to a board.
    pub fn new(board: Arc<StormBoard>) -> Self {
        Self { board, ruled: Mutex::default() }
    }

    fn apply_storm(&self, group: &ConversationId, row: &GuardRow, now_ms: u64) {
        let entry = row.value.as_deref().and_then(StormEntry::decode);
        if entry.is_none() && row.value.is_some() {
            log_limited!(warn, %group, "entry of a storm is undecodable; skipped");
        }
        let left = row.until_ms.unwrap_or_default().saturating_sub(now_ms);
        let entry = entry.map(|entry| (entry, Duration::from_millis(left)));
        self.board.entries().apply(group, row.version, entry);
    }
}

#[async_trait]
impl GuardHandler for StormHandler {
    fn handles(&self, kind: GuardKind) -> bool {
        matches!(kind, GuardKind::Storm | GuardKind::StormRule)
    }

    async fn restarted(&self) {
        // Storms in force end by themselves.
        self.board.entries().forget_versions();
        *self.ruled.lock() = Some(HashSet::new());
    }

    async fn changed(&self, rows: &[GuardRow], now_ms: u64) {
        let mut rules = Vec::new();
        for row in rows {
            let Ok(group) = ConversationId::parse(row.key.name()) else { continue };
            if row.key.kind() == GuardKind::Storm {
                self.apply_storm(&group, row, now_ms);
                continue;
            }
            let rule = row.value.as_deref().and_then(GroupStormRule::decode);
            if let (Some(ruled), true) = (&mut *self.ruled.lock(), rule.is_some()) {
                ruled.insert(group.clone());
            }
            rules.push((group, rule));
        }
        if !rules.is_empty() {
            self.board.set_group_rules(rules);
        }
    }

    async fn time_passed(&self, _: u64) {
        self.board.entries().expire();
    }

    async fn caught_up(&self, _: u64) {
        let ruled = self.ruled.lock().take();
        if let Some(ruled) = ruled {
            self.board.retain_group_rules(|group| ruled.contains(group));
        }
    }
}

#[cfg(test)]
mod tests;
