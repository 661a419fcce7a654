//! R5: a raw log: reads what is there on all sockets, appends it with one `write` and one `fdatasync`, then answers.

use super::{CLIENTS, accept, announce, gone_is_fine, listener, read};
use crate::bench::{
    poller::{Poller, send_all},
    wire::{self, Transport, Unit},
};
use anyhow::{Context, Result, bail};
use rustix::{fd::OwnedFd, net::sockopt};
use std::{fs::File, io::Write as _, path::Path};

/// The file begins anew at this size, as the journals of a store do.
const FILE_BYTES: usize = 64 << 20;

/// A connection: what it has not sent whole yet, what it is to be told, and how many of its messages are in the log.
struct Client {
    fd: OwnedFd,
    tail: Vec<u8>,
    out: Vec<u8>,
    seq: u64,
}

/// Appends what comes to the file at `path`, all that waits with one sync, and answers each frame with its number.
pub(crate) fn log(path: &Path) -> Result<()> {
    let (listener, port) = listener()?;
    let mut poller = Poller::new()?;
    poller.add_level(&listener, CLIENTS)?;
    announce(port, 0)?;
    let mut file = File::create(path)?;
    let (mut clients, mut written) = (Vec::new(), 0);
    let (mut batch, mut told) = (Vec::new(), Vec::new());
    let mut buffer = vec![0; 256 * 1024];
    loop {
        for at in 0..poller.wait(None)? {
            let slot = poller.ready(at).slot;
            if slot == CLIENTS {
                while let Some(fd) = accept(&listener)? {
                    sockopt::set_tcp_nodelay(&fd, true)?;
                    poller.add_level(&fd, clients.len())?;
                    clients.push(Some(Client { fd, tail: Vec::new(), out: Vec::new(), seq: 0 }));
                }
                continue;
            }
            let Some(client) = clients[slot].as_mut() else { continue };
            match read(&client.fd, &mut buffer) {
                Some(count) => {
                    client.take(&buffer[..count], &mut batch)?;
                    told.push(slot);
                }
                None => clients[slot] = None,
            }
        }
        if batch.is_empty() {
            told.clear();
            continue;
        }
        file.write_all(&batch)?;
        file.sync_data()?;
        written += batch.len();
        batch.clear();
        for slot in told.drain(..) {
            let Some(client) = clients[slot].as_mut() else { continue };
            // One that left has its answer on the way all the same.
            send_all(&client.fd, &client.out).or_else(gone_is_fine)?;
            client.out.clear();
        }
        if written > FILE_BYTES {
            (file, written) = (File::create(path)?, 0);
        }
    }
}

impl Client {
    fn take(&mut self, bytes: &[u8], batch: &mut Vec<u8>) -> Result<()> {
        self.tail.extend_from_slice(bytes);
        let mut rest = &self.tail[..];
        while let Some((unit, used)) = wire::next(Transport::Tcp, rest)? {
            let Unit::Frame(frame) = unit else { bail!("no frame") };
            let id = wire::view(frame).context("a frame that is no protobuf")?.id;
            self.seq += 1;
            wire::put_server(Transport::Tcp, &wire::send_ack(id, self.seq), &mut self.out);
            batch.extend_from_slice(&rest[..used]);
            rest = &rest[used..];
        }
        let used = self.tail.len() - rest.len();
        self.tail.drain(..used);
        Ok(())
    }
}
