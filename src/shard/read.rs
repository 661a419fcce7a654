//! Reading: reads bytes into the shard's buffer, splits and decodes frames, and passes each to the session.

mod visits;

use std::{io, mem};

use tidegate_protocol::{
    Code,
    codec::{self, Decoded, Detect, Framing, Preface, Split, Wire, WireError},
    machine::session::SessionPhase,
    pb, ws,
};

use self::visits::COST_BYTES;
use super::{
    READ_BUDGET_BYTES, Shard,
    conn::{ClientPage, Conn, Ending, PartialFrame, Stage},
    write::REPLY_CHUNK_BYTES,
};
use crate::{
    assign,
    evidence::EvidenceKind,
    mail::TokenUse,
    net::{
        io::Io,
        tcp::FOREIGN_PROXY_HEADER,
        upgrade::{self, UpgradeProgress, UpgradeRefusal},
    },
};

/// First bytes of requests that any web page can make its visitors send, and that the port does not serve.
const WEB_METHODS: [&[u8]; 5] = [b"POST ", b"HEAD ", b"PUT ", b"PATCH ", b"DELETE "];

/// Result of parsing the start of the buffered bytes.
enum ParseStep {
    /// This many bytes are processed; parsing can continue.
    Consumed(usize),
    /// The rest is an incomplete frame; this many of its bytes have been searched for a newline.
    Need(usize),
}

