//! Check of the files that the configuration names, before anything else starts: some are read only once services
//! answer, and a wait for those would hide a wrong file.

use std::path::Path;

use anyhow::{Context as _, anyhow, ensure};
use rustls::{
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    sign::CertifiedKey,
};

use super::{certificates, settings};
use crate::{config::Config, hooks, private};

/// Content of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    /// Password, secret or key of a client library, which may be encrypted.
    Secret,
    /// Secret that signs the requests to hooks.
    HookSecret,
    /// Private key as PEM, not encrypted.
    PrivateKey,
    /// Certificates as PEM.
    Certificates,
}

/// Setting of the authority of remote keys, which nodes of both profiles load.
const KEYS_AUTHORITY: &str = "auth.jwks_ca_file";

/// Checks the files with certificates and secrets, as [`problems`] does.
///
/// # Errors
/// A file can't be used; the error lists all problems.
pub(super) fn check(config: &Config) -> anyhow::Result<()> {
    let problems = problems(config);
    ensure!(problems.is_empty(), "{}", problems.join("\n"));
    Ok(())
}

/// Returns the problems of the files with certificates and secrets, and of the rules of limits. Certificates that only the
/// profile `cluster` uses are checked in that profile alone. A file is a problem if it can't be read, has other content, or is
/// open to every account. Each problem names the setting, the file and the cure.
pub(super) fn problems(config: &Config) -> Vec<String> {
    let link = &config.link;
    let mut problems: Vec<String> = named_files(config)
        .into_iter()
        .filter_map(|(key, file, content)| {
            let why = check_file(file, content).err()?;
            Some(format!("{key}: {} can't be used: {why:#}", file.display()))
        })
        .collect();
    // Files of one port are used together once each of them is good.
    let of_link = if is_cluster(config) && !link.tls_key.as_os_str().is_empty() {
        check_pair(&link.tls_cert, &link.tls_key).with_context(|| {
            format!("{} and {} can't be used", link.tls_cert.display(), link.tls_key.display())
        })
    } else {
        Ok(())
    };
    let ports = [
        ("tls.", "tls.cert_files, tls.key_files", certificates::of_clients(&config.tls).map(drop)),
        ("admin.tls_", "admin.tls_cert, admin.tls_key", certificates::of_admin(&config.admin).map(drop)),
        ("link.tls_", "link.tls_cert, link.tls_key", of_link),
    ];
    for (section, keys, checked) in ports {
        if let Err(why) = checked
            && !problems.iter().any(|problem| problem.starts_with(section))
        {
            problems.push(format!("{keys}: {why:#}"));
        }
    }
    problems.extend(settings::limit_rules(config).err().into_iter().flatten());
    problems
}

fn is_cluster(config: &Config) -> bool {
    config.node.profile == "cluster"
}

/// Returns each file that a setting names and the node uses, with its content.
fn named_files(config: &Config) -> Vec<(&'static str, &Path, Content)> {
    let (link, redis, postgres, kafka) = (&config.link, &config.redis, &config.postgres, &config.kafka);
    let (tls, admin) = (&config.tls, &config.admin);
    let mut files: Vec<(&'static str, &Path, Content)> = vec![
        (KEYS_AUTHORITY, &config.auth.jwks_ca_file, Content::Certificates),
        ("webhooks.ca_file", &config.webhooks.ca_file, Content::Certificates),
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
    files.retain(|(key, file, content)| {
        // The Kafka library accepts a directory of certificates, too.
        let is_directory = *key == "kafka.ca_file" && file.is_dir();
        let is_for_profile =
            is_cluster(config) || *content != Content::Certificates || *key == KEYS_AUTHORITY;
        is_for_profile && !is_directory
    });
    files.extend(tls.cert_files.iter().map(|file| ("tls.cert_files", &**file, Content::Certificates)));
    files.extend(tls.key_files.iter().map(|file| ("tls.key_files", &**file, Content::PrivateKey)));
    files.push(("tls.client_ca", &tls.client_ca, Content::Certificates));
    files.push(("admin.tls_cert", &admin.tls_cert, Content::Certificates));
    files.push(("admin.tls_key", &admin.tls_key, Content::PrivateKey));
    if config.hooks.is_on() {
        files.push(("hooks.secret_file", &config.hooks.secret_file, Content::HookSecret));
        files.push(("hooks.ca_file", &config.hooks.ca_file, Content::Certificates));
    }
    files.retain(|(_, file, _)| !file.as_os_str().is_empty());
    files
}

fn check_file(file: &Path, content: Content) -> anyhow::Result<()> {
    match content {
        Content::Secret => private::check(file)?,
        Content::HookSecret => hooks::check_secret(file)?,
        Content::PrivateKey => drop(private_key(file)?),
        Content::Certificates => drop(read_certificates(file)?),
    }
    Ok(())
}

/// Checks that the key belongs to the first certificate of the file.
fn check_pair(certificate: &Path, key: &Path) -> anyhow::Result<()> {
    let pair = CertifiedKey::from_der(
        read_certificates(certificate)?,
        private_key(key)?,
        &aws_lc_rs::default_provider(),
    );
    pair.map(drop).map_err(|error| anyhow!("{error}; name the key that belongs to the first certificate"))
}

fn read_certificates(file: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let pem = private::read_public(file)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(anyhow!("no certificate in it; name a PEM file with one")),
        Err(error) => Err(anyhow!("{}; name a PEM file with certificates", private::pem_problem(&error))),
    }
}

fn private_key(file: &Path) -> anyhow::Result<PrivateKeyDer<'static>> {
    let pem = private::read(file)?;
    PrivateKeyDer::from_pem_slice(&pem).map_err(|error| {
        let why = private::pem_problem(&error);
        anyhow!("no private key in it ({why}); name a PEM file with one that is not encrypted")
    })
}
