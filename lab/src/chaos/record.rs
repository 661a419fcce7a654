//! Recorder of all clients, with one clock and one order.

use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use crate::checker::{Closings, History, HistoryEvent};

/// Records events until it is sealed.
pub(super) struct Recorder {
    began: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    history: History,
    closings: Closings,
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
            let State { history, closings, .. } = &mut *state;
            history.push(at, event);
            closings.note(history);
        }
    }

    /// Makes each message to a live room from now on a closing one.
    pub(super) fn begin_closings(&self) {
        self.state().closings.begin();
    }

    /// Returns whether all closing messages have come.
    pub(super) fn have_closings_come(&self) -> bool {
        self.state().closings.have_come()
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
