//! The end of a connection: out of the indexes at once, a final frame, then no reset (DESIGN 4, "close").

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
    conn::{Conn, Ending, LIVE, Stage, TOLD},
};
use crate::{inline, routes::Route};

/// What a connection that is closed for slowness may still take to hear about it.
const LAST_WORD: Duration = Duration::from_secs(1);

impl Shard {
    /// Ends the connection with a coded Close frame.
    pub(super) fn begin_close(&mut self, conn: &mut Conn, code: Code, reason: &str) {
        if !conn.is_open() {
            return;
        }
        let after_ms = if code.reconnect() == tidegate_protocol::code::Reconnect::After { 1_000 } else { 0 };
        match conn.stage {
            Stage::Http => self.scratch.reply.extend_from_slice(HTTP_TIMEOUT),
            Stage::Detect | Stage::Tcp | Stage::Json | Stage::Ws(_) => {
                let close = pb::ServerFrame { id: 0, body: Some(Body::Close(code.close(reason, after_ms))) };
                self.reply(conn, &close);
            }
        }
        if let Stage::Ws(_) = conn.stage {
            let reason = if reason.is_empty() { code.name() } else { reason };
            let status = self.scratch.ws_status.take().unwrap_or(code.ws_close());
            ws::encode_close(status, reason, &mut self.scratch.reply);
        }
        self.finish(conn, code);
    }

    /// Ends the connection after what is in the reply buffer and the outbox; says nothing more itself.
    pub(super) fn finish(&mut self, conn: &mut Conn, code: Code) {
        if !conn.is_open() {
            return;
        }
        let patience = if code == Code::Slow { LAST_WORD } else { self.context.write_deadline };
        conn.ending = Some(Ending::Flushing(self.now + patience));
        conn.partial = None;
        self.unindex(conn);
        tracing::debug!(address = %conn.address, code = code.name(), "closing a connection");
    }

    /// The peer is gone; there is nobody to tell.
    pub(super) fn peer_gone(&mut self, conn: &mut Conn) {
        self.unindex(conn);
        conn.ending = Some(Ending::Gone);
    }

    /// Everything is written: shut our side, then discard input for a while, because a plain close with unread input
    /// sends a reset that destroys what was written.
    pub(super) fn shut(&mut self, conn: &mut Conn) {
        let linger = self.context.linger;
        let Some(stream) = self.conns.hot[conn.key.slot as usize].stream.as_ref() else { return };
        let shut = stream.shutdown(Shutdown::Write).is_ok();
        if !shut || conn.half_closed || linger.is_zero() {
            conn.ending = Some(Ending::Gone);
        } else {
            conn.ending = Some(Ending::Lingering(self.now + linger));
            // What came while reading was paused has been told already and won't be told again.
            self.again.push(conn.key.slot);
            self.conns.hot[conn.key.slot as usize].flags |= TOLD;
            self.mailbox.told.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// Takes the connection out of all indexes and gives its route back; safe to call twice.
    pub(super) fn unindex(&mut self, conn: &mut Conn) {
        self.conns.hot[conn.key.slot as usize].flags &= !LIVE;
        conn.window = None;
        if let Some(who) = conn.who.take() {
            self.hub.remove(&who.route.user, conn.key.slot);
            self.unregister(who.route);
        }
    }

    /// Compare-and-delete of a route by its whole token (flaws S1 to S3); off the connection's path.
    pub(super) fn unregister(&self, route: Route) {
        let ports = Arc::clone(&self.context.ports);
        let work = async move {
            if let Err(error) = ports.routes.remove(&[route]).await {
                tracing::debug!(%error, "a route was not removed; its lease will");
            }
        };
        inline::run(&self.context.runtime, work, |()| Box::pin(std::future::ready(())));
    }

    /// Frees the place of a connection that is gone.
    pub(super) fn free(&mut self, conn: Box<Conn>) {
        let slot = conn.key.slot;
        self.forget_awaited(slot);
        let was_told = self.conns.hot[slot as usize].flags & TOLD != 0;
        if let Some(mut stream) = self.conns.release(slot)
            && let Err(error) = self.poll.registry().deregister(&mut stream)
        {
            tracing::debug!(%error, "a socket was not deregistered");
        }
        self.context.metrics.closed.increment(1);
        self.context.metrics.conns.decrement(1.0);
        self.mailbox.conns.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
        if was_told {
            self.mailbox.told.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// The mailbox told of a new connection; gives its place.
    pub(super) fn welcome(
        &mut self,
        mut stream: TcpStream,
        address: std::net::SocketAddr,
        seat: crate::budget::Seat,
    ) -> Option<u32> {
        use tidegate_protocol::machine::session::Session;
        let (slot, generation) = self.conns.reserve();
        let interest = mio::Interest::READABLE | mio::Interest::WRITABLE;
        let conn = Conn {
            key: crate::mail::ConnKey { shard: self.context.index as u8, slot, generation },
            stage: Stage::Detect,
            session: Session::new(self.now),
            who: None,
            outbox: None,
            window: None,
            partial: None,
            asking: None,
            ending: None,
            blocked_since: None,
            refused: false,
            paused: false,
            peer_ended: false,
            half_closed: false,
            address: address.ip(),
            _seat: seat,
        };
        let registered = self.poll.registry().register(&mut stream, mio::Token(slot as usize), interest);
        let hot = &mut self.conns.hot[slot as usize];
        hot.stream = Some(stream);
        hot.wire = Wire::JsonLine;
        hot.flags = 0;
        self.context.metrics.conns.increment(1.0);
        if let Err(error) = registered {
            tracing::warn!(%error, "a connection could not be registered");
            self.free(Box::new(conn));
            return None;
        }
        self.rearm(&conn);
        self.conns.put(Box::new(conn));
        Some(slot)
    }

    /// Closes with a reset: used where waiting would cost memory that is short.
    pub(super) fn reset(&mut self, conn: &mut Conn) {
        if let Some(stream) = &self.conns.hot[conn.key.slot as usize].stream
            && let Err(error) = SockRef::from(stream).set_linger(Some(Duration::ZERO))
        {
            tracing::debug!(%error, "a socket kept its linger time");
        }
        self.peer_gone(conn);
    }
}

const HTTP_TIMEOUT: &[u8] = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
