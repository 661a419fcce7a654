//! All connections of a load generator: few words for each connection, and one read buffer for all.

use super::{
    source::{Source, connecting},
    tls::{Decrypted, TlsClients},
};
use crate::bench::{
    orders::{Peer, Setup},
    poller::{Poller, Ready},
    wire::{self, BenchTransport, Unit, View, kind},
};
use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::{
    fd::OwnedFd,
    io::Errno,
    net::{RecvFlags, SendFlags, recv, send},
};
use std::{collections::HashMap, net::SocketAddrV4, time::Duration};

/// Most bytes of one read.
const BUFFER: usize = 256 * 1024;

/// Most bytes that wait for a server that reads too slowly; more end the run.
const UNSENT_MAX: usize = 16 << 20;

/// A connection; a test limits it to 64 bytes.
pub(super) struct Conn {
    pub(super) fd: OwnedFd,
    pub(super) phase: Phase,
    /// Last seq, and last message number.
    pub(super) seq: u64,
    pub(super) number: u32,
    /// Messages received, and messages that the server announced as left out.
    pub(super) received: u32,
    pub(super) shed: u32,
    /// Number of the user.
    pub(super) user: u32,
    /// Start of an incomplete frame.
    tail: Option<Box<[u8]>>,
}

/// Phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The kernel is shaking hands, or TLS is.
    Connecting,
    /// Connected; the WebSocket upgrade or the first byte of a raw loop is awaited.
    Upgrading,
    /// The answer to `Hello` is awaited.
    Greeting,
    /// The answer to `Join` is awaited.
    Joining,
    /// The connection is in use.
    Ready,
}

