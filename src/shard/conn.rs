//! What a shard keeps for each connection: 12 hot bytes in a dense array, the rest in one box.

use std::{net::IpAddr, sync::Arc};

use mio::net::TcpStream;
use tidegate_protocol::{
    Time,
    codec::{PushFrame, Wire},
    id::ConversationId,
    machine::{session::Session, window::Window},
    ws,
};

use super::{outbox::Outbox, query::Asking};
use crate::{budget::Seat, mail::ConnKey, routes::Route, scratch::ChainState};

/// Logged in and in the indexes: may be pushed to.
pub(super) const LIVE: u8 = 1;
/// Its outbox holds something, so nothing may be written past it.
pub(super) const WAITING: u8 = 2;
/// On the list of connections to flush at the end of the turn.
pub(super) const DIRTY: u8 = 4;

/// Was sent everything and only lingers.
pub(super) const TOLD: u8 = 8;

/// What a fan-out touches of a connection: nothing else, so that four members share a cache line.
pub(super) struct Hot {
    pub(super) stream: Option<TcpStream>,
    pub(super) generation: u32,
    pub(super) wire: Wire,
    pub(super) flags: u8,
}

/// How the bytes of a connection are to be read.
pub(super) enum Stage {
    /// Nothing known yet.
    Detect,
    /// An HTTP request that should become a WebSocket.
    Http,
    /// Protobuf frames with a varint length.
    Tcp,
    /// JSON lines.
    Json,
    /// WebSocket messages.
    Ws(ws::Decoder),
}

/// Bytes of a frame that is not complete yet; only there while one is.
pub(super) struct Partial {
    pub(super) bytes: Vec<u8>,
    /// How far a newline was looked for.
    pub(super) scanned: usize,
    pub(super) since: Time,
}

/// A push that waits for its ack.
#[derive(Clone)]
pub(super) struct Sent {
    pub(super) conversation: ConversationId,
    pub(super) seq: u64,
    pub(super) frame: Arc<PushFrame>,
}

/// The way out of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// The final frame is on its way.
    Flushing(Time),
    /// Our side is shut; input is discarded until then.
    Lingering(Time),
    /// Nothing more to do: free it.
    Gone,
}

/// Who is logged in.
pub(super) struct Who {
    pub(super) route: Route,
    /// Where the device's chain stands, as saved.
    pub(super) chain: Option<ChainState>,
    /// Void sends that wait for a newer epoch.
    pub(super) outdated: Vec<u64>,
}

/// One connection.
pub(super) struct Conn {
    pub(super) key: ConnKey,
    pub(super) stage: Stage,
    pub(super) session: Session,
    pub(super) who: Option<Box<Who>>,
    pub(super) outbox: Option<Box<Outbox>>,
    pub(super) window: Option<Box<Window<Sent>>>,
    pub(super) partial: Option<Box<Partial>>,
    pub(super) asking: Option<Box<Asking>>,
    pub(super) ending: Option<Ending>,
    /// When the socket last refused bytes, while it does.
    pub(super) blocked_since: Option<Time>,
    /// The socket refused bytes and has not said since that it takes some: writing would be a wasted system call.
    pub(super) refused: bool,
    /// Reading stopped while bytes may wait in the socket.
    pub(super) paused: bool,
    /// The poll said that the peer will send nothing more; what it sent may still be unread.
    pub(super) peer_ended: bool,
    /// The end of what the peer sent was met.
    pub(super) half_closed: bool,
    pub(super) address: IpAddr,
    pub(super) _seat: Seat,
}

impl Conn {
    pub(super) fn is_open(&self) -> bool {
        self.ending.is_none()
    }

    pub(super) fn is_gone(&self) -> bool {
        self.ending == Some(Ending::Gone)
    }
}

/// The connections of one shard: a slab of boxes beside the dense array.
#[derive(Default)]
pub(super) struct Conns {
    pub(super) hot: Vec<Hot>,
    boxes: Vec<Option<Box<Conn>>>,
    /// When the sweep has to look at a connection, in ticks.
    pub(super) deadlines: Vec<u32>,
    free: Vec<u32>,
}

/// No deadline.
pub(super) const NEVER: u32 = u32::MAX;

impl Conns {
    /// A place and the generation of its next connection.
    pub(super) fn reserve(&mut self) -> (u32, u32) {
        match self.free.pop() {
            Some(slot) => (slot, self.hot[slot as usize].generation),
            None => {
                self.hot.push(Hot { stream: None, generation: 0, wire: Wire::JsonLine, flags: 0 });
                self.boxes.push(None);
                self.deadlines.push(NEVER);
                (self.hot.len() as u32 - 1, 0)
            }
        }
    }

    /// Takes the box out, to work on it beside the rest of the shard.
    pub(super) fn take(&mut self, slot: u32) -> Option<Box<Conn>> {
        self.boxes.get_mut(slot as usize)?.take()
    }

    /// Puts the box back.
    pub(super) fn put(&mut self, conn: Box<Conn>) {
        let slot = conn.key.slot as usize;
        self.boxes[slot] = Some(conn);
    }

    /// The slot of a key, if that very connection is still there.
    pub(super) fn find(&self, key: ConnKey) -> Option<u32> {
        let hot = self.hot.get(key.slot as usize)?;
        (hot.stream.is_some() && hot.generation == key.generation).then_some(key.slot)
    }

    /// A look into a box.
    pub(super) fn peek(&self, slot: u32) -> Option<&Conn> {
        self.boxes.get(slot as usize)?.as_deref()
    }

    /// Gives the place back; the stream, if any, is the caller's to close.
    pub(super) fn release(&mut self, slot: u32) -> Option<TcpStream> {
        let hot = &mut self.hot[slot as usize];
        hot.generation = (hot.generation + 1) & 0xff_ffff;
        hot.flags = 0;
        self.deadlines[slot as usize] = NEVER;
        self.free.push(slot);
        self.hot[slot as usize].stream.take()
    }

    /// Every slot in use.
    pub(super) fn slots(&self) -> Vec<u32> {
        (0..self.hot.len() as u32).filter(|slot| self.hot[*slot as usize].stream.is_some()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_connections_share_a_cache_line_and_the_box_stays_small() {
        // In debug builds mio keeps the id of the poll beside each socket.
        assert_eq!(size_of::<Hot>(), if cfg!(debug_assertions) { 24 } else { 12 });
        assert!(size_of::<Conn>() <= 448, "{}", size_of::<Conn>());
    }
}
