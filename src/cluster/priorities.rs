//! Entries of the guard about priorities of users in live rooms. Passes them on to the priorities of this node.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tidegate_protocol::id::UserId;

use super::guard::GuardHandler;
use crate::{
    log_limit::log_limited,
    priorities::{CLASS_MAX, Priorities, UserPriority},
    store::{GuardKind, GuardRow},
};

/// Handler of the guard's entries about priorities.
pub struct PriorityHandler(Arc<Priorities>);

/// Value of an entry.
#[derive(Serialize, Deserialize)]
struct StoredPriority {
    prio: u8,
}

impl PriorityHandler {
    /// Creates a handler that passes entries on.
    pub fn new(priorities: Arc<Priorities>) -> Self {
        Self(priorities)
    }

    /// Returns the value of an entry with a class.
    pub fn encode(class: u8) -> Bytes {
        format!("{{\"prio\":{class}}}").into()
    }

    fn decode(value: &[u8]) -> Option<u8> {
        let StoredPriority { prio } = serde_json::from_slice(value).ok()?;
        (prio <= CLASS_MAX).then_some(prio)
    }
}

#[async_trait]
impl GuardHandler for PriorityHandler {
    fn handles(&self, kind: GuardKind) -> bool {
        kind == GuardKind::Priority
    }

    async fn restarted(&self) {
        self.0.restart();
    }

    async fn changed(&self, rows: &[GuardRow], now_ms: u64) {
        for row in rows {
            let Ok(user) = UserId::new(row.key.name()) else { continue };
            let class = row.value.as_deref().and_then(Self::decode);
            if class.is_none() && row.value.is_some() {
                log_limited!(warn, %user, "priority of a user is undecodable; that of the token is in force");
            }
            let priority = class.filter(|_| !row.has_ended(now_ms));
            self.0.set(&user, priority.map(|class| UserPriority { class, until_ms: row.until_ms }));
        }
    }

    async fn caught_up(&self, _: u64) {
        self.0.finish();
    }

    async fn time_passed(&self, now_ms: u64) {
        self.0.expire(|priority| priority.has_ended(now_ms));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::GuardKey;

    fn row(version: u64, value: Option<&'static [u8]>, until_ms: Option<u64>) -> GuardRow {
        let key = GuardKey::new(GuardKind::Priority, "ann").unwrap();
        GuardRow { key, version, value: value.map(Bytes::from_static), until_ms }
    }

    #[tokio::test]
    async fn entries_are_in_force_unless_they_ended_or_are_undecodable() {
        let priorities = Arc::new(Priorities::default());
        let (handler, ann) = (PriorityHandler::new(Arc::clone(&priorities)), UserId::new("ann").unwrap());
        let mut version = 0;
        for (value, until_ms, expected) in [
            (Some(&b"{\"prio\":2}"[..]), None, 2),
            (Some(b"{\"prio\":3}"), Some(11), 3),
            (Some(b"{\"prio\":3}"), Some(10), 0),
            (Some(b"{\"prio\":1,\"later\":true}"), None, 1),
            (Some(b"{\"prio\":4}"), None, 0),
            (Some(b"{\"prio\":1}"), None, 1),
            (None, None, 0),
        ] {
            version += 1;
            handler.changed(&[row(version, value, until_ms)], 10).await;
            assert_eq!(priorities.class(&ann, None), expected, "{version}");
        }
        assert_eq!(PriorityHandler::decode(&PriorityHandler::encode(3)), Some(3));
    }
}
