//! TLS of a connection to a port of a node, and the certificates that a command trusts.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context as _, Result, ensure};
use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _},
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::client_port::TlsClient;
use crate::net::tls::read_authorities;

/// Certificates that a command trusts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// First certificate of this file, and no other: that of a node on this machine.
    Certificate(PathBuf),
    /// Certificates that are valid for this name, by an authority of the option `--ca`, or of the system without one.
    Name(String),
}

/// Adds TLS to a connection to the client port at this host and port.
///
/// # Errors
/// As [`connect`].
pub(in crate::cli) async fn connect_client(
    stream: TcpStream,
    host_port: &str,
    tls: &TlsClient,
) -> Result<TlsStream<TcpStream>> {
    let (config, name) = named(tls.name(host_port), tls.authority())?;
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.with_context(|| {
        format!(
            "TLS at {host_port} failed; if its certificate is not trusted, name the file of its authority with --ca, and \
             with --server-name the name that it is for; if the port speaks no TLS, leave --tls out"
        )
    })
}

/// Returns a configuration that trusts certificates for this name, by the authority or those of the system.
fn named(name: &str, authority: Option<&Path>) -> Result<(ClientConfig, ServerName<'static>)> {
    let roots = match authority {
        Some(file) => read_authorities(file).context("--ca")?,
        None => system_roots()?,
    };
    let name = ServerName::try_from(name.to_owned()).with_context(|| format!("the host name {name}"))?;
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()?;
    Ok((builder.with_root_certificates(roots).with_no_client_auth(), name))
}

/// Adds TLS to a connection to the admin port.
///
/// # Errors
/// The certificate is not trusted, or a file can't be used; the error names the cure.
pub(super) async fn connect(
    stream: TcpStream,
    to: SocketAddr,
    trust: &Trust,
    authority: Option<&Path>,
) -> Result<TlsStream<TcpStream>> {
    let (config, name, cure) = match trust {
        Trust::Certificate(file) => {
            let provider = Arc::new(aws_lc_rs::default_provider());
            let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
                .with_safe_default_protocol_versions()?;
            let certificate = CertificateDer::from_pem_file(file)
                .with_context(|| format!("the certificate of the node, {}, can't be read", file.display()))?;
            let verifier = Arc::new(Pinned { certificate, provider });
            let config = builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
            // The name is not verified: the certificate is.
            (config, ServerName::from(to.ip()), "restart the node, or name its admin port with --admin")
        }
        Trust::Name(name) => {
            let (config, name) = named(name, authority)?;
            (config, name, "name the file of its authority with --ca")
        }
    };
    let connector = TlsConnector::from(Arc::new(config));
    connector
        .connect(name, stream)
        .await
        .with_context(|| format!("TLS of the admin port failed; if its certificate is not trusted, {cure}"))
}

fn system_roots() -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in rustls_native_certs::load_native_certs().certs {
        // A system may hold some that the library does not understand.
        roots.add(certificate).ok();
    }
    ensure!(!roots.is_empty(), "the system has no authorities; name one with --ca");
    Ok(roots)
}

/// Verifier that accepts one certificate, whatever it is valid for.
#[derive(Debug)]
struct Pinned {
    certificate: CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if *end_entity != self.certificate {
            return Err(rustls::Error::General("the node presents another certificate than its file".into()));
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
