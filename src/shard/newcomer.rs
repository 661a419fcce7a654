//! New connections on their way to a shard: the connection, and the bounded queue that carries it.
//!
//! The queue is separate from the mailbox, so that a shard with a full mailbox still gets connections, and so that mail
//! names no stream.

use std::{net::SocketAddr, sync::atomic::Ordering};

use tidegate_protocol::{Code, codec::Wire, machine::session::Session};
use tokio::sync::mpsc;

use super::{
    Shard,
    conn::{CertifiedUser, Conn, Stage},
};
use crate::{
    budget::ConnectionPermit,
    log_limit::log_limited,
    mail::{ConnKey, ShardHandle},
    net::io::Io,
};

/// Most new connections that wait for one shard; with more, the listener tries the next shard.
pub const NEWCOMERS_MAX: usize = 4_096;

/// New connections registered in one turn, before the rest of the turn runs.
pub(super) const NEWCOMERS_BUDGET: usize = 256;

/// Accepted connection that its shard has not registered yet.
pub struct Newcomer<A> {
    /// Connection, as the transport of the shard takes it.
    pub arrival: A,
    /// Address of the peer.
    pub address: SocketAddr,
    /// Permit of the connection, which its shard holds until the close.
    pub permit: ConnectionPermit,
    /// User that the certificate of the client names, for whom alone a token may be; `None` for any.
    pub certified_user: Option<Box<str>>,
}

/// Sending side of the queue of one shard's new connections.
pub struct NewcomerQueue<A> {
    queue: mpsc::Sender<Newcomer<A>>,
    shard: ShardHandle,
}

/// Receiving side of a [`NewcomerQueue`], owned by the shard.
pub type Newcomers<A> = mpsc::Receiver<Newcomer<A>>;

/// Creates the queue of a shard's new connections, which holds at most `newcomers_max`.
pub fn newcomer_queue<A>(shard: ShardHandle, newcomers_max: usize) -> (NewcomerQueue<A>, Newcomers<A>) {
    let (queue, newcomers) = mpsc::channel(newcomers_max);
    (NewcomerQueue { queue, shard }, newcomers)
}

impl<A> NewcomerQueue<A> {
    /// Offers a connection without waiting; returns it if the queue is full or the shard has stopped.
    pub fn offer(&self, newcomer: Newcomer<A>) -> Result<(), Newcomer<A>> {
        let Ok(place) = self.queue.try_reserve() else { return Err(newcomer) };
        // Counted before the shard can take it, because the shard subtracts it when it closes.
        self.shard.count_in();
        place.send(newcomer);
        self.shard.wake();
        Ok(())
    }

    /// Returns the handle of the shard's mailbox.
    pub fn shard(&self) -> &ShardHandle {
        &self.shard
    }
}

impl<I: Io> Shard<I> {
    /// Registers up to `budget` of the new connections that wait.
    pub(super) fn take_newcomers(&mut self, budget: usize) {
        // A counted connection without a slot is in the queue, so that a turn without one costs a comparison.
        if self.mailbox.conns.load(Ordering::Relaxed) == self.conns.len() {
            return;
        }
        for _ in 0..budget {
            let Ok(newcomer) = self.newcomers.try_recv() else { return };
            if self.stopping {
                self.mailbox.conns.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let slot = self.add_conn(newcomer);
            let Some(slot) = slot else { continue };
            if self.drain.is_some() {
                // Accepted just before the drain began: refused like every later connection.
                self.close_gracefully(slot, Code::Draining);
            } else {
                self.admit_connection(slot);
            }
        }
    }

    /// Adds a new connection and returns its slot, or `None` if its socket can't be registered.
    fn add_conn(&mut self, newcomer: Newcomer<I::Arrival>) -> Option<u32> {
        let Newcomer { arrival, address, permit, certified_user } = newcomer;
        let (slot, generation) = self.conns.reserve();
        let conn = Conn {
            key: ConnKey { shard: self.context.index as u8, slot, generation },
            settings: self.context.conn_settings.get(),
            stage: Stage::Detect,
            session: Session::new(self.now),
            login: None,
            outbox: None,
            window: None,
            partial: None,
            open_query: None,
            page: None,
            held: None,
            hello_at_ms: 0,
            is_login_gated: false,
            ending: None,
            blocked_since: None,
            refused: false,
            early_frames: 0,
            paused: false,
            peer_ended: false,
            half_closed: false,
            address: address.ip(),
            permit,
            certified_user: certified_user.map(|user| Box::new(CertifiedUser(user))),
        };
        let registered = self.io.register(arrival, slot);
        let hot = &mut self.conns.hot[slot as usize];
        hot.wire = Wire::JsonLine;
        hot.flags = 0;
        self.context.metrics.conns.increment(1.0);
        match registered {
            Ok(stream) => {
                let has_input = self.io.has_input(&stream);
                hot.stream = Some(stream);
                if has_input {
                    self.list(&conn);
                }
            }
            Err(error) => {
                log_limited!(warn, %error, "failed to register a socket with the poll; closing the connection");
                self.free(Box::new(conn));
                return None;
            }
        }
        self.rearm(&conn);
        self.conns.put(Box::new(conn));
        Some(slot)
    }
}
