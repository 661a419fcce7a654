//! Ctrl-C: a run stops the processes that it started before it exits.

use std::sync::{
    Arc, LazyLock,
    atomic::{AtomicBool, Ordering},
};

use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    flag,
};

static CAME: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Makes Ctrl-C only set [`came`]: child programs get the signal from the terminal as well and end, then this process
/// stops its servers. A second Ctrl-C ends it at once.
pub(crate) fn watch() -> anyhow::Result<()> {
    // In this order: the first signal finds the flag unset, and sets it for the second.
    flag::register_conditional_shutdown(SIGINT, 130, Arc::clone(&CAME))?;
    flag::register(SIGINT, Arc::clone(&CAME))?;
    Ok(())
}

/// Makes all terminating signals only set [`came`], for a process that polls it and then exits.
pub(crate) fn watch_all() -> anyhow::Result<()> {
    [SIGINT, SIGTERM, SIGHUP].into_iter().try_for_each(|signal| {
        flag::register(signal, Arc::clone(&CAME))?;
        Ok(())
    })
}

/// Returns whether a signal was received.
pub(crate) fn came() -> bool {
    CAME.load(Ordering::Relaxed)
}
