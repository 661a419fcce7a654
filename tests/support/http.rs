//! One request to the admin port of a node.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
};

use super::PATIENCE;

/// Asks with a JSON body; the status and the body of the answer.
pub fn ask(admin: SocketAddr, method: &str, path: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect_timeout(&admin, PATIENCE).expect("an admin port");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket takes options");
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: admin\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).expect("the admin port reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the admin port answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("an HTTP response");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, body.to_owned())
}
