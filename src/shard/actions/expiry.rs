//! Expiry: a connection ends when its token does, unless a refresh has replaced it.

use std::time::Duration;

use tidegate_protocol::{Code, Time};

use crate::{
    net::io::Io,
    shard::{Shard, conn::Conn},
};

impl<I: Io> Shard<I> {
    /// Returns when to check whether the token of the connection has expired.
    pub(in crate::shard) fn expiry_due(&self, conn: &Conn) -> Option<Time> {
        let term = conn.login.as_ref()?.term;
        // Checked again then by the clock, which may have been set meanwhile.
        Some(self.now + Duration::from_millis(term.expires_ms.saturating_sub(self.wall_ms)))
    }

    /// Closes a connection whose token has expired; returns whether it has.
    pub(in crate::shard) fn close_expired(&mut self, conn: &mut Conn) -> bool {
        let is_expired = conn.login.as_ref().is_some_and(|login| login.term.expires_ms <= self.wall_ms);
        if is_expired {
            self.context.metrics.token_ends.increment(1);
            conn.session.close(Code::TokenExpired, "", &mut self.buffers.actions);
            self.act(conn);
        }
        is_expired
    }
}
