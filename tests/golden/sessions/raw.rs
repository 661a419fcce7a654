//! Connection of a minimal client: bytes out, and input split by the rules of SPEC alone.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tidegate_protocol::{
    codec::{self, Framing, Wire},
    pb,
};

use crate::{convert::blur_text, meaning, support::WAIT_MAX};

/// Key of every upgrade, for which every server has the same reply.
const UPGRADE_KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";

/// Mask of every WebSocket frame.
const MASK: [u8; 4] = [1, 2, 3, 4];

/// Returns the first bytes of a connection.
pub(crate) fn opening(wire: Wire) -> Vec<u8> {
    let upgrade = |protocol: &str| {
        format!(
            "GET /v1/ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: {UPGRADE_KEY}\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Protocol: {protocol}\r\n\r\n"
        )
    };
    match wire {
        Wire::Tcp => b"TG/1\n".to_vec(),
        Wire::JsonLine => Vec::new(),
        Wire::WsBinary => upgrade("tidegate.v1.proto").into_bytes(),
        Wire::WsText => upgrade("tidegate.v1.json").into_bytes(),
    }
}

/// Returns the bytes of a frame on a wire.
pub(crate) fn wrap(wire: Wire, frame: &pb::ClientFrame) -> Vec<u8> {
    let mut payload = Vec::new();
    codec::encode_client(frame, wire.framing(), &mut payload);
    match wire {
        Wire::Tcp => {
            let mut bytes = Vec::new();
            let mut left = payload.len();
            while left >= 0x80 {
                bytes.push(left as u8 | 0x80);
                left >>= 7;
            }
            bytes.push(left as u8);
            [bytes, payload].concat()
        }
        Wire::JsonLine => [payload, b"\n".to_vec()].concat(),
        Wire::WsBinary => masked(2, &payload),
        Wire::WsText => masked(1, &payload),
    }
}

fn masked(opcode: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x80 | opcode];
    match payload.len() {
        short @ 0..126 => bytes.push(0x80 | short as u8),
        long => {
            bytes.push(0x80 | 126);
            bytes.extend(u16::try_from(long).expect("a small frame").to_be_bytes());
        }
    }
    bytes.extend(MASK);
    bytes.extend(payload.iter().zip(MASK.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    bytes
}

/// One connection, and its input that was not taken yet.
pub(crate) struct Raw {
    stream: TcpStream,
    wire: Wire,
    buffer: Vec<u8>,
    /// Whether the reply to an upgrade is pending.
    opens: bool,
    ended: bool,
    received: Vec<Value>,
}

impl Raw {
    pub(crate) fn connect(at: SocketAddr, wire: Wire) -> Self {
        let stream = TcpStream::connect_timeout(&at, WAIT_MAX).expect("the node accepts");
        stream.set_nodelay(true).expect("a socket takes options");
        let opens = matches!(wire, Wire::WsBinary | Wire::WsText);
        Self { stream, wire, buffer: Vec::new(), opens, ended: false, received: Vec::new() }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the node reads");
    }

    /// Takes `count` items of input, waiting for them.
    pub(crate) fn next(&mut self, count: usize) -> Vec<Value> {
        let deadline = Instant::now() + WAIT_MAX;
        while self.received.len() < count && !self.ended && Instant::now() < deadline {
            self.read(deadline);
        }
        let count = count.min(self.received.len());
        self.received.drain(..count).collect()
    }

    /// Takes input until none arrives for `quiet`.
    pub(crate) fn until_quiet(&mut self, quiet: Duration) -> Vec<Value> {
        while !self.ended && self.read(Instant::now() + quiet) {}
        std::mem::take(&mut self.received)
    }

    /// Whether the node has closed in order, with every frame taken.
    pub(crate) fn is_over(&mut self) -> bool {
        self.next(1).is_empty() && self.ended && self.buffer.is_empty()
    }

    /// Reads once; returns false if nothing arrives in time.
    fn read(&mut self, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        self.stream.set_read_timeout(Some(left)).expect("a socket takes options");
        let mut more = [0; 16 * 1024];
        match self.stream.read(&mut more) {
            Ok(0) => {
                self.ended = true;
                self.received.push(json!({"end": true}));
            }
            Ok(read) => self.buffer.extend_from_slice(&more[..read]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return false;
            }
            Err(error) => panic!("the connection broke: {error}"),
        }
        while let Some((thing, used)) = self.cut() {
            self.buffer.drain(..used);
            self.received.push(thing);
        }
        true
    }

    /// Returns the first complete item in the buffer, and its length.
    fn cut(&mut self) -> Option<(Value, usize)> {
        let buffer = &self.buffer[..];
        if self.opens {
            let end = buffer.windows(4).position(|bytes| bytes == b"\r\n\r\n")? + 4;
            self.opens = false;
            return Some((upgraded(&buffer[..end]), end));
        }
        match self.wire {
            Wire::Tcp => {
                let (length, at) = varint(buffer)?;
                let payload = buffer.get(at..at + length)?;
                Some((frame(payload, Framing::Proto), at + length))
            }
            Wire::JsonLine => {
                let end = buffer.iter().position(|byte| *byte == b'\n')?;
                Some((frame(&buffer[..end], Framing::Json), end + 1))
            }
            Wire::WsBinary | Wire::WsText => {
                let (opcode, payload, used) = ws_frame(buffer)?;
                Some((ws_meaning(opcode, payload), used))
            }
        }
    }
}

fn varint(bytes: &[u8]) -> Option<(usize, usize)> {
    let end = bytes.iter().take(5).position(|byte| byte & 0x80 == 0)?;
    let length = bytes[..=end].iter().rev().fold(0, |sum, byte| sum << 7 | usize::from(byte & 0x7f));
    Some((length, end + 1))
}

fn ws_frame(bytes: &[u8]) -> Option<(u8, &[u8], usize)> {
    let (opcode, short) = (*bytes.first()?, *bytes.get(1)?);
    let (length, at) = match short {
        126 => (usize::from(u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?)), 4),
        127 => (u64::from_be_bytes(bytes.get(2..10)?.try_into().ok()?) as usize, 10),
        length => (usize::from(length), 2),
    };
    Some((opcode, bytes.get(at..at + length)?, at + length))
}

