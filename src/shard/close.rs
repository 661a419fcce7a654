//! Closing connections: removal from the indexes at once, a final frame, then a close without a TCP reset.
//!
//! The sequence is: final frame, shutdown of the write side, input discarded for a while (linger), close. A plain close
//! with unread input would send a reset, which destroys acks that are already written.

use std::{net::Shutdown, sync::Arc, time::Duration};

use mio::net::TcpStream;
use socket2::SockRef;
use tidegate_protocol::{
    Code,
    codec::Wire,
    pb::{self, server_frame::Body},
    ws,
};

use super::{
    Shard,
    conn::{Conn, Ending, LINGERING, LIVE, Stage},
};
use crate::routes::Route;

/// How long the final frame of a connection closed with `SLOW` may take to be written.
const SLOW_CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

impl Shard {
    /// Begins to close the connection, with a coded `Close` frame.
    pub(super) fn begin_close(&mut self, conn: &mut Conn, code: Code, reason: &str) {
        if !conn.is_open() {
            return;
        }
        let after_ms = if code.reconnect() == tidegate_protocol::code::Reconnect::After { 1_000 } else { 0 };
        match conn.stage {
            Stage::Http => self.buffers.reply.extend_from_slice(HTTP_TIMEOUT_RESPONSE),
            Stage::Detect | Stage::Tcp | Stage::Json | Stage::Ws(_) => {
                let close = pb::ServerFrame { id: 0, body: Some(Body::Close(code.close(reason, after_ms))) };
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
        let timeout = if code == Code::Slow { SLOW_CLOSE_TIMEOUT } else { self.context.write_deadline };
        conn.ending = Some(Ending::Flushing(self.now + timeout));
        conn.partial = None;
        self.unindex(conn);
        tracing::debug!(address = %conn.address, code = code.name(), "closing connection");
    }

    /// Ends the connection without a final frame: the peer is unreachable, or everything is sent.
    pub(super) fn abort(&mut self, conn: &mut Conn) {
        self.unindex(conn);
        conn.ending = Some(Ending::Closed);
    }

    /// Shuts the write side once everything is written, and begins the linger.
    pub(super) fn shut(&mut self, conn: &mut Conn) {
        let linger = self.context.linger;
        let Some(stream) = self.conns.hot[conn.key.slot as usize].stream.as_ref() else { return };
        let shut = stream.shutdown(Shutdown::Write).is_ok();
        if !shut || conn.half_closed || linger.is_zero() {
            conn.ending = Some(Ending::Closed);
        } else {
            conn.ending = Some(Ending::Lingering(self.now + linger));
            // The poll has already reported input that arrived while reading was paused, and does not report it again.
            self.revisit.push(conn.key.slot);
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
            self.unregister(login.route);
        }
    }

    /// Deletes a route if its whole token still matches (flaws S1 to S3), in the background.
    pub(super) fn unregister(&self, route: Route) {
        let ports = Arc::clone(&self.context.ports);
        let work = async move {
            if let Err(error) = ports.routes.remove(&[route]).await {
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
            && let Err(error) = self.poll.registry().deregister(&mut stream)
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

    /// Adds a new connection and returns its slot, or `None` if its socket can't be registered.
    pub(super) fn add_conn(
        &mut self,
        mut stream: TcpStream,
        address: std::net::SocketAddr,
        permit: crate::budget::ConnectionPermit,
    ) -> Option<u32> {
        use tidegate_protocol::machine::session::Session;
        let (slot, generation) = self.conns.reserve();
        let interest = mio::Interest::READABLE | mio::Interest::WRITABLE;
        let conn = Conn {
            key: crate::mail::ConnKey { shard: self.context.index as u8, slot, generation },
            stage: Stage::Detect,
            session: Session::new(self.now),
            login: None,
            outbox: None,
            window: None,
            partial: None,
            open_query: None,
            ending: None,
            blocked_since: None,
            refused: false,
            paused: false,
            peer_ended: false,
            half_closed: false,
            address: address.ip(),
            _permit: permit,
        };
        let registered = self.poll.registry().register(&mut stream, mio::Token(slot as usize), interest);
        let hot = &mut self.conns.hot[slot as usize];
        hot.stream = Some(stream);
        hot.wire = Wire::JsonLine;
        hot.flags = 0;
        self.context.metrics.conns.increment(1.0);
        if let Err(error) = registered {
            tracing::warn!(%error, "failed to register a socket with the poll; closing the connection");
            self.free(Box::new(conn));
            return None;
        }
        self.rearm(&conn);
        self.conns.put(Box::new(conn));
        Some(slot)
    }

    /// Closes the connection with a TCP reset, where waiting would hold memory that is short.
    pub(super) fn reset(&mut self, conn: &mut Conn) {
        if let Some(stream) = &self.conns.hot[conn.key.slot as usize].stream
            && let Err(error) = SockRef::from(stream).set_linger(Some(Duration::ZERO))
        {
            tracing::debug!(%error, "failed to set SO_LINGER; closing without a reset");
        }
        self.abort(conn);
    }
}

/// Response to an HTTP request that did not arrive in time.
const HTTP_TIMEOUT_RESPONSE: &[u8] =
    b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
