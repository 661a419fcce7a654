//! Drain driver: feeds the drain machine with time and counts, and carries out its steps in order.
//!
//! The shards keep the pace (`shard/drain.rs`). This module stops admission, mails the shards and reports the progress.

use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use parking_lot::{Mutex, MutexGuard};
use tidegate_protocol::{
    Time,
    machine::drain::{Drain, DrainCounts, DrainOutcome, DrainStep, NodePhase, Plan, RushReason, Settings},
};
use tokio::{sync::Notify, task::JoinHandle, time::Instant};

mod forecast;

pub use self::forecast::Forecast;
use crate::{
    assign::Assigner,
    budget::Admission,
    ingest::intake::Intake,
    mail::{self, DrainProgress, Mail, ShardHandle},
    metrics::Metrics,
    routes::Draining,
    supervised,
};

/// Interval at which the counts are checked in a drain.
const SNAPSHOT_INTERVAL: Duration = Duration::from_millis(20);

/// Shortest slot in a drain until the notice.
const NOTICE_ONLY_SLOT: Duration = Duration::from_secs(2);

/// Longest wait for shards with a full mailbox. The drain then continues; they get the order as soon as it fits.
const POST_TIMEOUT: Duration = Duration::from_millis(250);

/// Drain of one node.
pub struct Drainer {
    state: Mutex<State>,
    start: Instant,
    shards: Vec<ShardHandle>,
    admission: Arc<Admission>,
    assigner: Arc<Assigner>,
    intake: Arc<Intake>,
    metrics: Metrics,
    /// Notified at each request, by a signal or an operator.
    requested: Notify,
    /// Notified when no client is left.
    drained: Notify,
}

struct State {
    machine: Drain,
    /// Settings of the next drain; one that has begun keeps those of its start.
    settings: Settings,
    /// Steps that are not carried out yet.
    steps: Vec<DrainStep>,
    progress: Arc<DrainProgress>,
    /// Start of the drain, and the client count then.
    begun: Option<(Instant, usize)>,
    /// Planned rate of closes, in clients per second.
    rate: u32,
    /// Whether the drain ends by itself once all clients have their notice.
    is_notice_only: bool,
}

/// Tasks that post orders to the shards, by shard.
#[derive(Default)]
struct ShardOrders(Vec<Option<JoinHandle<()>>>);

impl Drainer {
    /// Creates the drain of a node that serves; `start` is the time base of its shards.
    pub fn new(
        settings: Settings,
        start: std::time::Instant,
        shards: Vec<ShardHandle>,
        admission: Arc<Admission>,
        intake: Arc<Intake>,
        assigner: Arc<Assigner>,
        metrics: Metrics,
    ) -> Arc<Self> {
        let state = State {
            machine: serving(settings),
            settings,
            steps: Vec::new(),
            progress: Arc::default(),
            begun: None,
            rate: 0,
            is_notice_only: false,
        };
        Arc::new(Self {
            state: Mutex::new(state),
            start: start.into(),
            shards,
            admission,
            assigner,
            intake,
            metrics,
            requested: Notify::new(),
            drained: Notify::new(),
        })
    }

    /// Returns the phase of the drain.
    pub fn phase(&self) -> NodePhase {
        self.state().machine.phase()
    }

    /// Replaces the settings, for drains that begin from now on.
    pub fn set_settings(&self, settings: Settings) {
        self.state().settings = settings;
    }

