//! What users mark, many in one transaction: while one commits, the next are gathered (DESIGN 6.8).
//!
//! Each alone was a commit for each message that anybody reads, on the connections that clients share. Nobody waits for a
//! timer: a lone mark goes at once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate_protocol::id::{ConversationId, UserId};
use tokio::sync::oneshot;

use super::{Core, marks};
use crate::store::{Personal, StoreError};

/// Changes of one transaction, unless one caller has more.
const BATCH: usize = 500;

pub(super) type Change = (UserId, ConversationId, Personal);

/// Who waits for a transaction to take what they changed.
#[derive(Default)]
pub(super) struct Gather {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: Vec<Job>,
    /// Somebody takes them.
    flying: bool,
}

struct Job {
    changes: Vec<Change>,
    reply: oneshot::Sender<Result<(), StoreError>>,
}

impl Gather {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next for one transaction; none ends the flight.
    fn next(&self) -> Option<Vec<Job>> {
        let mut state = self.lock();
        let mut count = 0;
        let mut fits = |job: &Job| {
            count += job.changes.len();
            count <= BATCH
        };
        let fitting = state.waiting.iter().map_while(|job| fits(job).then_some(())).count();
        let rest = state.waiting.len().min(fitting.max(1));
        let jobs: Vec<Job> = state.waiting.drain(..rest).collect();
        state.flying = !jobs.is_empty();
        state.flying.then_some(jobs)
    }
}

/// Whoever waits hears when the flight ends before its time, with its runtime.
struct Flight<'a>(&'a Gather);

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.flying = false;
        state.waiting.clear();
    }
}

/// Saves them with those of others; the caller may go away, and they are saved all the same.
pub(super) async fn save(core: &Arc<Core>, changes: &[Change]) -> Result<(), StoreError> {
    let (reply, done) = oneshot::channel();
    let begins = {
        let mut state = core.marks.lock();
        state.waiting.push(Job { changes: changes.to_vec(), reply });
        !std::mem::replace(&mut state.flying, true)
    };
    if begins {
        let core = Arc::clone(core);
        tokio::spawn(async move { fly(&core).await });
    }
    done.await.unwrap_or_else(|_| Err(StoreError::Unknown("the store was closed meanwhile".to_owned())))
}

async fn fly(core: &Core) {
    let flight = Flight(&core.marks);
    while let Some(jobs) = core.marks.next() {
        let all: Vec<Change> = jobs.iter().flat_map(|job| job.changes.iter().cloned()).collect();
        let done = write(core, &all).await;
        let is_of_one = matches!(
            done,
            Err(ref error) if !matches!(
                error,
                StoreError::Unavailable(_) | StoreError::NoConnection(_) | StoreError::Unknown(_)
            )
        );
        for job in jobs {
            // A row that makes no sense is the trouble of whoever asked for it.
            let done = if is_of_one { write(core, &job.changes).await } else { done.clone() };
            // Who asked may have gone.
            job.reply.send(done).ok();
        }
    }
    // It was ended in order: somebody else may fly by now.
    std::mem::forget(flight);
}

async fn write(core: &Core, changes: &[Change]) -> Result<(), StoreError> {
    core.run(move || async move { marks::save_marks(&mut core.readers().await?, changes).await }).await
}
