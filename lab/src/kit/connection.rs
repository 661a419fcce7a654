//! A connection of the client under test: its bytes become frames on the board, and orders of the player become bytes.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use tidegate_protocol::{
    codec::{self, Decoded, Framing, Preface, Split},
    pb,
    ws::{self, Decoder, Kind, Opcode, WsEvent, WsLimits, WsStep},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use super::{
    board::{Arrived, Board, ConnectionLog, ORDERS_MAX, Order},
    step::Cut,
    wire::{self, FrameForm, KitTransport},
};

const FRAME_MAX: usize = 1 << 20;
const LIMITS: WsLimits = WsLimits { message_bytes_max: FRAME_MAX, fragments_max: 64 };

/// Time in which input is discarded after the node has ended the stream.
const LINGER: Duration = Duration::from_millis(500);
/// Time between two parts of a frame, in which the first one arrives.
const PAUSE: Duration = Duration::from_millis(30);

/// Accepts the connections to an address of the case.
pub(super) async fn listen(listener: TcpListener, name: String, transport: KitTransport, board: Arc<Board>) {
    let mut tasks = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        stream.set_nodelay(true).ok();
        let (orders, inbox) = mpsc::channel(ORDERS_MAX);
        let (index, refusal) = board.update(|log| {
            let refusal = log.refusals.get_mut(&name).and_then(VecDeque::pop_front);
            log.connections.push(ConnectionLog {
                listener: name.clone(),
                accepted: Instant::now(),
                is_ready: false,
                fault: None,
                frames: Vec::new(),
                ended: None,
                orders,
                // No step expects a connection that is refused.
                is_taken: refusal.is_some(),
            });
            (log.connections.len() - 1, refusal)
        });
        let connection = Connection {
            stream,
            transport,
            index,
            board: Arc::clone(&board),
            input: Vec::new(),
            decoder: Decoder::server(),
        };
        tasks.spawn(async move {
            let board = Arc::clone(&connection.board);
            let result = Box::pin(connection.run(inbox, refusal)).await;
            board.update(|log| {
                let entry = &mut log.connections[index];
                entry.ended.get_or_insert_with(Instant::now);
                entry.fault = entry.fault.take().or_else(|| result.err().map(|error| format!("{error:#}")));
            });
        });
    }
}

struct Connection {
    stream: TcpStream,
    transport: KitTransport,
    index: usize,
    board: Arc<Board>,
    input: Vec<u8>,
    decoder: Decoder,
}