fn ws_meaning(opcode: u8, payload: &[u8]) -> Value {
    match opcode {
        0x81 => frame(payload, Framing::Json),
        0x82 => frame(payload, Framing::Proto),
        0x88 => json!({"wsClose": u16::from_be_bytes([payload[0], payload[1]])}),
        other => panic!("a WebSocket frame {other:#x}"),
    }
}

/// Describes the reply to an upgrade by what a client checks of it.
fn upgraded(head: &[u8]) -> Value {
    let head = String::from_utf8_lossy(head).to_lowercase();
    let of =
        |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(|it| it.trim().to_owned());
    json!({
        "status": head.lines().next().map(|line| line.chars().take(12).collect::<String>()),
        "accept": of("sec-websocket-accept:"),
        "protocol": of("sec-websocket-protocol:"),
    })
}

/// Describes a frame without what differs between runs.
fn frame(payload: &[u8], framing: Framing) -> Value {
    let mut it = meaning::read_frame(payload, framing);
    blur(&mut it, false);
    it
}

/// Blurs times, session names, figures of a configuration, numbers in live rooms (which follow the clock) and texts for
/// humans.
fn blur(it: &mut Value, figures: bool) {
    let in_room = it["conversation"].as_str().is_some_and(|it| it.starts_with("r:"));
    match it {
        Value::Object(fields) => {
            for (name, value) in fields {
                match name.as_str() {
                    "time" | "serverTime" => *value = json!(0),
                    "seq" if in_room => *value = json!(0),
                    "session" => *value = json!("…"),
                    // An id that the client did not choose is random.
                    "nextId" => *value = blur_text(value.as_str().unwrap_or_default()).into(),
                    "message" | "reason" if value.is_string() => *value = json!("…"),
                    "welcome" => blur(value, true),
                    _ => blur(value, figures),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| blur(item, figures)),
        Value::Number(_) if figures => *it = json!(0),
        _ => {}
    }
}
