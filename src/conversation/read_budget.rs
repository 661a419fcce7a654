//! Read budget: how many reads run at once, for each caller and for the node. Callers are users, or keys of the admin port.
//!
//! A read waits for its turn among the reads of its caller, and then among those of all, so the devices of one user
//! delay only each other. Logins and owners need no turn: what is left to them is left by this bound.

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::Hash,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tidegate_protocol::{Code, id::UserId};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout_at},
};

use crate::mail::Refusal;

/// Reads of one user that run at once.
const USER_RUNNING_MAX: usize = 2;

/// Reads of one caller that run or wait.
const CALLER_READS_MAX: usize = 64;

/// Reads of all callers that run or wait.
const NODE_READS_MAX: usize = 16_384;

/// How long a read waits for its turn.
const WAIT_MAX: Duration = Duration::from_secs(3);

/// Refusal of a read of a caller with too many of them.
const CALLER_BUSY: Refusal = (Code::Busy, "too many requests of this user or key are pending");

/// Refusal of a read while too many others wait.
const NODE_BUSY: Refusal = (Code::Overloaded, "too many requests are pending on this node");

/// Bound on the reads that use the store at once.
pub struct ReadBudget<K: Eq + Hash = UserId> {
    turns: Arc<Semaphore>,
    /// Reads of one caller that run at once.
    caller_running_max: usize,
    /// Reads of one caller that run or wait.
    caller_reads_max: usize,
    state: Mutex<State<K>>,
}

struct State<K> {
    /// Callers with reads that run or wait.
    callers: HashMap<K, CallerReads>,
    /// Reads that run or wait.
    reads: usize,
}

struct CallerReads {
    turns: Arc<Semaphore>,
    reads: usize,
}

/// Turn of one read, until it is dropped.
pub struct ReadTurn<K: Clone + Eq + Hash = UserId> {
    _seat: Seat<K>,
    _caller: OwnedSemaphorePermit,
    _node: OwnedSemaphorePermit,
}

/// Read that has its place, and no turn yet.
pub struct ReadSeat<K: Clone + Eq + Hash = UserId> {
    seat: Seat<K>,
    of_caller: Arc<Semaphore>,
}

/// Place of a read that runs or waits.
struct Seat<K: Clone + Eq + Hash> {
    budget: Arc<ReadBudget<K>>,
    caller: K,
}

impl ReadBudget {
    /// Creates a budget of `running_max` reads of users at once.
    pub fn new(running_max: usize) -> Self {
        Self::of_callers(running_max, USER_RUNNING_MAX, CALLER_READS_MAX)
    }
}

impl<K: Clone + Eq + Hash> ReadBudget<K> {
    /// Creates a budget of `running_max` reads at once, of which one caller has at most `caller_running_max`, and
    /// `caller_reads_max` with those that wait.
    pub fn of_callers(running_max: usize, caller_running_max: usize, caller_reads_max: usize) -> Self {
        let state = Mutex::new(State { callers: HashMap::new(), reads: 0 });
        let turns = Arc::new(Semaphore::new(running_max));
        Self { turns, caller_running_max, caller_reads_max, state }
    }

    /// Waits for the turn of a read.
    ///
    /// # Errors
    /// `BUSY` if the caller has too many reads; `OVERLOADED` if the node has too many, or the turn does not come in time.
    pub async fn turn(self: &Arc<Self>, caller: &K) -> Result<ReadTurn<K>, Refusal> {
        self.seat(caller)?.turn().await
    }

    /// Takes a place among the reads that run or wait, before the wait for a turn.
    ///
    /// # Errors
    /// `BUSY` if the caller has too many reads; `OVERLOADED` if the node has too many.
    pub fn seat(self: &Arc<Self>, caller: &K) -> Result<ReadSeat<K>, Refusal> {
        let (seat, of_caller) = self.take_seat(caller)?;
        Ok(ReadSeat { seat, of_caller })
    }

    fn take_seat(self: &Arc<Self>, caller: &K) -> Result<(Seat<K>, Arc<Semaphore>), Refusal> {
        let mut state = self.state.lock();
        if state.reads >= NODE_READS_MAX {
            return Err(NODE_BUSY);
        }
        let new = || CallerReads { turns: Arc::new(Semaphore::new(self.caller_running_max)), reads: 0 };
        let of_caller = state.callers.entry(caller.clone()).or_insert_with(new);
        if of_caller.reads >= self.caller_reads_max {
            return Err(CALLER_BUSY);
        }
        of_caller.reads += 1;
        let turns = Arc::clone(&of_caller.turns);
        state.reads += 1;
        Ok((Seat { budget: Arc::clone(self), caller: caller.clone() }, turns))
    }
}

