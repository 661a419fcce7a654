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

/// Of a transaction that failed, callers whose changes are tried alone and fail again before the others are not tried: for a server
/// that hangs each takes its time.
const TRIES_ALONE: usize = 2;

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
        // Who waited too long was told so, and nobody waits behind what nobody waits for.
        state.waiting.retain(|job| !job.reply.is_closed());
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
struct Flight {
    core: Arc<Core>,
    /// It ended in order: nobody waits, or somebody else flies by now.
    over: bool,
}

impl Drop for Flight {
    fn drop(&mut self) {
        if !self.over {
            let mut state = self.core.marks.lock();
            state.flying = false;
            state.waiting.clear();
        }
    }
}

/// Saves them with those of others. A caller may go away: what had its turn by then is saved all the same.
pub(super) async fn save(core: &Arc<Core>, changes: &[Change]) -> Result<(), StoreError> {
    let (reply, done) = oneshot::channel();
    let begins = {
        let mut state = core.marks.lock();
        state.waiting.push(Job { changes: changes.to_vec(), reply });
        !std::mem::replace(&mut state.flying, true)
    };
    if begins {
        tokio::spawn(fly(Flight { core: Arc::clone(core), over: false }));
    }
    done.await.unwrap_or_else(|_| Err(StoreError::Unknown("the store was closed meanwhile".to_owned())))
}

async fn fly(mut flight: Flight) {
    let core = Arc::clone(&flight.core);
    while let Some(jobs) = core.marks.next() {
        let all: Vec<Change> = jobs.iter().flat_map(|job| job.changes.iter().cloned()).collect();
        let done = write(&core, &all).await;
        // A row that makes no sense, or that somebody holds, is the trouble of whoever asked for it; a server that is away is
        // that of all, and is not asked for each.
        let mut away = match &done {
            Ok(()) => TRIES_ALONE,
            Err(StoreError::NoConnection(_) | StoreError::Unknown(_)) => TRIES_ALONE,
            Err(_) if jobs.len() == 1 => TRIES_ALONE,
            Err(_) => 0,
        };
        for job in jobs {
            let mut done = done.clone();
            if away < TRIES_ALONE {
                done = write(&core, &job.changes).await;
                away += usize::from(matches!(
                    done,
                    Err(StoreError::Unavailable(_) | StoreError::NoConnection(_) | StoreError::Unknown(_))
                ));
            }
            // Who asked may have gone.
            job.reply.send(done).ok();
        }
    }
    flight.over = true;
}

async fn write(core: &Core, changes: &[Change]) -> Result<(), StoreError> {
    core.run(move || async move { marks::save_marks(&mut core.readers().await?, changes).await }).await
}
