//! Certificates of the client port, by server name, read again when their files change.

use std::{
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use anyhow::{Context as _, anyhow, ensure};
use parking_lot::RwLock;
use rustls::{
    ServerConfig, SupportedProtocolVersion,
    client::verify_server_name,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
    server::{ClientHello, NoServerSessionStorage, ParsedCertificate, ProducesTickets, ResolvesServerCert},
    sign::CertifiedKey,
    version::{TLS12, TLS13},
};
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// Application protocols that clients may name: that of WebSocket, and that of the other wires.
const APPLICATION_PROTOCOLS: [&[u8]; 2] = [b"http/1.1", b"tidegate/1"];

/// TLS 1.3 tickets sent after a handshake; each resumes one connection.
const TICKETS: usize = 2;

/// Files with certificates and their keys, and the oldest protocol version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// File with a certificate and its chain, and file with its key. The first pair serves clients that name no server,
    /// or an unknown one.
    pub pairs: Vec<(PathBuf, PathBuf)>,
    /// Whether TLS 1.2 is accepted besides 1.3.
    pub is_tls12_accepted: bool,
}

/// Certificates in force, shared with the threads that handshake.
pub struct Certificates {
    files: TlsFiles,
    tickets: Arc<dyn ProducesTickets>,
    current: RwLock<Loaded>,
}

struct Loaded {
    config: Arc<ServerConfig>,
    versions: Vec<FileVersion>,
    /// End of the validity that ends first, in seconds since 1970.
    expires: i64,
}

/// What tells a file from its successor.
type FileVersion = Option<(SystemTime, u64, u64)>;

impl Certificates {
    /// Reads the files.
    ///
    /// # Errors
    /// A file can't be read, holds no certificate or key, or a key belongs to another certificate; the error names the
    /// file and the cure.
    pub fn load(files: TlsFiles) -> anyhow::Result<Self> {
        let tickets = aws_lc_rs::Ticketer::new().context("creating the key of TLS tickets")?;
        let current = RwLock::new(Loaded::read(&files, &tickets)?);
        Ok(Self { files, tickets, current })
    }

    /// Returns the configuration for a new connection.
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current.read().config)
    }

    /// Returns when the first certificate expires, in seconds since 1970.
    pub fn expires(&self) -> i64 {
        self.current.read().expires
    }

    /// Returns whether a file was replaced or written since it was read.
    pub fn have_changed(&self) -> bool {
        versions(&self.files) != self.current.read().versions
    }

    /// Reads the files again. Connections keep what they have; on an error new ones get the former certificates.
    ///
    /// # Errors
    /// The errors of [`Self::load`].
    pub fn reload(&self) -> anyhow::Result<()> {
        // Before the files are read: one that changes meanwhile is read again.
        let seen = versions(&self.files);
        let loaded = Loaded::read(&self.files, &self.tickets);
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
}

impl Loaded {
    fn read(files: &TlsFiles, tickets: &Arc<dyn ProducesTickets>) -> anyhow::Result<Self> {
        ensure!(!files.pairs.is_empty(), "name at least one certificate");
        let versions = versions(files);
        let keys: Vec<Arc<CertifiedKey>> = files
            .pairs
            .iter()
            .map(|(chain, key)| pair(chain, key).map(Arc::new))
            .collect::<anyhow::Result<_>>()?;
        let expires =
            keys.iter().filter_map(|key| expiry(key.end_entity_cert().ok()?)).min().unwrap_or(i64::MAX);
        let accepted: &[&SupportedProtocolVersion] =
            if files.is_tls12_accepted { &[&TLS13, &TLS12] } else { &[&TLS13] };
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(provider).with_protocol_versions(accepted)?;
        let mut config = builder.with_no_client_auth().with_cert_resolver(Arc::new(ByName(keys)));
        config.alpn_protocols = APPLICATION_PROTOCOLS.map(<[u8]>::to_vec).into();
        config.ticketer = Arc::clone(tickets);
        config.send_tls13_tickets = TICKETS;
        // Tickets carry the state, so that no client makes the node keep any.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Self { config: Arc::new(config), versions, expires })
    }
}

/// Certificates, of which the first one that is valid for the name serves a client.
#[derive(Debug)]
struct ByName(Vec<Arc<CertifiedKey>>);

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let named = hello.server_name().and_then(|name| ServerName::try_from(name).ok());
        let is_valid = |key: &Arc<CertifiedKey>| {
            let certificate = key.end_entity_cert().ok().and_then(|it| ParsedCertificate::try_from(it).ok());
            named.as_ref().zip(certificate).is_some_and(|(name, it)| verify_server_name(&it, name).is_ok())
        };
        let found = self.0.iter().find(|key| is_valid(key)).or_else(|| self.0.first());
        found.map(Arc::clone)
    }
}

/// Reads a certificate with its chain and its key.
fn pair(chain: &Path, key: &Path) -> anyhow::Result<CertifiedKey> {
    let at = |file: &Path| format!("{} can't be used", file.display());
    let certificates: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(chain)
        .and_then(Iterator::collect)
        .map_err(|error| anyhow!("{error}; name a readable PEM file"))
        .with_context(|| at(chain))?;
    ensure!(
        !certificates.is_empty(),
        "{} holds no certificate; name a PEM file with the certificate and its chain",
        chain.display()
    );
    crate::private::check(key).with_context(|| at(key))?;
    let private = PrivateKeyDer::from_pem_file(key)
        .map_err(|error| anyhow!("{error}; name a PEM file with an unencrypted private key"))
        .with_context(|| at(key))?;
    CertifiedKey::from_der(certificates, private, &aws_lc_rs::default_provider())
        .map_err(|error| {
            anyhow!("{error}; name the key that belongs to the first certificate of {}", chain.display())
        })
        .with_context(|| at(key))
}

/// Returns the end of a certificate's validity, in seconds since 1970.
fn expiry(certificate: &CertificateDer<'_>) -> Option<i64> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    Some(parsed.validity().not_after.timestamp())
}

fn versions(files: &TlsFiles) -> Vec<FileVersion> {
    let version = |file: &PathBuf| {
        let metadata = std::fs::metadata(file).ok()?;
        Some((metadata.modified().ok()?, metadata.len(), metadata.ino()))
    };
    files.pairs.iter().flat_map(|(chain, key)| [version(chain), version(key)]).collect()
}
