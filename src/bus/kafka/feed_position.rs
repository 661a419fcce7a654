//! Position of a node in its own topic: what it has processed, and where the topic ends.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicBool, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use parking_lot::{Mutex, MutexGuard};

use crate::routes::TopicLag;

/// Read position and lag of a node topic, shared by the reading thread, the lag thread and the consumer of the events.
#[derive(Default)]
pub(super) struct FeedPosition {
    ended: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Offset that the thread reads next.
    next: i64,
    /// Events that were read and that the node has not processed, oldest first.
    pending: VecDeque<PendingEvent>,
    /// End of the topic, as a broker last reported it; `None` if unknown.
    end: Option<i64>,
}

/// Position of an event that the node has not processed.
#[derive(Clone, Copy)]
pub(super) struct PendingEvent {
    /// First offset that the event covers.
    pub(super) from: i64,
    /// Time of its first record, in ms since 1970.
    pub(super) since_ms: Option<i64>,
}

impl FeedPosition {
    /// Ends the feed: both threads stop.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    /// Records that reading continues at `end`, the end of the topic.
    pub(super) fn reset_to_end(&self, end: i64) {
        let mut state = self.state();
        (state.next, state.end) = (end, Some(end));
    }

    /// Records that everything below `next` was read, and the events that the node has yet to process.
    pub(super) fn add_read(&self, next: i64, events: impl Iterator<Item = PendingEvent>) {
        let mut state = self.state();
        state.next = next;
        state.pending.extend(events);
    }

    /// Removes the oldest pending event, which the node has processed.
    pub(super) fn complete_oldest(&self) {
        self.state().pending.pop_front();
    }

    /// Sets the end of the topic; `None` if no broker answers.
    pub(super) fn set_end(&self, end: Option<i64>) {
        self.state().end = end;
    }

    /// Returns the node's lag; `None` while the end is unknown.
    pub(super) fn lag(&self) -> Option<TopicLag> {
        self.lag_at(now_ms())
    }

    /// Returns the age of the oldest pending event, which is known even while Kafka is unavailable.
    pub(super) fn behind_ms(&self) -> u64 {
        self.state().behind_ms(now_ms())
    }

    fn lag_at(&self, now_ms: i64) -> Option<TopicLag> {
        let state = self.state();
        let position = state.pending.front().map_or(state.next, |it| it.from);
        Some(TopicLag {
            position: number(position),
            // Records read since the last report lie after the reported end.
            end: number(state.end?.max(state.next).max(position)),
            behind_ms: state.behind_ms(now_ms),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    fn behind_ms(&self, now_ms: i64) -> u64 {
        let since = self.pending.front().and_then(|it| it.since_ms);
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

    fn pending(from: i64, since_ms: i64) -> PendingEvent {
        PendingEvent { from, since_ms: Some(since_ms) }
    }

    fn lag(position: u64, end: u64, behind_ms: u64) -> Option<TopicLag> {
        Some(TopicLag { position, end, behind_ms })
    }

    #[test]
    fn lag_is_the_unprocessed_range_and_the_age_of_its_oldest_event() {
        let position = FeedPosition::default();
        assert_eq!(position.lag_at(9_000), None, "the end is unknown");
        position.reset_to_end(5);
        assert_eq!(position.lag_at(9_000), lag(5, 5, 0));
        position.set_end(Some(9));
        assert_eq!(position.lag_at(9_000), lag(5, 9, 0), "no record was read yet");
        position.add_read(8, [pending(5, 1_000), pending(7, 4_000)].into_iter());
        assert_eq!(position.lag_at(9_000), lag(5, 9, 8_000));
        assert_eq!(position.lag_at(500), lag(5, 9, 0), "the record's clock is ahead");
        position.complete_oldest();
        assert_eq!(position.lag_at(9_000), lag(7, 9, 5_000));
        // Reads beyond the reported end; the last record was for another run of the node.
        position.add_read(12, [pending(8, 6_000)].into_iter());
        position.add_read(13, [].into_iter());
        assert_eq!(position.lag_at(9_000), lag(7, 13, 5_000));
        position.complete_oldest();
        position.complete_oldest();
        assert_eq!(position.lag_at(9_000), lag(13, 13, 0));
        position.set_end(None);
        assert_eq!(position.lag_at(9_000), None);
        position.add_read(14, [pending(13, 2_000)].into_iter());
        assert_eq!(position.state().behind_ms(9_000), 7_000, "the age needs no broker");
        position.complete_oldest();
        // The topic was recreated.
        position.set_end(Some(13));
        position.reset_to_end(0);
        assert_eq!(position.lag_at(9_000), lag(0, 0, 0));
    }
}
