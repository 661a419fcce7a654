//! Certificates of a test, and a tunnel through which clients without TLS reach a port with TLS.

use std::{
    fs,
    net::SocketAddr,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::{
    ClientConfig, ProtocolVersion, RootCertStore, SupportedProtocolVersion,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
    version::{TLS12, TLS13},
};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    runtime::Runtime,
};
use tokio_rustls::TlsConnector;

/// Authority that signs the certificates of a test.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: PathBuf,
}

/// Files of a certificate and its key.
#[derive(Clone)]
pub(crate) struct Pair {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

impl Authority {
    /// Creates an authority whose files are in `folder`.
    pub(crate) fn new(folder: &Path) -> Self {
        fs::create_dir_all(folder).expect("a folder");
        let mut params = CertificateParams::new(Vec::new()).expect("no names are sound");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("an authority");
        Self { issuer, folder: folder.to_owned() }
    }

    /// Writes a certificate for these server names, over an existing one of the same file name.
    pub(crate) fn certify(&self, file: &str, names: &[&str]) -> Pair {
        self.certify_with(file, names, |_| {})
    }

    /// Writes a certificate with changed parameters.
    pub(crate) fn certify_with(
        &self,
        file: &str,
        names: &[&str],
        change: impl FnOnce(&mut CertificateParams),
    ) -> Pair {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("sound names");
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let pair = Pair {
            cert: self.folder.join(format!("{file}.pem")),
            key: self.folder.join(format!("{file}.key")),
        };
        for (path, text) in [(&pair.cert, certificate.pem()), (&pair.key, key.serialize_pem())] {
            let new = path.with_extension("new");
            fs::write(&new, text).expect("a file");
            fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).expect("its mode");
            fs::rename(&new, path).expect("a file");
        }
        pair
    }

    /// Writes the certificate of the authority, and returns its file.
    pub(crate) fn file(&self) -> PathBuf {
        let file = self.path();
        fs::write(&file, self.issuer.pem()).expect("a file");
        file
    }

    /// Returns the path of that file.
    pub(crate) fn path(&self) -> PathBuf {
        self.folder.join("ca.pem")
    }

    /// Returns the configuration of a client that trusts this authority and presents a certificate.
    pub(crate) fn client_with(&self, version: &'static SupportedProtocolVersion, own: &Pair) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).expect("a root");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider);
        let builder = builder.with_protocol_versions(&[version]).expect("a sound version");
        let chain =
            CertificateDer::pem_file_iter(&own.cert).and_then(Iterator::collect).expect("a certificate");
        let key = PrivateKeyDer::from_pem_file(&own.key).expect("a key");
        builder.with_root_certificates(roots).with_client_auth_cert(chain, key).expect("a pair")
    }

    /// Returns the configuration of a client that trusts this authority.
    pub(crate) fn client(&self, versions: &[&'static SupportedProtocolVersion]) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).expect("a root");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider);
        let builder = builder.with_protocol_versions(versions).expect("sound versions");
        builder.with_root_certificates(roots).with_no_client_auth()
    }

    /// Returns both versions, each with a client's configuration.
    pub(crate) fn clients(&self) -> [(ProtocolVersion, ClientConfig); 2] {
        [
            (ProtocolVersion::TLSv1_3, self.client(&[&TLS13])),
            (ProtocolVersion::TLSv1_2, self.client(&[&TLS12])),
        ]
    }
}

/// Listener on this machine whose connections go on with TLS. Drop it to end them.
pub(crate) struct Tunnel {
    pub(crate) address: SocketAddr,
    _runtime: Runtime,
}

impl Tunnel {
    /// Opens a tunnel to a port, whose certificate must be valid for `name`.
    pub(crate) fn open(to: SocketAddr, name: &'static str, config: ClientConfig) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind(("127.0.0.1", 0))).expect("a free port");
        let address = listener.local_addr().expect("it listens");
        let connector = TlsConnector::from(Arc::new(config));
        runtime.spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let connector = connector.clone();
                tokio::spawn(async move {
                    let server = TcpStream::connect(to).await.expect("the port accepts");
                    let name = ServerName::try_from(name).expect("a sound name");
                    if let Ok(mut server) = connector.connect(name, server).await {
                        copy_bidirectional(&mut client, &mut server).await.ok();
                    }
                });
            }
        });
        Self { address, _runtime: runtime }
    }
}
