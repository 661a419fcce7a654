//! Has the database's own threads give way to others: where there are fewer cores than work, flushes and compactions
//! are not to stand between a message and its answer.
//!
//! The threads are found by their name, because fjall starts them by itself. They can't inherit this from the thread that
//! opens the database: that one replays the journals first, and on a busy machine a node that starts would then get
//! nearly nothing of the processor.

use std::{
    collections::BTreeSet,
    fs,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use rustix::process::{Pid, setpriority_process};

/// How much they give way; 0 is not at all, 19 nearly entirely.
const NICE: i32 = 10;

/// What fjall calls them.
const NAME: &str = "fjall:worker";

/// A thread names itself once it runs, which may be a little after it was started.
const TRIES: usize = 20;
const TRY_AGAIN: Duration = Duration::from_millis(1);

/// Those that were found by this process.
static FOUND: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

/// Lowers the priority of that many workers which were just started. Elsewhere than on Linux nothing is done, and it is
/// no fault if some are not found: they only work at the priority of others.
pub(super) fn give_way(count: usize) {
    let mut known = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    let mut found = 0;
    for _ in 0..TRIES {
        let alive = workers();
        found += alive.difference(&known).filter(|id| lower(**id)).count();
        // What has ended is forgotten: another thread may get its number.
        *known = alive;
        if found >= count || cfg!(not(target_os = "linux")) {
            return;
        }
        std::thread::sleep(TRY_AGAIN);
    }
    tracing::debug!(found, count, "not all threads of the database were found");
}

/// The threads of this process that have the name.
fn workers() -> BTreeSet<i32> {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return BTreeSet::new() };
    let named = |task: fs::DirEntry| {
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        (name.trim_end() == NAME).then(|| task.file_name().to_str()?.parse().ok())?
    };
    tasks.filter_map(Result::ok).filter_map(named).collect()
}

/// On Linux a priority is that of a thread.
fn lower(thread: i32) -> bool {
    Pid::from_raw(thread).is_some_and(|id| setpriority_process(Some(id), NICE).is_ok())
}

#[cfg(test)]
mod tests {
    use rustix::process::getpriority_process;

    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn the_workers_of_a_database_give_way_and_who_opened_it_does_not() {
        let path = std::env::temp_dir().join(format!("tidegate-workers-{}", std::process::id()));
        let before = getpriority_process(None).unwrap();
        // Two tests of one process may open databases at once; these stay until they are looked at.
        let database = fjall::Database::builder(&path).worker_threads(2).open().unwrap();
        give_way(2);
        let nice = |id: &i32| Pid::from_raw(*id).and_then(|id| getpriority_process(Some(id)).ok());
        let lowered = workers().iter().filter(|id| nice(id) == Some(NICE)).count();
        assert!(lowered >= 2, "{lowered} give way");
        assert_eq!(getpriority_process(None).unwrap(), before);
        drop(database);
        fs::remove_dir_all(path).unwrap();
    }
}
