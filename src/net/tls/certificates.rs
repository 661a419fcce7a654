//! Certificates of a port, by server name, read again when their files change.

use std::{path::PathBuf, sync::Arc};

use anyhow::{Context as _, ensure};
use parking_lot::RwLock;
use rustls::{
    ServerConfig, SupportedProtocolVersion,
    crypto::aws_lc_rs,
    server::{NoServerSessionStorage, ProducesTickets, WebPkiClientVerifier},
    sign::CertifiedKey,
    version::{TLS12, TLS13},
};

use super::{
    by_name::ByName,
    files::{FileVersion, WatchedCertificates, expiry, read_authorities, read_pair, versions},
};

/// TLS 1.3 tickets sent after a handshake; each resumes one connection.
const TICKETS: usize = 2;

/// Files with certificates and their keys, and what else a port says in its handshakes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// File with a certificate and its chain, and file with its key. The first pair serves clients that name no server,
    /// or an unknown one.
    pub pairs: Vec<(PathBuf, PathBuf)>,
    /// Whether TLS 1.2 is accepted besides 1.3.
    pub is_tls12_accepted: bool,
    /// Application protocols that clients may name.
    pub protocols: &'static [&'static [u8]],
    /// Authority of the certificates of clients; `None` if they are not asked for one.
    pub clients: Option<ClientAuthority>,
}

/// Authority of the certificates of clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientAuthority {
    /// File with the certificates of authorities.
    pub file: PathBuf,
    /// Whether a client without a certificate is refused.
    pub is_required: bool,
}

impl TlsFiles {
    fn all(&self) -> impl Iterator<Item = &PathBuf> {
        let pairs = self.pairs.iter().flat_map(|(chain, key)| [chain, key]);
        pairs.chain(self.clients.iter().map(|clients| &clients.file))
    }
}

/// Certificates in force, shared with the threads that handshake.
pub struct Certificates {
    files: TlsFiles,
    current: RwLock<Loaded>,
}

struct Loaded {
    config: Arc<ServerConfig>,
    versions: Vec<FileVersion>,
    /// End of the validity that ends first, in seconds since 1970.
    expires: i64,
}

impl Certificates {
    /// Reads the files.
    ///
    /// # Errors
    /// A file can't be read, holds no certificate or key, or a key belongs to another certificate; the error names the
    /// file and the cure.
    pub fn load(files: TlsFiles) -> anyhow::Result<Self> {
        let tickets = files.clients.is_none().then(new_tickets).transpose()?;
        let current = RwLock::new(Loaded::read(&files, tickets)?);
        Ok(Self { files, current })
    }

    /// Returns the configuration for a new connection.
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current.read().config)
    }
}

impl WatchedCertificates for Certificates {
    fn have_changed(&self) -> bool {
        versions(self.files.all()) != self.current.read().versions
    }

    fn reload(&self) -> anyhow::Result<()> {
        // Before the files are read: one that changes meanwhile is read again.
        let seen = versions(self.files.all());
        let tickets = self.files.clients.is_none().then(|| Arc::clone(&self.current.read().config.ticketer));
        let loaded = Loaded::read(&self.files, tickets);
        let mut current = self.current.write();
        match loaded {
            Ok(loaded) => {
                *current = loaded;
                Ok(())
            }
            Err(error) => {
                // The same broken files are reported once.
                current.versions = seen;
                Err(error)
            }
        }
    }

    fn expires(&self) -> i64 {
        self.current.read().expires
    }
}

fn new_tickets() -> anyhow::Result<Arc<dyn ProducesTickets>> {
    aws_lc_rs::Ticketer::new().context("creating the key of TLS tickets")
}

impl Loaded {
    /// Reads the files. Without `tickets` no connection is resumed: a ticket would stand for the certificate of its
    /// client after that has expired.
    fn read(files: &TlsFiles, tickets: Option<Arc<dyn ProducesTickets>>) -> anyhow::Result<Self> {
        ensure!(!files.pairs.is_empty(), "name at least one certificate");
        let versions = versions(files.all());
        let keys: Vec<Arc<CertifiedKey>> = files
            .pairs
            .iter()
            .map(|(chain, key)| read_pair(chain, key).map(Arc::new))
            .collect::<anyhow::Result<_>>()?;
        let expires =
            keys.iter().filter_map(|key| expiry(key.end_entity_cert().ok()?)).min().unwrap_or(i64::MAX);
        let accepted: &[&SupportedProtocolVersion] =
            if files.is_tls12_accepted { &[&TLS13, &TLS12] } else { &[&TLS13] };
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder =
            ServerConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(accepted)?;
        let verifier = match &files.clients {
            None => WebPkiClientVerifier::no_client_auth(),
            Some(clients) => {
                let roots = Arc::new(read_authorities(&clients.file)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
                let verifier = if clients.is_required { verifier } else { verifier.allow_unauthenticated() };
                verifier.build().with_context(|| format!("{} can't be used", clients.file.display()))?
            }
        };
        let mut config =
            builder.with_client_cert_verifier(verifier).with_cert_resolver(Arc::new(ByName::new(keys)));
        config.alpn_protocols = files.protocols.iter().map(|protocol| protocol.to_vec()).collect();
        config.send_tls13_tickets = if tickets.is_some() { TICKETS } else { 0 };
        if let Some(tickets) = tickets {
            config.ticketer = tickets;
        }
        // Tickets carry the state, so that no client makes the node keep any.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Self { config: Arc::new(config), versions, expires })
    }
}
