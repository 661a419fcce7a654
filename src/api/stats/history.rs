//! Rows of the last 15 minutes, encoded, and the streams that get the next ones.

use std::collections::VecDeque;

use axum::body::Bytes;
use tokio::sync::broadcast;

/// Rows that are kept: 15 minutes.
pub(super) const ROWS_MAX: usize = 900;

/// Encoded rows, oldest first, and the sender of further ones; no sender once the streams have ended.
pub(super) struct History {
    rows: VecDeque<String>,
    sender: Option<broadcast::Sender<Bytes>>,
}

impl History {
    /// Creates an empty history; `waiting` events at most wait for a stream.
    pub(super) fn new(waiting: usize) -> Self {
        Self { rows: VecDeque::new(), sender: Some(broadcast::Sender::new(waiting)) }
    }

    /// Adds a row, and sends it to all streams.
    pub(super) fn push(&mut self, node: &str, row: String) {
        if let Some(sender) = self.sender.as_ref().filter(|sender| sender.receiver_count() > 0) {
            let event = format!("event: now\ndata: {{\"node\":\"{node}\",\"row\":{row}}}\n\n");
            // The last stream may have ended just now.
            sender.send(event.into()).ok();
        }
        if self.rows.len() >= ROWS_MAX {
            self.rows.pop_front();
        }
        self.rows.push_back(row);
    }

    /// Returns the events from the next row on; `None` once the streams have ended.
    pub(super) fn subscribe(&self) -> Option<broadcast::Receiver<Bytes>> {
        self.sender.as_ref().map(broadcast::Sender::subscribe)
    }

    /// Appends the event with all rows to `text`.
    pub(super) fn past(&self, node: &str, mut text: String) -> String {
        text.reserve(self.rows.iter().map(|row| row.len() + 1).sum::<usize>() + 64);
        text += &format!("event: past\ndata: {{\"node\":\"{node}\",\"rows\":[");
        for (nth, row) in self.rows.iter().enumerate() {
            if nth > 0 {
                text.push(',');
            }
            text += row;
        }
        text += "]}\n\n";
        text
    }

    /// Ends all streams.
    pub(super) fn end(&mut self) {
        self.sender = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_rows_make_room_and_no_stream_misses_one() {
        let mut history = History::new(4);
        (0..ROWS_MAX + 5).for_each(|n| history.push("n1", format!("[{n}]")));
        let mut later = history.subscribe().unwrap();
        let past = history.past("n1", String::new());
        assert!(past.starts_with("event: past\ndata: {\"node\":\"n1\",\"rows\":[[5],[6],"), "{past}");
        assert!(past.ends_with(",[904]]}\n\n"), "{past}");
        history.push("n1", "[905]".into());
        assert_eq!(later.try_recv().unwrap(), "event: now\ndata: {\"node\":\"n1\",\"row\":[905]}\n\n");
        // A stream that is too far behind ends.
        (0..5).for_each(|n| history.push("n1", format!("[{n}]")));
        assert!(matches!(later.try_recv(), Err(broadcast::error::TryRecvError::Lagged(1))));
        history.end();
        assert!(history.subscribe().is_none());
    }
}
