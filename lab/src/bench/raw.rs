//! Raw baselines: single-threaded epoll servers that do nothing but the system calls a scenario needs.

mod log;
mod tls;

pub(super) use {log::log, tls::accept_tls};

use super::poller::{Poller, send_all};
use anyhow::{Context, Result, bail};
use rustix::{
    fd::{AsFd, OwnedFd},
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, accept_with, bind, getsockname, listen,
        recv, send, socket_with, sockopt,
    },
};
use std::{
    io::{Write, stdout},
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
};

/// Slot of the listener that clients connect to.
const CLIENTS: usize = usize::MAX;
/// Slot of the listener for the load generator's messages.
const CONTROL: usize = usize::MAX - 1;
/// Slot of the control connection.
const ORDERS: usize = usize::MAX - 2;

const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

fn listener() -> Result<(OwnedFd, u16)> {
    let fd = socket_with(AddressFamily::INET, SocketType::STREAM, FLAGS, None)?;
    sockopt::set_socket_reuseaddr(&fd, true)?;
    bind(&fd, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))?;
    listen(&fd, 4096)?;
    let Ok(SocketAddr::V4(address)) = SocketAddr::try_from(getsockname(&fd)?) else {
        bail!("the listener has no IPv4 address");
    };
    Ok((fd, address.port()))
}

/// Writes the client port and the control port in one line, which the parent reads.
fn announce(clients: u16, control: u16) -> Result<()> {
    writeln!(stdout(), "{clients} {control}")?;
    Ok(stdout().flush()?)
}

fn accept(listener: impl AsFd) -> Result<Option<OwnedFd>> {
    loop {
        match accept_with(listener.as_fd(), FLAGS) {
            Ok(fd) => return Ok(Some(fd)),
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(error) => return Err(error).context("accept"),
        }
    }
}

/// Reads available bytes: `None` when the other side has closed, 0 when there is nothing yet.
fn read(fd: impl AsFd, buffer: &mut [u8]) -> Option<usize> {
    match recv(fd, buffer, RecvFlags::empty()) {
        Ok((0, _)) => None,
        Ok((count, _)) => Some(count),
        Err(Errno::AGAIN | Errno::INTR) => Some(0),
        Err(_) => None,
    }
}

/// Sockets by slot; freed slots are reused.
#[derive(Default)]
struct Slots {
    fds: Vec<Option<OwnedFd>>,
    free: Vec<usize>,
}

impl Slots {
    fn insert(&mut self, poller: &Poller, fd: OwnedFd) -> Result<()> {
        let slot = self.free.pop().unwrap_or(self.fds.len());
        poller.add_level(&fd, slot)?;
        if slot == self.fds.len() {
            self.fds.push(Some(fd));
        } else {
            self.fds[slot] = Some(fd);
        }
        Ok(())
    }

    fn remove(&mut self, slot: usize) {
        if self.fds.get_mut(slot).and_then(Option::take).is_some() {
            self.free.push(slot);
        }
    }
}

/// R1: sends every frame that comes over the control connection (`u32` length, bytes) to every client.
pub(super) fn fanout() -> Result<()> {
    let (clients, client_port) = listener()?;
    let (control, control_port) = listener()?;
    let mut poller = Poller::new()?;
    poller.add_level(&clients, CLIENTS)?;
    poller.add_level(&control, CONTROL)?;
    announce(client_port, control_port)?;
    let (mut slots, mut orders, mut inbox) = (Slots::default(), None, Vec::new());
    let mut buffer = vec![0; 64 * 1024];
    loop {
        for at in 0..poller.wait(None)? {
            match poller.ready(at).slot {
                CLIENTS => {
                    while let Some(fd) = accept(&clients)? {
                        sockopt::set_tcp_nodelay(&fd, true)?;
                        // Confirms to the client that it is connected, so that no message is sent before that.
                        send_all(&fd, &[0]).or_else(gone_is_fine)?;
                        slots.insert(&poller, fd)?;
                    }
                }
                CONTROL => {
                    if let Some(fd) = accept(&control)? {
                        poller.add_level(&fd, ORDERS)?;
                        orders = Some(fd);
                    }
                }
                ORDERS => {
                    let Some(fd) = &orders else { continue };
                    match read(fd, &mut buffer) {
                        Some(count) => inbox.extend_from_slice(&buffer[..count]),
                        None => return Ok(()),
                    }
                    replay(&mut inbox, &mut slots)?;
                }
                slot => {
                    let gone = slots.fds[slot].as_ref().is_some_and(|fd| read(fd, &mut buffer).is_none());
                    if gone {
                        slots.remove(slot);
                    }
                }
            }
        }
    }
}

