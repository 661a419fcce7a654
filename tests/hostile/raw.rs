//! Raw bytes of each framing, and a connection that sends them and reads to the end.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use tidegate_protocol::{
    Code,
    codec::{self, Decoded, Framing, Split, Wire},
    pb::{self, client_frame::Body as ClientBody},
    ws::{self, Opcode, WsEvent, WsStep},
};

use crate::support::{ServerBody, WAIT_MAX, code};

/// WebSocket upgrade that is accepted, to be completed with further headers and an empty line.
pub(crate) const UPGRADE: &str = "GET /v1/ws HTTP/1.1\r\nHost: tidegate\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
     Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

/// Returns the bytes before the first frame.
pub(crate) fn preface(wire: Wire) -> Vec<u8> {
    let upgrade =
        |protocol: &str| format!("{UPGRADE}Sec-WebSocket-Protocol: {protocol}\r\n\r\n").into_bytes();
    match wire {
        Wire::Tcp => b"TG/1\n".to_vec(),
        Wire::JsonLine => Vec::new(),
        Wire::WsBinary => upgrade("tidegate.v1.proto"),
        Wire::WsText => upgrade("tidegate.v1.json"),
    }
}

/// Returns a frame as a client sends it.
pub(crate) fn frame(wire: Wire, id: u64, body: ClientBody) -> Vec<u8> {
    let frame = pb::ClientFrame { id, body: Some(body) };
    let mut bytes = Vec::new();
    match wire {
        Wire::Tcp | Wire::JsonLine => codec::write_client(&frame, wire.framing(), &mut bytes),
        Wire::WsBinary | Wire::WsText => {
            let mut payload = Vec::new();
            codec::encode_client(&frame, wire.framing(), &mut payload);
            ws::encode_client(opcode(wire), &payload, [1, 2, 3, 4], &mut bytes);
        }
    }
    bytes
}

/// Returns a whole masked WebSocket frame.
pub(crate) fn ws_frame(opcode: Opcode, payload: &[u8]) -> Vec<u8> {
    fragment(true, opcode, payload)
}

/// Returns a masked WebSocket frame that may have successors.
pub(crate) fn fragment(last: bool, opcode: Opcode, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    ws::encode_fragment(last, opcode, payload, Some([9, 8, 7, 6]), &mut bytes);
    bytes
}

fn opcode(wire: Wire) -> Opcode {
    if wire.framing() == Framing::Json { Opcode::Text } else { Opcode::Binary }
}

/// Output of a node until the end of a stream.
#[derive(Debug)]
pub(crate) struct Received {
    /// Received frames.
    pub(crate) frames: Vec<pb::ServerFrame>,
    /// Status of the WebSocket close frame.
    pub(crate) status: Option<u16>,
    /// Number of WebSocket pongs.
    pub(crate) pongs: usize,
    /// HTTP response head, or nothing.
    pub(crate) head: String,
    /// Whether the stream ended in order, not by a reset.
    pub(crate) orderly: bool,
}

impl Received {
    /// Returns the code of the Close frame, which must be the last one.
    pub(crate) fn close(&self) -> Option<Code> {
        match self.frames.last()?.body.as_ref()? {
            ServerBody::Close(close) => Some(code(close.code)),
            _ => None,
        }
    }

    /// Asserts that the Close frame was the last one, followed by the WebSocket close frame and an orderly end.
    pub(crate) fn assert_closed(&self, wire: Wire, expected: Code, what: &str) {
        assert_eq!(self.close(), Some(expected), "{what}: {self:?}");
        assert!(self.orderly, "{what}: a reset");
        if matches!(wire, Wire::WsBinary | Wire::WsText) {
            assert!(self.status.is_some(), "{what}: no close frame of the WebSocket");
        }
    }
}

/// Connection that sends what a client should not.
pub(crate) struct Raw {
    pub(crate) stream: TcpStream,
    wire: Wire,
    input: Vec<u8>,
}

impl Raw {
    pub(crate) fn connect(address: SocketAddr, wire: Wire) -> Self {
        let stream = TcpStream::connect_timeout(&address, WAIT_MAX).expect("the node accepts");
        Self::over(stream, wire)
    }

    pub(crate) fn over(stream: TcpStream, wire: Wire) -> Self {
        stream.set_nodelay(true).expect("a socket takes options");
        stream.set_read_timeout(Some(WAIT_MAX)).expect("a socket takes options");
        stream.set_write_timeout(Some(WAIT_MAX)).expect("a socket takes options");
        Self { stream, wire, input: Vec::new() }
    }

