//! What many clients or owners want of one kind, many in one turn to the server: while one is under way, the next are gathered (DESIGN 6.8).
//!
//! Each alone had a connection to itself, of the few that clients share, for a turn: where a node moved its clients to two others, 300 logins a
//! second waited 2 s for one, and the server was not busy. Who comes alone goes at once, and nobody waits longer than for a turn that is under way.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tidegate_protocol::{
    id::{ConversationId, UserId},
    machine::ledger::Delta,
};
use tokio::{
    sync::{Notify, oneshot},
    time::{Instant, sleep_until},
};

use super::{
    Core, archive,
    marks::{self, Change},
    owner::Archive,
    queries,
    row_loader::{self, Load},
};
use crate::store::{Fence, Membership, StoreError, Summary};

/// Of a turn that failed, errands that are tried alone and fail again before the others are not tried: for a server that hangs each
/// takes its time.
const TRIES_ALONE: usize = 2;

/// What one caller wants of the server.
pub(super) trait Errand: Send + Sync + Sized + 'static {
    type Answer: Send + 'static;

    /// How many turns may be under way at once; in one alone they keep their order.
    const FLIGHTS: usize;

    /// The sizes of one turn together, unless one errand is larger.
    const BATCH: usize;

    /// How long those who come wait for the end of the turn before them, unless there is enough for one of their own.
    const PATIENCE: Duration = Duration::ZERO;

    fn size(&self) -> usize;

    fn gather(core: &Core) -> &Gather<Self>;

    /// One turn; an answer for each, in order.
    fn turn(
        core: &Core,
        errands: &[&Self],
    ) -> impl Future<Output = Result<Vec<Self::Answer>, StoreError>> + Send;
}

/// Who waits for a turn.
pub(super) struct Gather<E: Errand> {
    state: Mutex<State<E>>,
    /// There is nothing to wait for any more.
    enough: Notify,
}

struct State<E: Errand> {
    waiting: VecDeque<Job<E>>,
    /// The sizes of those together.
    size: usize,
    /// How many take them.
    flights: usize,
    /// How many of these have a turn under way.
    flying: usize,
    /// One of these waits, and takes whoever comes meanwhile.
    is_waiting: bool,
    /// When the last turn began.
    began: Option<Instant>,
}

/// What a flight does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Nothing,
    Turn,
    Wait,
}

/// What a flight does next.
enum Next<E: Errand> {
    /// These, and whether another flight is to take what is left.
    Turn(Vec<Job<E>>, bool),
    /// Waits until then, or until there is enough.
    Wait(Instant),
    /// Nobody waits, or another flight takes them.
    Over,
}

struct Job<E: Errand> {
    errand: E,
    reply: oneshot::Sender<Result<E::Answer, StoreError>>,
}

impl<E: Errand> Default for Gather<E> {
    fn default() -> Self {
        let state = State {
            waiting: VecDeque::new(),
            size: 0,
            flights: 0,
            flying: 0,
            is_waiting: false,
            began: None,
        };
        Self { state: Mutex::new(state), enough: Notify::new() }
    }
}

impl<E: Errand> Gather<E> {
    fn lock(&self) -> MutexGuard<'_, State<E>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a flight does that did this until now.
    fn next(&self, until_now: Doing) -> Next<E> {
        let mut state = self.lock();
        state.ends(until_now);
        // Who waited too long was told so, and nobody waits behind what nobody waits for.
        state.waiting.retain(|job| !job.reply.is_closed());
        let sizes = |jobs: &VecDeque<Job<E>>| jobs.iter().map(|job| job.errand.size()).sum();
        state.size = sizes(&state.waiting);
        let now = Instant::now();
        let due = state.began.map(|began| began + E::PATIENCE);
        let due = due.filter(|due| now < *due && state.flying > 0 && state.size < E::BATCH);
        if state.waiting.is_empty() || (due.is_some() && state.is_waiting) {
            state.flights -= 1;
            return Next::Over;
        }
        if let Some(due) = due {
            state.is_waiting = true;
            return Next::Wait(due);
        }
        let mut size = 0;
        let mut fits = |job: &Job<E>| {
            size += job.errand.size();
            size <= E::BATCH
        };
        let fitting = state.waiting.iter().map_while(|job| fits(job).then_some(())).count();
        let rest = state.waiting.len().min(fitting.max(1));
        let jobs: Vec<Job<E>> = state.waiting.drain(..rest).collect();
        state.size = sizes(&state.waiting);
        (state.began, state.flying) = (Some(now), state.flying + 1);
        let is_more = !state.waiting.is_empty() && state.flights < E::FLIGHTS;
        state.flights += usize::from(is_more);
        Next::Turn(jobs, is_more)
    }
}

