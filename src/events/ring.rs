//! The last events of this node, for those who follow them over the admin API: bounded in bytes, read by a cursor.

use std::{
    collections::VecDeque,
    fmt,
    str::FromStr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, time};

use super::{EVENT_BYTES, Event};

/// Where a follower is: behind everything with a smaller number, in this run of the node.
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

/// Some events.
#[derive(Debug)]
pub struct Page {
    /// In the order in which they were noted.
    pub events: Vec<Arc<Event>>,
    /// Where to go on.
    pub cursor: Cursor,
    /// Events between the caller's cursor and these are not kept any more, or were of an earlier run of the node.
    pub missed: bool,
}

/// The last events.
pub struct Ring {
    boot: u64,
    events_max: usize,
    state: Mutex<State>,
    bell: Notify,
}

#[derive(Default)]
struct State {
    kept: VecDeque<Arc<Event>>,
    /// The number of the oldest one kept.
    first: u64,
}

impl Ring {
    /// An empty ring that keeps about so many bytes.
    pub(super) fn new(boot: u64, bytes_max: usize) -> Self {
        let events_max = (bytes_max / EVENT_BYTES).max(1);
        Self { boot, events_max, state: Mutex::default(), bell: Notify::new() }
    }

    pub(super) fn push(&self, event: Arc<Event>) {
        {
            let mut state = self.state();
            if state.kept.len() == self.events_max {
                state.kept.pop_front();
                state.first += 1;
            }
            state.kept.push_back(event);
        }
        self.bell.notify_waiters();
    }

    /// Behind the newest event.
    pub fn end(&self) -> Cursor {
        let state = self.state();
        Cursor { boot: self.boot, next: state.first + state.kept.len() as u64 }
    }

    /// At most `max` events from the cursor on, or from the oldest one kept.
    pub fn page(&self, from: Option<Cursor>, max: usize) -> Page {
        let state = self.state();
        let end = state.first + state.kept.len() as u64;
        let known = from.filter(|it| it.boot == self.boot && (state.first..=end).contains(&it.next));
        let begin = known.map_or(state.first, |it| it.next);
        let events: Vec<_> =
            state.kept.iter().skip((begin - state.first) as usize).take(max).cloned().collect();
        let next = begin + events.len() as u64;
        Page { events, cursor: Cursor { boot: self.boot, next }, missed: from.is_some() && known.is_none() }
    }

    /// Like [`Self::page`], and waits for the first event, so long at most.
    pub async fn wait(&self, from: Option<Cursor>, max: usize, within: Duration) -> Page {
        let until = time::Instant::now() + within;
        loop {
            let bell = self.bell.notified();
            tokio::pin!(bell);
            // Before the look, so that no event falls between.
            bell.as_mut().enable();
            let page = self.page(from, max);
            let has_news = !page.events.is_empty() || page.missed;
            if has_news || time::timeout_at(until, bell).await.is_err() {
                return page;
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
