//! Reads of back ends in turns: each passes the read barrier, waits for its turn, and keeps it until its response is built.

use std::{future::Future, sync::Arc, time::Duration};

use tidegate_protocol::{Code, id::UserId};
use tokio::time::timeout;

use super::{READ_TIMEOUT, ReadCaller};
use crate::{
    api::{
        Api, Problem,
        access::{Caller, CallerPresence},
        now_ms,
    },
    cluster::PublishedOffsets,
    conversation::{
        consistent::beyond_head_before_barrier,
        read_position::{BeyondHead, NOT_STORED},
        reader::Reader,
        refusal::store_unavailable,
    },
    store::{Store, StoreError},
    supervised,
};

/// Longest time for which a read keeps its turn after its caller has got a timeout.
const ABANDONED_MAX: Duration = Duration::from_secs(15);

/// Runs `work` in a turn of the caller, with what `barrier` returns.
///
/// The work is a task that has the turn, so that reads whose callers left do not exceed the bound while the store still
/// works on them. The wait for the turn does not count as time of the store.
pub(in crate::api) async fn in_turn<B, T, F>(
    api: &Api,
    caller: &Caller,
    barrier: impl Future<Output = B>,
    work: impl FnOnce(Arc<dyn Store>, B) -> F,
) -> Result<T, Problem>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Problem>> + Send + 'static,
{
    let ReadCaller(key) = ReadCaller::new(caller);
    // The place is taken before the barrier, so that waiting reads of one key are few.
    let seat = api.reads.budget.seat(&key)?;
    let passed = timeout(READ_TIMEOUT, barrier).await.map_err(|_| NOT_STORED)?;
    let turn = seat.turn().await?;
    let work = work(Arc::clone(&api.reads.store), passed);
    let task = supervised::spawn("a read of the admin API", async move {
        let _turn = turn;
        timeout(ABANDONED_MAX, supervised::contained(work)).await
    });
    match timeout(READ_TIMEOUT, task).await {
        Ok(Ok(Ok(Ok(outcome)))) => outcome,
        Ok(Ok(Ok(Err(panicked)))) => panicked.resume(),
        Ok(Err(_stopping)) => Err(Problem(Code::StoreUnavailable, "the node stops".into())),
        Ok(Ok(Err(_))) | Err(_) => {
            Err(Problem(Code::StoreUnavailable, "the store did not answer in time".into()))
        }
    }
}

/// Makes a change in a turn of the caller. It ends with the wait of its caller, and undoes no later one. The turn ends, too: the
/// store bounds the changes that it still works on, and keeps their connections.
pub(in crate::api) async fn change_in_turn<T, F>(
    api: &Api,
    caller: &Caller,
    presence: CallerPresence,
    change: impl FnOnce(Arc<dyn Store>) -> F,
) -> Result<T, Problem>
where
    F: Future<Output = Result<T, Problem>>,
{
    let ReadCaller(key) = ReadCaller::new(caller);
    let _turn = api.reads.budget.turn(&key).await?;
    let change = Box::pin(change(Arc::clone(&api.reads.store)));
    let changed = presence.during(READ_TIMEOUT, change).await;
    changed.ok_or_else(not_confirmed)?
}

/// Returns the problem of a change of a setting that has ended with the wait of its caller. The store may be committing it.
pub(super) fn not_confirmed() -> Problem {
    let why = "not confirmed in time: it may be done or not, undoes no later change, and can be repeated";
    Problem(Code::StoreUnavailable, why.into())
}

/// Whether something that the store does not have is known not to exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::api) enum Absence {
    /// What the store does not have does not exist.
    Known,
    /// The store may lack it.
    InDoubt,
}

/// Runs a read of conversations in any partitions in a turn of the caller. It is refused as `NOT_YET` if the store is known
/// to lack something that owners have archived, or if answers come before the archive and it may lack some.
pub(in crate::api) async fn in_turn_of_all<T, F>(
    api: &Api,
    caller: &Caller,
    work: impl FnOnce(Arc<dyn Store>, Absence) -> F + Send + 'static,
) -> Result<T, Problem>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Problem>> + Send + 'static,
{
    let answers_first = api.cluster.owned.unarchived().is_allowed();
    let may_lag = beyond_head_before_barrier(&api.cluster) == BeyondHead::Unknown;
    let barrier = async { if may_lag { Some(api.cluster.barrier_of_all().await) } else { None } };
    let checked = move |store: Arc<dyn Store>, published: Option<PublishedOffsets>| async move {
        let absence = match published {
            None => Absence::Known,
            Some(published) => {
                let stored = store.archived_offsets().await.map_err(unavailable)?;
                let is_complete = published.are_complete();
                let has_fallen_back = stored.is_some_and(|stored| published.are_above(&stored));
                if has_fallen_back || (answers_first && !is_complete) {
                    return Err(NOT_STORED.into());
                }
                if is_complete { Absence::Known } else { Absence::InDoubt }
            }
        };
        work(store, absence).await
    };
    in_turn(api, caller, barrier, checked).await
}

/// Returns a user as a reader, with the settings that the store has.
pub(super) async fn reader(store: &dyn Store, user: &UserId) -> Result<Reader, Problem> {
    let settings = store.settings_of(std::slice::from_ref(user)).await.map_err(unavailable)?;
    Ok(Reader::with_settings(user.clone(), &settings.first().copied().unwrap_or_default(), now_ms()))
}

/// Returns the refusal of a read for a failed call of the store.
pub(in crate::api) fn unavailable(error: StoreError) -> Problem {
    store_unavailable(error).into()
}
