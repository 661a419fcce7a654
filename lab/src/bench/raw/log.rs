//! R5: a raw log, which reads all sockets, appends what came with one `write` and one `fdatasync`, then answers.

use super::{CLIENTS, accept, announce, gone_is_fine, listener, read};
use crate::bench::{
    poller::{Poller, send_all},
    wire::{self, BenchTransport, Unit},
};
use anyhow::{Context, Result, bail, ensure};
use rustix::{
    fd::OwnedFd,
    fs::{FallocateFlags, fallocate},
    net::sockopt,
};
use std::{
    fs::File,
    io::{Seek as _, Write as _},
    path::Path,
};

/// Size at which the file starts over, as the journals of a store do.
const FILE_BYTES: usize = 64 << 20;

/// A file that takes messages, and starts over at [`FILE_BYTES`].
struct Log<'a> {
    path: &'a Path,
    file: File,
    written: usize,
    is_preallocated: bool,
}

impl<'a> Log<'a> {
    fn create(path: &'a Path, is_preallocated: bool) -> Result<Self> {
        let mut file = File::create(path)?;
        if is_preallocated {
            fallocate(&file, FallocateFlags::empty(), 0, FILE_BYTES as u64).context("fallocate")?;
            // Space that is allocated but never written costs a change of metadata at its first sync.
            file.write_all(&vec![0; FILE_BYTES])?;
            file.sync_all()?;
            file.rewind()?;
        }
        Ok(Self { path, file, written: 0, is_preallocated })
    }

    /// Appends `batch` and syncs it.
    fn append(&mut self, batch: &[u8]) -> Result<()> {
        ensure!(batch.len() <= FILE_BYTES, "{} bytes at a time", batch.len());
        if self.written + batch.len() > FILE_BYTES {
            self.written = 0;
            if self.is_preallocated {
                self.file.rewind()?;
            } else {
                self.file = File::create(self.path)?;
            }
        }
        self.file.write_all(batch)?;
        self.file.sync_data()?;
        self.written += batch.len();
        Ok(())
    }
}

/// A connection: the start of an incomplete frame, its unsent answers, and the number of its messages in the log.
struct Client {
    fd: OwnedFd,
    tail: Vec<u8>,
    out: Vec<u8>,
    seq: u64,
}

/// Appends incoming frames to the file at `path`, all pending ones with one sync, and answers each with its number. The
/// file grows, or has all of its blocks from the start.
pub(crate) fn log(path: &Path, is_preallocated: bool) -> Result<()> {
    let (listener, port) = listener()?;
    let mut poller = Poller::new()?;
    poller.add_level(&listener, CLIENTS)?;
    let mut log = Log::create(path, is_preallocated)?;
    announce(port, 0)?;
    let mut clients = Vec::new();
    let (mut batch, mut answered) = (Vec::new(), Vec::new());
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
                    answered.push(slot);
                }
                None => clients[slot] = None,
            }
        }
        if batch.is_empty() {
            answered.clear();
            continue;
        }
        log.append(&batch)?;
        batch.clear();
        for slot in answered.drain(..) {
            let Some(client) = clients[slot].as_mut() else { continue };
            // A client may have left before its answer.
            send_all(&client.fd, &client.out).or_else(gone_is_fine)?;
            client.out.clear();
        }
    }
}

impl Client {
    fn take(&mut self, bytes: &[u8], batch: &mut Vec<u8>) -> Result<()> {
        self.tail.extend_from_slice(bytes);
        let mut rest = &self.tail[..];
        while let Some((unit, used)) = wire::next(BenchTransport::Tcp, rest)? {
            let Unit::Frame(frame) = unit else { bail!("no frame") };
            let id = wire::view(frame).context("a frame that is no protobuf")?.id;
            self.seq += 1;
            wire::put_server(BenchTransport::Tcp, &wire::send_ack(id, self.seq), &mut self.out);
            batch.extend_from_slice(&rest[..used]);
            rest = &rest[used..];
        }
        let used = self.tail.len() - rest.len();
        self.tail.drain(..used);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt as _;

    #[test]
    fn a_preallocated_file_keeps_its_blocks_and_begins_again() {
        let path = std::env::temp_dir().join(format!("tidegate-raw-log-{:x}", rand::random::<u64>()));
        let mut log = Log::create(&path, true).unwrap();
        let blocks = || std::fs::metadata(&path).map(|it| (it.len(), it.blocks())).unwrap();
        let before = blocks();
        assert!(before.0 == FILE_BYTES as u64 && before.1 * 512 >= before.0, "{before:?}");
        log.append(b"first").unwrap();
        log.append(&vec![1; FILE_BYTES - 5]).unwrap();
        log.append(b"again").unwrap();
        assert_eq!(blocks(), before);
        assert!(std::fs::read(&path).unwrap().starts_with(b"again\x01"));
        let mut log = Log::create(&path, false).unwrap();
        log.append(b"grows").unwrap();
        assert_eq!(blocks().0, 5);
        std::fs::remove_file(&path).unwrap();
    }
}
