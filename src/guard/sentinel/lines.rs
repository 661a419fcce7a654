//! Lines of the file of security events: written each second, erased on request, and removed by age.

use std::{
    io,
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::time::Instant;

use super::Sentinel;
use crate::{
    evidence::{Erasure, EvidenceBatch, EvidenceRow},
    log_limit::log_limited,
    supervised,
};

/// Interval at which old lines of the file are looked for.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(3_600);

/// Pause after an erasure that failed.
const ERASE_RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// Most erasures of lines that wait; the lines of further ones stay.
const ERASURES_MAX: usize = 4_096;

/// What is to be removed from the file.
#[derive(Default)]
pub(super) struct LineUpkeep {
    erasures: Vec<Erasure>,
    /// Next try of erasures that failed.
    pub(super) retry_at: Option<Instant>,
    /// Last time at which the file was looked through for old lines.
    expired_at: Option<Instant>,
}

impl LineUpkeep {
    fn add(&mut self, erasure: Erasure) {
        if let Some(known) = self.erasures.iter_mut().find(|known| known.subject == erasure.subject) {
            known.until_ms = known.until_ms.max(erasure.until_ms);
        } else if self.erasures.len() < ERASURES_MAX {
            self.erasures.push(erasure);
        } else {
            log_limited!(error, "too many erasures wait; lines of evidence.file stay: remove the file");
        }
    }

    /// Returns the erasures that are due. They wait no longer.
    fn take_due(&mut self, now: Instant) -> Vec<Erasure> {
        let is_due = self.retry_at.is_none_or(|at| now >= at);
        if is_due { std::mem::take(&mut self.erasures) } else { Vec::new() }
    }
}

impl Sentinel {
    /// Takes the requested erasures, and removes their rows from a batch that is not processed yet.
    pub(super) fn take_erased(&mut self, batch: &mut EvidenceBatch) {
        for erasure in self.cluster.evidence.take_erased() {
            self.order_faults.forget(&erasure.subject);
            self.decisions.erase(&erasure.subject);
            self.candidates.forget(&erasure.subject);
            batch.rows.retain(|row| !erasure.includes(&row.source, row.at_ms));
            self.lines.add(erasure);
        }
    }

    /// Erases lines of the file on request, and each hour those that are too old. What fails is tried again.
    pub(super) async fn clean_up(&mut self) {
        let now = Instant::now();
        let erasures = self.lines.take_due(now);
        let expires = self.lines.expired_at.is_none_or(|at| now.duration_since(at) >= EXPIRY_INTERVAL);
        if self.cluster.evidence.file().is_none() || (erasures.is_empty() && !expires) {
            return;
        }
        if expires {
            self.lines.expired_at = Some(now);
        }
        let (evidence, requested) = (Arc::clone(&self.cluster.evidence), erasures.clone());
        let clean_up = move || {
            let Some(file) = evidence.file() else { return (Ok(()), Ok(())) };
            let erased = if requested.is_empty() { Ok(()) } else { file.erase(&requested) };
            (erased, if expires { file.expire(SystemTime::now()) } else { Ok(()) })
        };
        let ended = |_| (Err(io::Error::other("the task has ended")), Ok(()));
        let (erased, expired) = supervised::run_blocking(clean_up).await.unwrap_or_else(ended);
        self.lines.retry_at = None;
        if let Err(error) = erased {
            self.metrics.evidence_file_errors.increment(1);
            log_limited!(error, %error, "lines not erased from evidence.file; retrying in 30 s");
            self.lines.retry_at = Some(now + ERASE_RETRY_INTERVAL);
            erasures.into_iter().for_each(|erasure| self.lines.add(erasure));
        }
        if let Err(error) = expired {
            self.metrics.evidence_file_errors.increment(1);
            log_limited!(error, %error, "old lines not removed from evidence.file; retrying in an hour");
        }
    }

    /// Appends the rows to the file, if there is one.
    pub(super) async fn write(&self, batch: &EvidenceBatch) {
        if self.cluster.evidence.file().is_none() {
            return;
        }
        // Strings and numbers always serialize.
        let line = |row: &EvidenceRow| serde_json::to_string(&row.view()).unwrap_or_default();
        let lines: Vec<String> = batch.rows.iter().map(line).collect();
        let evidence = Arc::clone(&self.cluster.evidence);
        let write = move || evidence.file().map_or(Ok(()), |file| file.append(&lines));
        if let Ok(Err(error)) = supervised::run_blocking(write).await {
            self.metrics.evidence_file_errors.increment(1);
            log_limited!(warn, %error, "security events not written to evidence.file");
        }
    }
}
