//! Refusal of a request by a limit.

use std::{sync::Arc, time::Duration};

use tidegate_protocol::{Time, pb};
use tokio::{sync::watch, time::timeout};

use super::rule::LimitRule;

/// Refusal of a request by the limit that it has to wait for longest.
#[derive(Clone, Debug)]
pub struct LimitRefusal {
    /// Time until the request is admitted, if its subjects make no other one meanwhile.
    pub wait: Duration,
    /// Rule that refuses; `None` for a limit of the configuration.
    pub rule: Option<Arc<LimitRule>>,
    /// Limit of the subject now, if the rule is dynamic.
    pub limit: Option<u32>,
    /// Whether the request may wait here instead of being refused.
    pub is_delay: bool,
    /// Set if nothing refuses the request, and an answer of Redis decides about it. A caller that can't wait for it refuses.
    pub asking: Option<AnswerWait>,
}

/// What the caller of a decision waits for.
#[derive(Clone, Copy, Debug, Default)]
pub struct LimitWaits {
    /// Whether it waits for a place in a window.
    pub for_space: bool,
    /// Time at which it began to wait for an answer of Redis, if it did.
    pub asking_since: Option<Time>,
}

impl From<bool> for LimitWaits {
    fn from(for_space: bool) -> Self {
        Self { for_space, asking_since: None }
    }
}

/// Wait of a request for an answer of Redis, after which it is decided again.
#[derive(Clone, Debug)]
pub struct AnswerWait {
    /// For the next decision.
    pub waits: LimitWaits,
    pub(super) left: Duration,
    /// Closed when the ask has ended.
    pub(super) ended: watch::Receiver<()>,
}

impl AnswerWait {
    /// Waits until the ask has ended, for as long as the request may wait.
    pub async fn answered(mut self) {
        drop(timeout(self.left, self.ended.changed()).await);
    }
}

impl From<Duration> for LimitRefusal {
    /// Refusal by a limit of the configuration.
    fn from(wait: Duration) -> Self {
        Self { wait, rule: None, limit: None, is_delay: false, asking: None }
    }
}

impl LimitRefusal {
    /// Adds the level of the rule to an error, and the rule with its numbers if they concern only what is the client's own.
    pub fn describe(&self, error: &mut pb::Error) {
        let Some(rule) = &self.rule else { return };
        let mut add = |name: &str, value: String| drop(error.detail.insert(name.to_owned(), value));
        add("level", rule.level.name().to_owned());
        if rule.level.is_of_client() {
            add("rule", rule.id.to_string());
            add("limit", self.limit.unwrap_or_else(|| rule.limit.count()).to_string());
            add("windowMs", rule.limit.window().as_millis().to_string());
        }
    }
}
