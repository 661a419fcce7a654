//! Recorder of all clients, with one clock and one order.

use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use crate::checker::{History, HistoryEvent};

/// Records events until it is sealed.
pub(super) struct Recorder {
    began: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    history: History,
    sealed: bool,
}

impl Recorder {
    pub(super) fn new() -> Self {
        Self { began: Instant::now(), state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Returns the time since the start of the run.
    pub(super) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Records an event with the present time. The time is taken under the lock, so times rise with the order.
    pub(super) fn add<S: AsRef<str>>(&self, event: HistoryEvent<S>) {
        let mut state = self.state();
        if !state.sealed {
            let at = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
            state.history.push(at, event);
        }
    }

    /// Stops recording: later events belong to the end of the run, not to the run.
    pub(super) fn seal(&self) {
        self.state().sealed = true;
    }

    pub(super) fn len(&self) -> usize {
        self.state().history.events.len()
    }

    /// Returns the recorded history.
    pub(super) fn take(&self) -> History {
        std::mem::take(&mut self.state().history)
    }
}
