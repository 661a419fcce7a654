//! Mutual TLS of the link: certificate of this node, authority of its peers, and when connections have TLS.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context as _, anyhow};
use futures_util::future::BoxFuture;
use hyper::Uri;
use hyper_util::rt::TokioIo;
use parking_lot::RwLock;
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    client::{Resumption, verify_server_name},
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName},
    server::{ParsedCertificate, WebPkiClientVerifier},
    version::TLS13,
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::{
    net::tls::{
        FileVersion, WatchedCertificates, expiry, read_authorities, read_certificates, read_private_key,
        versions,
    },
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
    files: LinkFiles,
    current: RwLock<Loaded>,
}

struct Loaded {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    versions: Vec<FileVersion>,
    expires: i64,
}

impl Tls {
    /// Creates the identity from files, which are read again when they change. A peer's certificate must be for the host
    /// in its address.
    ///
    /// # Errors
    /// A file can't be used; the error names its setting and the cure.
    pub fn open(files: LinkFiles) -> anyhow::Result<Self> {
        let current = RwLock::new(files.read()?);
        let certificates = Arc::new(LinkCertificates { files, current });
        Ok(Self { certificates, name: None, mode: TlsMode::default() })
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

    /// Returns the certificates, whose files may change.
    pub(super) fn watched(&self) -> Arc<dyn WatchedCertificates> {
        Arc::<LinkCertificates>::clone(&self.certificates)
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
        let chain = read_certificates(&self.certificate).context("link.tls_cert")?;
        let key = read_private_key(&self.key).context("link.tls_key")?;
        let roots = read_authorities(&self.authority).context("link.tls_ca")?;
        let loaded = Loaded::new(chain, key, roots, &self.key)?;
        Ok(Loaded { versions, ..loaded })
    }
}

impl Loaded {
    fn new(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        roots: RootCertStore,
        key_file: &Path,
    ) -> anyhow::Result<Self> {
        let (roots, provider) = (Arc::new(roots), Arc::new(aws_lc_rs::default_provider()));
        let expires = chain.iter().filter_map(expiry).min().unwrap_or(i64::MAX);
        let wrong_pair = |error: rustls::Error| {
            let cure = "name the key that belongs to the first certificate of link.tls_cert";
            anyhow!(private::unusable("link.tls_key", key_file, format!("{error}; {cure}")))
        };
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider)).build();
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(verifier.context("link.tls_ca")?)
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(wrong_pair)?;
        server.alpn_protocols = vec![PROTOCOL.to_vec()];
        // Each connection presents its certificate, so that a changed authority counts at once.
        server.send_tls13_tickets = 0;
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .map_err(wrong_pair)?;
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

impl WatchedCertificates for LinkCertificates {
    fn have_changed(&self) -> bool {
        versions(self.files.all()) != self.current.read().versions
    }

    fn reload(&self) -> anyhow::Result<()> {
        let seen = versions(self.files.all());
        match self.files.read() {
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
