//! Mutual TLS of the link: certificate of this node, authority of its peers, and when connections have TLS.

use std::{fmt, io, path::PathBuf, sync::Arc};

use anyhow::{Context as _, anyhow, ensure};
use futures_util::future::BoxFuture;
use hyper::Uri;
use hyper_util::rt::TokioIo;
use parking_lot::RwLock;
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    client::{Resumption, verify_server_name},
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
    server::{ParsedCertificate, WebPkiClientVerifier},
    version::TLS13,
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::{
    net::tls::{FileVersion, WatchedCertificates, expiry, versions},
    private,
};

/// Application protocol of the link.
const PROTOCOL: &[u8] = b"h2";

/// Use of TLS by the connections of the link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsMode {
    /// All of them.
    #[default]
    Required,
    /// Those to peers; callers may have none.
    Prefer,
    /// None to peers; callers may have it.
    Accept,
}

impl TlsMode {
    /// Returns the mode of `link.tls_mode`; `Required` for any other word.
    pub fn named(name: &str) -> Self {
        match name {
            "prefer" => Self::Prefer,
            "accept" => Self::Accept,
            _ => Self::Required,
        }
    }
}

/// Files of the link's certificates, as PEM.
#[derive(Clone, Debug)]
pub struct LinkFiles {
    /// Certificate of this node, with its chain.
    pub certificate: PathBuf,
    /// Private key of the certificate.
    pub key: PathBuf,
    /// Authority of the certificates of all nodes.
    pub authority: PathBuf,
}

/// Mutual TLS: certificate of this node, and the authority that must have signed its peers' certificates.
#[derive(Clone)]
pub struct Tls {
    certificates: Arc<LinkCertificates>,
    /// Name for which the certificates of peers must be valid; `None`: the host of their address.
    name: Option<ServerName<'static>>,
    mode: TlsMode,
}

/// Certificates in force, which new connections get.
pub(super) struct LinkCertificates {
    /// Files to read again; `None` if they do not change.
    files: Option<LinkFiles>,
    current: RwLock<Loaded>,
}

struct Loaded {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    versions: Vec<FileVersion>,
    expires: i64,
}

impl Tls {
    /// Creates the identity from PEM: certificate chain and key of this node, and the authority that signed those of
    /// all nodes. A peer's certificate must be for the host in its address.
    ///
    /// # Errors
    /// One of them is no PEM, or the key belongs to another certificate.
    pub fn new(certificate: &[u8], key: &[u8], authority: &[u8]) -> anyhow::Result<Self> {
        Ok(Self::over(None, Loaded::parse(certificate, key, authority)?))
    }

    /// Creates the identity from files, which are read again when they change.
    ///
    /// # Errors
    /// A file can't be used; the error names its setting and the cure.
    pub fn open(files: LinkFiles) -> anyhow::Result<Self> {
        let loaded = files.read()?;
        Ok(Self::over(Some(files), loaded))
    }

    fn over(files: Option<LinkFiles>, loaded: Loaded) -> Self {
        let certificates = Arc::new(LinkCertificates { files, current: RwLock::new(loaded) });
        Self { certificates, name: None, mode: TlsMode::default() }
    }

    /// Requires the certificates of peers to be for this name, whatever their addresses.
    ///
    /// # Errors
    /// The name is no host name.
    pub fn with_name(self, name: &str) -> anyhow::Result<Self> {
        let name = ServerName::try_from(name.to_owned()).with_context(|| format!("link.tls_name {name}"))?;
        Ok(Self { name: Some(name), ..self })
    }

    /// Sets which connections have TLS.
    pub fn with_mode(self, mode: TlsMode) -> Self {
        Self { mode, ..self }
    }

    /// Returns whether calls to peers have TLS.
    pub(super) fn is_for_calls(&self) -> bool {
        self.mode != TlsMode::Accept
    }

    /// Returns whether callers without TLS are accepted.
    pub(super) fn is_plain_accepted(&self) -> bool {
        self.mode != TlsMode::Required
    }

    /// Returns the certificates, if their files may change.
    pub(super) fn watched(&self) -> Option<Arc<dyn WatchedCertificates>> {
        let certificates = Arc::clone(&self.certificates);
        self.certificates.files.as_ref().map(|_| certificates as Arc<dyn WatchedCertificates>)
    }

