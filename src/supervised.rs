//! Supervision: starts every task and thread of a node under a name, so that a panic in one ends the process and is
//! reported with that name.
//!
//! A part that died alone would leave a node that looks healthy. Only two kinds of work are contained instead: that of
//! one connection (`shard.rs`) and that of one query or one request of the API ports, which are answered.

use std::{
    any::Any, fmt, future::Future, io, panic::AssertUnwindSafe, panic::resume_unwind, sync::LazyLock, thread,
};

use futures_util::{FutureExt as _, future::BoxFuture};
use tokio::{
    runtime::Handle,
    sync::watch,
    task::{self, AbortHandle, JoinError, JoinHandle, JoinSet},
};

/// Most panics that are kept; the first one ends the process.
const PANICS_MAX: usize = 16;

/// Panics of supervised parts in this process.
static PANICS: LazyLock<watch::Sender<Vec<String>>> = LazyLock::new(watch::Sender::default);

/// Returns a channel with the names and messages of the panics in this process, which must end with the first one.
pub fn panics() -> watch::Receiver<Vec<String>> {
    PANICS.subscribe()
}

/// Spawns a task in the present runtime.
pub fn spawn<T: Send + 'static>(
    name: &'static str,
    future: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    task::spawn(watched(name, Box::pin(future)))
}

/// Spawns a task in `runtime`.
pub fn spawn_on<T: Send + 'static>(
    runtime: &Handle,
    name: &'static str,
    future: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    runtime.spawn(watched(name, Box::pin(future)))
}

/// Spawns a task of a set, which aborts its tasks when it is dropped.
pub fn spawn_in<T: Send + 'static>(
    tasks: &mut JoinSet<T>,
    name: &'static str,
    future: impl Future<Output = T> + Send + 'static,
) -> AbortHandle {
    tasks.spawn(watched(name, Box::pin(future)))
}

/// Runs `work` on a thread of the present runtime that may block.
pub fn spawn_blocking<T: Send + 'static>(
    name: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    task::spawn_blocking(move || caught(name, work))
}

/// Runs `work` for its caller on a thread of the present runtime that may block. A panic goes on in the caller: it ends
/// the process if the caller is a supervised part, and is answered if the caller is contained.
///
/// # Errors
/// The runtime shuts down.
pub async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    match task::spawn_blocking(work).await {
        Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
        other => other,
    }
}

/// Runs `work` on a thread with that name.
///
/// # Errors
/// The system can't start a thread.
pub fn spawn_thread<T: Send + 'static>(
    name: impl Into<String>,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<thread::JoinHandle<T>> {
    let name = name.into();
    thread::Builder::new().name(name.clone()).spawn(move || caught(name, work))
}

/// Returns the output of `future`, or its panic for a caller that answers it. The panic was printed when it happened.
pub async fn contained<T>(future: impl Future<Output = T>) -> Result<T, Panicked> {
    AssertUnwindSafe(future).catch_unwind().await.map_err(Panicked)
}

/// Panic of contained work.
#[derive(Debug)]
pub struct Panicked(Box<dyn Any + Send>);

impl Panicked {
    /// Continues the panic in the caller whose work it was.
    pub fn resume(self) -> ! {
        resume_unwind(self.0)
    }
}

/// Boxed, so that the compiler makes one task for each type of output and not for each future: half of what it would
/// generate for this crate.
async fn watched<T>(name: &'static str, future: BoxFuture<'static, T>) -> T {
    AssertUnwindSafe(future).catch_unwind().await.unwrap_or_else(|panic| report(name, panic))
}

fn caught<T>(name: impl fmt::Display, work: impl FnOnce() -> T) -> T {
    std::panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| report(name, panic))
}

/// Records the panic and continues it.
fn report(name: impl fmt::Display, panic: Box<dyn Any + Send>) -> ! {
    let message = panic.downcast_ref::<&str>().copied();
    let message =
        message.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
    tracing::error!(part = %name, message, "panic in a part of the node; the process ends");
    PANICS.send_if_modified(|panics| {
        let has_room = panics.len() < PANICS_MAX;
        if has_room {
            panics.push(format!("{name} panicked: {message}"));
        }
        has_room
    });
    resume_unwind(panic)
}

#[cfg(test)]
mod tests {
    use std::future;

    use super::*;

    #[tokio::test]
    async fn panic_of_any_part_is_recorded_with_its_name() {
        let mut panics = panics();
        let mut expect = async |name: &str| {
            let expected = format!("{name} panicked: planted in {name}");
            panics.wait_for(|panics| panics.contains(&expected)).await.unwrap();
        };
        assert!(spawn("task", async { panic!("planted in task") }).await.is_err());
        expect("task").await;
        let spawned = spawn_on(&Handle::current(), "task of a runtime", async {
            task::yield_now().await;
            panic!("planted in {}", "task of a runtime")
        });
        assert!(spawned.await.unwrap_err().is_panic());
        expect("task of a runtime").await;
        let mut tasks = JoinSet::new();
        spawn_in(&mut tasks, "task of a set", async { panic!("planted in task of a set") });
        assert!(tasks.join_next().await.is_some_and(|it| it.is_err()));
        expect("task of a set").await;
        assert!(spawn_blocking("blocking work", || panic!("planted in blocking work")).await.is_err());
        expect("blocking work").await;
        assert!(spawn_thread("thread", || panic!("planted in thread")).unwrap().join().is_err());
        expect("thread").await;
        // Neither a part that ends nor contained work is a reason to end the process.
        assert_eq!(spawn("part that ends", async { 1 }).await.unwrap(), 1);
        assert!(contained(async { panic!("planted in contained work") }).await.is_err());
        assert_eq!(contained(future::ready(2)).await.unwrap(), 2);
        // Work on another thread belongs to its caller, which is a part of the node or contained.
        let blocking = async |name: &'static str| run_blocking(move || panic!("planted in {name}")).await;
        assert!(contained(blocking("work of a contained caller")).await.is_err());
        assert!(spawn("owner", run_blocking(|| panic!("planted in {}", "owner"))).await.is_err());
        expect("owner").await;
        assert_eq!(run_blocking(|| 3).await.unwrap(), 3);
        let aborted = spawn("aborted part", future::pending::<()>());
        aborted.abort();
        assert!(aborted.await.unwrap_err().is_cancelled());
        let known = PANICS.borrow().clone();
        assert!(
            !known.iter().any(|it| ["ends", "aborted", "contained"].iter().any(|word| it.contains(word))),
            "{known:?}"
        );
    }
}