    /// Returns the progress of the drain; `None` if there is no drain.
    pub fn progress(&self) -> Option<Draining> {
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let state = self.state();
        let (since, from) = state.begun.filter(|_| state.machine.phase() > NodePhase::Ready)?;
        Some(Draining {
            phase: state.machine.phase().name().to_owned(),
            from: count(from),
            left: count(self.unfinished()),
            unnoticed: count(state.progress.unnoticed.load(Ordering::Relaxed)),
            rate: state.rate,
            for_ms: u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX),
        })
    }

    /// Returns the forecast of a drain that would begin now, at the pace that the other nodes accept now.
    pub fn forecast(&self) -> Forecast {
        let settings = self.state().settings;
        Forecast::new(self.unfinished(), settings, self.assigner.others_accept())
    }

    /// Returns whether the node is sending its clients to other nodes.
    pub fn is_closing(&self) -> bool {
        matches!(
            self.phase(),
            NodePhase::Noticing | NodePhase::Draining | NodePhase::Flushing | NodePhase::Done
        )
    }

    /// Handles a signal: the first one begins a drain, the second one speeds it up.
    pub fn signal(&self) {
        let now = self.now();
        let mut state = self.state();
        let State { machine, settings, steps, begun, is_notice_only, .. } = &mut *state;
        if machine.phase() <= NodePhase::Ready {
            *machine = serving(*settings);
            *begun = Some((Instant::now(), self.unfinished()));
        }
        *is_notice_only = false;
        machine.handle_signal(now, steps);
        self.requested.notify_one();
    }

    /// Begins a drain for an operator; returns false if there is one already. With `is_notice_only` it is aborted once
    /// all clients have their notice: they move, and the node goes on. A full drain that is requested later replaces that.
    pub fn begin(&self, is_notice_only: bool) -> bool {
        let now = self.now();
        let mut state = self.state();
        let State { machine, settings, steps, begun, is_notice_only: notice_only, .. } = &mut *state;
        if machine.phase() <= NodePhase::Ready {
            *machine = serving(*settings);
        }
        let begins = machine.handle_begin(now, steps);
        if begins {
            *begun = Some((Instant::now(), self.unfinished()));
            *notice_only = is_notice_only;
        }
        *notice_only &= is_notice_only;
        self.requested.notify_one();
        begins
    }

    /// Aborts the drain for an operator; returns false if that is not possible.
    pub fn abort(&self) -> bool {
        let mut state = self.state();
        let State { machine, steps, .. } = &mut *state;
        self.requested.notify_one();
        machine.handle_abort(steps)
    }

    /// Waits until a drain is requested, and carries it out until no client is left.
    pub async fn run(self: Arc<Self>) {
        let mut orders = ShardOrders::default();
        loop {
            let (steps, phase) = self.next_steps();
            for step in steps {
                self.carry_out(step, &mut orders).await;
            }
            self.metrics.drain_phase.set(gauge(phase));
            match phase {
                NodePhase::Starting | NodePhase::Ready => self.requested.notified().await,
                NodePhase::Cordoned | NodePhase::Noticing | NodePhase::Draining => {
                    // A request only brings the next check forward.
                    tokio::time::timeout(SNAPSHOT_INTERVAL, self.requested.notified()).await.ok();
                }
                NodePhase::Flushing | NodePhase::Done => return,
            }
        }
    }

    /// Waits until no client is left, so that the node can shut down.
    pub async fn emptied(&self) {
        self.drained.notified().await;
    }

    /// Returns whether the time for flushing is over.
    pub fn flush_is_over(&self) -> bool {
        self.state().machine.flush_until().is_none_or(|until| self.now() >= until)
    }

    /// Ends the drain after the shutdown and returns its outcome.
    pub fn finish(&self) -> DrainOutcome {
        let mut steps = Vec::new();
        self.state().machine.handle_flushed(&mut steps);
        match steps.first() {
            Some(DrainStep::Exit(outcome)) => *outcome,
            _ => DrainOutcome::Drained,
        }
    }

    /// Returns the steps that are due, and the phase.
    fn next_steps(&self) -> (Vec<DrainStep>, NodePhase) {
        let now = self.now();
        let mut state = self.state();
        let count = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        let snapshot = DrainCounts {
            conns: self.unfinished(),
            unnoticed: count(&state.progress.unnoticed),
            waiting: count(&state.progress.waiting),
            in_flight: self.intake.waiting_bytes(),
        };
        let State { machine, steps, progress, rate, is_notice_only, .. } = &mut *state;
        if machine.phase() == NodePhase::Cordoned {
            machine.handle_others(self.assigner.others_accept());
        }
        let ends_at_notice = (machine.phase() >= NodePhase::Noticing && snapshot.unnoticed == 0)
            || (machine.phase() > NodePhase::Ready && (snapshot.conns == 0 || machine.is_late(now)));
        // Before the snapshot could end the drain, however short the slots of a few clients are.
        if *is_notice_only && ends_at_notice && machine.handle_abort(steps) {
            *is_notice_only = false;
        } else {
            // Requested steps come first: those of the snapshot may build on them.
            machine.handle_snapshot(now, snapshot, steps);
        }
        if steps.iter().any(|step| matches!(step, DrainStep::Notice(..))) {
            *progress = Arc::new(DrainProgress::not_begun(self.shards.len()));
        }
        for step in steps.iter_mut() {
            match step {
                DrainStep::Resume => *rate = 0,
                DrainStep::Notice(pace, plan) => {
                    *rate = plan.rate;
                    if *is_notice_only {
                        // So that nobody is closed before the drain is aborted, and all move by themselves.
                        pace.handover = pace.handover.max(NOTICE_ONLY_SLOT);
                    }
                }
                _ => {}
            }
        }
        (mem::take(steps), machine.phase())
    }

    async fn carry_out(&self, step: DrainStep, orders: &mut ShardOrders) {
        match step {
            DrainStep::Cordon => {
                tracing::info!(conns = self.unfinished(), "cordoned; readiness probe fails");
            }
            DrainStep::Resume => {
                self.admission.set_closed(false);
                orders.post(&self.shards, || mail::DrainCommand::Forget).await;
                tracing::info!("drain aborted; node is ready again");
            }
            DrainStep::Notice(pace, plan) => {
                log_plan(&plan);
                self.admission.set_closed(true);
                let progress = Arc::clone(&self.state().progress);
                orders.post(&self.shards, || mail::DrainCommand::Begin(pace, Arc::clone(&progress))).await;
            }
            DrainStep::Rush(why) => {
                match why {
                    RushReason::Signal => {
                        tracing::warn!(conns = self.unfinished(), "second signal; closing all clients now")
                    }
                    RushReason::Deadline => {
                        tracing::warn!(
                            conns = self.unfinished(),
                            "drain slots did not end in time; closing all clients now"
                        );
                    }
                }
                self.admission.set_closed(true);
                orders.post(&self.shards, || mail::DrainCommand::Rush).await;
            }
            DrainStep::Cut(conns) => {
                tracing::warn!(conns, "drain deadline reached; remaining clients cut");
                self.metrics.drain_cut.increment(conns as u64);
                orders.post(&self.shards, || mail::DrainCommand::Cut).await;
            }
            DrainStep::Flush => {
                self.admission.set_closed(true);
                self.drained.notify_one();
            }
            DrainStep::Exit(_) => {}
        }
    }

    fn unfinished(&self) -> usize {
        self.shards.iter().map(ShardHandle::unfinished).sum()
    }

    fn now(&self) -> Time {
        Time::from_millis(self.start.elapsed().as_millis() as u64)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// Returns the machine of a node that serves.
fn serving(settings: Settings) -> Drain {
    let mut machine = Drain::new(settings);
    machine.handle_started();
    machine
}

impl ShardOrders {
    /// Posts an order to all shards; each gets it after the orders posted before.
    async fn post(&mut self, shards: &[ShardHandle], order: impl Fn() -> mail::DrainCommand) {
        self.0.resize_with(shards.len(), || None);
        for (shard, pending) in shards.iter().zip(&mut self.0) {
            let (shard, before, order) = (shard.clone(), pending.take(), order());
            *pending = Some(supervised::spawn("an order of the drain", async move {
                if let Some(before) = before {
                    // The task never panics.
                    before.await.ok();
                }
                // A shard that has stopped needs no order.
                shard.post(Mail::Drain(order)).await.ok();
            }));
        }
        let all = join_all(self.0.iter_mut().flatten());
        if tokio::time::timeout(POST_TIMEOUT, all).await.is_err() {
            let late = self.0.iter().flatten().filter(|task| !task.is_finished()).count();
            tracing::warn!(late, "shard mailboxes full; their drain order is delayed");
        }
        for pending in &mut self.0 {
            pending.take_if(|task| task.is_finished());
        }
    }
}

fn log_plan(plan: &Plan) {
    let Plan { conns, window, rate, deadline, .. } = *plan;
    tracing::info!(conns, rate, ?window, "draining; clients get their slots");
    if plan.raised {
        tracing::warn!(rate, needed = ?deadline, "drain_rate_raised: drain.deadline_ms is too short for drain.max_rate");
    }
}

fn gauge(phase: NodePhase) -> f64 {
    match phase {
        NodePhase::Starting | NodePhase::Ready => 0.0,
        NodePhase::Cordoned => 1.0,
        NodePhase::Noticing => 2.0,
        NodePhase::Draining => 3.0,
        NodePhase::Flushing | NodePhase::Done => 4.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn shard_with_a_full_mailbox_gets_all_orders_in_order() {
        let (handle, mut mailbox) = mail::mailbox(std::task::Waker::noop().clone(), 1 << 20);
        let mut waiting = 0;
        while handle.try_post(Mail::Drain(mail::DrainCommand::Cut)) {
            waiting += 1;
        }
        let (shards, mut orders) = ([handle], ShardOrders::default());
        orders.post(&shards, || mail::DrainCommand::Forget).await;
        orders.post(&shards, || mail::DrainCommand::Rush).await;
        assert!(orders.0[0].is_some(), "the orders are still waiting");
        let mut received = Vec::new();
        for _ in 0..waiting + 2 {
            match mailbox.take() {
                Some(Mail::Drain(order)) => received.push(order),
                _ => panic!("no drain order"),
            }
            // Lets the posts that wait for capacity proceed.
            for _ in 0..8 {
                tokio::task::yield_now().await;
            }
        }
        let late = received.split_off(waiting);
        assert!(matches!(late[..], [mail::DrainCommand::Forget, mail::DrainCommand::Rush]));
        orders.post(&shards, || mail::DrainCommand::Cut).await;
        assert!(orders.0[0].is_none(), "the order is posted");
    }
}
