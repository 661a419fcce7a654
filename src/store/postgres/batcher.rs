//! Batching of database calls: many callers' queries of one kind share one statement and one round trip (ADR 10).
//!
//! While a batch is in flight, the next queries are gathered. A query that comes alone is sent at once, and no query
//! waits longer than the batch in flight takes. Without batching, each query used one of the few client connections
//! for a round trip: when a node moved its clients to two others, 300 logins a second waited 2 s for a connection of
//! an idle server.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::{Notify, oneshot},
    time::{Instant, sleep_until},
};

use super::Core;
use crate::{
    store::StoreError,
    supervised::{self, Panicked, contained},
};

/// Queries of a failed batch that may fail individually before the rest fail without an attempt. With a hung server
/// each attempt takes the full timeout.
const SINGLE_FAILURES_MAX: usize = 2;

/// Query of one caller that can be executed in one batch with others of its kind.
pub(super) trait BatchedQuery: Send + Sync + Sized + 'static {
    type Reply: Send + 'static;

    /// Batches in flight at once; with 1, batches keep the order of the calls.
    const TASKS_MAX: usize;

    /// Maximum total size of a batch; a single larger query is a batch of its own.
    const BATCH_SIZE_MAX: usize;

    /// How long new queries wait for the end of the batch in flight, unless they already fill a batch.
    const BATCH_DELAY_MAX: Duration = Duration::ZERO;

    fn size(&self) -> usize;

    fn batcher(core: &Core) -> &Batcher<Self>;

    /// Executes a batch and returns a reply per query, in order.
    fn execute(
        core: &Core,
        batch: &[&Self],
    ) -> impl Future<Output = Result<Vec<Self::Reply>, StoreError>> + Send;
}

/// Queue of the queries of one kind, which its tasks execute in batches.
pub(super) struct Batcher<Q: BatchedQuery> {
    state: Mutex<State<Q>>,
    /// Wakes the waiting task early: the queue fills a batch, or no batch is in flight.
    enough: Notify,
}

struct State<Q: BatchedQuery> {
    waiting: VecDeque<Job<Q>>,
    /// Total size of the waiting queries.
    size: usize,
    /// Number of tasks.
    tasks: usize,
    /// Number of tasks with a batch in flight.
    executing: usize,
    /// Whether a task waits for more queries.
    is_waiting: bool,
    /// Time at which the last batch was sent.
    last_start: Option<Instant>,
}

/// State of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TaskState {
    Idle,
    Executing,
    Waiting,
}

/// Next step of a task.
enum Next<Q: BatchedQuery> {
    /// Executes these, after spawning another task for the rest if the flag is set.
    Execute(Vec<Job<Q>>, bool),
    /// Waits until this time, or until the queue fills a batch.
    Wait(Instant),
    /// Exits: no query waits, or another task takes them.
    Exit,
}

struct Job<Q: BatchedQuery> {
    query: Q,
    reply: oneshot::Sender<Outcome<Q::Reply>>,
}

/// Reply to one query, or the panic of its work.
type Outcome<T> = Result<Result<T, StoreError>, Panicked>;

impl<Q: BatchedQuery> Default for Batcher<Q> {
    fn default() -> Self {
        let state = State {
            waiting: VecDeque::new(),
            size: 0,
            tasks: 0,
            executing: 0,
            is_waiting: false,
            last_start: None,
        };
        Self { state: Mutex::new(state), enough: Notify::new() }
    }
}

impl<Q: BatchedQuery> Batcher<Q> {
    fn lock(&self) -> MutexGuard<'_, State<Q>> {
        self.state.lock()
    }

    /// Returns the next step of a task that leaves the state `previous`.
    fn next(&self, previous: TaskState) -> Next<Q> {
        let mut state = self.lock();
        state.leave(previous);
        // Drop jobs whose callers timed out, so that they delay no other.
        state.waiting.retain(|job| !job.reply.is_closed());
        let sizes = |jobs: &VecDeque<Job<Q>>| jobs.iter().map(|job| job.query.size()).sum();
        state.size = sizes(&state.waiting);
        let now = Instant::now();
        let due = state.last_start.map(|last_start| last_start + Q::BATCH_DELAY_MAX);
        let due = due.filter(|due| now < *due && state.executing > 0 && state.size < Q::BATCH_SIZE_MAX);
        if state.waiting.is_empty() || (due.is_some() && state.is_waiting) {
            state.tasks -= 1;
            return Next::Exit;
        }
        if let Some(due) = due {
            state.is_waiting = true;
            return Next::Wait(due);
        }
        let mut size = 0;
        let mut fits = |job: &Job<Q>| {
            size += job.query.size();
            size <= Q::BATCH_SIZE_MAX
        };
        let fitting = state.waiting.iter().map_while(|job| fits(job).then_some(())).count();
        let rest = state.waiting.len().min(fitting.max(1));
        let jobs: Vec<Job<Q>> = state.waiting.drain(..rest).collect();
        state.size = sizes(&state.waiting);
        (state.last_start, state.executing) = (Some(now), state.executing + 1);
        let is_more = !state.waiting.is_empty() && state.tasks < Q::TASKS_MAX;
        state.tasks += usize::from(is_more);
        Next::Execute(jobs, is_more)
    }
}

