//! Files with certificates, keys and authorities: their content, and whether they have changed.

use std::{
    fmt::Display,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::SystemTime,
};

use anyhow::anyhow;
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
    let (certificates, private_key) = (read_certificates(chain)?, read_private_key(key)?);
    CertifiedKey::from_der(certificates, private_key, &aws_lc_rs::default_provider()).map_err(|error| {
        let cure = format!("name the key that belongs to the first certificate of {}", chain.display());
        unusable(key, format!("{error}; {cure}"))
    })
}

/// Reads a private key that is not encrypted.
///
/// # Errors
/// The file can't be used; the error names it and the cure.
pub fn read_private_key(file: &Path) -> anyhow::Result<PrivateKeyDer<'static>> {
    let pem = private::read(file).map_err(|error| unusable(file, error))?;
    PrivateKeyDer::from_pem_slice(&pem).map_err(|error| {
        let why = private::pem_problem(&error);
        let cure = "name a PEM file with one that is not encrypted";
        unusable(file, format!("no private key in it ({why}); {cure}"))
    })
}

/// Reads the certificates of authorities.
///
/// # Errors
/// The file can't be used; the error names it and the cure.
pub fn read_authorities(file: &Path) -> anyhow::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(file)? {
        roots.add(certificate).map_err(|error| {
            let cure = "name a PEM file with certificates of authorities alone";
            unusable(file, format!("it holds a certificate that is none of an authority ({error}); {cure}"))
        })?;
    }
    Ok(roots)
}

/// Reads certificates, of which there is at least one.
///
/// # Errors
/// The file can't be used; the error names it and the cure.
pub fn read_certificates(file: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let pem = private::read_public(file).map_err(|error| unusable(file, error))?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let certificates = certificates.map_err(|error| {
        unusable(file, format!("{}; name a PEM file with certificates", private::pem_problem(&error)))
    })?;
    if certificates.is_empty() {
        return Err(unusable(file, "no certificate in it; name a PEM file with one"));
    }
    Ok(certificates)
}

fn unusable(file: &Path, why: impl Display) -> anyhow::Error {
    anyhow!("{} can't be used: {why}", file.display())
}

/// Returns the end of a certificate's validity, in seconds since 1970.
pub fn expiry(certificate: &CertificateDer<'_>) -> Option<i64> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    Some(parsed.validity().not_after.timestamp())
}