impl<E: Errand> State<E> {
    fn ends(&mut self, what: Doing) {
        match what {
            Doing::Nothing => {}
            Doing::Turn => self.flying -= 1,
            Doing::Wait => self.is_waiting = false,
        }
    }
}

/// Whoever waits hears when the flight ends before its time, with its runtime.
struct Flight<E: Errand> {
    core: Arc<Core>,
    /// It ended in order: nobody waits, or somebody else flies by now.
    over: bool,
    doing: Doing,
    of: std::marker::PhantomData<E>,
}

impl<E: Errand> Drop for Flight<E> {
    fn drop(&mut self) {
        if !self.over {
            let mut state = E::gather(&self.core).lock();
            state.flights -= 1;
            state.ends(self.doing);
            // Another one takes them.
            if state.flights == 0 {
                state.waiting.clear();
                state.size = 0;
            }
        }
    }
}

/// Has it done with those of others. A caller may go away: what had its turn by then is done all the same.
pub(super) async fn send<E: Errand>(core: &Arc<Core>, errand: E) -> Result<E::Answer, StoreError> {
    let (reply, done) = oneshot::channel();
    let begins = {
        let gather = E::gather(core);
        let mut state = gather.lock();
        state.size += errand.size();
        state.waiting.push_back(Job { errand, reply });
        // A turn that was waited for is over, and another flight took those who came before.
        if state.is_waiting && (state.size >= E::BATCH || state.flying == 0) {
            gather.enough.notify_one();
        }
        let begins = !state.is_waiting && state.flights < E::FLIGHTS;
        state.flights += usize::from(begins);
        begins
    };
    if begins {
        begin::<E>(Arc::clone(core));
    }
    done.await.unwrap_or_else(|_| Err(StoreError::Unknown("the store was closed meanwhile".to_owned())))
}

/// Another flight, which is counted already.
fn begin<E: Errand>(core: Arc<Core>) {
    let flight = Flight { core, over: false, doing: Doing::Nothing, of: std::marker::PhantomData };
    tokio::spawn(fly::<E>(flight));
}

async fn fly<E: Errand>(mut flight: Flight<E>) {
    let core = Arc::clone(&flight.core);
    loop {
        let jobs = match E::gather(&core).next(std::mem::replace(&mut flight.doing, Doing::Nothing)) {
            Next::Turn(jobs, is_more) => {
                if is_more {
                    begin::<E>(Arc::clone(&core));
                }
                jobs
            }
            Next::Wait(due) => {
                flight.doing = Doing::Wait;
                tokio::select! {
                    () = sleep_until(due) => {}
                    () = E::gather(&core).enough.notified() => {}
                }
                continue;
            }
            Next::Over => break,
        };
        flight.doing = Doing::Turn;
        let all: Vec<&E> = jobs.iter().map(|job| &job.errand).collect();
        match E::turn(&core, &all).await {
            Ok(answers) => {
                for (job, answer) in jobs.into_iter().zip(answers) {
                    // Who asked may have gone.
                    job.reply.send(Ok(answer)).ok();
                }
            }
            Err(error) => one_by_one(&core, jobs, error).await,
        }
    }
    flight.over = true;
}

/// A row that makes no sense, or that somebody holds, is the trouble of whoever asked for it; a server that is away is that of all,
/// and is not asked for each.
async fn one_by_one<E: Errand>(core: &Core, jobs: Vec<Job<E>>, error: StoreError) {
    let is_of_all = jobs.len() == 1 || matches!(error, StoreError::NoConnection(_) | StoreError::Unknown(_));
    let mut away = if is_of_all { TRIES_ALONE } else { 0 };
    for job in jobs {
        let mut done = Err(error.clone());
        if away < TRIES_ALONE {
            let alone = E::turn(core, &[&job.errand]).await;
            done = alone.and_then(|mut answers| answers.pop().ok_or_else(|| error.clone()));
            away += usize::from(matches!(
                done,
                Err(StoreError::Unavailable(_) | StoreError::NoConnection(_) | StoreError::Unknown(_))
            ));
        }
        job.reply.send(done).ok();
    }
}

/// Marks of users, in one transaction. One turn at a time: what a user changed first is first.
pub(super) struct Save(pub(super) Vec<Change>);

impl Errand for Save {
    type Answer = ();
    const FLIGHTS: usize = 1;
    const BATCH: usize = 500;