impl<I: Io> Shard<I> {
    /// Reads the socket, and handles complete frames that cost `budget`: one for each frame, and one for each KiB.
    pub(super) fn read(&mut self, conn: &mut Conn, budget: &mut usize) {
        self.continue_query(conn);
        let mut bytes_left = READ_BUDGET_BYTES;
        if conn.paused && conn.is_open() {
            self.unpause(conn, budget);
        }
        loop {
            if conn.is_open() && (conn.paused || !Self::wants_read(conn)) {
                conn.paused = true;
                break;
            }
            if *budget == 0 {
                self.list(conn);
                break;
            }
            let partial_len = self.restore_partial(conn);
            match self.receive(conn, partial_len) {
                Ok(0) => {
                    self.save_partial(conn, 0, partial_len, 0);
                    self.on_end_of_input(conn);
                    break;
                }
                Ok(received) => {
                    let end = partial_len + received;
                    let whole_buffer = end == self.buffers.read.len();
                    if conn.is_open() {
                        self.consume(conn, end, budget);
                    } else {
                        *budget = budget.saturating_sub(received / COST_BYTES);
                    }
                    bytes_left = bytes_left.saturating_sub(received);
                    if (!whole_buffer && !conn.peer_ended) || conn.is_closed() {
                        break;
                    }
                    if bytes_left == 0 {
                        self.list(conn);
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.save_partial(
                        conn,
                        0,
                        partial_len,
                        conn.partial.as_ref().map_or(0, |partial| partial.scanned),
                    );
                    break;
                }
                Err(_) => {
                    self.abort(conn);
                    break;
                }
            }
        }
        if conn.is_open() && self.has_input(conn) {
            self.list(conn);
        }
        self.flush(conn);
    }

    /// Returns whether input waits in the transport, for which no readiness is reported.
    fn has_input(&self, conn: &Conn) -> bool {
        let stream = self.conns.hot[conn.key.slot as usize].stream.as_ref();
        stream.is_some_and(|stream| self.io.has_input(stream))
    }

    /// Returns whether a part of a record waits in the transport for its rest.
    fn has_partial(&self, conn: &Conn) -> bool {
        let stream = self.conns.hot[conn.key.slot as usize].stream.as_ref();
        stream.is_some_and(|stream| self.io.has_partial(stream))
    }

    /// Lists a paused connection to be read again, if its session allows it.
    pub(super) fn resume(&mut self, conn: &Conn) {
        if conn.paused && conn.is_open() && Self::wants_read(conn) {
            self.list(conn);
        }
    }

    /// Returns whether the session allows reading, and no request waits for other sends of its user, for
    /// the hook `allow` or for a limit.
    fn wants_read(conn: &Conn) -> bool {
        !conn.is_paused_by_request()
            && conn.session.wants_read(&conn.settings.limits)
            && conn.login.as_ref().is_none_or(|login| !login.sends.is_waiting())
    }

    /// Ends a pause, if the session allows reading, and handles the frames that were received before it. They come
    /// first, and may fill the buffer. More of them than `budget` covers pause the connection again.
    fn unpause(&mut self, conn: &mut Conn, budget: &mut usize) {
        if !Self::wants_read(conn) {
            return;
        }
        conn.paused = false;
        if let Some(partial) = &mut conn.partial {
            // The node caused the pause, so the frame's deadline starts again.
            partial.since = self.now;
        }
        let partial_len = self.restore_partial(conn);
        if partial_len > 0 {
            self.consume(conn, partial_len, budget);
        }
    }

    fn receive(&mut self, conn: &Conn, partial_len: usize) -> io::Result<usize> {
        let Some(stream) = self.conns.hot[conn.key.slot as usize].stream.as_ref() else { return Ok(0) };
        loop {
            match self.io.read(stream, &mut self.buffers.read[partial_len..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    /// Copies the incomplete frame to the front of the shared buffer; returns its length.
    fn restore_partial(&mut self, conn: &Conn) -> usize {
        let Some(partial) = &conn.partial else { return 0 };
        self.buffers.read[..partial.bytes.len()].copy_from_slice(&partial.bytes);
        partial.bytes.len()
    }

    fn save_partial(&mut self, conn: &mut Conn, from: usize, to: usize, scanned: usize) {
        // An open fragmented message counts as an incomplete frame, whatever control
        // frames arrive between its fragments.
        let open = matches!(&conn.stage, Stage::Ws(decoder) if decoder.is_open());
        if (from == to && !open && !self.has_partial(conn)) || !conn.is_open() {
            conn.partial = None;
            return;
        }
        let bytes = &self.buffers.read[from..to];
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
                let partial = PartialFrame { bytes: bytes.to_vec(), scanned, since: self.now };
                conn.partial = Some(Box::new(partial));
            }
        }
    }

    /// Handles complete frames that cost `budget` among the first `end` bytes of the shared buffer, and saves the rest.
    fn consume(&mut self, conn: &mut Conn, end: usize, budget: &mut usize) {
        let mut buffer = mem::take(&mut self.buffers.read);
        let mut scanned = conn.partial.as_ref().map_or(0, |partial| partial.scanned);
        let mut at = 0;
        while at < end && conn.is_open() {
            if !Self::wants_read(conn) {
                conn.paused = true;
                break;
            }
            if *budget == 0 {
                conn.paused = true;
                self.list(conn);
                break;
            }
            match self.parse(conn, &mut buffer[at..end], scanned) {
                Ok(ParseStep::Consumed(bytes)) => {
                    at += bytes;
                    scanned = 0;
                    *budget = budget.saturating_sub(1 + bytes / COST_BYTES);
                    if self.buffers.reply.len() >= REPLY_CHUNK_BYTES {
                        self.flush(conn);
                    }
                }
                Ok(ParseStep::Need(scanned_to)) => {
                    scanned = scanned_to;
                    break;
                }
                Err((code, reason)) => self.violation(conn, code, reason),
            }
        }
        self.buffers.read = buffer;
        self.save_partial(conn, at, end, scanned);
    }

    fn parse(
        &mut self,
        conn: &mut Conn,
        input: &mut [u8],
        scanned: usize,
    ) -> Result<ParseStep, (Code, String)> {
        match conn.stage {
            Stage::Detect => self.detect(conn, input),
            Stage::Http => self.upgrade(conn, input),
            Stage::Assigning => Ok(ParseStep::Consumed(input.len())),
            Stage::Tcp => {
                let split = codec::tcp::split(input, Self::frame_bytes_max(conn));
                self.parse_stream(conn, split, input, Framing::Proto)
            }
            Stage::Json => {
                let limit = Self::frame_bytes_max(conn);
                let split = codec::json::split_line(input, scanned, limit);
                self.parse_stream(conn, split, input, Framing::Json)
            }
            Stage::Ws(_) => self.parse_ws(conn, input),
        }
    }

    fn detect(&mut self, conn: &mut Conn, input: &[u8]) -> Result<ParseStep, (Code, String)> {
        let (stage, wire, skip) = match codec::detect(input) {
            Detect::NeedMore => return Ok(ParseStep::Need(0)),
            Detect::Found(preface @ Preface::Tcp) => (Stage::Tcp, Wire::Tcp, preface.skip()),
            Detect::Found(Preface::JsonLines) => (Stage::Json, Wire::JsonLine, 0),
            Detect::Found(Preface::Http) => (Stage::Http, Wire::WsText, 0),
            Detect::Found(Preface::Tls) => {
                self.buffers.is_web_request = true;
                return Err((
                    Code::UnknownFraming,
                    "this port has no TLS; connect without it, or set tls.cert_files".into(),
                ));
            }
            Detect::Found(Preface::ProxyV1 | Preface::ProxyV2) => {
                self.context.metrics.proxy_headers_foreign.increment(1);
                return Err((Code::UnknownFraming, FOREIGN_PROXY_HEADER.into()));
            }
            Detect::Unknown => {
                self.buffers.is_web_request = WEB_METHODS.iter().any(|method| input.starts_with(method));
                return Err((Code::UnknownFraming, String::new()));
            }
        };
        conn.stage = stage;
        self.conns.hot[conn.key.slot as usize].wire = wire;
        Ok(ParseStep::Consumed(skip))
    }

    fn upgrade(&mut self, conn: &mut Conn, input: &[u8]) -> Result<ParseStep, (Code, String)> {
        let policy = self.context.upgrade.get();
        let progress = match upgrade::upgrade(input, &policy) {
            Ok(UpgradeProgress::NeedMore) => return Ok(ParseStep::Need(0)),
            other => other.and_then(|progress| self.count_forwarded(&policy, conn, input).map(|()| progress)),
        };
        let keep_page = |conn: &mut Conn, cookies| {
            if self.context.hooks.has_login() {
                conn.page = Some(Box::new(ClientPage { origin: upgrade::origin(input), cookies }));
            }
        };
        match progress {
            Ok(UpgradeProgress::NeedMore) => Ok(ParseStep::Need(0)),
            Ok(UpgradeProgress::Done { consumed, response, framing, cookies }) => {
                keep_page(conn, cookies);
                self.buffers.reply.extend_from_slice(&response);
                self.conns.hot[conn.key.slot as usize].wire = match framing {
                    upgrade::SubProtocol::Json => Wire::WsText,
                    upgrade::SubProtocol::Proto => Wire::WsBinary,
                };
                conn.stage = Stage::Ws(ws::Decoder::server());
                Ok(ParseStep::Consumed(consumed))
            }
            Ok(UpgradeProgress::Assign(mut request)) => {
                keep_page(conn, mem::take(&mut request.cookies));
                if request.preflight {
                    self.buffers.reply.extend_from_slice(&assign::preflight_response(&request));
                    self.finish(conn, Code::Bye);
                } else {
                    conn.stage = Stage::Assigning;
                    self.check_token(conn, request.token.clone(), TokenUse::Assign(request));
                }
                Ok(ParseStep::Consumed(input.len()))
            }
            Err(refusal) => {
                self.context.metrics.codes.count(refusal.code);
                if let Some(kind) = EvidenceKind::of_upgrade(refusal.code, refusal.is_http) {
                    self.note_evidence(conn, kind);
                }
                self.buffers.reply.extend_from_slice(&refusal.response);
                self.finish(conn, refusal.code);
                Ok(ParseStep::Consumed(input.len()))
            }
        }
    }

    /// Counts a connection that a proxy forwards for the client that the proxy names.
    fn count_forwarded(
        &self,
        policy: &upgrade::Policy,
        conn: &mut Conn,
        input: &[u8],
    ) -> Result<(), UpgradeRefusal> {
        if !policy.forwarders.contains(conn.address) {
            self.context.metrics.forwarded_foreign.increment(u64::from(upgrade::is_forwarded(input)));
            return Ok(());
        }
        // A request that names nobody is the proxy's own.
        let named = upgrade::forwarded_client(input, &policy.forwarders, policy.forwarded_header);
        conn.address = named.unwrap_or(conn.address);
        if let Some(refusal) = self.context.cluster.bans.refusal_of_address(conn.address) {
            self.context.metrics.ban_refusals.increment(1);
            return Err(UpgradeRefusal::banned(refusal.left));
        }
        conn.permit.move_to(conn.address).map_err(|_| UpgradeRefusal::too_many_from_address())
    }

    fn parse_stream(
        &mut self,
        conn: &mut Conn,
        split: Result<Split, WireError>,
        input: &[u8],
        framing: Framing,
    ) -> Result<ParseStep, (Code, String)> {
        match split.map_err(refused)? {
            Split::Need { .. } => Ok(ParseStep::Need(input.len())),
            Split::Frame { payload, consumed } => {
                let frame = codec::decode_client(&input[payload], framing).map_err(refused)?;
                self.on_frame(conn, frame)?;
                Ok(ParseStep::Consumed(consumed))
            }
        }
    }

    fn parse_ws(&mut self, conn: &mut Conn, input: &mut [u8]) -> Result<ParseStep, (Code, String)> {
        let limits =
            ws::WsLimits { message_bytes_max: Self::frame_bytes_max(conn), fragments_max: FRAGMENTS_MAX };
        let is_early = is_stranger(conn);
        let Stage::Ws(decoder) = &mut conn.stage else { return Ok(ParseStep::Need(0)) };
        let step = decoder.next(input, &limits).map_err(|violation| {
            self.buffers.ws_status = Some(violation.close_code());
            (violation.code(), violation.to_string())
        })?;
        let ws::WsStep::Frame { consumed, event } = step else { return Ok(ParseStep::Need(0)) };
        if is_early && !matches!(event, ws::WsEvent::Message { .. }) {
            conn.early_frames = conn.early_frames.saturating_add(1);
            if conn.early_frames > conn.settings.limits.hello_frames_max {
                return Err(too_many_early_frames());
            }
        }
        match event {
            ws::WsEvent::Message { kind, payload } => {
                if let Some(partial) = &mut conn.partial {
                    partial.since = self.now;
                }
                let framing = self.conns.hot[conn.key.slot as usize].wire.framing();
                if (kind == ws::Kind::Text) != (framing == Framing::Json) {
                    return Err((
                        Code::Malformed,
                        "send JSON in text messages, protobuf in binary ones".into(),
                    ));
                }
                let frame = codec::decode_client(&payload, framing).map_err(refused)?;
                self.on_frame(conn, frame)?;
            }
            ws::WsEvent::Part | ws::WsEvent::Pong(_) => {
                conn.session.handle_control_frame(&conn.settings.limits, self.now);
            }
            ws::WsEvent::Ping(payload) => {
                let mut pong = Vec::with_capacity(payload.len() + 2);
                ws::encode_server(ws::Opcode::Pong, payload, &mut pong);
                conn.session.handle_control_frame(&conn.settings.limits, self.now);
                self.buffers.reply.extend_from_slice(&pong);
            }
            ws::WsEvent::Close { code, .. } => {
                let mut reply = Vec::new();
                ws::encode_close_reply(code, &mut reply);
                self.buffers.reply.extend_from_slice(&reply);
                self.finish(conn, Code::Bye);
            }
        }
        Ok(ParseStep::Consumed(consumed))
    }

    /// Returns the largest frame that the connection may send now: a stranger gets little memory.
    fn frame_bytes_max(conn: &Conn) -> usize {
        let limits = &conn.settings.limits;
        let max = if is_stranger(conn) {
            limits.hello_bytes_max.min(limits.frame_bytes_max)
        } else {
            limits.frame_bytes_max
        };
        max as usize
    }

    /// Counts a frame of a connection that is not logged in.
    fn count_early_frame(conn: &mut Conn) -> Result<(), (Code, String)> {
        if is_stranger(conn) {
            conn.early_frames = conn.early_frames.saturating_add(1);
            if conn.early_frames > conn.settings.limits.hello_frames_max {
                return Err(too_many_early_frames());
            }
        }
        Ok(())
    }

    fn on_frame(&mut self, conn: &mut Conn, frame: Decoded<pb::ClientFrame>) -> Result<(), (Code, String)> {
        self.frames_in += 1;
        Self::count_early_frame(conn)?;
        match frame {
            Decoded::Frame(frame) => {
                conn.session.handle_frame(frame, &conn.settings.limits, self.now, &mut self.buffers.actions);
            }
            Decoded::Empty => {
                conn.session.handle_empty(&conn.settings.limits, self.now, &mut self.buffers.actions);
            }
        }
        self.act(conn);
        Ok(())
    }

    /// Handles the end of input like a `bye`: a half-closed client still gets its answers, then the connection closes.
    fn on_end_of_input(&mut self, conn: &mut Conn) {
        conn.half_closed = true;
        match conn.ending {
            None => {
                conn.session.leave(Code::Bye, "", &mut self.buffers.actions);
                self.act(conn);
            }
            Some(Ending::Flushing(_)) => {}
            Some(Ending::Lingering(_) | Ending::Closed) => conn.ending = Some(Ending::Closed),
        }
    }

    fn violation(&mut self, conn: &mut Conn, code: Code, reason: String) {
        self.context.metrics.frames_bad.increment(1);
        conn.session.handle_violation(code, reason, &mut self.buffers.actions);
        self.act(conn);
    }
}

fn too_many_early_frames() -> (Code, String) {
    (Code::TooManyFrames, "send hello first, and wait for welcome".to_owned())
}

/// Returns whether the connection is not logged in yet.
fn is_stranger(conn: &Conn) -> bool {
    matches!(conn.session.phase(), SessionPhase::Greeting | SessionPhase::LoggingIn)
}

/// Most frames into which one WebSocket message may be fragmented.
const FRAGMENTS_MAX: u32 = 64;

fn refused(error: WireError) -> (Code, String) {
    (error.code(), error.to_string())
}
