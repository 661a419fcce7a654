//! In-memory transport of a shard: each connection is two bounded byte pipes, with the readiness rules of epoll.
//!
//! An event is listed when bytes, the end of input or a reset arrive, when room appears after a refused write, and at
//! the registration. Listed events report all that holds when they are taken. Faults are drawn from a seed: reads and
//! writes in part, interrupted calls, late and needless events; no event is ever lost.
#![allow(dead_code, unreachable_pub, reason = "each user takes a part of it")]

use std::{
    collections::{BTreeMap, VecDeque},
    io::{self, ErrorKind, IoSlice},
    sync::{Arc, Mutex, MutexGuard},
};

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tidegate::net::io::{Io, Ready};

/// Transport of one shard; a clone is another handle of the same transport.
#[derive(Clone)]
pub struct Pipes {
    shared: Arc<Mutex<Shared>>,
}

/// State of a transport.
struct Shared {
    /// Connections with an event that was not taken yet, without duplicates.
    events: VecDeque<Arc<Conn>>,
    registered: BTreeMap<u32, Arc<Conn>>,
    /// Each fault has this chance, as one in so many; 0 for none.
    one_in: u32,
    rng: StdRng,
    writes: u64,
}

/// One connection.
struct Conn {
    state: Mutex<State>,
}

/// State of both directions of a connection.
#[derive(Default)]
struct State {
    to_shard: VecDeque<u8>,
    to_client: VecDeque<u8>,
    /// Most bytes on the way to the shard.
    input_max: usize,
    /// Most bytes on the way to the client.
    output_max: usize,
    /// Bytes of the client that do not fit yet.
    outgoing: VecDeque<u8>,
    client_ended: bool,
    client_closed: bool,
    shard_ended: bool,
    shard_closed: bool,
    /// Whether the drop of the shard's end must reset the connection.
    resets: bool,
    is_reset: bool,
    /// Whether a write was refused or taken in part since room was last reported.
    refused: bool,
    /// Slot and transport, while registered.
    registration: Option<(u32, Arc<Mutex<Shared>>)>,
    is_listed: bool,
}

/// End of a connection that a shard owns.
pub struct ShardEnd {
    conn: Arc<Conn>,
}

/// End of a connection that a test owns.
pub struct ClientEnd {
    conn: Arc<Conn>,
}

/// Bytes that a client reads.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// The bytes that have arrived.
    Bytes(Vec<u8>),
    /// The end of the stream, in order.
    End,
    /// A reset.
    Reset,
    /// Nothing yet.
    Nothing,
}

/// Creates a connection that holds at most `input_max` bytes for the shard and `output_max` for the client.
pub fn connection(input_max: usize, output_max: usize) -> (ShardEnd, ClientEnd) {
    let state = Mutex::new(State { input_max, output_max, ..State::default() });
    let conn = Arc::new(Conn { state });
    (ShardEnd { conn: Arc::clone(&conn) }, ClientEnd { conn })
}

impl Pipes {
    /// Creates a transport without faults.
    pub fn new() -> Self {
        let (events, registered, rng) = (VecDeque::new(), BTreeMap::new(), StdRng::seed_from_u64(0));
        Self { shared: Arc::new(Mutex::new(Shared { events, registered, one_in: 0, rng, writes: 0 })) }
    }

    /// Draws faults from a seed, each with a chance of one in `one_in`.
    pub fn begin_faults(&self, seed: u64, one_in: u32) {
        let mut shared = self.shared();
        (shared.rng, shared.one_in) = (StdRng::seed_from_u64(seed), one_in);
    }

    /// Ends the faults; late events arrive with the next ones.
    pub fn end_faults(&self) {
        self.shared().one_in = 0;
    }

    /// Returns the number of writes so far, refused ones included.
    pub fn writes(&self) -> u64 {
        self.shared().writes
    }