    /// Returns the configuration for a new caller.
    pub(super) fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.certificates.current.read().server)
    }

    /// Checks that the certificate of a caller, which the authority has signed, is for the name of all nodes, or without
    /// such a name that it is not of a client only.
    ///
    /// # Errors
    /// It is for other names, or its extended key usage does not include the authentication of servers.
    pub(super) fn check_caller(&self, chain: Option<&[CertificateDer<'_>]>) -> io::Result<()> {
        let Some(name) = &self.name else { return check_usage(chain) };
        let wrong = || {
            let why = "the caller's certificate is not valid for link.tls_name";
            io::Error::new(io::ErrorKind::InvalidData, why)
        };
        let certificate = chain.and_then(<[_]>::first).ok_or_else(wrong)?;
        let parsed = ParsedCertificate::try_from(certificate).map_err(|_| wrong())?;
        verify_server_name(&parsed, name).map_err(|_| wrong())
    }

    /// Returns the connector to a peer at `address`, as host and port.
    pub(super) fn connector(&self, address: &str) -> PeerConnector {
        PeerConnector { tls: self.clone(), address: address.to_owned() }
    }

    async fn connect(self, address: String) -> io::Result<TokioIo<TlsStream<TcpStream>>> {
        let name = match &self.name {
            Some(name) => name.clone(),
            None => {
                let host = address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host);
                let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
                ServerName::try_from(host).map_err(io::Error::other)?
            }
        };
        let client = Arc::clone(&self.certificates.current.read().client);
        let stream = TcpStream::connect(&address).await?;
        stream.set_nodelay(true)?;
        Ok(TokioIo::new(TlsConnector::from(client).connect(name, stream).await?))
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls(…)")
    }
}

/// Connector to one peer.
pub(super) struct PeerConnector {
    tls: Tls,
    address: String,
}

impl tower_service::Service<Uri> for PeerConnector {
    type Response = TokioIo<TlsStream<TcpStream>>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<io::Result<()>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        Box::pin(self.tls.clone().connect(self.address.clone()))
    }
}

impl LinkFiles {
    fn all(&self) -> [&PathBuf; 3] {
        [&self.certificate, &self.key, &self.authority]
    }

    fn read(&self) -> anyhow::Result<Loaded> {
        // Before the files are read: one that changes meanwhile is read again.
        let versions = versions(self.all());
        let at = |key: &'static str, file: &PathBuf| format!("link.{key} {} can't be used", file.display());
        let certificate =
            private::read_public(&self.certificate).with_context(|| at("tls_cert", &self.certificate))?;
        let key = private::read(&self.key).with_context(|| at("tls_key", &self.key))?;
        let authority =
            private::read_public(&self.authority).with_context(|| at("tls_ca", &self.authority))?;
        let loaded = Loaded::parse(&certificate, &key, &authority)?;
        Ok(Loaded { versions, ..loaded })
    }
}

impl Loaded {
    fn parse(certificate: &[u8], key: &[u8], authority: &[u8]) -> anyhow::Result<Self> {
        let chain = certificates(certificate).context("link.tls_cert can't be used")?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| {
            let why = private::pem_problem(&error);
            anyhow!("link.tls_key can't be used: {why}; name a PEM file with an unencrypted private key")
        })?;
        let mut roots = RootCertStore::empty();
        for certificate in certificates(authority).context("link.tls_ca can't be used")? {
            roots.add(certificate).context("link.tls_ca holds a certificate that is none of an authority")?;
        }
        let (roots, provider) = (Arc::new(roots), Arc::new(aws_lc_rs::default_provider()));
        let expires = chain.iter().filter_map(expiry).min().unwrap_or(i64::MAX);
        let wrong_pair = "link.tls_key is not the key of the first certificate of link.tls_cert";
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider)).build();
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(verifier.context("link.tls_ca can't be used")?)
            .with_single_cert(chain.clone(), key.clone_key())
            .context(wrong_pair)?;
        server.alpn_protocols = vec![PROTOCOL.to_vec()];
        // Each connection presents its certificate, so that a changed authority counts at once.
        server.send_tls13_tickets = 0;
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .context(wrong_pair)?;
        client.alpn_protocols = vec![PROTOCOL.to_vec()];
        client.resumption = Resumption::disabled();
        Ok(Self { server: Arc::new(server), client: Arc::new(client), versions: Vec::new(), expires })
    }
}

/// Checks that a certificate which states its extended key usage may authenticate a server: the authority may have signed
/// those of users, too, and every node is a server of the link.
fn check_usage(chain: Option<&[CertificateDer<'_>]>) -> io::Result<()> {
    let wrong = || {
        let why = "the caller's certificate is not that of a node: its extended key usage lacks serverAuth";
        io::Error::new(io::ErrorKind::InvalidData, why)
    };
    let certificate = chain.and_then(<[_]>::first).ok_or_else(wrong)?;
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|_| wrong())?;
    let usage = parsed.extended_key_usage().map_err(|_| wrong())?;
    if usage.is_none_or(|usage| usage.value.server_auth) { Ok(()) } else { Err(wrong()) }
}

fn certificates(pem: &[u8]) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|error| anyhow!(private::pem_problem(&error)))?;
    ensure!(!found.is_empty(), "no certificate in it; name a PEM file with one");
    Ok(found)
}

impl WatchedCertificates for LinkCertificates {
    fn have_changed(&self) -> bool {
        self.files.as_ref().is_some_and(|files| versions(files.all()) != self.current.read().versions)
    }

    fn reload(&self) -> anyhow::Result<()> {
        let Some(files) = &self.files else { return Ok(()) };
        let seen = versions(files.all());
        match files.read() {
            Ok(loaded) => {
                *self.current.write() = loaded;
                Ok(())
            }
            Err(error) => {
                // The same broken files are reported once.
                self.current.write().versions = seen;
                Err(error)
            }
        }
    }

    fn expires(&self) -> i64 {
        self.current.read().expires
    }
}
