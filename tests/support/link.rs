//! Connection that carries frames over one of the four wires, and reports how it ended.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use tidegate_protocol::{
    codec::{self, Decoded, Framing, Split, Wire},
    pb,
};
use tokio_tungstenite::tungstenite::{
    self, Message, WebSocket,
    client::IntoClientRequest,
    handshake::HandshakeError,
    http::HeaderValue,
    protocol::{CloseFrame, WebSocketConfig},
};

use super::WAIT_MAX;

/// One received item.
#[derive(Debug)]
pub enum Incoming {
    /// A frame.
    Frame(Box<pb::ServerFrame>),
    /// A WebSocket pong.
    Pong(Vec<u8>),
    /// A WebSocket close frame, with its status.
    WsClose(Option<u16>),
    /// The end of the stream.
    End,
    /// An error of the stream, such as a reset.
    Broken(String),
    /// Nothing within the time.
    Nothing,
}

/// One connection of a test.
pub enum Link {
    /// `TG/1` and JSON lines.
    Stream { stream: TcpStream, buffer: Vec<u8>, framing: Framing },
    /// Both sub-protocols of a WebSocket.
    Ws { socket: Box<WebSocket<TcpStream>>, framing: Framing },
    /// `TG/1` and JSON lines, in memory.
    Memory { end: Box<dyn MemoryLink + Send>, framing: Framing },
}

/// Connection in memory. It never waits, because nothing arrives while its owner does.
pub trait MemoryLink {
    /// Sends bytes.
    fn send(&mut self, bytes: &[u8]);
    /// Returns the next thing that has arrived.
    fn receive(&mut self) -> Incoming;
    /// Ends this side of the connection.
    fn half_close(&self);
    /// Returns whether the connection was reset.
    fn is_reset(&self) -> bool;
}

/// Limit of a received frame in bytes.
const FRAME_MAX: usize = 16 << 20;

impl Link {
    /// Connects and performs the handshake of the wire.
    pub fn connect(address: SocketAddr, wire: Wire) -> Self {
        let mut stream = TcpStream::connect_timeout(&address, WAIT_MAX).expect("the node accepts");
        stream.set_nodelay(true).expect("a socket takes options");
        stream.set_read_timeout(Some(WAIT_MAX)).expect("a socket takes options");
        let framing = wire.framing();
        match wire {
            Wire::Tcp => stream.write_all(b"TG/1\n").expect("the node reads"),
            Wire::JsonLine => {}
            Wire::WsBinary => return Self::upgrade(stream, address, "tidegate.v1.proto", framing),
            Wire::WsText => return Self::upgrade(stream, address, "tidegate.v1.json", framing),
        }
        Self::Stream { stream, buffer: Vec::new(), framing }
    }

    fn upgrade(stream: TcpStream, address: SocketAddr, protocol: &'static str, framing: Framing) -> Self {
        let mut request = format!("ws://{address}/v1/ws").into_client_request().expect("a good URL");
        request.headers_mut().insert("Sec-WebSocket-Protocol", HeaderValue::from_static(protocol));
        let small = WebSocketConfig::default().read_buffer_size(4096).write_buffer_size(0);
        let (socket, response) =
            tungstenite::client::client_with_config(request, stream, Some(small)).expect("an upgrade");
        assert_eq!(response.headers()["sec-websocket-protocol"], protocol);
        Self::Ws { socket: Box::new(socket), framing }
    }

