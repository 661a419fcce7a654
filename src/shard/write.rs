//! Writing: replies are written at once, other frames through the outbox, with one `writev` per connection and turn.

use std::io;

use bytes::Bytes;
use prost::Message;
use tidegate_protocol::{
    Code,
    codec::{self, Framing, Wire},
    id::ConversationId,
    machine::session::SessionPhase,
    pb::{self, server_frame::Body},
};

use super::{
    Shard,
    conn::{Conn, Ending, WAITING},
    outbox::{Caps, Hints, Outbox, PushOutcome},
};
use crate::net::io::Io;

impl<I: Io> Shard<I> {
    /// Appends a frame to the shared reply buffer, for the connection in hand.
    pub(super) fn reply(&mut self, conn: &Conn, frame: &pb::ServerFrame) {
        self.count_code(conn, frame);
        let wire = self.conns.hot[conn.key.slot as usize].wire;
        append(frame, wire, &mut self.buffers.reply);
    }

    /// Counts the code of a refusal or of a close. A refusal that closes the connection, as that of a login, counts once.
    fn count_code(&mut self, conn: &Conn, frame: &pb::ServerFrame) {
        let codes = &self.context.metrics.codes;
        match &frame.body {
            Some(Body::Error(error)) => {
                self.buffers.refused = Some((conn.key, error.code));
                codes.count_number(error.code);
            }
            Some(Body::Close(close)) if self.buffers.refused != Some((conn.key, close.code)) => {
                codes.count_number(close.code);
            }
            _ => {}
        }
    }

    /// Writes the buffered replies and the outbox; bytes that the socket does not take stay in the outbox.
    pub(super) fn flush(&mut self, conn: &mut Conn) {
        // A refusal and its close are written together.
        self.buffers.refused = None;
        let reply = std::mem::take(&mut self.buffers.reply);
        let result = self.try_flush(conn, &reply);
        if result.is_err() {
            self.abort(conn);
        } else if !self.buffers.reply.is_empty() {
            // The flush found the connection slow: the replies are dropped, and its final frame is written.
            return self.flush(conn);
        }
        self.buffers.reply = reply;
        self.buffers.reply.clear();
        self.after_flush(conn);
    }

