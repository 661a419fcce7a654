//! Recordings of what an attack wrote, and their replay against the raw loop.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::TcpStream,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};

/// Most steps that are recorded; what a longer attack does later is not replayed.
const STEPS_MAX: usize = 4_000_000;
/// Bytes of one read or write.
pub(super) const SCRATCH_BYTES: usize = 64 * 1024;
/// Time for the connect.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(200);
/// Pauses of a replay that has nothing to do.
const PAUSE: Duration = Duration::from_millis(1);

/// What a connection of the attack did.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Open,
    Write(u32),
    Close,
}

/// Everything that an attack did, with times since its start.
#[derive(Debug, Default)]
pub(super) struct Recording {
    steps: Vec<(Duration, usize, Step)>,
}

impl Recording {
    /// Adds a step of a connection.
    pub(super) fn add(&mut self, at: Duration, conn: usize, step: Step) {
        if self.steps.len() < STEPS_MAX {
            self.steps.push((at, conn, step));
        }
    }

    /// Replays the steps in their order and at their times until `stop`. Connections in `deaf` read nothing. Returns the
    /// bytes that were written.
    pub(super) fn replay(&self, address: &str, deaf: fn(usize) -> bool, stop: &AtomicBool) -> u64 {
        let conns = self.steps.iter().map(|(_, conn, _)| conn + 1).max().unwrap_or(0);
        let mut sockets: Vec<Owing> = (0..conns).map(|_| Owing::default()).collect();
        let payload = vec![b'.'; SCRATCH_BYTES];
        let mut scratch = vec![0; SCRATCH_BYTES];
        let (began, mut next, mut written) = (Instant::now(), 0, 0);
        while !stop.load(Ordering::Relaxed) {
            let mut has_moved = false;
            let now = began.elapsed();
            while let Some((_, conn, step)) = self.steps.get(next).filter(|(at, ..)| *at <= now) {
                next += 1;
                has_moved = true;
                match step {
                    Step::Open => sockets[*conn] = Owing { stream: connect(address).ok(), bytes: 0 },
                    Step::Write(bytes) => sockets[*conn].bytes += *bytes as usize,
                    Step::Close => sockets[*conn] = Owing::default(),
                }
                written += sockets[*conn].pay(&payload);
            }
            for (conn, socket) in sockets.iter_mut().enumerate() {
                let paid = socket.pay(&payload);
                let is_read = !deaf(conn) && socket.read(&mut scratch);
                written += paid;
                has_moved |= paid > 0 || is_read;
            }
            if !has_moved {
                thread::sleep(PAUSE);
            }
        }
        written
    }
}

/// Opens a connection whose reads and writes do not wait.
pub(super) fn connect(address: &str) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address.parse()?, CONNECT_TIMEOUT)
        .with_context(|| format!("{address} does not accept"))?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

/// A connection with bytes that are due and not written yet.
#[derive(Default)]
struct Owing {
    stream: Option<TcpStream>,
    bytes: usize,
}

impl Owing {
    /// Writes what the socket takes. Returns the number of bytes.
    fn pay(&mut self, payload: &[u8]) -> u64 {
        let Some(stream) = self.stream.as_mut().filter(|_| self.bytes > 0) else { return 0 };
        match stream.write(&payload[..self.bytes.min(payload.len())]) {
            Ok(count) => {
                self.bytes -= count;
                count as u64
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(_) => {
                *self = Self::default();
                0
            }
        }
    }

    /// Reads once. Returns whether anything came.
    fn read(&mut self, scratch: &mut [u8]) -> bool {
        let count = self.stream.as_mut().map_or(0, |stream| stream.read(scratch).unwrap_or(0));
        count > 0
    }
}
