//! Ring of the node's latest events, for followers over the admin API. Bounded in bytes, and read by cursor.

use std::{collections::VecDeque, fmt, str::FromStr, sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use tokio::{sync::Notify, time};

use super::Event;

/// Position of a follower: number of the next event, in one run of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    boot: u64,
    next: u64,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{}", self.boot, self.next)
    }
}

impl FromStr for Cursor {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (boot, next) = text.split_once('-').ok_or(())?;
        let boot = u64::from_str_radix(boot, 16).map_err(|_| ())?;
        Ok(Self { boot, next: next.parse().map_err(|_| ())? })
    }
}

/// Page of events.
#[derive(Debug)]
pub struct EventsPage {
    /// Events in the order in which they were recorded.
    pub events: Vec<Arc<Event>>,
    /// Position after the page.
    pub cursor: Cursor,
    /// Whether events after the caller's cursor are missing, because they were evicted or belong to an earlier run.
    pub missed: bool,
}

/// Bounded ring of the latest events.
pub struct Ring {
    boot: u64,
    bytes_max: usize,
    state: Mutex<State>,
    pushed: Notify,
}

#[derive(Default)]
struct State {
    events: VecDeque<Arc<Event>>,
    bytes: usize,
    /// Number of the oldest event.
    first: u64,
}

impl Ring {
    /// Creates an empty ring of approximately `bytes_max`, or one event if that is larger.
    pub(super) fn new(boot: u64, bytes_max: usize) -> Self {
        Self { boot, bytes_max, state: Mutex::default(), pushed: Notify::new() }
    }

    pub(super) fn push(&self, event: Arc<Event>) {
        {
            let mut state = self.state();
            state.bytes += event.bytes();
            state.events.push_back(event);
            while state.bytes > self.bytes_max && state.events.len() > 1 {
                let evicted = state.events.pop_front().map_or(0, |event| event.bytes());
                state.bytes = state.bytes.saturating_sub(evicted);
                state.first += 1;
            }
        }
        self.pushed.notify_waiters();
    }

    /// Returns the cursor after the newest event.
    pub fn end(&self) -> Cursor {
        let state = self.state();
        Cursor { boot: self.boot, next: state.first + state.events.len() as u64 }
    }

    /// Returns at most `max` events from the cursor on, or from the oldest one if the cursor is not available.
    pub fn page(&self, from: Option<Cursor>, max: usize) -> EventsPage {
        let state = self.state();
        let end = state.first + state.events.len() as u64;
        let valid = from.filter(|it| it.boot == self.boot && (state.first..=end).contains(&it.next));
        let begin = valid.map_or(state.first, |it| it.next);
        let events: Vec<_> =
            state.events.iter().skip((begin - state.first) as usize).take(max).cloned().collect();
        let next = begin + events.len() as u64;
        EventsPage {
            events,
            cursor: Cursor { boot: self.boot, next },
            missed: from.is_some() && valid.is_none(),
        }
    }

    /// Like [`Self::page`], but waits for the first event, at most `within`.
    pub async fn wait(&self, from: Option<Cursor>, max: usize, within: Duration) -> EventsPage {
        let until = time::Instant::now() + within;
        loop {
            let pushed = self.pushed.notified();
            tokio::pin!(pushed);
            // Registers before reading, so that an event in between still wakes this task.
            pushed.as_mut().enable();
            let page = self.page(from, max);
            let is_ready = !page.events.is_empty() || page.missed;
            if is_ready || time::timeout_at(until, pushed).await.is_err() {
                return page;
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}
