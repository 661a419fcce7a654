//! Ctrl-C: a run ends what it started before it ends itself.

use std::sync::{
    Arc, LazyLock,
    atomic::{AtomicBool, Ordering},
};

use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    flag,
};

static CAME: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Makes Ctrl-C only set [`came`]: programs that this process waits for get the signal from the terminal as well and end, and
/// this process stops its servers. A second Ctrl-C ends it at once.
pub(crate) fn watch() -> anyhow::Result<()> {
    // In this order: the first signal finds the flag unset, and sets it for the second.
    flag::register_conditional_shutdown(SIGINT, 130, Arc::clone(&CAME))?;
    flag::register(SIGINT, Arc::clone(&CAME))?;
    Ok(())
}

/// Makes all signals that end a process only set [`came`], for one that looks at it all the time and then ends by itself.
pub(crate) fn watch_all() -> anyhow::Result<()> {
    [SIGINT, SIGTERM, SIGHUP].into_iter().try_for_each(|signal| {
        flag::register(signal, Arc::clone(&CAME))?;
        Ok(())
    })
}

/// Returns whether such a signal came.
pub(crate) fn came() -> bool {
    CAME.load(Ordering::Relaxed)
}
