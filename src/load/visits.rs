//! Lag of visits: how long connections wait in the queue of those to be read again.

use std::time::Duration;

use tidegate_protocol::Time;

/// Time from the listing of a connection to its visit, measured on one connection at a time.
#[derive(Clone, Copy, Debug, Default)]
pub struct VisitLag {
    /// Visits up to and including that of the measured connection; 0 without one.
    left: usize,
    /// Time since which it waits.
    since: Time,
    last: Duration,
}

impl VisitLag {
    /// Begins to measure the last of `waiting` connections, unless one is being measured.
    pub fn begin(&mut self, waiting: usize, now: Time) {
        if self.left == 0 {
            (self.left, self.since) = (waiting, now);
            if waiting == 0 {
                self.last = Duration::ZERO;
            }
        }
    }

    /// Counts the visit of the connection that has waited longest.
    pub fn count_visit(&mut self, now: Time) {
        if self.left == 1 {
            self.last = now.since(self.since);
        }
        self.left = self.left.saturating_sub(1);
    }

    /// Returns the lag that was last measured; none if no connection waits.
    pub const fn last(&self) -> Duration {
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lag_is_that_of_the_connection_that_was_last_in_the_queue() {
        let (mut lag, at) = (VisitLag::default(), Time::from_millis);
        lag.begin(3, at(100));
        lag.count_visit(at(110));
        lag.begin(8, at(115));
        lag.count_visit(at(120));
        assert_eq!(lag.last(), Duration::ZERO, "two of three are visited");
        lag.count_visit(at(130));
        assert_eq!(lag.last(), Duration::from_millis(30));
        lag.begin(2, at(130));
        assert_eq!(lag.last(), Duration::from_millis(30), "until the next one");
        lag.count_visit(at(135));
        lag.count_visit(at(135));
        assert_eq!(lag.last(), Duration::from_millis(5));
        lag.begin(0, at(140));
        assert_eq!(lag.last(), Duration::ZERO, "nothing waits");
    }
}
