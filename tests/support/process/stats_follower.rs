//! Open stream of the figures of all nodes, on the admin port of one.

use std::collections::VecDeque;

use serde_json::Value;

use super::{Process, SseStream};

/// Reader of a stream of figures.
pub struct StatsFollower {
    stream: SseStream,
    /// Events that were read before they were expected.
    read: VecDeque<(String, Value)>,
}

impl StatsFollower {
    /// Path of the stream.
    pub const PATH: &str = "/v1/stats/stream";

    /// Requests a stream, and reads nothing of it yet.
    pub fn open(node: &Process) -> Self {
        Self::open_with(node, None)
    }

    /// Requests a stream with a key, if there is one.
    pub fn open_with(node: &Process, key: Option<&str>) -> Self {
        let key = key.map(|key| format!("Authorization: Bearer {key}\r\n")).unwrap_or_default();
        Self { stream: SseStream::open(node.admin(), Self::PATH, &key), read: VecDeque::new() }
    }

    /// Reads the status of the response, which comes first.
    pub fn status(&mut self) -> u16 {
        self.stream.status()
    }

    /// Returns the next event with its data; `None` at the end of the stream.
    pub fn next(&mut self) -> Option<(String, Value)> {
        self.stream.next().map(|block| (block.event, block.data))
    }

    /// Reads to the end of the stream.
    pub fn expect_end(&mut self) {
        while self.next().is_some() {}
    }

    /// Returns the next event that is none of codes, which has to be of that name.
    pub fn expect(&mut self, name: &str) -> Value {
        let (event, data) = self.take(|event, _| event != "codes");
        assert_eq!(event, name, "{data}");
        data
    }

    /// Returns the next event of codes.
    pub fn expect_codes(&mut self) -> Value {
        self.take(|event, _| event == "codes").1
    }

    /// Returns the next event of that name and node.
    pub fn expect_of(&mut self, name: &str, node: &str) -> Value {
        self.take(|event, data| event == name && data["node"] == node).1
    }

    /// Returns the next rows of codes of that node; the event at its start may have none.
    pub fn expect_codes_of(&mut self, node: &str) -> Value {
        let has_rows = |data: &Value| data["rows"].as_array().is_some_and(|rows| !rows.is_empty());
        self.take(|event, data| event == "codes" && data["node"] == node && has_rows(data)).1
    }

    /// Returns the oldest event that satisfies the condition and was not returned before; the others stay.
    fn take(&mut self, is_wanted: impl Fn(&str, &Value) -> bool) -> (String, Value) {
        let mut at = 0;
        loop {
            match self.read.get(at) {
                Some((event, data)) if is_wanted(event, data) => {
                    return self.read.remove(at).expect("it was found");
                }
                Some(_) => at += 1,
                None => {
                    let next = self.next().expect("the stream goes on");
                    self.read.push_back(next);
                }
            }
        }
    }
}
