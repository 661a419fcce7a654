//! Time in tests: waiting for what must come, letting time pass where the test is about that, and a stopwatch.
//!
//! Only this file sleeps. A test that is done as soon as something is so waits with [`eventually`]; a test that has to show
//! what a time brings, or that it brings nothing, says why with [`let_time_pass`].

use std::{
    fmt::Debug,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// How long a test waits for what must come. Long, because only a failure ever uses it up.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Time from one look to the next. It grows: what comes soon is seen soon, and what takes seconds costs few looks, each of which
/// may be a request to every node of a cluster.
fn pauses() -> impl Iterator<Item = Duration> {
    [5, 10, 20].into_iter().chain(std::iter::repeat(50)).map(Duration::from_millis)
}

/// Calls `look` until it gives something; panics with `what` when it never does.
#[track_caller]
pub fn eventually<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    eventually_within(PATIENCE, what, look)
}

/// The same for what may take longer than the patience, and has a bound of its own.
#[track_caller]
pub fn eventually_within<T>(within: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + within;
    let mut pauses = pauses();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "in vain for {within:?}: {what}");
        thread::sleep(pauses.next().expect("it repeats"));
    }
}

/// The same in a task.
pub async fn eventually_async<T>(
    within: Duration,
    what: &str,
    mut look: impl AsyncFnMut() -> Option<T>,
) -> T {
    let deadline = Instant::now() + within;
    let mut pauses = pauses();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "in vain for {within:?}: {what}");
        tokio::time::sleep(pauses.next().expect("it repeats")).await;
    }
}

/// Reads a value until it is as wanted; panics with the last one when it never is.
#[track_caller]
pub fn becomes<T: Debug>(
    within: Duration,
    what: &str,
    mut read: impl FnMut() -> T,
    is_wanted: impl Fn(&T) -> bool,
) {
    let deadline = Instant::now() + within;
    let mut pauses = pauses();
    loop {
        let value = read();
        if is_wanted(&value) {
            return;
        }
        assert!(Instant::now() < deadline, "in vain for {within:?}: {what}; it is {value:?}");
        thread::sleep(pauses.next().expect("it repeats"));
    }
}

/// Lets so much time pass, for a reason that a reader of the test needs to know.
pub fn let_time_pass(why: &str, time: Duration) {
    // Short pauses are those of loops, which would fill the output.
    if time >= Duration::from_millis(100) {
        eprintln!("for {time:?}: {why}");
    }
    thread::sleep(time);
}

/// Lets time pass until that long after a moment.
pub fn let_time_pass_since(since: Instant, why: &str, time: Duration) {
    let_time_pass(why, (since + time).saturating_duration_since(Instant::now()));
}

/// How often the stopwatch looks whether its process gets the processor.
const TICK: Duration = Duration::from_millis(10);

/// Time that the product took, without that in which the whole machine stood still: a bound that is promised has to hold on
/// a machine that is lent to others, too.
pub(crate) struct Stopwatch {
    began: Instant,
    stood_us: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
}

impl Stopwatch {
    /// Begins, with a thread that wants to run every 10 ms and counts by how much it came late.
    pub(crate) fn start() -> Self {
        let (stood_us, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (late, stop) = (Arc::clone(&stood_us), Arc::clone(&over));
        thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let began = Instant::now();
                thread::sleep(TICK);
                let stood = began.elapsed().saturating_sub(TICK);
                late.fetch_add(u64::try_from(stood.as_micros()).unwrap_or(0), Ordering::Relaxed);
            }
        });
        Self { began: Instant::now(), stood_us, over }
    }

    /// Since the start, less what the machine kept for itself.
    pub(crate) fn elapsed(&self) -> Duration {
        let stood = Duration::from_micros(self.stood_us.load(Ordering::Relaxed));
        self.began.elapsed().saturating_sub(stood)
    }
}

impl Drop for Stopwatch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}
