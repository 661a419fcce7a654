//! Requests that a receiver of webhooks reads: as much of HTTP as a node sends.

use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader},
    net::TcpStream,
};

/// Reads a request. Returns its head and its body; `None` at the end of the connection.
pub(crate) async fn read(stream: &mut BufReader<TcpStream>) -> Option<(String, Vec<u8>)> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read_until(b'\n', &mut head).await.ok()? == 0 {
            return None;
        }
    }
    let head = String::from_utf8(head).ok()?;
    let mut body = vec![0; field(&head, "content-length")?.parse().ok()?];
    stream.read_exact(&mut body).await.ok()?;
    Some((head, body))
}

/// Returns a field of the head.
pub(crate) fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}