    fn size(&self) -> usize {
        self.0.len()
    }

    fn gather(core: &Core) -> &Gather<Self> {
        &core.saves
    }

    async fn turn(core: &Core, errands: &[&Self]) -> Result<Vec<()>, StoreError> {
        let all: Vec<Change> = errands.iter().flat_map(|it| it.0.iter().cloned()).collect();
        let all = &all[..];
        core.run(move || async move { marks::save_marks(&mut core.readers().await?, all).await }).await?;
        Ok(vec![(); errands.len()])
    }
}

/// A page of the conversations of a user.
pub(super) struct Conversations {
    pub(super) user: UserId,
    pub(super) after: Option<ConversationId>,
    pub(super) limit: usize,
}

impl Errand for Conversations {
    type Answer = Vec<Membership>;
    const FLIGHTS: usize = 2;
    /// Rows at most; most users have few.
    const BATCH: usize = 32_000;

    fn size(&self) -> usize {
        self.limit
    }

    fn gather(core: &Core) -> &Gather<Self> {
        &core.conversations
    }

    async fn turn(core: &Core, errands: &[&Self]) -> Result<Vec<Self::Answer>, StoreError> {
        core.run(move || async move { queries::memberships(&mut core.readers().await?, errands).await }).await
    }
}

/// What a conversation is, for everybody or for one user.
pub(super) struct Summaries {
    pub(super) conversation: ConversationId,
    pub(super) of: Option<UserId>,
}

impl Errand for Summaries {
    type Answer = Option<Summary>;
    const FLIGHTS: usize = 2;
    const BATCH: usize = 500;

    fn size(&self) -> usize {
        1
    }

    fn gather(core: &Core) -> &Gather<Self> {
        &core.summaries
    }

    async fn turn(core: &Core, errands: &[&Self]) -> Result<Vec<Self::Answer>, StoreError> {
        core.run(move || async move { queries::summaries(&mut core.readers().await?, errands).await }).await
    }
}

/// What a user wished before.
pub(super) struct Wishes(pub(super) UserId);

impl Errand for Wishes {
    type Answer = tidegate_protocol::settings::UserSettings;
    const FLIGHTS: usize = 2;
    const BATCH: usize = 200;

    fn size(&self) -> usize {
        1
    }

    fn gather(core: &Core) -> &Gather<Self> {
        &core.wishes
    }

    async fn turn(core: &Core, errands: &[&Self]) -> Result<Vec<Self::Answer>, StoreError> {
        core.run(move || async move { marks::wishes(&mut core.readers().await?, errands).await }).await
    }
}

impl Errand for Load {
    type Answer = row_loader::Answer;
    /// A large one, of an owner that begins, leaves room for those that go on.
    const FLIGHTS: usize = 3;
    const BATCH: usize = 1_000;

    fn size(&self) -> usize {
        self.needs.len()
    }

    fn gather(core: &Core) -> &Gather<Self> {
        &core.loads
    }

    async fn turn(core: &Core, errands: &[&Self]) -> Result<Vec<Self::Answer>, StoreError> {
        core.run(move || async move { row_loader::load(&mut core.owners().await?, errands).await }).await
    }
}

/// A small archive of one partition.
pub(super) struct Portion {
    pub(super) partition: i32,
    pub(super) fence: Fence,
    pub(super) delta: Delta,
    pub(super) weight: usize,
}

impl Errand for Portion {
    type Answer = ();
    /// Where a row is held by somebody, others go on.
    const FLIGHTS: usize = 3;
    const BATCH: usize = archive::SMALL;
    /// A transaction costs more than the few rows in it: with 150 messages a second over 64 partitions each went alone, and the server took a
    /// fifth of a core for a node.
    const PATIENCE: Duration = Duration::from_millis(25);

    fn size(&self) -> usize {
        self.weight
    }

    fn gather(core: &Core) -> &Gather<Self> {
        &core.portions
    }

    async fn turn(core: &Core, errands: &[&Self]) -> Result<Vec<()>, StoreError> {
        let mut archives: Vec<Archive<'_>> = errands
            .iter()
            .map(|it| Archive { partition: it.partition, fence: it.fence, delta: &it.delta })
            .collect();
        // Everybody locks rows in this order.
        archives.sort_unstable_by_key(|it| it.partition);
        let archives = &archives[..];
        core.run(move || core.archive_once(archives)).await?;
        Ok(vec![(); errands.len()])
    }
}

#[cfg(test)]
mod tests;
