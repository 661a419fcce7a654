//! Check of the files that the configuration names, before anything else starts: some are read only once services
//! answer, and a wait for those would hide a wrong file.

use std::{
    io, iter,
    path::{Path, PathBuf},
};

use anyhow::{anyhow, ensure};

use super::{certificates, keys, ports, settings};
use crate::{
    config::{AuthConfig, Config},
    hooks,
    keys::load_keys,
    link,
    net::tls::{read_authorities, read_certificates, read_private_key},
    private,
};

/// Content of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    /// Password, secret or key of a client library, which may be encrypted.
    Secret,
    /// Secret that signs the requests to hooks.
    HookSecret,
    /// Hashes of the keys of the admin port.
    AdminKeys,
    /// Private key as PEM, not encrypted.
    PrivateKey,
    /// Certificates as PEM.
    Certificates,
    /// Certificates of authorities as PEM.
    Authorities,
}

/// Checks the files, as [`problems`] does.
///
/// # Errors
/// A file can't be used; the error lists all problems.
pub(super) fn check(config: &Config) -> anyhow::Result<()> {
    let problems = problems(config);
    ensure!(problems.is_empty(), "{}", problems.join("\n"));
    Ok(())
}

/// Returns the problems of all files that the configuration names for reading. Certificates that only the profile `cluster`
/// uses are checked in that profile alone. A file is a problem if it can't be read, has other content, or is open to every
/// account. Each problem is one line, and names the setting, the file and the cure.
pub(crate) fn problems(config: &Config) -> Vec<String> {
    let mut problems: Vec<String> = named_files(config)
        .into_iter()
        .filter_map(|(key, file, content)| {
            let why = check_file(file, content).err()?;
            Some(format!("{key}: {why:#}"))
        })
        .collect();
    // Files of one port are used together once each of them is good.
    let of_link = if is_cluster(config) { link::Settings::read(&config.link).map(drop) } else { Ok(()) };
    let text = |checked: anyhow::Result<()>| checked.map_err(|error| format!("{error:#}"));
    let ports = [
        ("tls.", text(certificates::of_clients(&config.tls).map(drop))),
        ("admin.tls_", text(certificates::of_admin(&config.admin).map(drop))),
        ("link.", of_link),
    ];
    for (section, checked) in ports {
        if let Err(problem) = checked
            && !problems.iter().any(|problem| problem.starts_with(section))
        {
            problems.push(problem);
        }
    }
    problems.extend(token_keys(config));
    problems.extend(settings::limit_rules(config).err().into_iter().flatten());
    problems
}

/// Returns the problems of the files with keys that verify tokens. None is created: that of a single node may be missing.
fn token_keys(config: &Config) -> Vec<String> {
    let auth = &config.auth;
    let further = auth.key_files.iter().map(|entry| ("auth.key_files", AuthConfig::key_entry(entry).1));
    let pipes = iter::once(("auth.key_file", auth.key_file.clone())).chain(further);
    let refused = |(key, file): (&str, PathBuf)| {
        Some(private::unusable(key, &file, private::refuse_pipe(&file).err()?))
    };
    let pipes: Vec<String> = pipes.filter_map(refused).collect();
    if !pipes.is_empty() {
        return pipes;
    }
    let is_named = is_cluster(config) || !auth.key_file.as_os_str().is_empty();
    let secret = if is_named { ports::token_key(config).map(drop) } else { Ok(()) };
    let keys = keys::own_keys(auth, &[]).map(drop);
    [secret, keys].into_iter().filter_map(Result::err).flat_map(|error| lines(&error)).collect()
}

/// Returns the problems of an error, one a line, each with its causes.
pub(super) fn lines(error: &anyhow::Error) -> Vec<String> {
    format!("{error:#}").lines().map(str::to_owned).collect()
}

