//! What many clients or owners want of one kind, many in one turn to the server: while one is under way, the next are gathered (DESIGN 6.8).
//!
//! Each alone had a connection to itself, of the few that clients share, for a turn: where a node moved its clients to two others, 300 logins a
//! second waited 2 s for one, and the server was not busy. Nobody waits for a timer: who comes alone goes at once.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tidegate_protocol::{
    id::{ConversationId, UserId},
    machine::ledger::Delta,
};
use tokio::sync::oneshot;

use super::{
    Core, archive,
    loads::{self, Load},
    marks::{self, Change},
    owner::Archive,
    readers,
};
use crate::store::{Fence, Membership, StoreError};

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
}

struct State<E: Errand> {
    waiting: VecDeque<Job<E>>,
    /// How many take them.
    flights: usize,
}

struct Job<E: Errand> {
    errand: E,
    reply: oneshot::Sender<Result<E::Answer, StoreError>>,
}

impl<E: Errand> Default for Gather<E> {
    fn default() -> Self {
        Self { state: Mutex::new(State { waiting: VecDeque::new(), flights: 0 }) }
    }
}

impl<E: Errand> Gather<E> {
    fn lock(&self) -> MutexGuard<'_, State<E>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next for one turn; none ends the flight.
    fn next(&self) -> Option<Vec<Job<E>>> {
        let mut state = self.lock();
        // Who waited too long was told so, and nobody waits behind what nobody waits for.
        state.waiting.retain(|job| !job.reply.is_closed());
        let mut size = 0;
        let mut fits = |job: &Job<E>| {
            size += job.errand.size();
            size <= E::BATCH
        };
        let fitting = state.waiting.iter().map_while(|job| fits(job).then_some(())).count();
        let rest = state.waiting.len().min(fitting.max(1));
        let jobs: Vec<Job<E>> = state.waiting.drain(..rest).collect();
        state.flights -= usize::from(jobs.is_empty());
        (!jobs.is_empty()).then_some(jobs)
    }
}

/// Whoever waits hears when the flight ends before its time, with its runtime.
struct Flight<E: Errand> {
    core: Arc<Core>,
    /// It ended in order: nobody waits, or somebody else flies by now.
    over: bool,
    of: std::marker::PhantomData<E>,
}

impl<E: Errand> Drop for Flight<E> {
    fn drop(&mut self) {
        if !self.over {
            let mut state = E::gather(&self.core).lock();
            state.flights -= 1;
            // Another one takes them.
            if state.flights == 0 {
                state.waiting.clear();
            }
        }
    }
}

/// Has it done with those of others. A caller may go away: what had its turn by then is done all the same.
pub(super) async fn send<E: Errand>(core: &Arc<Core>, errand: E) -> Result<E::Answer, StoreError> {
    let (reply, done) = oneshot::channel();
    let begins = {
        let mut state = E::gather(core).lock();
        state.waiting.push_back(Job { errand, reply });
        let begins = state.flights < E::FLIGHTS;
        state.flights += usize::from(begins);
        begins
    };
    if begins {
        let flight = Flight { core: Arc::clone(core), over: false, of: std::marker::PhantomData };
        tokio::spawn(fly::<E>(flight));
    }
    done.await.unwrap_or_else(|_| Err(StoreError::Unknown("the store was closed meanwhile".to_owned())))
}

async fn fly<E: Errand>(mut flight: Flight<E>) {
    let core = Arc::clone(&flight.core);
    while let Some(jobs) = E::gather(&core).next() {
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
        core.run(move || async move { readers::memberships(&mut core.readers().await?, errands).await }).await
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
    type Answer = loads::Answer;
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
        core.run(move || async move { loads::load(&mut core.owners().await?, errands).await }).await
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