    fn try_flush(&mut self, conn: &mut Conn, reply: &[u8]) -> io::Result<()> {
        let Some(stream) = self.conns.hot[conn.key.slot as usize].stream.as_ref() else { return Ok(()) };
        match self.io.flush(stream) {
            Ok(()) => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                conn.refused = true;
            }
            Err(error) => return Err(error),
        }
        let mut rest = reply;
        let logging_in = conn.is_open() && conn.session.phase() == SessionPhase::LoggingIn;
        let free = logging_in || conn.outbox.as_ref().is_none_or(|outbox| outbox.is_empty());
        if !rest.is_empty() && free && !conn.refused {
            match self.io.write(stream, rest) {
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if !rest.is_empty() {
            let caps = conn.settings.caps;
            let closing = !conn.is_open();
            let outbox = conn.outbox.get_or_insert_with(Box::default);
            if closing && rest.len() == reply.len() {
                push_final_frames(
                    outbox,
                    Bytes::copy_from_slice(rest),
                    self.conns.hot[conn.key.slot as usize].wire,
                );
            } else if rest.len() < reply.len() {
                outbox.push_rest(Bytes::copy_from_slice(rest), 0);
            } else if outbox.push_control(Bytes::copy_from_slice(rest), caps) == PushOutcome::Overflow {
                self.slow(conn);
                return Ok(());
            }
        }
        if logging_in {
            // Pushes since the user was indexed wait for Welcome.
            return Ok(());
        }
        if conn.refused {
            conn.blocked_since = conn.blocked_since.or(Some(self.now));
            return Ok(());
        }
        let Some(outbox) = &mut conn.outbox else { return Ok(()) };
        let before = outbox.bytes();
        loop {
            outbox.write_with(|slices| self.io.write_slices(stream, slices))?;
            match outbox.take_hints() {
                Some(hints) => {
                    let wire = self.conns.hot[conn.key.slot as usize].wire;
                    if !push_hints(outbox, hints, wire, conn.settings.caps) {
                        self.slow(conn);
                        return Ok(());
                    }
                }
                None => break,
            }
        }
        conn.refused = !outbox.is_empty();
        conn.blocked_since = match (outbox.is_empty(), outbox.bytes() < before) {
            (true, _) => None,
            (false, true) => Some(self.now),
            (false, false) => conn.blocked_since.or(Some(self.now)),
        };
        Ok(())
    }

    fn after_flush(&mut self, conn: &mut Conn) {
        if conn.outbox.as_ref().is_none_or(|outbox| outbox.is_empty()) {
            conn.outbox = None;
            let waits = self.has_output(conn);
            conn.blocked_since = conn.blocked_since.or(Some(self.now)).filter(|_| waits);
        }
        let hot = &mut self.conns.hot[conn.key.slot as usize];
        if conn.outbox.is_some() {
            hot.flags |= WAITING;
            return;
        }
        hot.flags &= !WAITING;
        if Self::is_answer_taken(conn) {
            self.list(conn);
        }
        if let Some(Ending::Flushing(_)) = conn.ending
            && !self.has_output(conn)
        {
            self.shut(conn);
        }
    }

    /// Returns whether written bytes of the connection wait in its transport.
    pub(super) fn has_output(&self, conn: &Conn) -> bool {
        let stream = self.conns.hot[conn.key.slot as usize].stream.as_ref();
        stream.is_some_and(|stream| self.io.has_output(stream))
    }

    /// Closes a connection that reads too slowly with `SLOW`, and drops its outbox.
    pub(super) fn slow(&mut self, conn: &mut Conn) {
        self.context.metrics.slow.increment(1);
        if let Some(outbox) = &mut conn.outbox {
            outbox.abandon();
        }
        self.begin_close(conn, Code::Slow, "");
    }
}

/// Bytes of replies to one connection that are gathered before a write.
///
/// Replies to small frames can be thirty times the size of the read, and the limits of the outbox are
/// checked only when something is written.
pub(super) const REPLY_CHUNK_BYTES: usize = 16 * 1024;

/// Queues the hints as control frames. Returns `false` if they exceed the limit.
fn push_hints(outbox: &mut Outbox, hints: Hints, wire: Wire, caps: Caps) -> bool {
    hint_frames(hints, wire).into_iter().all(|frame| outbox.push_control(frame, caps) == PushOutcome::Queued)
}

/// Queues the final frames of a closing connection after everything that waits, and after the hints.
fn push_final_frames(outbox: &mut Outbox, frames: Bytes, wire: Wire) {
    if let Some(hints) = outbox.take_hints_now() {
        hint_frames(hints, wire).for_each(|frame| outbox.push_final(frame));
    }
    outbox.push_final(frames);
}

fn hint_frames(hints: Hints, wire: Wire) -> impl Iterator<Item = Bytes> {
    let name = |room: &ConversationId| room.as_str().trim_start_matches("r:").to_owned();
    let behind = hints.behind.into_iter().map(|(conversation, max_seq)| {
        Body::Behind(pb::Behind { conversation: conversation.to_string(), max_seq })
    });
    let shed =
        hints.shed.into_iter().map(move |(room, count)| Body::Shed(pb::Shed { room: name(&room), count }));
    let left_out = hints
        .left_out
        .into_iter()
        .map(move |(room, left_out)| pb::RoomStats { room: name(&room), left_out, ..Default::default() })
        .map(Body::RoomStats);
    behind
        .chain(shed)
        .chain(left_out)
        .map(move |body| codec::encode_frame(&pb::ServerFrame { id: 0, body: Some(body) }, wire))
}

/// Appends a frame, encoded for `wire`.
pub(super) fn append(frame: &pb::ServerFrame, wire: Wire, out: &mut Vec<u8>) {
    match wire {
        Wire::Tcp => {
            codec::tcp::put_length(frame.encoded_len(), out);
            frame.encode_raw(out);
        }
        Wire::WsBinary => {
            codec::push::put_ws_header(wire, frame.encoded_len(), out);
            frame.encode_raw(out);
        }
        Wire::JsonLine => {
            codec::encode_server(frame, Framing::Json, out);
            out.push(b'\n');
        }
        Wire::WsText => out.extend_from_slice(&codec::encode_frame(frame, wire)),
    }
}
