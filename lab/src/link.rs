//! A client's connection over one of the four wires.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, bail};
use futures_util::{SinkExt as _, StreamExt as _};
use tidegate_protocol::{
    codec::{self, Decoded, Framing, Split, Wire},
    pb,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, client::IntoClientRequest, http::HeaderValue},
};

/// Time for the connect, the upgrade or one write.
const IO_TIMEOUT: Duration = Duration::from_secs(8);

/// Largest frame that a client accepts.
const FRAME_MAX: usize = 1 << 20;

/// A connection of a client.
pub(crate) enum ClientSocket {
    /// Connection with `TG/1` or JSON lines.
    Stream { stream: TcpStream, buffer: Vec<u8>, framing: Framing },
    /// WebSocket with either sub-protocol.
    Ws { socket: Box<WebSocketStream<TcpStream>>, framing: Framing },
}

impl ClientSocket {
    /// Connects and does what the wire needs before the first frame.
    pub(crate) async fn connect(address: SocketAddr, wire: Wire) -> anyhow::Result<Self> {
        let mut stream = timeout(IO_TIMEOUT, TcpStream::connect(address)).await??;
        stream.set_nodelay(true)?;
        let framing = wire.framing();
        let protocol = match wire {
            Wire::Tcp => {
                stream.write_all(b"TG/1\n").await?;
                None
            }
            Wire::JsonLine => None,
            Wire::WsBinary => Some("tidegate.v1.proto"),
            Wire::WsText => Some("tidegate.v1.json"),
        };
        let Some(protocol) = protocol else {
            return Ok(Self::Stream { stream, buffer: Vec::new(), framing });
        };
        let mut request = format!("ws://{address}/v1/ws").into_client_request()?;
        request.headers_mut().insert("Sec-WebSocket-Protocol", HeaderValue::from_static(protocol));
        let upgrade = tokio_tungstenite::client_async(request, stream);
        let (socket, _) = timeout(IO_TIMEOUT, Box::pin(upgrade)).await??;
        Ok(Self::Ws { socket: Box::new(socket), framing })
    }

    /// Connects and logs in. The first answer of the node has to be `Welcome`.
    pub(crate) async fn log_in(address: SocketAddr, wire: Wire, hello: pb::Hello) -> anyhow::Result<Self> {
        let mut link = Self::connect(address, wire).await?;
        let body = Some(pb::client_frame::Body::Hello(pb::Hello { version: 1, ..hello }));
        link.send(&[pb::ClientFrame { id: 1, body }]).await?;
        match link.next().await?.body {
            Some(pb::server_frame::Body::Welcome(_)) => Ok(link),
            other => bail!("no welcome: {other:?}"),
        }
    }

    /// Sends frames with one write.
    pub(crate) async fn send(&mut self, frames: &[pb::ClientFrame]) -> anyhow::Result<()> {
        if frames.is_empty() {
            return Ok(());
        }
        timeout(IO_TIMEOUT, self.write(frames)).await.context("the write takes too long")?
    }

    async fn write(&mut self, frames: &[pb::ClientFrame]) -> anyhow::Result<()> {
        match self {
            Self::Stream { stream, framing, .. } => {
                let (mut bytes, mut payload) = (Vec::new(), Vec::new());
                for frame in frames {
                    payload.clear();
                    codec::encode_client(frame, *framing, &mut payload);
                    if *framing == Framing::Proto {
                        codec::tcp::put_length(payload.len(), &mut bytes);
                    }
                    bytes.extend_from_slice(&payload);
                    if *framing == Framing::Json {
                        bytes.push(b'\n');
                    }
                }
                stream.write_all(&bytes).await?;
            }
            Self::Ws { socket, framing } => {
                for frame in frames {
                    let mut payload = Vec::new();
                    codec::encode_client(frame, *framing, &mut payload);
                    let message = match framing {
                        Framing::Proto => Message::binary(payload),
                        Framing::Json => Message::text(String::from_utf8(payload)?),
                    };
                    socket.feed(message).await?;
                }
                socket.flush().await?;
            }
        }
        Ok(())
    }

    /// Returns the next frame. Cancelling the wait loses nothing.
    pub(crate) async fn next(&mut self) -> anyhow::Result<pb::ServerFrame> {
        match self {
            Self::Stream { stream, buffer, framing } => loop {
                if let Some(frame) = cut(buffer, *framing)? {
                    return Ok(frame);
                }
                if stream.read_buf(buffer).await? == 0 {
                    bail!("the end of the stream");
                }
            },
            Self::Ws { socket, framing } => loop {
                let message = socket.next().await.context("the end of the stream")??;
                let payload = match &message {
                    Message::Text(text) => text.as_bytes(),
                    Message::Binary(bytes) => bytes,
                    _ => continue,
                };
                if let Decoded::Frame(frame) = codec::decode_server(payload, *framing)? {
                    return Ok(frame);
                }
            },
        }
    }
}

fn cut(buffer: &mut Vec<u8>, framing: Framing) -> anyhow::Result<Option<pb::ServerFrame>> {
    loop {
        let split = match framing {
            Framing::Proto => codec::tcp::split(buffer, FRAME_MAX)?,
            Framing::Json => codec::json::split_line(buffer, 0, FRAME_MAX)?,
        };
        let Split::Frame { payload, consumed } = split else { return Ok(None) };
        let decoded = codec::decode_server(&buffer[payload], framing)?;
        buffer.drain(..consumed);
        if let Decoded::Frame(frame) = decoded {
            return Ok(Some(frame));
        }
    }
}
