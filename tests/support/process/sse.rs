//! Open stream of server-sent events on the admin port of a node.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpStream},
};

use serde_json::Value;

use super::WAIT_MAX;

/// Reader of a stream.
pub struct SseStream {
    stream: BufReader<TcpStream>,
}

/// Event, or a line of its own with the id to continue after.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SseBlock {
    pub event: String,
    /// `null` without data.
    pub data: Value,
    pub id: Option<String>,
}

impl SseStream {
    /// Requests a stream with these header fields, each of which ends its line, and reads nothing of it yet.
    pub fn open(admin: SocketAddr, path: &str, fields: &str) -> Self {
        let mut stream = TcpStream::connect(admin).expect("an admin port");
        stream.set_read_timeout(Some(WAIT_MAX)).expect("a socket takes options");
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n");
        stream.write_all(request.as_bytes()).expect("the admin port reads");
        Self { stream: BufReader::new(stream) }
    }

    /// Reads the status of the response, which comes first.
    pub fn status(&mut self) -> u16 {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("a status");
        line.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status")
    }

    /// Returns the next block; `None` at the end of the stream.
    pub fn next(&mut self) -> Option<SseBlock> {
        let mut block = SseBlock::default();
        loop {
            let mut line = String::new();
            let read = self.stream.read_line(&mut line).expect("the node sends in time");
            // The last chunk is empty; the connection may stay open for another request.
            if read == 0 || line == "0\r\n" {
                return None;
            }
            if let Some(event) = line.strip_prefix("event: ") {
                block.event = event.trim().to_owned();
            } else if let Some(data) = line.strip_prefix("data: ") {
                block.data = serde_json::from_str(data).expect("JSON");
            } else if let Some(id) = line.strip_prefix("id: ") {
                block.id = Some(id.trim().to_owned());
            } else if line == "\n" && block != SseBlock::default() {
                return Some(block);
            }
        }
    }
}