impl<Q: BatchedQuery> State<Q> {
    fn leave(&mut self, task: TaskState) {
        match task {
            TaskState::Idle => {}
            TaskState::Executing => self.executing -= 1,
            TaskState::Waiting => self.is_waiting = false,
        }
    }
}

/// Task that runs queued queries in batches. Dropped early, with its runtime, it fails the callers that still wait.
struct BatchTask<Q: BatchedQuery> {
    core: Arc<Core>,
    /// Whether the task exited regularly.
    is_done: bool,
    state: TaskState,
    of: std::marker::PhantomData<Q>,
}

impl<Q: BatchedQuery> Drop for BatchTask<Q> {
    fn drop(&mut self) {
        if !self.is_done {
            let mut state = Q::batcher(&self.core).lock();
            state.tasks -= 1;
            state.leave(self.state);
            // Remaining tasks take the waiting queries; without any, the callers fail.
            if state.tasks == 0 {
                state.waiting.clear();
                state.size = 0;
            }
        }
    }
}

/// Queues a query and returns its reply. A panic of its work goes on in the caller. If the caller is dropped, a query that was already sent still takes effect.
pub(super) async fn send<Q: BatchedQuery>(core: &Arc<Core>, query: Q) -> Result<Q::Reply, StoreError> {
    let (reply, done) = oneshot::channel();
    let starts_task = {
        let batcher = Q::batcher(core);
        let mut state = batcher.lock();
        state.size += query.size();
        state.waiting.push_back(Job { query, reply });
        // No batch is in flight if the one waited for has ended and another task took the queries before this one.
        if state.is_waiting && (state.size >= Q::BATCH_SIZE_MAX || state.executing == 0) {
            batcher.enough.notify_one();
        }
        let starts_task = !state.is_waiting && state.tasks < Q::TASKS_MAX;
        state.tasks += usize::from(starts_task);
        starts_task
    };
    if starts_task {
        spawn_task::<Q>(Arc::clone(core));
    }
    match done.await {
        Ok(outcome) => outcome.unwrap_or_else(|panicked| panicked.resume()),
        Err(_) => Err(StoreError::Unknown("the store was closed during the call".to_owned())),
    }
}

/// Spawns a task that is already counted in [`State::tasks`].
fn spawn_task<Q: BatchedQuery>(core: Arc<Core>) {
    let task = BatchTask { core, is_done: false, state: TaskState::Idle, of: std::marker::PhantomData };
    supervised::spawn("a batch of the store", run_task::<Q>(task));
}

async fn run_task<Q: BatchedQuery>(mut task: BatchTask<Q>) {
    let core = Arc::clone(&task.core);
    loop {
        let jobs = match Q::batcher(&core).next(std::mem::replace(&mut task.state, TaskState::Idle)) {
            Next::Execute(jobs, is_more) => {
                if is_more {
                    spawn_task::<Q>(Arc::clone(&core));
                }
                jobs
            }
            Next::Wait(due) => {
                task.state = TaskState::Waiting;
                tokio::select! {
                    () = sleep_until(due) => {}
                    () = Q::batcher(&core).enough.notified() => {}
                }
                continue;
            }
            Next::Exit => break,
        };
        task.state = TaskState::Executing;
        let all: Vec<&Q> = jobs.iter().map(|job| &job.query).collect();
        match contained(Q::execute(&core, &all)).await {
            Ok(Ok(answers)) => {
                for (job, answer) in jobs.into_iter().zip(answers) {
                    // The caller may have stopped waiting.
                    job.reply.send(Ok(Ok(answer))).ok();
                }
            }
            Ok(Err(error)) => execute_individually(&core, jobs, error).await,
            Err(panicked) => match <[Job<Q>; 1]>::try_from(jobs) {
                Ok([job]) => drop(job.reply.send(Err(panicked))),
                Err(jobs) => {
                    let error = StoreError::Unavailable("a query of the same batch panicked".to_owned());
                    execute_individually(&core, jobs, error).await;
                }
            },
        }
    }
    task.is_done = true;
}

/// Executes the queries of a failed batch one by one, so that an invalid or locked row fails only its own query, and a
/// panic goes on only in the caller whose query causes it.
///
/// If the server is unavailable, that concerns all of them, and they are not retried.
async fn execute_individually<Q: BatchedQuery>(core: &Core, jobs: Vec<Job<Q>>, error: StoreError) {
    let concerns_all =
        jobs.len() == 1 || matches!(error, StoreError::NoConnection(_) | StoreError::Unknown(_));
    let mut failures = if concerns_all { SINGLE_FAILURES_MAX } else { 0 };
    for job in jobs {
        let mut done = Ok(Err(error.clone()));
        if failures < SINGLE_FAILURES_MAX {
            let alone = contained(Q::execute(core, &[&job.query])).await;
            done = alone.map(|it| it.and_then(|mut answers| answers.pop().ok_or_else(|| error.clone())));
            failures += usize::from(matches!(
                done,
                Ok(Err(StoreError::Unavailable(_) | StoreError::NoConnection(_) | StoreError::Unknown(_)))
            ));
        }
        job.reply.send(done).ok();
    }
}

#[cfg(test)]
mod tests;
