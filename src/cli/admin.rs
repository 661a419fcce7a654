//! What the bench asks of a server beside its load: tokens, groups, metrics.

use anyhow::{Context, Result, bail, ensure};
use std::{
    fmt::Write as _,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    ops::Range,
    thread,
    time::Duration,
};

use serde_json::{Value, json};

use crate::auth;

/// Members that one request may add.
const MEMBERS_MAX: usize = 1000;

/// So often a change is asked for.
const TRIES: usize = 5;
/// And so long after it was refused for now.
const AGAIN: Duration = Duration::from_millis(200);

/// An HS256 token of `user`, good for a day.
pub(super) fn token(key: &[u8], user: &str) -> String {
    auth::sign(key, user, None, Duration::from_secs(86_400))
}

/// Bytes from hex.
pub(super) fn hex(text: &str) -> Result<Vec<u8>> {
    let text = text.trim().as_bytes();
    ensure!(text.len().is_multiple_of(2), "hex of odd length");
    text.chunks(2)
        .map(|pair| Ok(u8::from_str_radix(std::str::from_utf8(pair)?, 16)?))
        .collect::<Result<_>>()
        .context("no hex")
}

/// The admin port of a server, over one connection that is kept.
pub(crate) struct Admin {
    address: String,
    stream: TcpStream,
}

impl Admin {
    /// Connects.
    pub(crate) fn connect(address: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).with_context(|| format!("admin port {address}"))?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        stream.set_nodelay(true)?;
        Ok(Self { address: address.to_owned(), stream })
    }

    /// Connects to a node that may be gone, or stand still: it has that long to be connected to, and to answer.
    pub(crate) fn connect_within(address: SocketAddr, within: Duration) -> Result<Self> {
        let stream =
            TcpStream::connect_timeout(&address, within).with_context(|| format!("admin port {address}"))?;
        stream.set_read_timeout(Some(within))?;
        stream.set_nodelay(true)?;
        Ok(Self { address: address.to_string(), stream })
    }

    /// Creates group `id` with `extra` and users `u<from>`…`u<to>`.
    pub(super) fn group(&mut self, id: &str, extra: &[String], users: Range<usize>) -> Result<()> {
        let all: Vec<String> = extra.iter().cloned().chain(users.map(|user| format!("u{user}"))).collect();
        let mut parts = all.chunks(MEMBERS_MAX);
        let first = parts.next().unwrap_or_default();
        let request = |nth: usize| format!("{id}-{nth}");
        self.post("/v1/groups", &json!({"id": id, "members": first, "requestId": request(0)}))?;
        for (nth, part) in (1..).zip(parts) {
            let change = json!({"add": part, "requestId": request(nth)});
            self.post(&format!("/v1/groups/{id}/members"), &change)?;
        }
        Ok(())
    }

    /// The value of a metric without labels, if the server has it.
    pub(super) fn metric(&mut self, name: &str) -> Option<f64> {
        let (status, body) = self.request("GET", "/metrics", "").ok()?;
        (status == 200).then(|| {
            body.lines()
                .filter_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
                .next()
        })?
    }

    /// Again where the answer says so: its request has an id.
    fn post(&mut self, path: &str, body: &Value) -> Result<()> {
        for left in (0..TRIES).rev() {
            let (status, answer) = self.request("POST", path, &body.to_string())?;
            if (200..300).contains(&status) {
                break;
            }
            ensure!(status == 503 && left > 0, "POST {path}: {status} {}", answer.trim());
            thread::sleep(AGAIN);
        }
        Ok(())
    }

    /// One request, and its status and body.
    pub(crate) fn request(&mut self, method: &str, path: &str, body: &str) -> Result<(u16, String)> {
        let mut request = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\n", self.address);
        if !body.is_empty() {
            write!(request, "Content-Type: application/json\r\nContent-Length: {}\r\n", body.len())?;
        }
        request.push_str("\r\n");
        request.push_str(body);
        self.stream.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        let mut buffer = [0; 16 * 1024];
        loop {
            if let Some(parsed) = response(&answer)? {
                return Ok(parsed);
            }
            match self.stream.read(&mut buffer)? {
                0 => bail!("{method} {path}: the admin port closed the connection"),
                count => answer.extend_from_slice(&buffer[..count]),
            }
        }
    }
}

/// Status and body of a complete response, `None` while it is not.
fn response(bytes: &[u8]) -> Result<Option<(u16, String)>> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut parsed = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(head) = parsed.parse(bytes)? else { return Ok(None) };
    let status = parsed.code.context("no status")?;
    let header = |name: &str| {
        parsed.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name)).map(|header| header.value)
    };
    let body = &bytes[head..];
    if header("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case(b"chunked")) {
        return Ok(chunked(body)?.map(|text| (status, text)));
    }
    let length: usize = match header("content-length") {
        Some(value) => std::str::from_utf8(value)?.trim().parse()?,
        None => 0,
    };
    Ok(body.get(..length).map(|body| (status, String::from_utf8_lossy(body).into_owned())))
}

/// The text of a complete chunked body.
fn chunked(mut body: &[u8]) -> Result<Option<String>> {
    let mut text = Vec::new();
    loop {
        let size = match httparse::parse_chunk_size(body) {
            Ok(httparse::Status::Complete((head, size))) => {
                body = &body[head..];
                usize::try_from(size)?
            }
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(_) => bail!("a chunk without a size"),
        };
        if size == 0 {
            return Ok(Some(String::from_utf8_lossy(&text).into_owned()));
        }
        let Some(chunk) = body.get(..size) else { return Ok(None) };
        text.extend_from_slice(chunk);
        body = body.get(size + 2..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_read_when_they_are_whole() {
        let bytes = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";
        for cut in 0..bytes.len() {
            assert_eq!(response(&bytes[..cut]).expect("no error"), None, "{cut}");
        }
        assert_eq!(response(bytes).expect("no error"), Some((200, "hello".into())));
        let bytes = b"HTTP/1.1 409 C\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
        assert_eq!(response(bytes).expect("no error"), Some((409, "abcde".into())));
    }

    #[test]
    fn keys_and_tokens() {
        assert_eq!(hex("00ff10\n").expect("hex"), [0, 255, 16]);
        assert!(hex("0g").is_err());
        let token = token(&[7; 32], "u1");
        assert_eq!(token.split('.').count(), 3);
    }
}
