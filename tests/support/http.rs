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
    let mut stream = TcpStream::connect_timeout(&port, WAIT_MAX).expect("an admin port");
    stream.set_read_timeout(Some(WAIT_MAX)).expect("a socket takes options");
    let request = format!("{head}Connection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).expect("the admin port reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the admin port answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("an HTTP response");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, body.to_owned())
}
