//! Carries out the node's drain: feeds the machine with time and counts, and does what it says, in order.
//!
//! The pace is kept by the shards (`shard/leaving.rs`); here are the door, the probes, the mail to the shards and the log.

use std::{
    mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use tidegate_protocol::{
    Time,
    machine::drain::{Drain, Outcome, Phase, Plan, Settings, Snapshot, Step, Why},
};
use tokio::{sync::Notify, task::JoinHandle};

use crate::{
    assign::Assigner,
    budget::Admission,
    ingest::intake::Intake,
    mail::{self, Mail, Progress, ShardHandle},
    metrics::Metrics,
    routes::Draining,
};

/// How often the counts are looked at in a drain.
const LOOK: Duration = Duration::from_millis(20);

/// How long a shard with a full mailbox is waited for before the drain goes on without it; it is told as soon as there is room.
const POST_PATIENCE: Duration = Duration::from_millis(250);

/// The drain of one node.
pub struct Drainer {
    state: Mutex<State>,
    start: Instant,
    shards: Vec<ShardHandle>,
    admission: Arc<Admission>,
    assigner: Arc<Assigner>,
    intake: Arc<Intake>,
    metrics: Metrics,
    /// Somebody asked for something.
    bell: Notify,
    /// Nobody is left.
    empty: Notify,
}

struct State {
    machine: Drain,
    /// Steps that are to be carried out.
    steps: Vec<Step>,
    progress: Arc<Progress>,
    /// When the drain began, and with how many clients.
    begun: Option<(Instant, usize)>,
    /// Clients closed a second, as planned.
    rate: u32,
}

/// By shard, what it is being told.
#[derive(Default)]
struct Told(Vec<Option<JoinHandle<()>>>);

impl Drainer {
    /// The drain of a node that serves now; `start` is that of its shards.
    pub fn new(
        settings: Settings,
        start: Instant,
        shards: Vec<ShardHandle>,
        (admission, intake, assigner): (Arc<Admission>, Arc<Intake>, Arc<Assigner>),
        metrics: Metrics,
    ) -> Arc<Self> {
        let mut machine = Drain::new(settings);
        machine.handle_started();
        let state = State { machine, steps: Vec::new(), progress: Arc::default(), begun: None, rate: 0 };
        Arc::new(Self {
            state: Mutex::new(state),
            start,
            shards,
            admission,
            assigner,
            intake,
            metrics,
            bell: Notify::new(),
            empty: Notify::new(),
        })
    }

    /// Where the node stands.
    pub fn phase(&self) -> Phase {
        self.state().machine.phase()
    }

    /// How far the drain is; none when there is none.
    pub fn progress(&self) -> Option<Draining> {
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let state = self.state();
        let (since, from) = state.begun.filter(|_| state.machine.phase() > Phase::Ready)?;
        Some(Draining {
            phase: state.machine.phase().name().to_owned(),
            from: count(from),
            left: count(self.unfinished()),
            unnoticed: count(state.progress.unnoticed.load(Ordering::Relaxed)),
            rate: state.rate,
            for_ms: u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX),
        })
    }

    /// Whether its clients are on their way to other nodes.
    pub fn is_closing(&self) -> bool {
        matches!(self.phase(), Phase::Noticing | Phase::Draining | Phase::Flushing | Phase::Done)
    }

    /// A signal came: the first one begins a drain, the second one speeds it up.
    pub fn signal(&self) {
        let now = self.now();
        let mut state = self.state();
        let State { machine, steps, begun, .. } = &mut *state;
        if machine.phase() <= Phase::Ready {
            *begun = Some((Instant::now(), self.unfinished()));
        }
        machine.handle_signal(now, steps);
        self.bell.notify_one();
    }

    /// An operator asks for a drain; false when there is one.
    pub fn begin(&self) -> bool {
        let now = self.now();
        let mut state = self.state();
        let State { machine, steps, begun, .. } = &mut *state;
        let begins = machine.handle_begin(now, steps);
        if begins {
            *begun = Some((Instant::now(), self.unfinished()));
        }
        self.bell.notify_one();
        begins
    }

    /// An operator wants the node back; false when that can't be.
    pub fn abort(&self) -> bool {
        let mut state = self.state();
        let State { machine, steps, .. } = &mut *state;
        self.bell.notify_one();
        machine.handle_abort(steps)
    }

    /// Waits for a drain to be asked for, and carries it out until nobody is left.
    pub async fn run(self: Arc<Self>) {
        let mut told = Told::default();
        loop {
            let (steps, phase) = self.look();
            for step in steps {
                self.carry_out(step, &mut told).await;
            }
            self.metrics.drain_phase.set(gauge(phase));
            match phase {
                Phase::Starting | Phase::Ready => self.bell.notified().await,
                Phase::Cordoned | Phase::Noticing | Phase::Draining => {
                    // Rung or not, it looks again.
                    tokio::time::timeout(LOOK, self.bell.notified()).await.ok();
                }
                Phase::Flushing | Phase::Done => return,
            }
        }
    }

    /// Waits until nobody is left, so that the node may be taken down.
    pub async fn emptied(&self) {
        self.empty.notified().await;
    }

    /// Whether flushing has taken all the time it gets.
    pub fn flush_is_over(&self) -> bool {
        self.state().machine.flush_until().is_none_or(|until| self.now() >= until)
    }

    /// The node is down: how did it go?
    pub fn finish(&self) -> Outcome {
        let mut steps = Vec::new();
        self.state().machine.handle_flushed(&mut steps);
        match steps.first() {
            Some(Step::Exit(outcome)) => *outcome,
            _ => Outcome::Drained,
        }
    }

    /// What is to be done now.
    fn look(&self) -> (Vec<Step>, Phase) {
        let now = self.now();
        let mut state = self.state();
        let count = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        let seen = Snapshot {
            conns: self.unfinished(),
            unnoticed: count(&state.progress.unnoticed),
            waiting: count(&state.progress.waiting),
            in_flight: self.intake.waiting_bytes(),
        };
        let State { machine, steps, progress, rate, .. } = &mut *state;
        if machine.phase() == Phase::Cordoned {
            machine.handle_others(self.assigner.others_accept());
        }
        // What was asked for first: a snapshot may already be followed by steps that build on it.
        machine.handle_snapshot(now, seen, steps);
        if steps.iter().any(|step| matches!(step, Step::Notice(..))) {
            *progress = Arc::new(Progress::not_begun(self.shards.len()));
        }
        for step in steps.iter() {
            match step {
                Step::Resume => *rate = 0,
                Step::Notice(_, plan) => *rate = plan.rate,
                _ => {}
            }
        }
        (mem::take(steps), machine.phase())
    }

    async fn carry_out(&self, step: Step, told: &mut Told) {
        match step {
            Step::Cordon => tracing::info!(
                conns = self.unfinished(),
                "cordoned: load balancers are told to look elsewhere"
            ),
            Step::Resume => {
                self.admission.close_door(false);
                told.tell(&self.shards, || mail::Drain::Forget).await;
                tracing::info!("the drain was aborted: ready again");
            }
            Step::Notice(pace, plan) => {
                log_plan(&plan);
                self.admission.close_door(true);
                let progress = Arc::clone(&self.state().progress);
                told.tell(&self.shards, || mail::Drain::Begin(pace, Arc::clone(&progress))).await;
            }
            Step::Rush(why) => {
                match why {
                    Why::Signal => {
                        tracing::warn!(conns = self.unfinished(), "asked again: all clients are closed now")
                    }
                    Why::Deadline => {
                        tracing::warn!(
                            conns = self.unfinished(),
                            "the slots did not end in time: all clients are closed now"
                        );
                    }
                }
                self.admission.close_door(true);
                told.tell(&self.shards, || mail::Drain::Rush).await;
            }
            Step::Cut(conns) => {
                tracing::warn!(conns, "the time is over: the clients that are left are cut");
                self.metrics.drain_cut.increment(conns as u64);
                told.tell(&self.shards, || mail::Drain::Cut).await;
            }
            Step::Flush => {
                self.admission.close_door(true);
                self.empty.notify_one();
            }
            Step::Exit(_) => {}
        }
    }

    fn unfinished(&self) -> usize {
        self.shards.iter().map(ShardHandle::unfinished).sum()
    }

    fn now(&self) -> Time {
        Time::from_millis(self.start.elapsed().as_millis() as u64)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Told {
    /// Tells all shards, each behind what it was told before.
    async fn tell(&mut self, shards: &[ShardHandle], order: impl Fn() -> mail::Drain) {
        self.0.resize_with(shards.len(), || None);
        for (shard, told) in shards.iter().zip(&mut self.0) {
            let (shard, before, order) = (shard.clone(), told.take(), order());
            *told = Some(tokio::spawn(async move {
                if let Some(before) = before {
                    // It does nothing that could panic.
                    before.await.ok();
                }
                // A shard that ended has nobody to tell.
                shard.post(Mail::Drain(order)).await.ok();
            }));
        }
        let all = join_all(self.0.iter_mut().flatten());
        if tokio::time::timeout(POST_PATIENCE, all).await.is_err() {
            let late = self.0.iter().flatten().filter(|task| !task.is_finished()).count();
            tracing::warn!(late, "shards with a full mailbox hear of the drain as soon as there is room");
        }
        for told in &mut self.0 {
            told.take_if(|task| task.is_finished());
        }
    }
}

fn log_plan(plan: &Plan) {
    let Plan { conns, window, rate, deadline, .. } = *plan;
    tracing::info!(conns, rate, ?window, "draining: clients are told their slots");
    if plan.raised {
        tracing::warn!(rate, needed = ?deadline, "drain_rate_raised: drain.deadline_ms is too short for drain.max_rate");
    }
}

fn gauge(phase: Phase) -> f64 {
    match phase {
        Phase::Starting | Phase::Ready => 0.0,
        Phase::Cordoned => 1.0,
        Phase::Noticing => 2.0,
        Phase::Draining => 3.0,
        Phase::Flushing | Phase::Done => 4.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_shard_whose_mailbox_is_full_hears_all_orders_later_and_in_order() {
        let poll = mio::Poll::new().unwrap();
        let waker = mio::Waker::new(poll.registry(), mio::Token(0)).unwrap();
        let (handle, mut mailbox) = mail::mailbox(waker, 1 << 20);
        let mut waiting = 0;
        while handle.try_post(Mail::Drain(mail::Drain::Cut)) {
            waiting += 1;
        }
        let (shards, mut told) = ([handle], Told::default());
        told.tell(&shards, || mail::Drain::Forget).await;
        told.tell(&shards, || mail::Drain::Rush).await;
        assert!(told.0[0].is_some(), "it is being told");
        let mut heard = Vec::new();
        for _ in 0..waiting + 2 {
            match mailbox.take() {
                Some(Mail::Drain(order)) => heard.push(order),
                _ => panic!("there is one"),
            }
            // Those who wait for room are next.
            for _ in 0..8 {
                tokio::task::yield_now().await;
            }
        }
        let late = heard.split_off(waiting);
        assert!(matches!(late[..], [mail::Drain::Forget, mail::Drain::Rush]));
        told.tell(&shards, || mail::Drain::Cut).await;
        assert!(told.0[0].is_none(), "it was told");
    }
}