    /// Connects as a web page does, with these headers; returns the status of a refusal. The wire is `WsText`.
    pub fn from_page(address: SocketAddr, headers: &[(&'static str, &str)]) -> Result<Self, u16> {
        let stream = TcpStream::connect_timeout(&address, WAIT_MAX).expect("the node accepts");
        stream.set_read_timeout(Some(WAIT_MAX)).expect("a socket takes options");
        let mut request = format!("ws://{address}/v1/ws").into_client_request().expect("a good URL");
        for (name, value) in headers {
            request.headers_mut().insert(*name, HeaderValue::from_str(value).expect("a header"));
        }
        match tungstenite::client::client(request, stream) {
            Ok((socket, _)) => Ok(Self::Ws { socket: Box::new(socket), framing: Framing::Json }),
            Err(HandshakeError::Failure(tungstenite::Error::Http(response))) => {
                Err(response.status().as_u16())
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Returns the socket below.
    pub fn stream(&self) -> &TcpStream {
        match self {
            Self::Stream { stream, .. } => stream,
            Self::Ws { socket, .. } => socket.get_ref(),
            Self::Memory { .. } => panic!("a connection in memory has no socket"),
        }
    }

    /// Sends a frame. An error because the node has closed is ignored: its output is still to be read.
    pub fn send(&mut self, frame: &pb::ClientFrame) {
        let mut payload = Vec::new();
        codec::encode_client(frame, self.framing(), &mut payload);
        self.send_payload(&payload);
    }

    /// Sends any payload as a frame of this wire.
    pub fn send_payload(&mut self, payload: &[u8]) {
        match self {
            Self::Stream { stream, framing, .. } => {
                stream.write_all(&enclosed(payload, *framing)).ok();
            }
            Self::Memory { end, framing } => end.send(&enclosed(payload, *framing)),
            Self::Ws { socket, framing } => {
                let message = match framing {
                    Framing::Proto => Message::binary(payload.to_vec()),
                    Framing::Json => {
                        Message::text(String::from_utf8(payload.to_vec()).expect("JSON is UTF-8"))
                    }
                };
                socket.send(message).ok();
            }
        }
    }

    /// Sends a WebSocket ping.
    pub fn ws_ping(&mut self, payload: &[u8]) {
        let Self::Ws { socket, .. } = self else { panic!("only a WebSocket has its own pings") };
        socket.send(Message::Ping(payload.to_vec().into())).ok();
    }

    /// Shuts the sending side.
    pub fn half_close(&self) {
        match self {
            Self::Memory { end, .. } => end.half_close(),
            Self::Stream { .. } | Self::Ws { .. } => drop(self.stream().shutdown(Shutdown::Write)),
        }
    }

    /// Returns the next item that arrives until `deadline`.
    pub fn receive(&mut self, deadline: Instant) -> Incoming {
        if let Self::Memory { end, .. } = self {
            return end.receive();
        }
        loop {
            let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            self.stream().set_read_timeout(Some(left)).expect("a socket takes options");
            match self.step() {
                Incoming::Nothing if Instant::now() < deadline => {}
                other => return other,
            }
        }
    }

    fn framing(&self) -> Framing {
        match self {
            Self::Stream { framing, .. } | Self::Ws { framing, .. } | Self::Memory { framing, .. } => {
                *framing
            }
        }
    }

    fn step(&mut self) -> Incoming {
        match self {
            Self::Stream { stream, buffer, framing } => {
                if let Some(frame) = cut(buffer, *framing) {
                    return Incoming::Frame(Box::new(frame));
                }
                let mut more = [0; 16 * 1024];
                match stream.read(&mut more) {
                    Ok(0) => {
                        assert!(buffer.is_empty(), "the stream ends inside a frame: {buffer:?}");
                        Incoming::End
                    }
                    Ok(read) => {
                        buffer.extend_from_slice(&more[..read]);
                        Incoming::Nothing
                    }
                    Err(error) => failed(&error),
                }
            }
            Self::Memory { end, .. } => end.receive(),
            Self::Ws { socket, framing } => match socket.read() {
                Ok(Message::Text(text)) if *framing == Framing::Json => {
                    Incoming::Frame(Box::new(decode(text.as_bytes(), *framing)))
                }
                Ok(Message::Binary(bytes)) if *framing == Framing::Proto => {
                    Incoming::Frame(Box::new(decode(&bytes, *framing)))
                }
                Ok(Message::Pong(payload)) => Incoming::Pong(payload.to_vec()),
                Ok(Message::Close(close)) => {
                    Incoming::WsClose(close.map(|CloseFrame { code, .. }| u16::from(code)))
                }
                Ok(other) => panic!("a message that the wire does not have: {other:?}"),
                // Reply to a close frame after this side was shut.
                Err(tungstenite::Error::Io(error)) if error.kind() == ErrorKind::BrokenPipe => Incoming::End,
                Err(tungstenite::Error::Io(error)) => failed(&error),
                Err(tungstenite::Error::ConnectionClosed | tungstenite::Error::AlreadyClosed) => {
                    Incoming::End
                }
                Err(other) => Incoming::Broken(other.to_string()),
            },
        }
    }
}

/// Encloses a payload as the stream framings do.
fn enclosed(payload: &[u8], framing: Framing) -> Vec<u8> {
    let mut bytes = Vec::new();
    match framing {
        Framing::Proto => codec::tcp::put_length(payload.len(), &mut bytes),
        Framing::Json => {}
    }
    bytes.extend_from_slice(payload);
    if framing == Framing::Json {
        bytes.push(b'\n');
    }
    bytes
}

/// Cuts the next frame out of the bytes of a stream.
pub fn cut(buffer: &mut Vec<u8>, framing: Framing) -> Option<pb::ServerFrame> {
    let split = match framing {
        Framing::Proto => codec::tcp::split(buffer, FRAME_MAX),
        Framing::Json => codec::json::split_line(buffer, 0, FRAME_MAX),
    };
    let Split::Frame { payload, consumed } = split.expect("the node sends whole frames") else { return None };
    let frame = decode(&buffer[payload], framing);
    buffer.drain(..consumed);
    Some(frame)
}

fn decode(payload: &[u8], framing: Framing) -> pb::ServerFrame {
    match codec::decode_server(payload, framing).expect("the node sends valid frames") {
        Decoded::Frame(frame) => frame,
        Decoded::Empty => panic!("the node sent an empty frame"),
    }
}

fn failed(error: &std::io::Error) -> Incoming {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => Incoming::Nothing,
        _ => Incoming::Broken(error.to_string()),
    }
}
