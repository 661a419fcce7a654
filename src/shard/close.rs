//! Closing connections: removal from the indexes at once, a final frame, then a close without a TCP reset.
//!
//! The sequence is: final frame, shutdown of the write side, input discarded for a while (linger), close. A plain close
//! with unread input would send a reset, which destroys acks that are already written.

use std::{io, mem, sync::Arc, time::Duration};

use tidegate_protocol::{
    Code,
    code::Reconnect,
    id::ConversationId,
    pb::{self, server_frame::Body},
    ws,
};

use super::{
    Shard,
    conn::{Conn, Ending, LINGERING, LIVE, Stage},
};
use crate::{evidence::EvidenceKind, net::io::Io, routes::Route};

/// How long the final frame of a connection closed with `SLOW` may take to be written.
const SLOW_CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

impl<I: Io> Shard<I> {
    /// Begins to close the connection, with a coded `Close` frame.
    pub(super) fn begin_close(&mut self, conn: &mut Conn, code: Code, reason: &str) {
        if !conn.is_open() {
            return;
        }
        let wait = match self.buffers.close_after.take() {
            Some(wait) => wait,
            None if code.reconnect() == Reconnect::After => Duration::from_secs(1),
            None => Duration::ZERO,
        };
        let (reconnect, wait) = self.buffers.reconnect.take().unwrap_or((code.reconnect(), wait));
        // Rounded up, so that a client that comes back then is not early.
        let after_ms = u32::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX);
        match conn.stage {
            Stage::Http | Stage::Assigning => self.buffers.reply.extend_from_slice(HTTP_TIMEOUT_RESPONSE),
            Stage::Detect | Stage::Tcp | Stage::Json | Stage::Ws(_) => {
                let close = pb::Close {
                    reconnect: pb::Reconnect::from(reconnect) as i32,
                    ..code.close(reason, after_ms)
                };
                let close = pb::ServerFrame { id: 0, body: Some(Body::Close(close)) };
                self.reply(conn, &close);
            }
        }
        if let Stage::Ws(_) = conn.stage {
            let reason = if reason.is_empty() { code.name() } else { reason };
            let status = self.buffers.ws_status.take().unwrap_or(code.ws_close());
            ws::encode_close(status, reason, &mut self.buffers.reply);
        }
        self.finish(conn, code);
    }

    /// Begins to close the connection once the reply buffer and the outbox are written; adds no frame itself.
    pub(super) fn finish(&mut self, conn: &mut Conn, code: Code) {
        if !conn.is_open() {
            return;
        }
        let timeout = if code == Code::Slow { SLOW_CLOSE_TIMEOUT } else { conn.settings.write_deadline };
        conn.ending = Some(Ending::Flushing(self.now + timeout));
        conn.partial = None;
        let connection = format_args!("{:x}", conn.key.pack());
        let user = conn.login.as_ref().map(|login| login.route.user.as_str());
        let is_web_request = mem::take(&mut self.buffers.is_web_request);
        let kind =
            if is_web_request { Some(EvidenceKind::HttpRefused) } else { EvidenceKind::of_close(code) };
        if let Some(kind) = kind {
            self.note_evidence(conn, kind);
        }
        tracing::debug!(%connection, user, address = %conn.address, code = code.name(), "closing connection");
        self.unindex(conn);
    }

    /// Ends the connection without a final frame: the peer is unreachable, or everything is sent.
    pub(super) fn abort(&mut self, conn: &mut Conn) {
        self.unindex(conn);
        conn.ending = Some(Ending::Closed);
    }

    /// Shuts the write side once everything is written, and begins the linger.
    pub(super) fn shut(&mut self, conn: &mut Conn) {
        let linger = conn.settings.linger;
        let Some(stream) = self.conns.hot[conn.key.slot as usize].stream.as_ref() else { return };
        let shut = self.io.shutdown_write(stream);
        if shut.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            // The next flush repeats it.
            conn.refused = true;
            return;
        }
        if shut.is_err() || conn.half_closed || linger.is_zero() {
            conn.ending = Some(Ending::Closed);
        } else {
            conn.ending = Some(Ending::Lingering(self.now + linger));
            // The poll has already reported input that arrived while reading was paused, and does not report it again.
            self.list(conn);
            self.conns.hot[conn.key.slot as usize].flags |= LINGERING;
            self.mailbox.lingering.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// Removes the connection from all indexes, and its route; safe to call twice.
    pub(super) fn unindex(&mut self, conn: &mut Conn) {
        self.conns.hot[conn.key.slot as usize].flags &= !LIVE;
        conn.window = None;
        if let Some(login) = conn.login.take() {
            self.hub.remove(&login.route.user, conn.key.slot);
            if login.is_watching {
                self.context.watches.forget(conn.key);
            }
            self.gates.leave_sends(login.gated_sends);
            for room in conn.session.rooms() {
                let room = ConversationId::room(room);
                self.hub.listings.left(&room, &login.route, conn.key.slot);
                self.context.rooms.left(&room);
            }
            self.unregister(login.route);
        }
    }

    /// Deletes a route if its whole token still matches (flaws S1 to S3), in the background.
    pub(super) fn unregister(&self, route: Route) {
        let cluster = Arc::clone(&self.context.cluster);
        let work = async move {
            if let Err(error) = cluster.ports.routes.remove(&[route]).await {
                tracing::debug!(%error, "failed to remove a route; it ends with the node's lease");
            }
        };
        self.context.run_detached(work);
    }

    /// Frees the slot of a closed connection.
    pub(super) fn free(&mut self, conn: Box<Conn>) {
        let slot = conn.key.slot;
        self.forget_traces(slot);
        let was_lingering = self.conns.hot[slot as usize].flags & LINGERING != 0;
        if let Some(mut stream) = self.conns.release(slot)
            && let Err(error) = self.io.deregister(&mut stream)
        {
            tracing::debug!(%error, "failed to deregister a socket");
        }
        self.context.metrics.closed.increment(1);
        self.context.metrics.conns.decrement(1.0);
        self.mailbox.conns.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
        if was_lingering {
            self.mailbox.lingering.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// Closes the connection with a reset, where waiting would hold memory that is short.
    pub(super) fn reset(&mut self, conn: &mut Conn) {
        if let Some(stream) = &self.conns.hot[conn.key.slot as usize].stream
            && let Err(error) = self.io.reset(stream)
        {
            tracing::debug!(%error, "failed to prepare a reset; closing without one");
        }
        self.abort(conn);
    }
}

/// Response to an HTTP request that did not arrive in time.
const HTTP_TIMEOUT_RESPONSE: &[u8] =
    b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
