//! Planned faults: makes a port fail, wait, or lose its answer after the work was done, by a seeded plan.
//!
//! Wrap any port as `Arc::new(Faulty::new(port, plan))`. Without planned faults the wrapper changes nothing, which
//! the conformance suites check by running over it too.

use std::{
    collections::{HashMap, VecDeque},
    future::{Future, poll_fn},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
};

use tokio::sync::Semaphore;

/// A port with faults in front of it.
pub struct Faulty<P: ?Sized> {
    pub(crate) inner: Arc<P>,
    plan: Arc<FaultPlan>,
}

/// What to do to one call.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Nothing.
    None,
    /// The work is not done, and the answer says so (`Unavailable`).
    Fail,
    /// The work is done (well or not), and nobody hears how (`Unknown`).
    LoseAnswer,
    /// The work is done, and the answer comes this many polls later.
    Delay(u32),
    /// The call waits before the work until the gate opens. An append that waits may be overtaken.
    Hold(Gate),
    /// The work is done, and the answer waits until the gate opens.
    HoldAnswer(Gate),
}

/// Holds calls until a test lets them go.
#[derive(Clone, Debug)]
pub struct Gate {
    open: Arc<Semaphore>,
    waiting: Arc<AtomicU64>,
}

/// How often faults come by themselves, in calls of a thousand.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rates {
    /// [`Fault::Fail`].
    pub fail: u16,
    /// [`Fault::LoseAnswer`].
    pub lose_answer: u16,
    /// [`Fault::Delay`], by one to four polls.
    pub delay: u16,
}

/// Which calls break. The same seed and the same calls in the same order give the same faults.
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

/// An error that a fault can make.
pub(crate) trait Breaks {
    /// Nothing happened.
    fn unavailable(why: String) -> Self;
    /// It may have happened. For calls that change nothing, the same as unavailable.
    fn unknown(why: String) -> Self;
}

impl Gate {
    /// A closed gate.
    #[expect(clippy::new_without_default, reason = "a gate by default would be open or closed?")]
    pub fn new() -> Self {
        Self { open: Arc::new(Semaphore::new(0)), waiting: Arc::default() }
    }

    /// Opens it for good.
    pub fn open(&self) {
        self.open.close();
    }

    /// How many calls have come to it.
    pub fn reached(&self) -> u64 {
        self.waiting.load(Ordering::SeqCst)
    }

    async fn pass(&self) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        // There is never a permit: the wait ends with the error that the semaphore was closed.
        drop(self.open.acquire().await);
    }
}

impl FaultPlan {
    /// No fault but those that are planned later.
    pub fn none() -> Arc<Self> {
        Self::seeded(0, Rates::default())
    }

    /// Faults at random, at these rates.
    pub fn seeded(seed: u64, rates: Rates) -> Arc<Self> {
        let state = State { random: seed, rates, planned: HashMap::new(), calls: HashMap::new() };
        Arc::new(Self { state: Mutex::new(state) })
    }

    /// Plans a fault for the next call of that method which has none yet; `Fault::None` lets one pass.
    pub fn plan(&self, method: &'static str, fault: Fault) {
        self.lock().planned.entry(method).or_default().push_back(fault);
    }

    /// Takes back what is planned for that method and did not come yet.
    pub fn forget(&self, method: &'static str) {
        self.lock().planned.remove(method);
    }

    /// Changes the rates from now on; zeros heal everything that is not planned.
    pub fn set_rates(&self, rates: Rates) {
        self.lock().rates = rates;
    }

    /// How often the method was called.
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
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// SplitMix64.
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

impl<P: ?Sized> Faulty<P> {
    /// `inner`, with the plan's faults.
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
            Fault::Fail => Err(E::unavailable(format!("{method} was planned to fail"))),
            Fault::LoseAnswer => {
                drop(work.await);
                Err(E::unknown(format!("the answer of {method} was planned to be lost")))
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
    enum Broken {
        Unavailable,
        Unknown,
    }

    impl Breaks for Broken {
        fn unavailable(_: String) -> Self {
            Self::Unavailable
        }
        fn unknown(_: String) -> Self {
            Self::Unknown
        }
    }

    /// A port whose one call counts.
    type Counter = Faulty<AtomicU64>;

    fn counter(plan: &Arc<FaultPlan>) -> Arc<Counter> {
        Arc::new(Faulty::new(Arc::default(), Arc::clone(plan)))
    }

    async fn count(port: Arc<Counter>) -> Result<u64, Broken> {
        port.call("count", async { Ok(port.inner.fetch_add(1, Ordering::SeqCst) + 1) }).await
    }

    fn counted(port: &Counter) -> u64 {
        port.inner.load(Ordering::SeqCst)
    }

    #[tokio::test]
    async fn a_planned_fault_comes_once_and_in_turn() {
        let plan = FaultPlan::none();
        let port = counter(&plan);
        for fault in [Fault::None, Fault::Fail, Fault::LoseAnswer, Fault::Delay(3)] {
            plan.plan("count", fault);
        }
        plan.plan("another", Fault::Fail);
        assert_eq!(count(Arc::clone(&port)).await, Ok(1));
        assert_eq!(count(Arc::clone(&port)).await, Err(Broken::Unavailable));
        assert_eq!(counted(&port), 1, "a failed call does nothing");
        assert_eq!(count(Arc::clone(&port)).await, Err(Broken::Unknown));
        assert_eq!(counted(&port), 2, "a lost answer is about something that happened");
        assert_eq!(count(Arc::clone(&port)).await, Ok(3));
        assert_eq!(count(Arc::clone(&port)).await, Ok(4));
        assert_eq!(plan.calls("count"), 5);
    }

    #[tokio::test]
    async fn a_held_call_has_done_nothing_and_a_held_answer_is_about_work_done() {
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
    async fn the_same_seed_gives_the_same_faults_at_about_the_rates_asked() {
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
        let share = |what: Broken| answers.iter().filter(|it| it.as_ref().err() == Some(&what)).count();
        assert!((140..260).contains(&share(Broken::Unavailable)), "{}", share(Broken::Unavailable));
        assert!((320..480).contains(&share(Broken::Unknown)), "{}", share(Broken::Unknown));
    }
}
