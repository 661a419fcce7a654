//! A thin layer over epoll, from sockets to slots. Both ends of the bench use it, because a runtime would be part of
//! the figures.

use rustix::{
    event::{PollFd, PollFlags, Timespec, epoll, poll},
    fd::{AsFd, OwnedFd},
    io::{self, Errno},
    net::{SendFlags, send},
};
use std::time::Duration;

/// Most events of one wait.
const BATCH: usize = 1024;

/// A ready socket: the slot that it was added with, and whether the other side has closed or is closing it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ready {
    pub(super) slot: usize,
    pub(super) hangup: bool,
}

/// An epoll instance with room for one batch of events.
pub(super) struct Poller {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

impl Poller {
    /// Creates a poller without sockets.
    pub(super) fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { epoll, events: Vec::with_capacity(BATCH) })
    }

    /// Reports `fd` as `slot` while it has something to read.
    pub(super) fn add_level(&self, fd: impl AsFd, slot: usize) -> io::Result<()> {
        self.add(fd, slot, epoll::EventFlags::IN)
    }

    /// Reports `fd` as `slot` once for each change: readable, writable, hung up.
    pub(super) fn add_edge(&self, fd: impl AsFd, slot: usize) -> io::Result<()> {
        use epoll::EventFlags as F;
        self.add(fd, slot, F::IN | F::OUT | F::RDHUP | F::ET)
    }

    fn add(&self, fd: impl AsFd, slot: usize, flags: epoll::EventFlags) -> io::Result<()> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(slot as u64), flags)
    }

    /// Waits at most `timeout`, which the kernel rounds up to a millisecond. Returns the number of ready sockets.
    pub(super) fn wait(&mut self, timeout: Option<Duration>) -> io::Result<usize> {
        let timeout = timeout.map(|wait| Timespec {
            tv_sec: wait.as_secs().min(3600) as i64,
            tv_nsec: i64::from(wait.subsec_nanos()),
        });
        self.events.clear();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), timeout.as_ref()) {
            Ok(count) => Ok(count),
            Err(Errno::INTR) => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Returns the `at`-th ready socket of the last wait.
    pub(super) fn ready(&self, at: usize) -> Ready {
        use epoll::EventFlags as F;
        let event = self.events[at];
        let (flags, data) = (event.flags, event.data);
        Ready { slot: data.u64() as usize, hangup: flags.intersects(F::RDHUP | F::HUP | F::ERR) }
    }
}

/// Sends all of `bytes`, and waits while the socket is full. Raw servers treat slow readers in this way.
pub(super) fn send_all(fd: impl AsFd, mut bytes: &[u8]) -> io::Result<()> {
    let fd = fd.as_fd();
    while !bytes.is_empty() {
        match send(fd, bytes, SendFlags::NOSIGNAL) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait_writable(fd)?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn wait_writable(fd: impl AsFd) -> io::Result<()> {
    let wait = Timespec { tv_sec: 10, tv_nsec: 0 };
    let mut fds = [PollFd::new(&fd, PollFlags::OUT)];
    match poll(&mut fds, Some(&wait)) {
        Ok(0) => Err(Errno::TIMEDOUT),
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error),
    }
}
