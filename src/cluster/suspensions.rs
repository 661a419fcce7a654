//! Suspensions: what follows from their entries in the store.

use std::sync::Arc;

use async_trait::async_trait;

use super::GuardHandler;
use crate::{
    bans::{Ban, BanRecord, BanSubject, SuspensionBoard},
    log_limit::log_limited,
    metrics::Metrics,
    store::{GuardKind, GuardRow},
};

/// Part of the node that puts suspensions in force.
pub struct SuspensionHandler {
    board: Arc<SuspensionBoard>,
    metrics: Metrics,
}

impl SuspensionHandler {
    /// Creates the handler of a node.
    pub fn new(board: Arc<SuspensionBoard>, metrics: Metrics) -> Arc<Self> {
        Arc::new(Self { board, metrics })
    }
}

#[async_trait]
impl GuardHandler for SuspensionHandler {
    fn handles(&self, kind: GuardKind) -> bool {
        kind == GuardKind::Suspend
    }

    async fn restarted(&self) {
        self.board.restart();
    }

    async fn changed(&self, rows: &[GuardRow], _: u64) {
        for row in rows {
            let Ok(subject) = row.key.name().parse::<BanSubject>() else {
                log_limited!(
                    warn,
                    name = row.key.name(),
                    "suspension of an unknown kind of subject is not in force"
                );
                continue;
            };
            let entry =
                |value: &bytes::Bytes| Ban { record: BanRecord::decoded(value), until_ms: row.until_ms };
            self.board.note(subject, row.value.as_ref().map(entry));
        }
    }

    async fn caught_up(&self, now_ms: u64) {
        self.board.caught_up(now_ms);
        self.metrics.suspensions.set(self.board.count() as f64);
    }
}
