//! One request to an HTTP port of a node, as the commands send it.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
};

use tidegate::cli::admin::AdminClient;

use super::WAIT_MAX;

/// Sends a request with a JSON body; returns the status and the body of the response.
pub fn ask(admin: SocketAddr, method: &str, path: &str, body: &str) -> (u16, String) {
    let mut port = AdminClient::connect_within(admin, WAIT_MAX).expect("an admin port");
    port.request(method, path, body).expect("the admin port answers")
}

/// Sends a request with this request line and these headers; the content length is added.
pub fn ask_by(port: SocketAddr, head: &str, body: &str) -> (u16, String) {
    let Reply { status, body, .. } = exchange(port, head, body);
    (status, String::from_utf8(body).expect("text"))
}

/// Response of an HTTP port.
pub struct Reply {
    /// Status code.
    pub status: u16,
    /// Status line and header fields, the names in lower case.
    pub head: String,
    /// Body as it was sent.
    pub body: Vec<u8>,
}

impl Reply {
    /// Returns the value of a header field that may occur once.
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut values = self.head.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        let value = values.next();
        assert!(values.next().is_none(), "{name} occurs twice in {}", self.head);
        value
    }
}

/// Sends a request as [`ask_by`] does, and returns the whole response.
pub fn exchange(port: SocketAddr, head: &str, body: &str) -> Reply {
    let mut stream = TcpStream::connect_timeout(&port, WAIT_MAX).expect("an admin port");
    stream.set_read_timeout(Some(WAIT_MAX)).expect("a socket takes options");
    let request = format!("{head}Connection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).expect("the admin port reads");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("the admin port answers");
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("an HTTP response");
    let head = String::from_utf8(answer[..end].to_vec()).expect("text");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    Reply { status, head, body: answer.split_off(end + 4) }
}
