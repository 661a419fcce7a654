//! Fault injection for ports: a seeded plan makes calls fail, wait, or lose their reply after the work is done.
//!
//! Wrap any port as `Arc::new(Faulty::new(port, plan))`. Without planned faults the wrapper changes nothing; the
//! conformance suites check that by also running over it.

use std::{
    collections::{HashMap, VecDeque},
    future::{Future, poll_fn},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Semaphore;

pub mod planted;

/// Port wrapper that applies the faults of a plan to each call.
pub struct Faulty<P: ?Sized> {
    pub(crate) inner: Arc<P>,
    plan: Arc<FaultPlan>,
}

/// Fault of one call.
#[derive(Clone, Debug)]
pub enum Fault {
    /// No fault.
    None,
    /// The call does nothing and returns `Unavailable`.
    Fail,
    /// The call panics, as a broken adapter does.
    Panic,
    /// The call does its work, its result is lost, and the caller gets `Unknown`.
    LoseAnswer,
    /// The call does its work and returns the result this many polls later.
    Delay(u32),
    /// The call waits for the gate before its work. Later appends may overtake a waiting one.
    Hold(Gate),
    /// The call does its work and waits for the gate before it returns.
    HoldAnswer(Gate),
}

/// Gate at which calls wait until a test opens it.
#[derive(Clone, Debug)]
pub struct Gate {
    open: Arc<Semaphore>,
    waiting: Arc<AtomicU64>,
}

/// Rates of random faults, per thousand calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rates {
    /// Rate of [`Fault::Fail`].
    pub fail: u16,
    /// Rate of [`Fault::LoseAnswer`].
    pub lose_answer: u16,
    /// Rate of [`Fault::Delay`], by one to four polls.
    pub delay: u16,
}

/// Plan of the calls that fail. The same seed and the same calls in the same order give the same faults.
#[derive(Debug)]
pub struct FaultPlan {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    random: u64,
    rates: Rates,
    planned: HashMap<&'static str, VecDeque<Fault>>,
    calls: HashMap<&'static str, u64>,
}

/// Error type that a fault can produce.
pub(crate) trait Breaks {
    /// Returns the error for a call that did nothing.
    fn unavailable(why: String) -> Self;
    /// Returns the error for a call with an unknown outcome; for read-only calls, the same as `unavailable`.
    fn unknown(why: String) -> Self;
}

impl Gate {
    /// Creates a closed gate.
    #[expect(clippy::new_without_default, reason = "a gate by default would be open or closed?")]
    pub fn new() -> Self {
        Self { open: Arc::new(Semaphore::new(0)), waiting: Arc::default() }
    }

    /// Opens the gate permanently.
    pub fn open(&self) {
        self.open.close();
    }

    /// Returns how many calls have reached the gate.
    pub fn reached(&self) -> u64 {
        self.waiting.load(Ordering::SeqCst)
    }

    async fn pass(&self) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        // The semaphore never has permits: the wait ends with an error when `open` closes it.
        drop(self.open.acquire().await);
    }
}

impl FaultPlan {
    /// Creates a plan without random faults.
    pub fn none() -> Arc<Self> {
        Self::seeded(0, Rates::default())
    }

    /// Creates a plan with random faults at these rates.
    pub fn seeded(seed: u64, rates: Rates) -> Arc<Self> {
        let state = State { random: seed, rates, planned: HashMap::new(), calls: HashMap::new() };
        Arc::new(Self { state: Mutex::new(state) })
    }

    /// Plans a fault for the method's next call that has none planned; `Fault::None` lets one call succeed.
    pub fn plan(&self, method: &'static str, fault: Fault) {
        self.lock().planned.entry(method).or_default().push_back(fault);
    }

    /// Discards the method's planned faults that have not occurred yet.
    pub fn forget(&self, method: &'static str) {
        self.lock().planned.remove(method);
    }

    /// Changes the rates of random faults; zeros leave only planned faults.
    pub fn set_rates(&self, rates: Rates) {
        self.lock().rates = rates;
    }

    /// Returns how often the method was called.
    pub fn calls(&self, method: &'static str) -> u64 {
        self.lock().calls.get(method).copied().unwrap_or(0)
    }

