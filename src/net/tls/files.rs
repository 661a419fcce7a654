//! Files with certificates, keys and authorities: their content, and whether they have changed.

use std::{
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::SystemTime,
};

use anyhow::{Context as _, anyhow, ensure};
use rustls::{
    RootCertStore,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    sign::CertifiedKey,
};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::private;

/// Certificates that are in force until their files change.
pub trait WatchedCertificates: Send + Sync {
    /// Returns whether a file was replaced or written since it was read.
    fn have_changed(&self) -> bool;

    /// Reads the files again. Connections keep what they have; on an error new ones get the former certificates.
    ///
    /// # Errors
    /// A file can't be used; the error names it and the cure.
    fn reload(&self) -> anyhow::Result<()>;

    /// Returns when the first certificate expires, in seconds since 1970.
    fn expires(&self) -> i64;
}

/// State of a file that its replacement or a write changes; `None` if there is no such file.
pub type FileVersion = Option<(SystemTime, u64, u64)>;

/// Returns the state of each file.
pub fn versions<'a>(files: impl IntoIterator<Item = &'a PathBuf>) -> Vec<FileVersion> {
    let version = |file: &PathBuf| {
        let metadata = std::fs::metadata(file).ok()?;
        Some((metadata.modified().ok()?, metadata.len(), metadata.ino()))
    };
    files.into_iter().map(version).collect()
}

/// Reads a certificate with its chain and its key.
///
/// # Errors
/// A file can't be used, or the key belongs to another certificate; the error names the file and the cure.
pub fn read_pair(chain: &Path, key: &Path) -> anyhow::Result<CertifiedKey> {
    let certificates = read_certificates(chain)?;
    let at = || format!("{} can't be used", key.display());
    private::check(key).with_context(at)?;
    let key = PrivateKeyDer::from_pem_file(key)
        .map_err(|error| {
            anyhow!("{}; name a PEM file with an unencrypted private key", private::pem_problem(&error))
        })
        .with_context(at)?;
    CertifiedKey::from_der(certificates, key, &aws_lc_rs::default_provider())
        .map_err(|error| {
            anyhow!("{error}; name the key that belongs to the first certificate of {}", chain.display())
        })
        .with_context(at)
}

/// Reads the certificates of authorities.
///
/// # Errors
/// The file can't be used; the error names it and the cure.
pub fn read_authorities(file: &Path) -> anyhow::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(file)? {
        roots.add(certificate).with_context(|| {
            format!("{} can't be used: it holds a certificate that is none of an authority", file.display())
        })?;
    }
    Ok(roots)
}

fn read_certificates(file: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let certificates: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect)
        .map_err(|error| anyhow!("{}; name a readable PEM file", private::pem_problem(&error)))
        .with_context(|| format!("{} can't be used", file.display()))?;
    ensure!(
        !certificates.is_empty(),
        "{} holds no certificate; name a PEM file with the certificate and its chain",
        file.display()
    );
    Ok(certificates)
}

/// Returns the end of a certificate's validity, in seconds since 1970.
pub fn expiry(certificate: &CertificateDer<'_>) -> Option<i64> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    Some(parsed.validity().not_after.timestamp())
}
