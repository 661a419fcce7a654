//! HttpEndpoint of an HTTP server that the node calls: its URL, and how to connect to it.

use std::{io, path::Path, sync::Arc};

use hyper::Uri;
use rustls::{
    ClientConfig, RootCertStore,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

use crate::private;

/// Connection to an endpoint, with or without TLS.
pub(crate) trait EndpointStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> EndpointStream for T {}

/// Server and path of a URL.
pub(crate) struct HttpEndpoint {
    uri: Uri,
    host: String,
    port: u16,
    tls: Option<TlsConnector>,
}

impl HttpEndpoint {
    /// Prepares connections to `url`. `ca_file` names the authorities of its certificate; empty for those of the system.
    ///
    /// # Errors
    /// The URL is invalid, or the file can't be read.
    pub(crate) fn new(url: &str, ca_file: &Path) -> io::Result<Self> {
        let wrong = |why: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("{url}: {why}"));
        let uri: Uri = url.parse().map_err(|_| wrong("no URL"))?;
        let host = uri.host().ok_or_else(|| wrong("no host in it"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let is_tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(wrong("begin with https:// or http://")),
        };
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let tls = is_tls.then(|| tls(ca_file)).transpose()?;
        Ok(Self { uri, host, port, tls })
    }

    /// Returns the path and query of a request.
    pub(crate) fn path(&self) -> &str {
        self.uri.path_and_query().map_or("/", |path| path.as_str())
    }

    /// Returns the value of the header `Host`.
    pub(crate) fn authority(&self) -> &str {
        self.uri.authority().map_or("", |authority| authority.as_str())
    }

    /// Connects to the server.
    ///
    /// # Errors
    /// The server can't be reached, or has no trusted certificate; the text says which.
    pub(crate) async fn connect(&self) -> Result<Box<dyn EndpointStream>, String> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await;
        let stream = stream.map_err(|error| format!("no connection: {error}"))?;
        // Small requests must not wait for others.
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let Some(tls) = &self.tls else { return Ok(Box::new(stream)) };
        let name = ServerName::try_from(self.host.clone()).map_err(|error| error.to_string())?;
        let stream = tls.connect(name, stream).await.map_err(|error| format!("no TLS: {error}"))?;
        Ok(Box::new(stream))
    }
}

fn tls(ca_file: &Path) -> io::Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    if ca_file.as_os_str().is_empty() {
        // Some system certificates may be unreadable. If the others are not enough, the handshake fails.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    } else {
        let wrong =
            |why: String| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {why}", ca_file.display()));
        let pem = private::read_public(ca_file).map_err(|error| wrong(error.to_string()))?;
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            let certificate = certificate.map_err(|error| wrong(private::pem_problem(&error)))?;
            roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
        }
        if roots.is_empty() {
            return Err(wrong("no certificate in it; name a PEM file with one".into()));
        }
    }
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}
