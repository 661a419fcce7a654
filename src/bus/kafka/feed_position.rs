//! Where a node is in its own topic: what it has done with, and where the topic ends.

use std::{
    collections::VecDeque,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use crate::routes::TopicLag;

/// Shared by the thread that reads, the one that asks for the end, and who takes what was read.
#[derive(Default)]
pub(super) struct Place {
    over: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// What the thread reads next.
    next: i64,
    /// What it has read and the node is not done with, the oldest first.
    waiting: VecDeque<Waiting>,
    /// As a broker said it last; none = not known now.
    end: Option<i64>,
}

/// One event that the node is not done with.
#[derive(Clone, Copy)]
pub(super) struct Waiting {
    /// The offset from which on it stands for the topic.
    pub(super) from: i64,
    /// The time of its first record, in ms since 1970.
    pub(super) since_ms: Option<i64>,
}

impl Place {
    /// Nobody wants any more of it.
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Reading goes on from there, which is the end.
    pub(super) fn at_end(&self, end: i64) {
        let mut state = self.state();
        (state.next, state.end) = (end, Some(end));
    }

    /// Everything below `next` was read; of that, this is to be taken.
    pub(super) fn read(&self, next: i64, events: impl Iterator<Item = Waiting>) {
        let mut state = self.state();
        state.next = next;
        state.waiting.extend(events);
    }

    /// The node is done with the oldest event.
    pub(super) fn done(&self) {
        self.state().waiting.pop_front();
    }

    /// Where the topic ends; none = nobody says.
    pub(super) fn heard(&self, end: Option<i64>) {
        self.state().end = end;
    }

    /// How far the node is behind; none while the end is not known.
    pub(super) fn lag(&self) -> Option<TopicLag> {
        self.lag_at(now_ms())
    }

    /// The age of the oldest event that the node has read and is not done with; Kafka need not be there for that.
    pub(super) fn behind_ms(&self) -> u64 {
        self.state().behind_ms(now_ms())
    }

    fn lag_at(&self, now_ms: i64) -> Option<TopicLag> {
        let state = self.state();
        let position = state.waiting.front().map_or(state.next, |it| it.from);
        Some(TopicLag {
            position: number(position),
            // What was read since the broker said it lies behind that.
            end: number(state.end?.max(state.next).max(position)),
            behind_ms: state.behind_ms(now_ms),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn behind_ms(&self, now_ms: i64) -> u64 {
        let since = self.waiting.front().and_then(|it| it.since_ms);
        since.map_or(0, |since| number(now_ms.saturating_sub(since)))
    }
}

fn number(it: i64) -> u64 {
    u64::try_from(it).unwrap_or(0)
}

fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    i64::try_from(now).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(from: i64, since_ms: i64) -> Waiting {
        Waiting { from, since_ms: Some(since_ms) }
    }

    fn lag(position: u64, end: u64, behind_ms: u64) -> Option<TopicLag> {
        Some(TopicLag { position, end, behind_ms })
    }

    #[test]
    fn a_node_is_behind_by_what_it_is_not_done_with_and_by_the_age_of_the_oldest_of_it() {
        let place = Place::default();
        assert_eq!(place.lag_at(9_000), None, "nobody has said where it ends");
        place.at_end(5);
        assert_eq!(place.lag_at(9_000), lag(5, 5, 0));
        place.heard(Some(9));
        assert_eq!(place.lag_at(9_000), lag(5, 9, 0), "nothing of it is here yet");
        place.read(8, [waiting(5, 1_000), waiting(7, 4_000)].into_iter());
        assert_eq!(place.lag_at(9_000), lag(5, 9, 8_000));
        assert_eq!(place.lag_at(500), lag(5, 9, 0), "a clock that is ahead");
        place.done();
        assert_eq!(place.lag_at(9_000), lag(7, 9, 5_000));
        // More than the broker spoke of; the last was for another run of the node.
        place.read(12, [waiting(8, 6_000)].into_iter());
        place.read(13, [].into_iter());
        assert_eq!(place.lag_at(9_000), lag(7, 13, 5_000));
        place.done();
        place.done();
        assert_eq!(place.lag_at(9_000), lag(13, 13, 0));
        place.heard(None);
        assert_eq!(place.lag_at(9_000), None);
        place.read(14, [waiting(13, 2_000)].into_iter());
        assert_eq!(place.state().behind_ms(9_000), 7_000, "its age needs nobody");
        place.done();
        // The topic was made anew.
        place.heard(Some(13));
        place.at_end(0);
        assert_eq!(place.lag_at(9_000), lag(0, 0, 0));
    }
}
