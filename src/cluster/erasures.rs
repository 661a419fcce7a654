//! Erasures of evidence: requests in the store that each node carries out.

use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use parking_lot::Mutex;

use super::GuardHandler;
use crate::{
    bans::BanSubject,
    clock::wall_ms,
    evidence::{Erasure, EvidenceBoard},
    store::{GuardKind, GuardRow, TOMBSTONE_MS},
};

/// Most requests that are remembered; the lines of further ones may be erased again. The store has fewer.
const APPLIED_MAX: usize = 8_192;

/// Part of the node that erases the evidence of a subject.
pub struct ErasureHandler {
    evidence: Arc<EvidenceBoard>,
    /// Start of the node by its clock, in ms since 1970.
    start_ms: u64,
    /// Versions and ends of the requests that were carried out, by their names.
    applied: Mutex<HashMap<String, (u64, u64)>>,
}

impl ErasureHandler {
    /// Creates the handler of a node.
    pub fn new(evidence: Arc<EvidenceBoard>) -> Arc<Self> {
        Arc::new(Self { evidence, start_ms: wall_ms(), applied: Mutex::default() })
    }

    /// Returns whether a request is carried out for the first time.
    fn note(&self, name: &str, version: u64, until_ms: u64) -> bool {
        let mut applied = self.applied.lock();
        if applied.get(name).is_some_and(|(known, _)| *known == version) {
            return false;
        }
        if applied.len() < APPLIED_MAX {
            applied.insert(name.to_owned(), (version, until_ms));
        }
        true
    }
}

#[async_trait]
impl GuardHandler for ErasureHandler {
    fn handles(&self, kind: GuardKind) -> bool {
        kind == GuardKind::Erasure
    }

    async fn changed(&self, rows: &[GuardRow], now_ms: u64) {
        self.applied.lock().retain(|_, (_, until_ms)| *until_ms > now_ms);
        for row in rows.iter().filter(|row| row.value.is_some()) {
            let (name, until_ms) = (row.key.name(), row.until_ms.unwrap_or(now_ms));
            let Ok(subject) = name.parse::<BanSubject>() else { continue };
            if !self.note(name, row.version, until_ms) {
                continue;
            }
            // A request ends that long after it was made. The clock of the node may differ from that of the store.
            let age_ms = now_ms.saturating_sub(until_ms.saturating_sub(TOMBSTONE_MS));
            let erasure = Erasure { subject, until_ms: wall_ms().saturating_sub(age_ms) };
            if erasure.until_ms < self.start_ms {
                self.evidence.erase_lines(&erasure);
            } else {
                self.evidence.erase(&erasure);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        evidence::{EvidenceKind, EvidenceSource},
        store::GuardKey,
    };

    const NOW_MS: u64 = 1_763_712_000_000;

    fn request(version: u64, age_ms: u64) -> GuardRow {
        GuardRow {
            version,
            key: GuardKey::new(GuardKind::Erasure, "network:192.0.2.1/32").unwrap(),
            value: Some("{}".into()),
            until_ms: Some(NOW_MS - age_ms + TOMBSTONE_MS),
        }
    }

    #[tokio::test]
    async fn request_is_carried_out_once_and_up_to_its_time() {
        let evidence = Arc::new(EvidenceBoard::default());
        let handler = ErasureHandler::new(Arc::clone(&evidence));
        let subject: BanSubject = "network:192.0.2.1".parse().unwrap();
        let rows = |is_new: bool| {
            if is_new {
                let source = EvidenceSource::of_address([192, 0, 2, 1].into());
                evidence.note(EvidenceKind::TokenForged, source);
                evidence.take();
            }
            evidence.recent(&subject, 9).len()
        };
        rows(true);
        handler.changed(&[request(7, 0)], NOW_MS).await;
        assert_eq!((rows(false), evidence.take_erased().len()), (0, 1));
        rows(true);
        handler.changed(&[request(7, 0)], NOW_MS + 1_000).await;
        assert_eq!((rows(false), evidence.take_erased().len()), (1, 0), "read again");
        // As after an outage, and by a node that was not started then.
        handler.changed(&[request(8, 60_000)], NOW_MS).await;
        assert_eq!(
            (rows(false), evidence.take_lifted().len()),
            (1, 1),
            "only the lines from before the start"
        );
        let erased = evidence.take_erased();
        assert!(erased[0].until_ms <= wall_ms() - 60_000 && erased[0].subject == subject, "{erased:?}");
        let early =
            ErasureHandler { evidence: Arc::clone(&evidence), start_ms: 0, applied: Mutex::default() };
        early.changed(&[request(8, 60_000)], NOW_MS).await;
        assert_eq!((rows(false), evidence.take_lifted().len()), (1, 1), "read late, after an outage");
        handler.changed(&[request(9, 0)], NOW_MS).await;
        assert_eq!(rows(false), 0, "another request");
    }
}