    /// Takes at most `events_max` events; returns them, and whether no event is left.
    pub fn ready(&self, events_max: usize) -> (Vec<Ready>, bool) {
        let mut listed = std::mem::take(&mut self.shared().events);
        let (mut ready, mut late) = (Vec::new(), VecDeque::new());
        while ready.len() < events_max {
            let Some(conn) = listed.pop_front() else { break };
            if self.fault() {
                late.push_back(conn);
                continue;
            }
            let mut state = conn.state();
            state.is_listed = false;
            ready.extend(state.ready());
        }
        let is_complete = listed.is_empty() && late.is_empty();
        listed.append(&mut late);
        // An event that was listed meanwhile comes after those that waited already.
        let mut shared = self.shared();
        listed.append(&mut shared.events);
        shared.events = listed;
        drop(shared);
        if ready.len() < events_max && self.fault() {
            let conns: Vec<Arc<Conn>> = self.shared().registered.values().cloned().collect();
            ready.extend(conns.first().and_then(|conn| conn.state().ready()));
        }
        (ready, is_complete)
    }

    fn fault(&self) -> bool {
        let mut shared = self.shared();
        let one_in = shared.one_in;
        one_in > 0 && shared.rng.random_range(0..one_in) == 0
    }

    /// Returns `count`, or by chance a part of it.
    fn part_of(&self, count: usize) -> usize {
        if count > 1 && self.fault() { self.shared().rng.random_range(1..count) } else { count }
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().expect("no test continues after a panic")
    }
}

impl Conn {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test continues after a panic")
    }

    /// Lists an event of this connection, unless one is listed.
    fn notify(self: &Arc<Self>, state: &mut State) {
        if let Some((_, shared)) = state.registration.as_ref().filter(|_| !state.is_listed) {
            shared.lock().expect("no test continues after a panic").events.push_back(Arc::clone(self));
            state.is_listed = true;
        }
    }
}

impl State {
    fn ready(&self) -> Option<Ready> {
        let (slot, _) = self.registration.as_ref()?;
        let ended = self.is_reset || self.input_ended();
        Some(Ready {
            slot: *slot,
            readable: ended || !self.to_shard.is_empty(),
            writable: self.is_reset || self.room() > 0,
            ended,
        })
    }

    fn input_ended(&self) -> bool {
        self.client_ended && self.outgoing.is_empty()
    }

    fn room(&self) -> usize {
        self.output_max - self.to_client.len()
    }

    /// Moves the bytes of the client that fit now; returns whether there were any.
    fn carry(&mut self) -> bool {
        let count = self.outgoing.len().min(self.input_max - self.to_shard.len());
        self.to_shard.extend(self.outgoing.drain(..count));
        count > 0
    }

    fn reset(&mut self) {
        self.is_reset = true;
        (self.to_shard, self.to_client, self.outgoing) = Default::default();
    }
}

impl Io for Pipes {
    type Arrival = ShardEnd;
    type Stream = ShardEnd;

    fn register(&mut self, stream: ShardEnd, slot: u32) -> io::Result<ShardEnd> {
        self.shared().registered.insert(slot, Arc::clone(&stream.conn));
        let mut state = stream.conn.state();
        state.registration = Some((slot, Arc::clone(&self.shared)));
        stream.conn.notify(&mut state);
        drop(state);
        Ok(stream)
    }

    fn deregister(&mut self, stream: &mut ShardEnd) -> io::Result<()> {
        let registration = stream.conn.state().registration.take();
        let (slot, _) = registration.ok_or(ErrorKind::NotFound)?;
        self.shared().registered.remove(&slot);
        Ok(())
    }

