//! TLS of the load generator's connections, with full or resumed handshakes.

use crate::bench::{credentials::SERVER_NAME, login_kind::LoginHandshake, orders::Setup};
use anyhow::{Context, Result, bail, ensure};
use parking_lot::Mutex;
use rustls::{
    ClientConfig, ClientConnection, HandshakeKind, NamedGroup, RootCertStore,
    client::{ClientSessionStore, Resumption, Tls12ClientSessionValue, Tls13ClientSessionValue},
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use std::{
    collections::{HashMap, VecDeque},
    io::{Read as _, Write as _},
    path::Path,
    sync::Arc,
};

/// Most tickets that wait for their use; further ones replace the oldest.
const TICKETS_MAX: usize = 4_096;

/// Tickets of TLS 1.3, each of which resumes one connection.
#[derive(Debug, Default)]
struct Tickets(Mutex<VecDeque<Tls13ClientSessionValue>>);

impl ClientSessionStore for Tickets {
    fn set_kx_hint(&self, _server: ServerName<'static>, _group: NamedGroup) {}

    fn kx_hint(&self, _server: &ServerName<'_>) -> Option<NamedGroup> {
        None
    }

    fn set_tls12_session(&self, _server: ServerName<'static>, _session: Tls12ClientSessionValue) {}

    fn tls12_session(&self, _server: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        None
    }

    fn remove_tls12_session(&self, _server: &ServerName<'static>) {}

    fn insert_tls13_ticket(&self, _server: ServerName<'static>, ticket: Tls13ClientSessionValue) {
        let mut tickets = self.0.lock();
        if tickets.len() >= TICKETS_MAX {
            tickets.pop_front();
        }
        tickets.push_back(ticket);
    }

    fn take_tls13_ticket(&self, _server: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.0.lock().pop_front()
    }
}

/// Configurations of connections that trust one authority.
struct Configs {
    full: Arc<ClientConfig>,
    resuming: Arc<ClientConfig>,
}

/// Content that a connection received, and whether its handshake ended with it.
pub(super) struct Decrypted<'a> {
    pub(super) is_opened: bool,
    pub(super) content: &'a [u8],
}

/// TLS states of connections by slot; a connection without TLS has none.
pub(super) struct TlsClients {
    configs: Option<Configs>,
    tickets: Arc<Tickets>,
    handshake: LoginHandshake,
    /// Whether resumed handshakes may be full, because tickets are collected.
    is_collecting: bool,
    links: HashMap<usize, ClientConnection>,
    content: Vec<u8>,
}

impl TlsClients {
    /// Creates states for connections to a server whose authority the setup may name; full handshakes are the default
    /// if it does.
    pub(super) fn new(setup: &Setup) -> Result<Self> {
        let tickets = Arc::default();
        let configs = setup.authority.as_deref().map(|file| Configs::read(file, &tickets)).transpose()?;
        let handshake = if configs.is_some() { LoginHandshake::Full } else { LoginHandshake::None };
        let (links, content) = (HashMap::new(), Vec::new());
        Ok(Self { configs, tickets, handshake, is_collecting: false, links, content })
    }

    /// Sets the handshake of further connections; returns the one before.
    pub(super) fn set_handshake(&mut self, handshake: LoginHandshake) -> LoginHandshake {
        std::mem::replace(&mut self.handshake, handshake)
    }

    /// Sets whether resumed handshakes may be full, because tickets are collected.
    pub(super) fn set_collecting(&mut self, is_collecting: bool) {
        self.is_collecting = is_collecting;
    }

    /// Returns the number of tickets that wait for their use.
    pub(super) fn tickets(&self) -> usize {
        self.tickets.0.lock().len()
    }

    /// Begins the state of a new connection.
    pub(super) fn open(&mut self, slot: usize) -> Result<()> {
        self.links.remove(&slot);
        let configs = self.configs.as_ref();
        let config = match self.handshake {
            LoginHandshake::None => return Ok(()),
            LoginHandshake::Full => configs.map(|configs| &configs.full),
            LoginHandshake::Resumed => configs.map(|configs| &configs.resuming),
        };
        let config = config.context("no authority for TLS")?;
        let name = ServerName::try_from(SERVER_NAME)?;
        self.links.insert(slot, ClientConnection::new(Arc::clone(config), name)?);
        Ok(())
    }

    pub(super) fn close(&mut self, slot: usize) {
        self.links.remove(&slot);
    }

    pub(super) fn clear(&mut self) {
        self.links.clear();
    }

    /// Returns whether the connection has a handshake that is not over, and appends what it sends first.
    pub(super) fn is_handshaking(&mut self, slot: usize, records: &mut Vec<u8>) -> Result<bool> {
        let Some(link) = self.links.get_mut(&slot) else { return Ok(false) };
        write_waiting(link, records)?;
        Ok(link.is_handshaking())
    }

    /// Returns the records of `content`; `None` without TLS.
    pub(super) fn encrypt(&mut self, slot: usize, content: &[u8]) -> Result<Option<Vec<u8>>> {
        let Some(link) = self.links.get_mut(&slot) else { return Ok(None) };
        link.writer().write_all(content)?;
        let mut records = Vec::new();
        write_waiting(link, &mut records)?;
        Ok(Some(records))
    }

    /// Decrypts what arrived, and appends what must be sent to `records`; `None` without TLS.
    pub(super) fn receive(
        &mut self,
        slot: usize,
        mut input: &[u8],
        records: &mut Vec<u8>,
    ) -> Result<Option<Decrypted<'_>>> {
        let Some(link) = self.links.get_mut(&slot) else { return Ok(None) };
        let was_handshaking = link.is_handshaking();
        self.content.clear();
        while !input.is_empty() {
            link.read_tls(&mut input)?;
            let state = link.process_new_packets().with_context(|| format!("TLS of connection {slot}"))?;
            let (start, length) = (self.content.len(), state.plaintext_bytes_to_read());
            self.content.resize(start + length, 0);
            link.reader().read_exact(&mut self.content[start..])?;
        }
        write_waiting(link, records)?;
        let is_opened = was_handshaking && !link.is_handshaking();
        if is_opened {
            check_kind(self.handshake, link.handshake_kind(), self.is_collecting)?;
        }
        Ok(Some(Decrypted { is_opened, content: &self.content }))
    }
}

fn write_waiting(link: &mut ClientConnection, records: &mut Vec<u8>) -> Result<()> {
    while link.wants_write() {
        link.write_tls(records)?;
    }
    Ok(())
}

/// Fails when a handshake was not of the wanted kind.
fn check_kind(wanted: LoginHandshake, kind: Option<HandshakeKind>, is_collecting: bool) -> Result<()> {
    match (wanted, kind) {
        (LoginHandshake::Full, Some(HandshakeKind::Full))
        | (LoginHandshake::Resumed, Some(HandshakeKind::Resumed)) => Ok(()),
        (LoginHandshake::Resumed, Some(HandshakeKind::Full)) if is_collecting => Ok(()),
        _ => bail!("a handshake of kind {kind:?} in place of {wanted:?}"),
    }
}

impl Configs {
    fn read(authority: &Path, tickets: &Arc<Tickets>) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(authority)? {
            roots.add(certificate?)?;
        }
        ensure!(!roots.is_empty(), "{}: no certificate", authority.display());
        let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let (mut full, mut resuming) = (config.clone(), config);
        full.resumption = Resumption::disabled();
        resuming.resumption = Resumption::store(Arc::clone(tickets) as Arc<dyn ClientSessionStore>);
        Ok(Self { full: Arc::new(full), resuming: Arc::new(resuming) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handshake_of_another_kind_is_an_error() {
        use {HandshakeKind as Kind, LoginHandshake as Wanted};
        assert!(check_kind(Wanted::Full, Some(Kind::Full), false).is_ok());
        assert!(check_kind(Wanted::Resumed, Some(Kind::Resumed), false).is_ok());
        assert!(check_kind(Wanted::Resumed, Some(Kind::Full), true).is_ok());
        for (wanted, kind) in [
            (Wanted::Resumed, Some(Kind::Full)),
            (Wanted::Full, Some(Kind::Resumed)),
            (Wanted::Full, Some(Kind::FullWithHelloRetryRequest)),
            (Wanted::Full, None),
        ] {
            assert!(check_kind(wanted, kind, false).is_err(), "{wanted:?} {kind:?}");
        }
    }
}
