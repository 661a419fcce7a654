//! Check of the files that the configuration names, before anything else starts: some are read only once services
//! answer, and a wait for those would hide a wrong file.

use std::path::Path;

use anyhow::{Context as _, anyhow};
use rustls::{
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    sign::CertifiedKey,
};

use super::first_bytes;
use crate::{config::Config, net::tls::Certificates, private};

/// Content of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    /// Password, secret or key of a client library, which may be encrypted.
    Secret,
    /// Private key as PEM, not encrypted.
    PrivateKey,
    /// Certificates as PEM.
    Certificates,
}

/// Checks the files with secrets, and with profile `cluster` those with certificates.
///
/// # Errors
/// A file can't be read, has other content, or is open to every account; the error names the setting, the file and the
/// cure.
pub(super) fn check(config: &Config) -> anyhow::Result<()> {
    let (link, redis, postgres, kafka) = (&config.link, &config.redis, &config.postgres, &config.kafka);
    let files = [
        ("link.secret_file", &link.secret_file, Content::Secret),
        ("link.tls_key", &link.tls_key, Content::PrivateKey),
        ("link.tls_cert", &link.tls_cert, Content::Certificates),
        ("link.tls_ca", &link.tls_ca, Content::Certificates),
        ("redis.password_file", &redis.password_file, Content::Secret),
        ("redis.tls_ca_file", &redis.tls_ca_file, Content::Certificates),
        ("postgres.password_file", &postgres.password_file, Content::Secret),
        ("postgres.tls_ca_file", &postgres.tls_ca_file, Content::Certificates),
        ("kafka.sasl_password_file", &kafka.sasl_password_file, Content::Secret),
        ("kafka.key_file", &kafka.key_file, Content::Secret),
        ("kafka.cert_file", &kafka.cert_file, Content::Certificates),
        ("kafka.ca_file", &kafka.ca_file, Content::Certificates),
    ];
    if let Some(files) = first_bytes::files(&config.tls) {
        Certificates::load(files).context("TLS of the client port")?;
    }
    let is_cluster = config.node.profile == "cluster";
    let used = files.into_iter().filter(|(key, file, content)| {
        // The Kafka library accepts a directory of certificates, too.
        let is_directory = *key == "kafka.ca_file" && file.is_dir();
        !file.as_os_str().is_empty() && (is_cluster || *content != Content::Certificates) && !is_directory
    });
    for (key, file, content) in used {
        check_file(file, content).with_context(|| format!("{key} {} can't be used", file.display()))?;
    }
    if is_cluster && !link.tls_key.as_os_str().is_empty() {
        check_pair(&link.tls_cert, &link.tls_key).with_context(|| {
            let (certificate, key) = (link.tls_cert.display(), link.tls_key.display());
            format!("link.tls_cert {certificate} and link.tls_key {key} can't be used")
        })?;
    }
    Ok(())
}

fn check_file(file: &Path, content: Content) -> anyhow::Result<()> {
    match content {
        Content::Secret => private::check(file)?,
        Content::PrivateKey => drop(private_key(file)?),
        Content::Certificates => drop(certificates(file)?),
    }
    Ok(())
}

/// Checks that the key belongs to the first certificate of the file.
fn check_pair(certificate: &Path, key: &Path) -> anyhow::Result<()> {
    let pair =
        CertifiedKey::from_der(certificates(certificate)?, private_key(key)?, &aws_lc_rs::default_provider());
    pair.map(drop).map_err(|error| anyhow!("{error}; name the key that belongs to the first certificate"))
}

fn certificates(file: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let pem = private::read_public(file)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(anyhow!("no certificate in it; name a PEM file with one")),
        Err(error) => Err(anyhow!("{error}; name a PEM file with certificates")),
    }
}

fn private_key(file: &Path) -> anyhow::Result<PrivateKeyDer<'static>> {
    let pem = private::read(file)?;
    PrivateKeyDer::from_pem_slice(&pem).map_err(|error| {
        anyhow!("no private key in it ({error}); name a PEM file with one that is not encrypted")
    })
}
