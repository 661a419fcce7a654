//! Open stream of the figures of all nodes, on the admin port of one.

use std::{
    collections::VecDeque,
    io::{BufRead as _, BufReader, Write as _},
    net::TcpStream,
};

use serde_json::Value;

use super::{Process, WAIT_MAX};

/// Reader of a stream of figures.
pub struct StatsFollower {
    stream: BufReader<TcpStream>,
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
        let mut stream = TcpStream::connect(node.admin()).expect("an admin port");
        stream.set_read_timeout(Some(WAIT_MAX)).expect("a socket takes options");
        let request = format!("GET {} HTTP/1.1\r\nHost: localhost\r\n{key}\r\n", Self::PATH);
        stream.write_all(request.as_bytes()).expect("the admin port reads");
        Self { stream: BufReader::new(stream), read: VecDeque::new() }
    }

    /// Reads the status of the response, which comes first.
    pub fn status(&mut self) -> u16 {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("a status");
        line.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status")
    }

    /// Returns the next event with its data; `None` at the end of the stream.
    pub fn next(&mut self) -> Option<(String, Value)> {
        let mut name = String::new();
        loop {
            let mut line = String::new();
            if self.stream.read_line(&mut line).expect("the node sends in time") == 0 {
                return None;
            }
            if let Some(event) = line.strip_prefix("event: ") {
                name = event.trim().to_owned();
            }
            if let Some(data) = line.strip_prefix("data: ") {
                return Some((name, serde_json::from_str(data).expect("JSON")));
            }
        }
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
