//! R7: the raw accept loop over TLS, with the library and the settings of a node: handshake, read one request, write a
//! reply.

use super::{CLIENTS, accept, announce, gone_is_fine, listener, read};
use crate::bench::poller::{Poller, send_all};
use anyhow::Result;
use rustix::fd::OwnedFd;
use rustls::{
    ServerConfig, ServerConnection,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::NoServerSessionStorage,
};
use std::{
    io::{Read as _, Write as _},
    path::Path,
    sync::Arc,
};

/// Most content of one record.
const CONTENT_MAX: usize = 16 * 1024;

/// A client and its TLS state.
struct Client {
    fd: OwnedFd,
    tls: ServerConnection,
}

/// Accepts, shakes hands, reads one request, writes a reply of `reply` bytes, and waits for the client to close.
pub(crate) fn accept_tls(reply: usize, certificate: &Path, key: &Path) -> Result<()> {
    let config = config(certificate, key)?;
    let (listener, port) = listener()?;
    let mut poller = Poller::new()?;
    poller.add_level(&listener, CLIENTS)?;
    announce(port, 0)?;
    let (mut clients, mut free) = (Vec::new(), Vec::new());
    let mut buffer = vec![0; 64 * 1024];
    let answer = vec![b'.'; reply];
    loop {
        for at in 0..poller.wait(None)? {
            let slot = poller.ready(at).slot;
            if slot == CLIENTS {
                while let Some(fd) = accept(&listener)? {
                    let slot = free.pop().unwrap_or(clients.len());
                    poller.add_level(&fd, slot)?;
                    let client = Some(Client { fd, tls: ServerConnection::new(Arc::clone(&config))? });
                    if slot == clients.len() {
                        clients.push(client);
                    } else {
                        clients[slot] = client;
                    }
                }
                continue;
            }
            let Some(client) = clients[slot].as_mut() else { continue };
            let stays = match read(&client.fd, &mut buffer) {
                Some(0) => true,
                Some(count) => client.answer(&buffer[..count], &answer)?,
                None => false,
            };
            if !stays {
                clients[slot] = None;
                free.push(slot);
            }
        }
    }
}

impl Client {
    /// Processes `input`, and answers a request in it. Returns whether the client stays.
    fn answer(&mut self, mut input: &[u8], answer: &[u8]) -> Result<bool> {
        let mut content = [0; CONTENT_MAX];
        while !input.is_empty() {
            self.tls.read_tls(&mut input)?;
            let Ok(state) = self.tls.process_new_packets() else { return Ok(false) };
            let length = state.plaintext_bytes_to_read().min(CONTENT_MAX);
            if length > 0 {
                self.tls.reader().read_exact(&mut content[..length])?;
                self.tls.writer().write_all(answer)?;
            }
        }
        let mut records = Vec::new();
        while self.tls.wants_write() {
            self.tls.write_tls(&mut records)?;
        }
        send_all(&self.fd, &records).or_else(gone_is_fine)?;
        Ok(true)
    }
}

fn config(certificate: &Path, key: &Path) -> Result<Arc<ServerConfig>> {
    let chain = CertificateDer::pem_file_iter(certificate)?.collect::<Result<Vec<_>, _>>()?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::from_pem_file(key)?)?;
    config.ticketer = aws_lc_rs::Ticketer::new()?;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(Arc::new(config))
}
