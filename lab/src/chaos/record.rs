//! One recorder for all clients: one clock, one order.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use crate::checker::{Event, History};

/// Takes events until it is sealed.
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
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what happens now. The stamp is taken under the lock: times rise with the order.
    pub(super) fn add<S: AsRef<str>>(&self, event: Event<S>) {
        let mut state = self.state();
        if !state.sealed {
            let at = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
            state.history.push(at, event);
        }
    }

    /// Takes nothing more: what follows is the end of the run, not a part of it.
    pub(super) fn seal(&self) {
        self.state().sealed = true;
    }

    pub(super) fn len(&self) -> usize {
        self.state().history.events.len()
    }

    /// What was recorded.
    pub(super) fn take(&self) -> History {
        std::mem::take(&mut self.state().history)
    }
}