/// A unit of the client's stream.
enum Unit {
    Frame(Value),
    Control(&'static str, Vec<u8>),
}

impl Connection {
    async fn run(mut self, mut inbox: mpsc::Receiver<Order>, refusal: Option<Value>) -> Result<()> {
        if let Some(refusal) = refusal {
            return self.refuse(&refusal).await;
        }
        if !self.begin().await? {
            return Ok(());
        }
        self.board.update(|log| log.connections[self.index].is_ready = true);
        let mut is_stalled = false;
        loop {
            while !is_stalled && let Some(unit) = self.take()? {
                if !self.arrived(unit).await? {
                    return Ok(());
                }
            }
            tokio::select! {
                order = inbox.recv() => match order {
                    Some(Order::Write(parts)) => self.write(&parts).await,
                    Some(Order::Stall(stalls)) => is_stalled = stalls,
                    Some(Order::Cut(cut)) => return self.cut(cut).await,
                    None => return Ok(()),
                },
                read = self.stream.read_buf(&mut self.input), if !is_stalled => {
                    // A reset is an end of the connection like another.
                    if read.unwrap_or(0) == 0 {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Reads the first bytes up to the first frame. Returns `false` if the client ended before.
    async fn begin(&mut self) -> Result<bool> {
        let preface = loop {
            if let Some(preface) = codec::detect(&self.input).found()? {
                break preface;
            }
            if self.stream.read_buf(&mut self.input).await.unwrap_or(0) == 0 {
                return Ok(false);
            }
        };
        let expected = match self.transport {
            KitTransport::TcpJson => Preface::JsonLines,
            KitTransport::TcpProto => Preface::Tcp,
            KitTransport::WsJson | KitTransport::WsProto => Preface::Http,
        };
        ensure!(preface == expected, "the client began with {preface:?} on {}", self.transport.name());
        self.input.drain(..preface.skip());
        if preface == Preface::Http { self.upgrade().await } else { Ok(true) }
    }

    async fn upgrade(&mut self) -> Result<bool> {
        let end = loop {
            if let Some(at) = self.input.windows(4).position(|window| window == b"\r\n\r\n") {
                break at + 4;
            }
            ensure!(self.input.len() < 8_192, "the request head has more than 8 KiB");
            if self.stream.read_buf(&mut self.input).await.unwrap_or(0) == 0 {
                return Ok(false);
            }
        };
        let head = String::from_utf8_lossy(&self.input[..end]).into_owned();
        self.input.drain(..end);
        let header = |name: &str| {
            let found = head.lines().filter_map(|line| line.split_once(':'));
            found.into_iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
        };
        let path = head.split_whitespace().nth(1).unwrap_or_default();
        ensure!(matches!(path, "/" | "/v1/ws"), "the path of the upgrade is {path}");
        let key = header("sec-websocket-key").context("no Sec-WebSocket-Key")?;
        let wanted = match self.transport.framing() {
            Framing::Json => "tidegate.v1.json",
            Framing::Proto => "tidegate.v1.proto",
        };
        let offered = header("sec-websocket-protocol").unwrap_or("tidegate.v1.json");
        ensure!(offered.split(',').any(|it| it.trim() == wanted), "sub-protocols {offered}, not {wanted}");
        let protocol = match header("sec-websocket-protocol") {
            Some(_) => format!("Sec-WebSocket-Protocol: {wanted}\r\n"),
            None => String::new(),
        };
        let answer = format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {}\r\n{protocol}\r\n",
            derive_accept_key(key.as_bytes())
        );
        Ok(self.stream.write_all(answer.as_bytes()).await.is_ok())
    }

    /// Writes parts of a frame. A client may have gone meanwhile.
    async fn write(&mut self, parts: &[Vec<u8>]) {
        for (at, part) in parts.iter().enumerate() {
            if at > 0 {
                tokio::time::sleep(PAUSE).await;
            }
            self.stream.write_all(part).await.ok();
        }
    }

    /// Takes the next unit from the input.
    fn take(&mut self) -> Result<Option<Unit>> {
        let framing = self.transport.framing();
        if self.transport.is_ws() {
            let step = self.decoder.next(&mut self.input, &LIMITS)?;
            let WsStep::Frame { consumed, event } = step else { return Ok(None) };
            let unit = match event {
                WsEvent::Message { kind, payload } => {
                    let is_text = kind == Kind::Text;
                    ensure!(is_text == (framing == Framing::Json), "a {kind:?} message");
                    Unit::Frame(decoded(&payload, framing)?)
                }
                WsEvent::Part => Unit::Control("wsPart", Vec::new()),
                WsEvent::Ping(payload) => Unit::Control("wsPing", payload.to_vec()),
                WsEvent::Pong(payload) => Unit::Control("wsPong", payload.to_vec()),
                WsEvent::Close { .. } => Unit::Control("wsClose", Vec::new()),
            };
            self.input.drain(..consumed);
            return Ok(Some(unit));
        }
        let split = match framing {
            Framing::Proto => codec::tcp::split(&self.input, FRAME_MAX)?,
            Framing::Json => codec::json::split_line(&self.input, 0, FRAME_MAX)?,
        };
        let Split::Frame { payload, consumed } = split else { return Ok(None) };
        let frame = decoded(&self.input[payload], framing)?;
        self.input.drain(..consumed);
        Ok(Some(Unit::Frame(frame)))
    }

    /// Puts a unit on the board, and writes the answers to it. Returns `false` if the connection has ended.
    async fn arrived(&mut self, unit: Unit) -> Result<bool> {
        let (kind, frame) = match unit {
            Unit::Control(kind, payload) => {
                let mut out = Vec::new();
                match kind {
                    "wsPing" => ws::encode_server(Opcode::Pong, &payload, &mut out),
                    "wsClose" => ws::encode_close_reply(None, &mut out),
                    _ => {}
                }
                self.stream.write_all(&out).await.ok();
                (kind.to_owned(), json!({kind: String::from_utf8_lossy(&payload)}))
            }
            Unit::Frame(frame) => {
                let fields = frame.as_object().into_iter().flatten();
                let kind = fields.map(|(key, _)| key.clone()).find(|key| key != "id");
                (kind.unwrap_or_else(|| "empty".to_owned()), frame)
            }
        };
        let is_end = kind == "wsClose";
        let mut out = Vec::new();
        let mut closes = false;
        let answers = self.board.update(|log| {
            let answers = log.answers.to(&kind, &frame);
            let at = Instant::now();
            let is_taken = false;
            log.connections[self.index].frames.push(Arrived { at, kind, frame, is_taken });
            log.sent.extend(answers.iter().map(|answer| (at, self.index, answer.clone())));
            answers
        });
        for answer in answers {
            closes |= answer["close"].is_object();
            wire::put(&answer, self.transport, FrameForm::PLAIN, &mut out)?;
        }
        self.stream.write_all(&out).await.ok();
        if closes {
            self.cut(Cut::End).await?;
        }
        Ok(!closes && !is_end)
    }

    /// Ends the connection.
    async fn cut(&mut self, cut: Cut) -> Result<()> {
        match cut {
            Cut::Keep => {}
            Cut::Reset => self.stream.set_zero_linger()?,
            Cut::End => {
                self.stream.shutdown().await.ok();
                let mut rest = Vec::new();
                let discard = self.stream.read_to_end(&mut rest);
                tokio::time::timeout(LINGER, discard).await.ok();
            }
        }
        Ok(())
    }

    /// Ends a connection before its login, as a node does that takes no more.
    async fn refuse(&mut self, refusal: &Value) -> Result<()> {
        let bytes = match (refusal.as_str(), refusal["http"].as_u64()) {
            (Some("reset"), _) => return self.cut(Cut::Reset).await,
            (_, Some(status)) => {
                while !self.input.windows(4).any(|window| window == b"\r\n\r\n") {
                    if self.stream.read_buf(&mut self.input).await.unwrap_or(0) == 0 {
                        return Ok(());
                    }
                }
                let body = format!("{}\n", refusal["body"]);
                format!(
                    "HTTP/1.1 {status} Refused\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                    body.len()
                )
            }
            _ if refusal["close"].is_object() => {
                wire::server_frame(refusal)?;
                format!("{refusal}\n")
            }
            _ => bail!("unknown refusal {refusal}"),
        };
        self.stream.write_all(bytes.as_bytes()).await.ok();
        self.cut(Cut::End).await
    }
}

/// Returns the canonical JSON of a client frame, `{}` for an empty one.
fn decoded(payload: &[u8], framing: Framing) -> Result<Value> {
    Ok(match codec::decode_client(payload, framing)? {
        Decoded::Empty => json!({}),
        Decoded::Frame(pb::ClientFrame { body: None, .. }) => bail!("a frame of an unknown kind"),
        Decoded::Frame(frame) => serde_json::to_value(&frame)?,
    })
}
