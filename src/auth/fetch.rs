//! Download of a small public document over HTTP/1.1, with TLS for `https`.
//!
//! hyper's low-level connection and the node's rustls are enough: there is one request per refresh, without redirects,
//! proxy or pool.

use std::{io, path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::{Request, Uri, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use rustls::{
    ClientConfig, RootCertStore,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsConnector;

use crate::private;

/// Largest document, in bytes.
const BODY_BYTES_MAX: usize = 256 * 1024;

/// Address of a document, and how to reach it.
pub(super) struct Source {
    uri: Uri,
    host: String,
    port: u16,
    tls: Option<TlsConnector>,
    timeout: Duration,
}

impl Source {
    /// Prepares downloads from `url`. `ca_file` names the authorities of its certificate; empty for those of the system.
    ///
    /// # Errors
    /// The URL is invalid, or the file can't be read.
    pub(super) fn new(url: &str, ca_file: &Path, timeout: Duration) -> io::Result<Self> {
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
        Ok(Self { uri, host, port, tls, timeout })
    }

    /// Returns the document.
    ///
    /// # Errors
    /// The server can't be reached in time, has no trusted certificate, answers with another status than 200, or with
    /// more than [`BODY_BYTES_MAX`]; the text says which.
    pub(super) async fn get(&self) -> Result<Bytes, String> {
        let answer = async {
            let stream = TcpStream::connect((self.host.as_str(), self.port)).await;
            let stream = stream.map_err(|error| format!("no connection: {error}"))?;
            let Some(tls) = &self.tls else { return Box::pin(self.exchange(stream)).await };
            let name = ServerName::try_from(self.host.clone()).map_err(|error| error.to_string())?;
            let stream = tls.connect(name, stream).await.map_err(|error| format!("no TLS: {error}"))?;
            Box::pin(self.exchange(stream)).await
        };
        timeout(self.timeout, answer)
            .await
            .unwrap_or_else(|_| Err(format!("no answer within {:?}", self.timeout)))
    }

    async fn exchange(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> Result<Bytes, String> {
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        let path = self.uri.path_and_query().map_or("/", |path| path.as_str());
        let host = self.uri.authority().map_or("", |authority| authority.as_str());
        let request = Request::get(path)
            .header(header::HOST, host)
            .header(header::ACCEPT, "application/json")
            .header(header::CONNECTION, "close")
            .body(Empty::<Bytes>::new())
            .map_err(|error| error.to_string())?;
        let answer = async {
            let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
            if response.status() != 200 {
                return Err(format!("status {}", response.status().as_u16()));
            }
            let body = Limited::new(response.into_body(), BODY_BYTES_MAX).collect().await;
            Ok(body.map_err(|error| format!("body: {error}"))?.to_bytes())
        };
        tokio::pin!(answer);
        // The connection may end first, with the answer read.
        tokio::select! {
            answer = &mut answer => answer,
            ended = connection => match ended {
                Ok(()) => answer.await,
                Err(error) => Err(error.to_string()),
            },
        }
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
            let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
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