impl<K: Clone + Eq + Hash> ReadSeat<K> {
    /// Waits for the turn of the read.
    ///
    /// # Errors
    /// `BUSY` or `OVERLOADED` if the turn does not come in time.
    pub async fn turn(self) -> Result<ReadTurn<K>, Refusal> {
        let Self { seat, of_caller } = self;
        // Usually both are free, and no timer is needed.
        if let Ok(caller) = Arc::clone(&of_caller).try_acquire_owned()
            && let Ok(node) = Arc::clone(&seat.budget.turns).try_acquire_owned()
        {
            return Ok(ReadTurn { _seat: seat, _caller: caller, _node: node });
        }
        let until = Instant::now() + WAIT_MAX;
        let caller = timeout_at(until, of_caller.acquire_owned()).await.map_err(|_| CALLER_BUSY)?;
        let node =
            timeout_at(until, Arc::clone(&seat.budget.turns).acquire_owned()).await.map_err(|_| NODE_BUSY)?;
        // The semaphores are never closed.
        let (Ok(caller), Ok(node)) = (caller, node) else { return Err(NODE_BUSY) };
        Ok(ReadTurn { _seat: seat, _caller: caller, _node: node })
    }
}

impl<K: Clone + Eq + Hash> Drop for Seat<K> {
    fn drop(&mut self) {
        let mut state = self.budget.state.lock();
        state.reads -= 1;
        if let Entry::Occupied(mut entry) = state.callers.entry(self.caller.clone()) {
            entry.get_mut().reads -= 1;
            if entry.get().reads == 0 {
                entry.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(n: usize) -> UserId {
        UserId::new(&format!("u{n}")).unwrap()
    }

    /// Starts reads of a user that keep their turn, and lets them run as far as they can.
    async fn start(
        budget: &Arc<ReadBudget>,
        of: usize,
        count: usize,
    ) -> Vec<tokio::task::JoinHandle<Refusal>> {
        let one = || {
            let budget = Arc::clone(budget);
            tokio::spawn(async move {
                match budget.turn(&user(of)).await {
                    Err(refusal) => refusal,
                    Ok(_turn) => std::future::pending().await,
                }
            })
        };
        let reads = (0..count).map(|_| one()).collect();
        tokio::task::yield_now().await;
        reads
    }

    #[tokio::test(start_paused = true)]
    async fn x6_reads_of_one_user_delay_no_other() {
        let budget = Arc::new(ReadBudget::new(6));
        let hostile = start(&budget, 0, CALLER_READS_MAX).await;
        let begun = Instant::now();
        let _honest = budget.turn(&user(1)).await.unwrap();
        assert_eq!(begun.elapsed(), Duration::ZERO);
        assert_eq!(budget.turn(&user(0)).await.err(), Some(CALLER_BUSY), "the queue of the user is full");
        hostile.iter().for_each(|read| read.abort());
    }

    #[tokio::test(start_paused = true)]
    async fn x6_seats_of_one_caller_are_bounded_before_their_turns() {
        let budget = Arc::new(ReadBudget::of_callers(8, 4, 16));
        let seats: Vec<_> = (0..16).map(|_| budget.seat(&user(0)).unwrap()).collect();
        assert_eq!(budget.seat(&user(0)).err(), Some(CALLER_BUSY));
        assert!(budget.turn(&user(1)).await.is_ok());
        drop(seats);
        assert!(budget.turn(&user(0)).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn x6_read_that_waits_too_long_is_refused() {
        let budget = Arc::new(ReadBudget::new(1));
        let turn = budget.turn(&user(0)).await.unwrap();
        let begun = Instant::now();
        assert_eq!(budget.turn(&user(1)).await.err(), Some(NODE_BUSY));
        assert_eq!(begun.elapsed(), WAIT_MAX);
        drop(turn);
        assert!(budget.turn(&user(1)).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn x6_waiting_reads_are_bounded_and_forgotten() {
        let budget = Arc::new(ReadBudget::new(1));
        let mut reads = Vec::new();
        for of in 0..NODE_READS_MAX {
            reads.extend(start(&budget, of, 1).await);
        }
        assert_eq!(budget.turn(&user(NODE_READS_MAX)).await.err(), Some(NODE_BUSY));
        for read in reads {
            read.abort();
            assert!(read.await.is_err());
        }
        let state = budget.state.lock();
        assert_eq!((state.reads, state.callers.len()), (0, 0), "a cancelled read leaves nothing");
    }
}
