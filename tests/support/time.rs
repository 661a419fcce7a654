//! Time in tests: waiting for effects, letting time pass where that is the subject, and a stopwatch.
//!
//! Only this file sleeps. A test that depends on a condition waits with [`eventually`]; a test that shows the effect of
//! time, or that there is none, gives the reason to [`let_time_pass`].

use std::{
    fmt::Debug,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Limit of a wait. Long, because only a failure ever uses it up.
pub const WAIT_MAX: Duration = Duration::from_secs(10);

/// Returns the pauses between polls. They grow: a quick result is seen soon, and a slow one costs few polls, each of
/// which may be a request to every node of a cluster.
fn pauses() -> impl Iterator<Item = Duration> {
    [5, 10, 20].into_iter().chain(std::iter::repeat(50)).map(Duration::from_millis)
}

/// Calls `poll` until it returns a value; panics with `what` at the limit.
#[track_caller]
pub fn eventually<T>(what: &str, poll: impl FnMut() -> Option<T>) -> T {
    eventually_within(WAIT_MAX, what, poll)
}

/// Waits like [`eventually`] with another limit.
#[track_caller]
pub fn eventually_within<T>(within: Duration, what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + within;
    let mut pauses = pauses();
    loop {
        if let Some(found) = poll() {
            return found;
        }
        assert!(Instant::now() < deadline, "timed out after {within:?}: {what}");
        thread::sleep(pauses.next().expect("an endless iterator"));
    }
}

/// Waits like [`eventually_within`] in a task.
pub async fn eventually_async<T>(
    within: Duration,
    what: &str,
    mut poll: impl AsyncFnMut() -> Option<T>,
) -> T {
    let deadline = Instant::now() + within;
    let mut pauses = pauses();
    loop {
        if let Some(found) = poll().await {
            return found;
        }
        assert!(Instant::now() < deadline, "timed out after {within:?}: {what}");
        tokio::time::sleep(pauses.next().expect("an endless iterator")).await;
    }
}

/// Polls a value until it is as wanted; panics with the last one at the limit.
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
        assert!(Instant::now() < deadline, "timed out after {within:?}: {what}; the value is {value:?}");
        thread::sleep(pauses.next().expect("an endless iterator"));
    }
}

/// Lets time pass, with the reason for a reader of the test.
pub fn let_time_pass(why: &str, time: Duration) {
    // Loops take short pauses, which would fill the output.
    if time >= Duration::from_millis(100) {
        eprintln!("for {time:?}: {why}");
    }
    thread::sleep(time);
}

/// Lets time pass until `time` after a moment.
pub fn let_time_pass_since(since: Instant, why: &str, time: Duration) {
    let_time_pass(why, (since + time).saturating_duration_since(Instant::now()));
}

/// Interval at which the stopwatch checks whether its process gets the processor.
const PROCESSOR_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// Time that the product took, without pauses of the whole machine: a promised bound has to hold on a shared machine,
/// too.
pub(crate) struct Stopwatch {
    began: Instant,
    stood_us: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
}

impl Stopwatch {
    /// Starts the stopwatch, with a thread that wakes every 10 ms and adds up its delays.
    pub(crate) fn start() -> Self {
        let (stood_us, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (late, stop) = (Arc::clone(&stood_us), Arc::clone(&over));
        thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let began = Instant::now();
                thread::sleep(PROCESSOR_CHECK_INTERVAL);
                let stood = began.elapsed().saturating_sub(PROCESSOR_CHECK_INTERVAL);
                late.fetch_add(u64::try_from(stood.as_micros()).unwrap_or(0), Ordering::Relaxed);
            }
        });
        Self { began: Instant::now(), stood_us, over }
    }

    /// Returns the time since the start, less the pauses of the machine.
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
