//! Unique names for what survives a test: topics, databases and prefixes on shared servers, and folders.

use std::{
    process,
    sync::atomic::{AtomicU64, Ordering},
    time::SystemTime,
};

/// Returns a name that no other test of this machine has or had: letters, digits and `_`, valid for a database, a topic
/// or a folder.
///
/// Each test may be a process of its own, and a process id is reused while the servers of the run are still up. So the
/// time is part of the name.
pub fn unique_name() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("the clock is set");
    format!("{}_{:x}_{count}", process::id(), since.as_micros())
}