/// An event of a connection.
pub(super) enum ConnEvent<'a> {
    /// It can be written to; reported at least once, after the handshakes of the kernel and of TLS.
    Writable,
    /// Bytes of a server that uses no frames, or of an upgrade.
    Bytes(&'a [u8]),
    /// A frame.
    Frame(View<'a>),
    /// The other side has closed.
    Closed,
}

fn addresses(listed: &str) -> Result<Vec<SocketAddrV4>> {
    listed.split(',').map(|address| address.parse().context("server address")).collect()
}

/// The connections, by slot.
pub(super) struct Connections {
    poller: Poller,
    conns: Vec<Option<Conn>>,
    buffer: Vec<u8>,
    unsent: HashMap<usize, Vec<u8>>,
    source: Source,
    /// Addresses of the server; each connection takes the next.
    addresses: Vec<SocketAddrV4>,
    framed: bool,
    transport: BenchTransport,
    pub(super) tls: TlsClients,
    /// Number of `recv` calls that returned bytes.
    pub(super) reads: u64,
}

impl Connections {
    pub(super) fn new(setup: &Setup) -> Result<Self> {
        Ok(Self {
            poller: Poller::new()?,
            conns: Vec::new(),
            buffer: vec![0; BUFFER],
            unsent: HashMap::new(),
            source: Source::new(),
            addresses: addresses(&setup.address)?,
            framed: !matches!(setup.peer, Peer::Reply { .. } | Peer::Echo { .. }),
            transport: setup.transport,
            tls: TlsClients::new(setup)?,
            reads: 0,
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.conns.iter().all(Option::is_none)
    }

    /// Returns the number of slots that are or were in use.
    pub(super) fn len(&self) -> usize {
        self.conns.len()
    }

    pub(super) fn conn(&mut self, slot: usize) -> Result<&mut Conn> {
        self.conns.get_mut(slot).and_then(Option::as_mut).with_context(|| format!("no connection {slot}"))
    }

    /// Returns all connections with their slots.
    pub(super) fn conns(&self) -> impl Iterator<Item = (usize, &Conn)> {
        self.conns.iter().enumerate().filter_map(|(slot, conn)| conn.as_ref().map(|conn| (slot, conn)))
    }

    /// Starts connecting `slot` as `user`, to `address` without TLS or to the server.
    pub(super) fn open(&mut self, slot: usize, user: usize, address: Option<SocketAddrV4>) -> Result<()> {
        let next = self.addresses.get(slot % self.addresses.len().max(1)).copied();
        let fd = connecting(&mut self.source, address.or(next).context("no address")?)?;
        match address {
            Some(_) => self.tls.close(slot),
            None => self.tls.open(slot)?,
        }
        self.poller.add_edge(&fd, slot)?;
        if slot >= self.conns.len() {
            self.conns.resize_with(slot + 1, || None);
        }
        self.unsent.remove(&slot);
        self.conns[slot] = Some(Conn {
            fd,
            phase: Phase::Connecting,
            seq: 0,
            number: 0,
            received: 0,
            shed: 0,
            user: user as u32,
            tail: None,
        });
        Ok(())
    }

    pub(super) fn close(&mut self, slot: usize) {
        self.unsent.remove(&slot);
        self.tls.close(slot);
        if let Some(conn) = self.conns.get_mut(slot) {
            *conn = None;
        }
    }

    pub(super) fn hang_up(&mut self) {
        self.conns.clear();
        self.unsent.clear();
        self.tls.clear();
    }

    /// Sends `bytes`, encrypted if the connection has TLS.
    pub(super) fn send(&mut self, slot: usize, bytes: &[u8]) -> Result<()> {
        match self.tls.encrypt(slot, bytes)? {
            Some(records) => self.send_encrypted(slot, &records),
            None => self.send_encrypted(slot, bytes),
        }
    }

    /// Sends `bytes` as they are. Those that the kernel does not take now are sent later, in order.
    fn send_encrypted(&mut self, slot: usize, bytes: &[u8]) -> Result<()> {
        if let Some(unsent) = self.unsent.get_mut(&slot) {
            ensure!(unsent.len() + bytes.len() <= UNSENT_MAX, "connection {slot}: the server does not read");
            unsent.extend_from_slice(bytes);
            return Ok(());
        }
        let sent = self.try_send(slot, bytes)?;
        if sent < bytes.len() {
            self.unsent.insert(slot, bytes[sent..].to_vec());
        }
        Ok(())
    }

    /// Frames `payload` as a client does and sends it.
    pub(super) fn send_frame(&mut self, slot: usize, payload: &[u8]) -> Result<()> {
        let mut out = Vec::with_capacity(payload.len() + 14);
        wire::put_client(self.transport, payload, &mut out);
        self.send(slot, &out)
    }

    fn try_send(&mut self, slot: usize, bytes: &[u8]) -> Result<usize> {
        match send(&self.conn(slot)?.fd, bytes, SendFlags::NOSIGNAL) {
            Ok(sent) => Ok(sent),
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            // The hang-up is reported as an event of its own.
            Err(Errno::PIPE | Errno::CONNRESET) => Ok(bytes.len()),
            Err(error) => Err(anyhow!(error)).with_context(|| format!("send on connection {slot}")),
        }
    }

    fn flush(&mut self, slot: usize) -> Result<()> {
        let Some(mut unsent) = self.unsent.remove(&slot) else { return Ok(()) };
        let sent = self.try_send(slot, &unsent)?;
        if sent < unsent.len() {
            unsent.drain(..sent);
            self.unsent.insert(slot, unsent);
        }
        Ok(())
    }

    /// Waits at most `timeout`, and passes events to `on_event`. Answers pings of the server.
    pub(super) fn turn(
        &mut self,
        timeout: Duration,
        mut on_event: impl FnMut(usize, &mut Conn, ConnEvent<'_>) -> Result<()>,
    ) -> Result<usize> {
        let count = self.poller.wait(Some(timeout))?;
        for at in 0..count {
            let ready = self.poller.ready(at);
            if self.conns.get(ready.slot).is_none_or(Option::is_none) {
                continue;
            }
            if !self.unsent.is_empty() {
                self.flush(ready.slot)?;
            }
            self.read(ready, &mut on_event)?;
        }
        Ok(count)
    }

    fn read(
        &mut self,
        ready: Ready,
        on_event: &mut impl FnMut(usize, &mut Conn, ConnEvent<'_>) -> Result<()>,
    ) -> Result<()> {
        let slot = ready.slot;
        let Some(conn) = self.conns[slot].as_mut() else { return Ok(()) };
        let (mut replies, mut records) = (Vec::new(), Vec::new());
        if conn.phase == Phase::Connecting && !self.tls.is_handshaking(slot, &mut records)? {
            on_event(slot, conn, ConnEvent::Writable)?;
        }
        loop {
            let count = match recv(&conn.fd, &mut self.buffer[..], RecvFlags::empty()) {
                Ok((0, _)) => return on_event(slot, conn, ConnEvent::Closed),
                Ok((count, _)) => count,
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(Errno::CONNRESET | Errno::PIPE | Errno::CONNREFUSED) => {
                    return on_event(slot, conn, ConnEvent::Closed);
                }
                Err(error) => return Err(error.into()),
            };
            self.reads += 1;
            let mut bytes = &self.buffer[..count];
            if let Some(Decrypted { is_opened, content }) = self.tls.receive(slot, bytes, &mut records)? {
                if is_opened {
                    on_event(slot, conn, ConnEvent::Writable)?;
                }
                bytes = content;
            }
            if bytes.is_empty() {
                // Records of the handshake.
            } else if self.framed && conn.phase != Phase::Upgrading {
                frames(self.transport, slot, conn, bytes, &mut replies, on_event)?;
            } else {
                on_event(slot, conn, ConnEvent::Bytes(bytes))?;
            }
            // A short read empties the socket; later bytes are an edge of their own.
            if count < self.buffer.len() && !ready.hangup {
                break;
            }
        }
        if !records.is_empty() {
            self.send_encrypted(slot, &records)?;
        }
        if replies.is_empty() { Ok(()) } else { self.send(slot, &replies) }
    }
}

/// Splits `bytes` into frames, after the kept start of an incomplete one.
fn frames(
    transport: BenchTransport,
    slot: usize,
    conn: &mut Conn,
    bytes: &[u8],
    replies: &mut Vec<u8>,
    on_event: &mut impl FnMut(usize, &mut Conn, ConnEvent<'_>) -> Result<()>,
) -> Result<()> {
    let joined = conn.tail.take().map(|tail| [&tail[..], bytes].concat());
    let mut rest = joined.as_deref().unwrap_or(bytes);
    while let Some((unit, used)) = wire::next(transport, rest)? {
        rest = &rest[used..];
        match unit {
            Unit::Frame(frame) => {
                let view = wire::view(frame).context("a frame that is no protobuf")?;
                if view.kind == kind::PING {
                    wire::put_client(transport, &wire::pong(), replies);
                } else {
                    on_event(slot, conn, ConnEvent::Frame(view))?;
                }
            }
            Unit::WsPing(payload) => wire::put_ws_pong(payload, replies),
            Unit::WsPong => {}
            Unit::WsClose => return on_event(slot, conn, ConnEvent::Closed),
        }
    }
    if !rest.is_empty() {
        conn.tail = Some(rest.into());
    }
    Ok(())
}

/// Fails for an event that a connection which ought to stay open and quiet does not have.
pub(super) fn surprise(slot: usize, event: &ConnEvent<'_>) -> Result<()> {
    match event {
        ConnEvent::Writable | ConnEvent::Bytes(_) => Ok(()),
        ConnEvent::Closed => bail!("connection {slot} was closed by the server"),
        ConnEvent::Frame(view) => match view.kind {
            kind::ERROR => bail!("connection {slot}: error {}", wire::reason(view.body)),
            kind::CLOSE => bail!("connection {slot}: close {}", wire::reason(view.body)),
            kind::BEHIND => bail!("connection {slot}: the server left messages out"),
            kind::GO_AWAY => bail!("connection {slot}: the server is leaving"),
            _ => Ok(()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_takes_no_more_than_a_cache_line() {
        assert!(size_of::<Option<Conn>>() <= 64, "{}", size_of::<Option<Conn>>());
    }
}