    fn next(&self, method: &'static str) -> Fault {
        let mut state = self.lock();
        *state.calls.entry(method).or_default() += 1;
        if let Some(fault) = state.planned.get_mut(method).and_then(VecDeque::pop_front) {
            return fault;
        }
        let drawn = state.draw();
        let Rates { fail, lose_answer, delay } = state.rates;
        let (fail, lose, delay) = (u64::from(fail), u64::from(lose_answer), u64::from(delay));
        match drawn % 1000 {
            n if n < fail => Fault::Fail,
            n if n < fail + lose => Fault::LoseAnswer,
            n if n < fail + lose + delay => Fault::Delay(u32::from((drawn >> 60) as u8 % 4 + 1)),
            _ => Fault::None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    /// Returns the next number of a SplitMix64 generator.
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

impl<P: ?Sized> Faulty<P> {
    /// Wraps `inner` with the plan's faults.
    pub fn new(inner: Arc<P>, plan: Arc<FaultPlan>) -> Self {
        Self { inner, plan }
    }

    pub(crate) async fn call<T, E: Breaks>(
        &self,
        method: &'static str,
        work: impl Future<Output = Result<T, E>> + Send,
    ) -> Result<T, E> {
        match self.plan.next(method) {
            Fault::None => work.await,
            Fault::Fail => Err(E::unavailable(format!("planned fault: {method} fails"))),
            Fault::Panic => panic!("planned fault: {method} panics"),
            Fault::LoseAnswer => {
                drop(work.await);
                Err(E::unknown(format!("planned fault: reply of {method} is lost")))
            }
            Fault::Delay(polls) => {
                let answer = work.await;
                polls_later(polls).await;
                answer
            }
            Fault::Hold(gate) => {
                gate.pass().await;
                work.await
            }
            Fault::HoldAnswer(gate) => {
                let answer = work.await;
                gate.pass().await;
                answer
            }
        }
    }
}

async fn polls_later(mut polls: u32) {
    poll_fn(|context| {
        if polls == 0 {
            return Poll::Ready(());
        }
        polls -= 1;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    enum InjectedError {
        Unavailable,
        Unknown,
    }

    impl Breaks for InjectedError {
        fn unavailable(_: String) -> Self {
            Self::Unavailable
        }
        fn unknown(_: String) -> Self {
            Self::Unknown
        }
    }

    /// Port with a single call that increments a counter.
    type Counter = Faulty<AtomicU64>;

    fn counter(plan: &Arc<FaultPlan>) -> Arc<Counter> {
        Arc::new(Faulty::new(Arc::default(), Arc::clone(plan)))
    }

    async fn count(port: Arc<Counter>) -> Result<u64, InjectedError> {
        port.call("count", async { Ok(port.inner.fetch_add(1, Ordering::SeqCst) + 1) }).await
    }

    fn counted(port: &Counter) -> u64 {
        port.inner.load(Ordering::SeqCst)
    }

    #[tokio::test]
    async fn planned_faults_occur_once_and_in_order() {
        let plan = FaultPlan::none();
        let port = counter(&plan);
        for fault in [Fault::None, Fault::Fail, Fault::LoseAnswer, Fault::Delay(3)] {
            plan.plan("count", fault);
        }
        plan.plan("another", Fault::Fail);
        assert_eq!(count(Arc::clone(&port)).await, Ok(1));
        assert_eq!(count(Arc::clone(&port)).await, Err(InjectedError::Unavailable));
        assert_eq!(counted(&port), 1, "a failed call does nothing");
        assert_eq!(count(Arc::clone(&port)).await, Err(InjectedError::Unknown));
        assert_eq!(counted(&port), 2, "the work of a lost answer is done");
        assert_eq!(count(Arc::clone(&port)).await, Ok(3));
        assert_eq!(count(Arc::clone(&port)).await, Ok(4));
        assert_eq!(plan.calls("count"), 5);
    }

    #[tokio::test]
    async fn hold_delays_the_work_and_hold_answer_only_the_result() {
        for (fault, while_held) in [(Fault::Hold as fn(Gate) -> Fault, 0), (Fault::HoldAnswer, 1)] {
            let (plan, gate) = (FaultPlan::none(), Gate::new());
            let port = counter(&plan);
            plan.plan("count", fault(gate.clone()));
            let held = tokio::spawn(count(Arc::clone(&port)));
            while gate.reached() == 0 {
                tokio::task::yield_now().await;
            }
            assert_eq!(counted(&port), while_held);
            gate.open();
            assert_eq!(held.await.expect("it does not panic"), Ok(1));
        }
    }

    #[tokio::test]
    async fn same_seed_gives_same_faults_near_the_rates() {
        let run = async |seed| {
            let plan = FaultPlan::seeded(seed, Rates { fail: 100, lose_answer: 200, delay: 300 });
            let port = counter(&plan);
            let mut answers = Vec::new();
            for _ in 0..2_000 {
                answers.push(count(Arc::clone(&port)).await);
            }
            answers
        };
        let answers = run(7).await;
        assert_eq!(answers, run(7).await);
        assert_ne!(answers, run(8).await);
        let share =
            |what: InjectedError| answers.iter().filter(|it| it.as_ref().err() == Some(&what)).count();
        assert!(
            (140..260).contains(&share(InjectedError::Unavailable)),
            "{}",
            share(InjectedError::Unavailable)
        );
        assert!((320..480).contains(&share(InjectedError::Unknown)), "{}", share(InjectedError::Unknown));
    }
}