    fn read(&mut self, stream: &ShardEnd, buffer: &mut [u8]) -> io::Result<usize> {
        if self.fault() {
            return Err(ErrorKind::Interrupted.into());
        }
        let mut state = stream.conn.state();
        if state.to_shard.is_empty() {
            return match (state.is_reset, state.input_ended()) {
                (true, _) => Err(ErrorKind::ConnectionReset.into()),
                (false, true) => Ok(0),
                (false, false) => Err(ErrorKind::WouldBlock.into()),
            };
        }
        let available = state.to_shard.len().min(buffer.len());
        let count = self.part_of(available);
        for (to, byte) in buffer.iter_mut().zip(state.to_shard.drain(..count)) {
            *to = byte;
        }
        // A short read means that the rest arrives later, so it brings an event of its own.
        if state.carry() || count < available {
            stream.conn.notify(&mut state);
        }
        Ok(count)
    }

    fn write(&mut self, stream: &ShardEnd, bytes: &[u8]) -> io::Result<usize> {
        self.write_slices(stream, &[IoSlice::new(bytes)])
    }

    fn write_slices(&mut self, stream: &ShardEnd, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.shared().writes += 1;
        if self.fault() {
            return Err(ErrorKind::Interrupted.into());
        }
        let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
        let mut state = stream.conn.state();
        if state.is_reset || state.shard_ended {
            return Err(
                if state.is_reset { ErrorKind::ConnectionReset } else { ErrorKind::BrokenPipe }.into()
            );
        }
        if state.client_closed {
            // The peer answers with a reset, which arrives after the write.
            state.reset();
            stream.conn.notify(&mut state);
            return Ok(bytes.len());
        }
        let fits = bytes.len().min(state.room());
        let count = self.part_of(fits);
        state.refused |= count < bytes.len();
        state.to_client.extend(&bytes[..count]);
        if count < fits {
            state.refused = false;
            stream.conn.notify(&mut state);
        }
        if count == 0 { Err(ErrorKind::WouldBlock.into()) } else { Ok(count) }
    }

    fn shutdown_write(&mut self, stream: &ShardEnd) -> io::Result<()> {
        let mut state = stream.conn.state();
        if state.is_reset {
            return Err(ErrorKind::NotConnected.into());
        }
        state.shard_ended = true;
        Ok(())
    }

    fn reset(&mut self, stream: &ShardEnd) -> io::Result<()> {
        stream.conn.state().resets = true;
        Ok(())
    }
}

impl Drop for ShardEnd {
    /// Closes as Linux does: with unread input, or on demand, by a reset.
    fn drop(&mut self) {
        let mut state = self.conn.state();
        if state.resets || !state.to_shard.is_empty() || !state.outgoing.is_empty() {
            state.reset();
        }
        (state.shard_ended, state.shard_closed) = (true, true);
    }
}

impl ClientEnd {
    /// Writes without waiting; bytes that do not fit follow when the shard reads.
    pub fn write(&self, bytes: &[u8]) {
        let mut state = self.conn.state();
        if state.shard_closed {
            state.reset();
        }
        if state.is_reset {
            return;
        }
        state.outgoing.extend(bytes);
        if state.carry() {
            self.conn.notify(&mut state);
        }
    }

    /// Reads what has arrived.
    pub fn read(&self) -> Received {
        let mut state = self.conn.state();
        let bytes = Vec::from(std::mem::take(&mut state.to_client));
        if std::mem::take(&mut state.refused) {
            if bytes.is_empty() {
                state.refused = true;
            } else {
                self.conn.notify(&mut state);
            }
        }
        match bytes.is_empty() {
            false => Received::Bytes(bytes),
            true if state.is_reset => Received::Reset,
            true if state.shard_ended => Received::End,
            true => Received::Nothing,
        }
    }

    /// Ends the client's side; what was written still arrives.
    pub fn shutdown_write(&self) {
        let mut state = self.conn.state();
        state.client_ended = true;
        self.conn.notify(&mut state);
    }

    /// Returns whether the connection was reset.
    pub fn is_reset(&self) -> bool {
        self.conn.state().is_reset
    }
}

impl Drop for ClientEnd {
    fn drop(&mut self) {
        let mut state = self.conn.state();
        if !state.to_client.is_empty() {
            state.reset();
        }
        (state.client_ended, state.client_closed) = (true, true);
        self.conn.notify(&mut state);
    }
}