/// Checks a secret as it will be read: text that is not blank.
fn check_secret(file: &Path) -> io::Result<()> {
    let secret = private::read(file)?;
    let is_secret = std::str::from_utf8(&secret).is_ok_and(|text| !text.trim().is_empty());
    let why = "it is empty, or no text; write the secret to it";
    is_secret.then_some(()).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, why))
}

fn is_cluster(config: &Config) -> bool {
    config.node.profile == "cluster"
}

/// Returns each file that a setting names and the node uses, with its content.
fn named_files(config: &Config) -> Vec<(&'static str, &Path, Content)> {
    let (link, redis, postgres, kafka) = (&config.link, &config.redis, &config.postgres, &config.kafka);
    let (tls, admin) = (&config.tls, &config.admin);
    let mut files: Vec<(&'static str, &Path, Content)> = vec![
        ("link.secret_file", &link.secret_file, Content::Secret),
        ("link.tls_key", &link.tls_key, Content::PrivateKey),
        ("redis.password_file", &redis.password_file, Content::Secret),
        ("postgres.password_file", &postgres.password_file, Content::Secret),
        ("kafka.sasl_password_file", &kafka.sasl_password_file, Content::Secret),
        ("kafka.key_file", &kafka.key_file, Content::Secret),
        ("auth.jwks_ca_file", &config.auth.jwks_ca_file, Content::Authorities),
        ("webhooks.ca_file", &config.webhooks.ca_file, Content::Authorities),
    ];
    if is_cluster(config) {
        files.extend::<[(&'static str, &Path, Content); 5]>([
            ("link.tls_cert", &link.tls_cert, Content::Certificates),
            ("link.tls_ca", &link.tls_ca, Content::Authorities),
            ("redis.tls_ca_file", &redis.tls_ca_file, Content::Authorities),
            ("postgres.tls_ca_file", &postgres.tls_ca_file, Content::Authorities),
            ("kafka.cert_file", &kafka.cert_file, Content::Certificates),
        ]);
        // The Kafka library accepts a directory of certificates, too.
        if !kafka.ca_file.is_dir() {
            files.push(("kafka.ca_file", &kafka.ca_file, Content::Certificates));
        }
    }
    files.extend(tls.cert_files.iter().map(|file| ("tls.cert_files", &**file, Content::Certificates)));
    files.extend(tls.key_files.iter().map(|file| ("tls.key_files", &**file, Content::PrivateKey)));
    files.push(("tls.client_ca", &tls.client_ca, Content::Authorities));
    files.push(("admin.tls_cert", &admin.tls_cert, Content::Certificates));
    files.push(("admin.tls_key", &admin.tls_key, Content::PrivateKey));
    files.push(("admin.keys_file", &admin.keys_file, Content::AdminKeys));
    if config.hooks.is_on() {
        files.push(("hooks.secret_file", &config.hooks.secret_file, Content::HookSecret));
        files.push(("hooks.ca_file", &config.hooks.ca_file, Content::Authorities));
    }
    let evidence = &config.evidence;
    if !evidence.apisix_url.is_empty() {
        files.push(("evidence.apisix_key_file", &evidence.apisix_key_file, Content::Secret));
        files.push(("evidence.apisix_ca_file", &evidence.apisix_ca_file, Content::Authorities));
    }
    files.retain(|(_, file, _)| !file.as_os_str().is_empty());
    files
}

/// Checks a file as the start will read it, once more.
fn check_file(file: &Path, content: Content) -> anyhow::Result<()> {
    let unusable = |error: io::Error| anyhow!("{} can't be used: {error}", file.display());
    private::refuse_pipe(file).map_err(unusable)?;
    let read = match content {
        Content::Secret => check_secret(file),
        Content::HookSecret => hooks::check_secret(file),
        Content::AdminKeys => load_keys(file).map(drop),
        Content::PrivateKey => return read_private_key(file).map(drop),
        Content::Certificates => return read_certificates(file).map(drop),
        Content::Authorities => return read_authorities(file).map(drop),
    };
    read.map_err(unusable)
}