/// Sends each complete frame of `inbox` to all clients, with one `send` per socket.
fn replay(inbox: &mut Vec<u8>, slots: &mut Slots) -> Result<()> {
    let mut from = 0;
    while let Some((head, rest)) = inbox[from..].split_first_chunk() {
        let Some(frame) = rest.get(..u32::from_le_bytes(*head) as usize) else { break };
        for fd in slots.fds.iter().flatten() {
            match send(fd, frame, SendFlags::NOSIGNAL) {
                Ok(sent) if sent == frame.len() => {}
                Ok(sent) => send_all(fd, &frame[sent..])?,
                Err(Errno::AGAIN) => send_all(fd, frame)?,
                // The hang-up is reported as an event of its own.
                Err(Errno::PIPE | Errno::CONNRESET) => {}
                Err(error) => return Err(error).context("send"),
            }
        }
        from += 4 + frame.len();
    }
    inbox.drain(..from);
    Ok(())
}

/// R3: answers every request of `request` bytes with the same bytes, followed by zeros up to `reply` bytes.
pub(super) fn echo(request: usize, reply: usize) -> Result<()> {
    if request > reply || request == 0 {
        bail!("the reply must hold the request");
    }
    serve(|fd, got| {
        let mut out = [0; 256];
        // A client has one request outstanding, and loopback does not split so few bytes.
        if got.len() != request || reply > out.len() {
            return Ok(false);
        }
        out[..request].copy_from_slice(got);
        send_all(fd, &out[..reply])?;
        Ok(true)
    })
}

/// R6: sends back whatever comes. A client that does not read loses the answers that its socket has no room for.
pub(super) fn mirror() -> Result<()> {
    serve(|fd, got| Ok(matches!(send(fd, got, SendFlags::NOSIGNAL), Ok(_) | Err(Errno::AGAIN | Errno::INTR))))
}

/// Accepts clients, and passes what each sends to `answer`, which returns whether the client stays.
fn serve(answer: impl Fn(&OwnedFd, &[u8]) -> Result<bool>) -> Result<()> {
    let (clients, port) = listener()?;
    let mut poller = Poller::new()?;
    poller.add_level(&clients, CLIENTS)?;
    announce(port, 0)?;
    let (mut slots, mut buffer) = (Slots::default(), vec![0; 64 * 1024]);
    loop {
        for at in 0..poller.wait(None)? {
            let slot = poller.ready(at).slot;
            if slot == CLIENTS {
                while let Some(fd) = accept(&clients)? {
                    sockopt::set_tcp_nodelay(&fd, true)?;
                    slots.insert(&poller, fd)?;
                }
                continue;
            }
            let Some(fd) = &slots.fds[slot] else { continue };
            let stays = match read(fd, &mut buffer) {
                Some(0) => true,
                Some(count) => answer(fd, &buffer[..count])?,
                None => false,
            };
            if !stays {
                slots.remove(slot);
            }
        }
    }
}

/// R4: accepts, reads one request, writes a reply of `reply` bytes, and waits for the client to close.
pub(super) fn accept_loop(reply: usize) -> Result<()> {
    let (clients, port) = listener()?;
    let mut poller = Poller::new()?;
    poller.add_level(&clients, CLIENTS)?;
    announce(port, 0)?;
    let (mut slots, mut buffer) = (Slots::default(), vec![0; 64 * 1024]);
    let answer = vec![b'.'; reply];
    loop {
        for at in 0..poller.wait(None)? {
            let slot = poller.ready(at).slot;
            if slot == CLIENTS {
                while let Some(fd) = accept(&clients)? {
                    slots.insert(&poller, fd)?;
                }
                continue;
            }
            let Some(fd) = &slots.fds[slot] else { continue };
            match read(fd, &mut buffer) {
                Some(0) => {}
                Some(_) => send_all(fd, &answer).or_else(gone_is_fine)?,
                None => slots.remove(slot),
            }
        }
    }
}

/// Ignores an error that means that a client left before its answer.
fn gone_is_fine(error: Errno) -> Result<()> {
    match error {
        Errno::PIPE | Errno::CONNRESET => Ok(()),
        error => Err(error).context("send"),
    }
}
