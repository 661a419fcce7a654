//! Ctrl-C: the run ends what it started before it ends itself. A second Ctrl-C ends it at once.

use std::sync::{
    Arc, LazyLock,
    atomic::{AtomicBool, Ordering},
};

use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    flag,
};

static CAME: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Has Ctrl-C only set [`came`]: programs that this process waits for get the signal from the terminal as well, end, and
/// what is behind them stops its servers.
pub(crate) fn watch() -> anyhow::Result<()> {
    register(SIGINT)
}

/// The same for the signals that are sent to this process alone, where it looks at [`came`] while it waits.
pub(crate) fn watch_all() -> anyhow::Result<()> {
    [SIGTERM, SIGHUP].into_iter().try_for_each(register)
}

fn register(signal: i32) -> anyhow::Result<()> {
    // In this order: the first signal finds the flag unset, and sets it for the second.
    flag::register_conditional_shutdown(signal, 130, Arc::clone(&CAME))?;
    flag::register(signal, Arc::clone(&CAME))?;
    Ok(())
}

/// Whether such a signal came.
pub(crate) fn came() -> bool {
    CAME.load(Ordering::Relaxed)
}