    /// Sends; an error because the node has closed is not a failure here.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Writes byte by byte.
    pub(crate) fn dribble(&mut self, bytes: &[u8]) {
        for byte in bytes.chunks(1) {
            self.stream.write_all(byte).expect("the node reads");
        }
    }

    /// Reads until there are `enough` frames.
    pub(crate) fn until(
        &mut self,
        what: &str,
        enough: impl Fn(&[pb::ServerFrame]) -> bool,
    ) -> Vec<pb::ServerFrame> {
        loop {
            let received = self.parse(true);
            if enough(&received.frames) {
                return received.frames;
            }
            let mut more = [0; 16 * 1024];
            match self.stream.read(&mut more) {
                Ok(read) if read > 0 => self.input.extend_from_slice(&more[..read]),
                other => panic!("in vain: {what}: {other:?} after {received:?}"),
            }
        }
    }

    /// Sends `bytes` repeatedly, one `pace` apart, until there is output.
    pub(crate) fn repeat_until_answered(&mut self, bytes: &[u8], pace: Duration, patience: Duration) {
        let began = Instant::now();
        self.stream.set_read_timeout(Some(pace)).expect("a socket takes options");
        // The read timeout is the pace.
        while self.stream.peek(&mut [0]).is_err() {
            assert!(began.elapsed() < patience, "no answer after {patience:?}");
            self.stream.write_all(bytes).expect("the node reads");
        }
        self.stream.set_read_timeout(Some(WAIT_MAX)).expect("a socket takes options");
    }

    /// Reads to the end.
    pub(crate) fn until_end(&mut self) -> Received {
        let orderly = match self.stream.read_to_end(&mut self.input) {
            Ok(_) => true,
            Err(error)
                if matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) =>
            {
                false
            }
            Err(error) => panic!("no end: {error}, after {:?}", self.parse(false)),
        };
        self.parse(orderly)
    }

    fn parse(&self, orderly: bool) -> Received {
        let mut received =
            Received { frames: Vec::new(), status: None, pongs: 0, head: String::new(), orderly };
        let mut input = self.input.clone();
        let mut rest = input.as_mut_slice();
        if rest.starts_with(b"HTTP/1.1 ") {
            let Some(end) = rest.windows(4).position(|four| four == b"\r\n\r\n") else { return received };
            let (head, frames) = rest.split_at_mut(end + 4);
            received.head = String::from_utf8_lossy(head).into_owned();
            rest = frames;
        }
        let upgraded = received.head.starts_with("HTTP/1.1 101 ");
        let mut decoder = ws::Decoder::client();
        while !rest.is_empty() {
            let consumed = match self.wire {
                Wire::WsBinary | Wire::WsText if upgraded => {
                    take_ws(&mut decoder, rest, self.wire, &mut received)
                }
                Wire::WsBinary | Wire::WsText if !received.head.is_empty() => None,
                Wire::Tcp if !self.input.starts_with(b"{") => {
                    take_stream(rest, Framing::Proto, &mut received)
                }
                _ => take_stream(rest, Framing::Json, &mut received),
            };
            let Some(consumed) = consumed else { break };
            rest = &mut std::mem::take(&mut rest)[consumed..];
        }
        received
    }
}

fn take_stream(input: &[u8], framing: Framing, received: &mut Received) -> Option<usize> {
    let split = match framing {
        Framing::Proto => codec::tcp::split(input, 1 << 20),
        Framing::Json => codec::json::split_line(input, 0, 1 << 20),
    };
    let Split::Frame { payload, consumed } = split.expect("the node sends whole frames") else { return None };
    keep(&input[payload], framing, received);
    Some(consumed)
}

fn take_ws(
    decoder: &mut ws::Decoder,
    input: &mut [u8],
    wire: Wire,
    received: &mut Received,
) -> Option<usize> {
    let limits = ws::WsLimits { message_bytes_max: 1 << 20, fragments_max: 1 };
    let step = decoder.next(input, &limits).expect("the node frames well");
    let WsStep::Frame { consumed, event } = step else { return None };
    assert!(received.status.is_none(), "a frame after the close frame");
    match event {
        WsEvent::Message { payload, .. } => keep(&payload, wire.framing(), received),
        WsEvent::Pong(_) => received.pongs += 1,
        WsEvent::Close { code, .. } => received.status = code,
        WsEvent::Ping(_) | WsEvent::Part => panic!("the node does not send these"),
    }
    Some(consumed)
}

fn keep(payload: &[u8], framing: Framing, received: &mut Received) {
    match codec::decode_server(payload, framing).expect("the node sends good frames") {
        Decoded::Frame(frame) => received.frames.push(frame),
        Decoded::Empty => panic!("the node sends no empty frames"),
    }
}
