//! From bytes to frames: reads into the shard's buffer, cuts, decodes, and hands each frame to the session.

use std::io;

use tidegate_protocol::{
    Code,
    codec::{self, Decoded, Detect, Framing, Preface, Split, Wire, WireError},
    pb, ws,
};

use super::{
    READ_BUDGET_BYTES, Shard,
    conn::{Conn, Ending, Partial, Stage},
    write::REPLY_CHUNK,
};
use crate::net::{
    transfer,
    upgrade::{self, Progress},
};

/// What the bytes at hand gave.
enum Cut {
    /// So many bytes are done with; go on.
    Consumed(usize),
    /// The rest is no whole frame; a newline was looked for up to there.
    Need(usize),
}

impl Shard {
    /// Reads what the socket has, within the budget, and acts on every whole frame.
    pub(super) fn read(&mut self, conn: &mut Conn) {
        self.go_on(conn);
        let mut budget = READ_BUDGET_BYTES;
        loop {
            if conn.is_open() && !conn.session.wants_read(&self.context.limits) {
                conn.paused = true;
                break;
            }
            let kept = self.recall_partial(conn);
            match self.receive(conn, kept) {
                Ok(0) => {
                    self.keep_partial(conn, 0, kept, 0);
                    self.on_end_of_input(conn);
                    break;
                }
                Ok(received) => {
                    let end = kept + received;
                    let whole_buffer = end == self.scratch.read.len();
                    if conn.is_open() {
                        self.consume(conn, end);
                    }
                    budget = budget.saturating_sub(received);
                    if (!whole_buffer && !conn.peer_ended) || conn.is_gone() {
                        break;
                    }
                    if budget == 0 {
                        self.again.push(conn.key.slot);
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.keep_partial(
                        conn,
                        0,
                        kept,
                        conn.partial.as_ref().map_or(0, |partial| partial.scanned),
                    );
                    break;
                }
                Err(_) => {
                    self.peer_gone(conn);
                    break;
                }
            }
        }
        self.flush(conn);
    }

    /// Goes on with a connection whose reading was paused, if it may read again.
    pub(super) fn resume(&mut self, conn: &mut Conn) {
        if conn.paused && conn.is_open() && conn.session.wants_read(&self.context.limits) {
            conn.paused = false;
            if let Some(partial) = &mut conn.partial {
                // The pause was ours: the frame has its time again.
                partial.since = self.now;
            }
            let kept = self.recall_partial(conn);
            if kept > 0 {
                self.consume(conn, kept);
            }
            if !conn.paused {
                self.again.push(conn.key.slot);
            }
        }
    }

    fn receive(&mut self, conn: &Conn, kept: usize) -> io::Result<usize> {
        let Some(stream) = self.conns.hot[conn.key.slot as usize].stream.as_ref() else { return Ok(0) };
        loop {
            match transfer::read(stream, &mut self.scratch.read[kept..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    /// Copies the incomplete frame to the front of the shared buffer.
    fn recall_partial(&mut self, conn: &Conn) -> usize {
        let Some(partial) = &conn.partial else { return 0 };
        self.scratch.read[..partial.bytes.len()].copy_from_slice(&partial.bytes);
        partial.bytes.len()
    }

    fn keep_partial(&mut self, conn: &mut Conn, from: usize, to: usize, scanned: usize) {
        // A fragmented message that is open is a frame that was begun, whatever comes between its fragments.
        let open = matches!(&conn.stage, Stage::Ws(decoder) if decoder.is_open());
        if (from == to && !open) || !conn.is_open() {
            conn.partial = None;
            return;
        }
        let bytes = &self.scratch.read[from..to];
        match &mut conn.partial {
            Some(partial) => {
                let fresh = from > 0 && !open;
                partial.bytes.clear();
                partial.bytes.extend_from_slice(bytes);
                partial.scanned = scanned;
                if fresh {
                    partial.since = self.now;
                }
            }
            None => {
                let partial = Partial { bytes: bytes.to_vec(), scanned, since: self.now };
                conn.partial = Some(Box::new(partial));
            }
        }
    }

    /// Acts on the whole frames among the first `end` bytes of the shared buffer, keeps the rest.
    fn consume(&mut self, conn: &mut Conn, end: usize) {
        let mut buffer = std::mem::take(&mut self.scratch.read);
        let mut scanned = conn.partial.as_ref().map_or(0, |partial| partial.scanned);
        let mut at = 0;
        while at < end && conn.is_open() {
            if !conn.session.wants_read(&self.context.limits) {
                conn.paused = true;
                break;
            }
            match self.cut(conn, &mut buffer[at..end], scanned) {
                Ok(Cut::Consumed(bytes)) => {
                    at += bytes;
                    scanned = 0;
                    if self.scratch.reply.len() >= REPLY_CHUNK {
                        self.flush(conn);
                    }
                }
                Ok(Cut::Need(looked)) => {
                    scanned = looked;
                    break;
                }
                Err((code, reason)) => self.violation(conn, code, reason),
            }
        }
        self.scratch.read = buffer;
        self.keep_partial(conn, at, end, scanned);
    }

    fn cut(&mut self, conn: &mut Conn, input: &mut [u8], scanned: usize) -> Result<Cut, (Code, String)> {
        match conn.stage {
            Stage::Detect => self.detect(conn, input),
            Stage::Http => self.upgrade(conn, input),
            Stage::Tcp => {
                let split = codec::tcp::split(input, self.context.limits.frame_bytes_max as usize);
                self.cut_stream(conn, split, input, Framing::Proto)
            }
            Stage::Json => {
                let limit = self.context.limits.frame_bytes_max as usize;
                let split = codec::json::split_line(input, scanned, limit);
                self.cut_stream(conn, split, input, Framing::Json)
            }
            Stage::Ws(_) => self.cut_ws(conn, input),
        }
    }

    fn detect(&mut self, conn: &mut Conn, input: &[u8]) -> Result<Cut, (Code, String)> {
        let (stage, wire, skip) = match codec::detect(input) {
            Detect::NeedMore => return Ok(Cut::Need(0)),
            Detect::Found(preface @ Preface::Tcp) => (Stage::Tcp, Wire::Tcp, preface.skip()),
            Detect::Found(Preface::JsonLines) => (Stage::Json, Wire::JsonLine, 0),
            Detect::Found(Preface::Http) => (Stage::Http, Wire::WsText, 0),
            Detect::Found(Preface::Tls) => {
                return Err((Code::UnknownFraming, "TLS is not served on this port".into()));
            }
            Detect::Found(Preface::ProxyV1 | Preface::ProxyV2) => {
                return Err((Code::UnknownFraming, "PROXY headers are not expected on this port".into()));
            }
            Detect::Unknown => return Err((Code::UnknownFraming, String::new())),
        };
        conn.stage = stage;
        self.conns.hot[conn.key.slot as usize].wire = wire;
        Ok(Cut::Consumed(skip))
    }

    fn upgrade(&mut self, conn: &mut Conn, input: &[u8]) -> Result<Cut, (Code, String)> {
        match upgrade::upgrade(input, &self.context.upgrade) {
            Ok(Progress::NeedMore) => Ok(Cut::Need(0)),
            Ok(Progress::Done { consumed, response, framing }) => {
                self.scratch.reply.extend_from_slice(&response);
                self.conns.hot[conn.key.slot as usize].wire = match framing {
                    upgrade::Framing::Json => Wire::WsText,
                    upgrade::Framing::Proto => Wire::WsBinary,
                };
                conn.stage = Stage::Ws(ws::Decoder::server());
                Ok(Cut::Consumed(consumed))
            }
            Ok(Progress::Assign(asked)) => {
                let response = self.context.assigner.answer(&asked, &self.context.verifier);
                self.scratch.reply.extend_from_slice(&response);
                self.finish(conn, Code::Bye);
                Ok(Cut::Consumed(input.len()))
            }
            Err(refusal) => {
                self.scratch.reply.extend_from_slice(&refusal.response);
                self.finish(conn, Code::BadUpgrade);
                Ok(Cut::Consumed(input.len()))
            }
        }
    }

    fn cut_stream(
        &mut self,
        conn: &mut Conn,
        split: Result<Split, WireError>,
        input: &[u8],
        framing: Framing,
    ) -> Result<Cut, (Code, String)> {
        match split.map_err(refused)? {
            Split::Need { .. } => Ok(Cut::Need(input.len())),
            Split::Frame { payload, consumed } => {
                let frame = codec::decode_client(&input[payload], framing).map_err(refused)?;
                self.on_frame(conn, frame);
                Ok(Cut::Consumed(consumed))
            }
        }
    }

    fn cut_ws(&mut self, conn: &mut Conn, input: &mut [u8]) -> Result<Cut, (Code, String)> {
        let limits = ws::Limits {
            message_bytes_max: self.context.limits.frame_bytes_max as usize,
            fragments_max: FRAGMENTS_MAX,
        };
        let Stage::Ws(decoder) = &mut conn.stage else { return Ok(Cut::Need(0)) };
        let step = decoder.next(input, &limits).map_err(|violation| {
            self.scratch.ws_status = Some(violation.close_code());
            (violation.code(), violation.to_string())
        })?;
        let ws::Step::Frame { consumed, event } = step else { return Ok(Cut::Need(0)) };
        match event {
            ws::Event::Message { kind, payload } => {
                if let Some(partial) = &mut conn.partial {
                    partial.since = self.now;
                }
                let framing = self.conns.hot[conn.key.slot as usize].wire.framing();
                if (kind == ws::Kind::Text) != (framing == Framing::Json) {
                    return Err((Code::Malformed, "text messages are JSON, binary ones protobuf".into()));
                }
                let frame = codec::decode_client(&payload, framing).map_err(refused)?;
                self.on_frame(conn, frame);
            }
            ws::Event::Part | ws::Event::Pong(_) => conn.session.handle_heard(self.now),
            ws::Event::Ping(payload) => {
                let mut pong = Vec::with_capacity(payload.len() + 2);
                ws::encode_server(ws::Opcode::Pong, payload, &mut pong);
                conn.session.handle_heard(self.now);
                self.scratch.reply.extend_from_slice(&pong);
            }
            ws::Event::Close { code, .. } => {
                let mut reply = Vec::new();
                ws::encode_close_reply(code, &mut reply);
                self.scratch.reply.extend_from_slice(&reply);
                self.finish(conn, Code::Bye);
            }
        }
        Ok(Cut::Consumed(consumed))
    }

    fn on_frame(&mut self, conn: &mut Conn, frame: Decoded<pb::ClientFrame>) {
        self.frames_in += 1;
        match frame {
            Decoded::Frame(frame) => {
                conn.session.handle_frame(frame, &self.context.limits, self.now, &mut self.scratch.actions);
            }
            Decoded::Empty => {
                conn.session.handle_empty(self.now, &mut self.scratch.actions);
            }
        }
        self.act(conn);
    }

    /// A half-closed client still gets its answers, as if it had said Bye; then the connection ends.
    fn on_end_of_input(&mut self, conn: &mut Conn) {
        conn.half_closed = true;
        match conn.ending {
            None => {
                conn.session.leave(Code::Bye, "", &mut self.scratch.actions);
                self.act(conn);
            }
            Some(Ending::Flushing(_)) => {}
            Some(Ending::Lingering(_) | Ending::Gone) => conn.ending = Some(Ending::Gone),
        }
    }

    fn violation(&mut self, conn: &mut Conn, code: Code, reason: String) {
        self.context.metrics.frames_bad.increment(1);
        conn.session.handle_violation(code, reason, &mut self.scratch.actions);
        self.act(conn);
    }
}

/// Frames one WebSocket message may be cut into.
const FRAGMENTS_MAX: u32 = 64;

fn refused(error: WireError) -> (Code, String) {
    (error.code(), error.to_string())
}
