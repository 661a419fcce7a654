//! Pauses of groups whose steps failed, so that one which always fails does not keep the others waiting.

use std::{collections::BTreeMap, time::Duration};

use tidegate_protocol::id::ConversationId;
use tokio::time::Instant;

use super::{PASS_INTERVAL, StepError};

/// Longest pause after steps for a group that failed.
const RETRY_MAX: Duration = Duration::from_secs(60);

/// Failed groups after which a pass ends.
const FAILURES_MAX: usize = 8;

/// Groups whose steps are tried again later, and the failures of a pass.
#[derive(Default)]
pub(super) struct StepRetries {
    groups: BTreeMap<ConversationId, StepRetry>,
    failures: usize,
}

/// Next try of the steps for a group.
struct StepRetry {
    at: Instant,
    pause: Duration,
}

impl StepRetries {
    /// Begins a pass over these groups; others are forgotten.
    pub(super) fn begin_pass(&mut self, is_known: impl Fn(&ConversationId) -> bool) {
        self.failures = 0;
        self.groups.retain(|group, _| is_known(group));
    }

    /// Returns whether the steps for a group are to be tried.
    pub(super) fn is_due(&self, group: &ConversationId) -> bool {
        self.groups.get(group).is_none_or(|retry| Instant::now() >= retry.at)
    }

    /// Notes the outcome of the steps for a group. Returns a failure with the pause after it. An archive that lags is none:
    /// the steps are not due yet.
    ///
    /// # Errors
    /// The partition has another owner, or this is the last of [`FAILURES_MAX`].
    pub(super) fn note(
        &mut self,
        group: &ConversationId,
        done: Result<(), StepError>,
    ) -> Result<Option<(StepError, Duration)>, StepError> {
        let error = match done {
            Ok(()) => {
                self.groups.remove(group);
                return Ok(None);
            }
            Err(StepError::ArchiveLag) => {
                self.pause(group, PASS_INTERVAL);
                return Ok(None);
            }
            Err(error) if error.is_fenced() => return Err(error),
            Err(error) => error,
        };
        self.failures += 1;
        if self.failures >= FAILURES_MAX {
            return Err(error);
        }
        let pause = self.groups.get(group).map_or(PASS_INTERVAL, |retry| retry.pause * 2).min(RETRY_MAX);
        self.pause(group, pause);
        Ok(Some((error, pause)))
    }

    fn pause(&mut self, group: &ConversationId, pause: Duration) {
        self.groups.insert(group.clone(), StepRetry { at: Instant::now() + pause, pause });
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::store::StoreError;

    fn group(n: usize) -> ConversationId {
        ConversationId::parse(&format!("g:{n}")).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn archive_that_lags_ends_no_pass_and_is_looked_at_each_second() {
        let mut retries = StepRetries::default();
        for _ in 0..10 {
            for n in 0..2 * FAILURES_MAX {
                assert!(retries.is_due(&group(n)));
                assert!(matches!(retries.note(&group(n), Err(StepError::ArchiveLag)), Ok(None)));
                assert!(!retries.is_due(&group(n)));
            }
            advance(PASS_INTERVAL).await;
        }
        assert!(retries.is_due(&group(0)));
        assert!(retries.note(&group(0), Ok(())).unwrap().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn failures_end_a_pass_and_the_pause_of_a_group_grows() {
        let mut retries = StepRetries::default();
        for n in 1..FAILURES_MAX {
            assert!(retries.note(&group(n), Err(StepError::Log)).unwrap().is_some());
        }
        assert!(retries.note(&group(0), Err(StepError::Log)).is_err());
        retries.begin_pass(|it| *it == group(1));
        assert!(retries.is_due(&group(2)) && !retries.is_due(&group(1)));
        let (_, pause) = retries.note(&group(1), Err(StepError::Log)).unwrap().unwrap();
        assert_eq!(pause, 2 * PASS_INTERVAL);
        let fenced = StepError::Store(StoreError::Fenced);
        assert!(retries.note(&group(3), Err(fenced)).is_err_and(|error| error.is_fenced()));
    }
}
