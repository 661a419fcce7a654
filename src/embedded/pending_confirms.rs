//! Answers that wait for a sync: marks and wishes are written without one of their own, and confirmed after the next.

use std::time::{Duration, Instant};

use super::Reply;
use crate::store::StoreError;

/// How long an answer waits for the sync of an archive before it gets one of its own, together with all that gathered.
const SYNC_AFTER: Duration = Duration::from_millis(5);

/// An answer, and what it says when nothing goes wrong.
type Answer = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// What was written, and is not confirmed yet.
#[derive(Default)]
pub(super) struct Kept {
    answers: Vec<Answer>,
    since: Option<Instant>,
}

impl Kept {
    /// Answers with `what` after the next sync.
    pub(super) fn add<T: Send + 'static>(&mut self, reply: Reply<T>, what: T) {
        self.since.get_or_insert_with(Instant::now);
        // Who asked may have gone.
        self.answers.push(Box::new(|synced| drop(reply.send(synced.map(|()| what)))));
    }

    /// When there has to be a sync at the latest; none, if nobody waits for one.
    pub(super) fn due_in(&self) -> Option<Duration> {
        self.since.map(|since| SYNC_AFTER.saturating_sub(since.elapsed()))
    }

    /// They are on the disk.
    pub(super) fn confirm(&mut self) {
        self.end(&Ok(()));
    }

    /// They may be, or not.
    pub(super) fn fail(&mut self, why: &StoreError) {
        self.end(&Err(why.clone()));
    }

    fn end(&mut self, how: &Result<(), StoreError>) {
        self.since = None;
        for answer in self.answers.drain(..) {
            answer(how.clone());
        }
    }
}
