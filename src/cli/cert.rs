//! `tidegate cert`: creates a certificate for development and the authority that signs it, and prints how to use both.
//!
//! An existing authority signs further certificates, so that its clients trust them already.

use std::{
    fs::{self, Permissions},
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail, ensure};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use time::{Duration, OffsetDateTime};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::serve::banner;
use crate::private;

/// Names of a certificate if none is given, besides the name of this machine.
const DEFAULT_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// Validity of the authority.
const AUTHORITY_DAYS: i64 = 3_650;

/// Time by which the validity begins early, for clients whose clocks are behind.
const CLOCK_DIFFERENCE: Duration = Duration::HOUR;

/// Arguments of `tidegate cert`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Host names and addresses that the certificate is valid for; default: localhost, 127.0.0.1, ::1 and the name of this
    /// machine
    #[arg(value_name = "NAME|ADDRESS")]
    names: Vec<String>,
    /// Folder of the files; an authority in it signs this certificate, too
    #[arg(long, value_name = "DIR", default_value = "tidegate-tls")]
    out: PathBuf,
    /// Name of the files of the certificate and its key, without the ending
    #[arg(long, value_name = "NAME", default_value = "node")]
    file: String,
    /// Days until the certificate expires
    #[arg(long, default_value_t = 365, value_parser = clap::value_parser!(u16).range(1..=825))]
    days: u16,
    /// Certificate of this user for `tls.client_ca`, in place of one of a server
    #[arg(long, value_name = "USER", conflicts_with = "names")]
    client: Option<String>,
    /// Replace an existing certificate and its key; the authority is kept
    #[arg(long)]
    replace: bool,
}

/// Authority in a folder.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: PathBuf,
    is_new: bool,
}

/// Creates the files and prints what to do with them.
///
/// # Errors
/// A name is none, a file exists already, or it can't be written.
pub fn run(args: &Args) -> anyhow::Result<()> {
    private::close_new_files();
    ensure!(
        !args.file.is_empty() && !args.file.contains('/') && args.file != "ca",
        "--file {:?}: a file name without a folder, other than `ca`",
        args.file
    );
    let params = parameters(args)?;
    private::create_dir_all(&args.out)
        .with_context(|| format!("the folder {} (--out) can't be created", args.out.display()))?;
    let folder = fs::canonicalize(&args.out)?;
    let (cert, key) = (folder.join(format!("{}.pem", args.file)), folder.join(format!("{}.key", args.file)));
    if let Some(existing) = [&cert, &key].into_iter().find(|file| file.exists())
        && !args.replace
    {
        bail!(
            "{} exists: add --replace to overwrite it, or name other files with --file or another folder with --out",
            existing.display()
        );
    }
    let authority = Authority::open_or_create(&folder)?;
    let own = KeyPair::generate()?;
    let signed = params.signed_by(&own, &authority.issuer).context("signing the certificate")?;
    // The key first: a node that watches both reads them again until they fit together.
    write(&key, &own.serialize_pem(), 0o600)?;
    write(&cert, &signed.pem(), 0o644)?;
    println!("{}", report(args, &authority, &cert, &key));
    Ok(())
}

/// Returns the content of the certificate.
fn parameters(args: &Args) -> anyhow::Result<CertificateParams> {
    let names = match (&args.client, args.names.is_empty()) {
        (Some(user), _) => {
            tidegate_protocol::id::check_id(user).with_context(|| format!("--client {user:?}"))?;
            Vec::new()
        }
        (None, false) => args.names.clone(),
        (None, true) => DEFAULT_NAMES.map(str::to_owned).into_iter().chain(host_name()).collect::<Vec<_>>(),
    };
    if let Some(wrong) = names.iter().find(|name| !is_name(name)) {
        bail!("{wrong:?} is neither a host name nor an address; write it without scheme and port");
    }
    let mut params = CertificateParams::new(names).context("the names of the certificate")?;
    let subject = args.client.as_deref().or(args.names.first().map(String::as_str)).unwrap_or("localhost");
    params.distinguished_name.push(DnType::CommonName, subject);
    set_validity(&mut params, args.days.into());
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    if args.client.is_none() {
        // Nodes are clients of each other.
        params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
    }
    Ok(params)
}

/// Returns whether the text is an address or a host name, perhaps with a wildcard.
fn is_name(text: &str) -> bool {
    let name = text.strip_prefix("*.").unwrap_or(text);
    rustls::pki_types::ServerName::try_from(name).is_ok()
}

/// Returns the name of this machine, if it is a host name other than `localhost`.
fn host_name() -> Option<String> {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    let name = name.trim();
    (is_name(name) && !DEFAULT_NAMES.contains(&name)).then(|| name.to_owned())
}

fn set_validity(params: &mut CertificateParams, days: i64) {
    let now = OffsetDateTime::now_utc();
    (params.not_before, params.not_after) = (now - CLOCK_DIFFERENCE, now + Duration::days(days));
}

impl Authority {
    /// Reads the authority of the folder, or creates one.
    fn open_or_create(folder: &Path) -> anyhow::Result<Self> {
        let (certificate, key_file) = (folder.join("ca.pem"), folder.join("ca.key"));
        let is_new = !certificate.exists() && !key_file.exists();
        let (name, key) = if is_new {
            let machine = host_name().unwrap_or_else(|| "localhost".to_owned());
            (format!("Tidegate development CA of {machine}"), KeyPair::generate()?)
        } else {
            read(&certificate, &key_file)?
        };
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        set_validity(&mut params, AUTHORITY_DAYS);
        if is_new {
            write(&key_file, &key.serialize_pem(), 0o600)?;
            write(&certificate, &params.self_signed(&key)?.pem(), 0o644)?;
        }
        Ok(Self { issuer: Issuer::new(params, key), certificate, is_new })
    }
}

/// Reads the name and the key of an existing authority.
fn read(certificate: &Path, key_file: &Path) -> anyhow::Result<(String, KeyPair)> {
    let unusable = |file: &Path| {
        format!(
            "the authority's file {} can't be used; name another folder with --out, which gets a new authority",
            file.display()
        )
    };
    let der = private::read_public(certificate).with_context(|| unusable(certificate))?;
    let der = CertificateDer::from_pem_slice(&der).with_context(|| unusable(certificate))?;
    let (_, parsed) = X509Certificate::from_der(&der).with_context(|| unusable(certificate))?;
    let name = parsed.subject().iter_common_name().next().and_then(|it| it.as_str().ok());
    let name = name.context("it has no name").with_context(|| unusable(certificate))?.to_owned();
    let pem = private::read(key_file).with_context(|| unusable(key_file))?;
    let key = KeyPair::from_pem(&String::from_utf8_lossy(&pem)).with_context(|| unusable(key_file))?;
    ensure!(
        parsed.public_key().subject_public_key.as_ref() == key.public_key_raw(),
        "{}: the key belongs to another certificate",
        unusable(key_file)
    );
    Ok((name, key))
}

/// Writes a file in one step, so that a node that watches it never reads half of it.
fn write(path: &Path, text: &str, mode: u32) -> anyhow::Result<()> {
    let draft = path.with_extension("new");
    let written = private::options().create(true).truncate(true).open(&draft).and_then(|mut file| {
        file.set_permissions(Permissions::from_mode(mode))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&draft, path)
    });
    written.with_context(|| format!("{} can't be written", path.display()))
}

/// Describes the files and their use, in lines to paste.
fn report(args: &Args, authority: &Authority, cert: &Path, key: &Path) -> String {
    let quoted = |path: &Path| banner::quoted(&path.to_string_lossy()).into_owned();
    let (ca, cert_arg, key_arg) = (quoted(&authority.certificate), quoted(cert), quoted(key));
    let origin = if authority.is_new { "new authority" } else { "the folder's authority" };
    let files = format!(
        "{origin}  {}\ncertificate  {}\nkey  {}\n",
        authority.certificate.display(),
        cert.display(),
        key.display()
    );
    let toml = |path: &Path| format!("{:?}", path.to_string_lossy());
    if let Some(user) = &args.client {
        return format!(
            "{files}\nA node asks clients for certificates of the authority with these lines in its section [tls]:\n\n\
             required = true\nclient_ca = {}\nclient_certificates = \"required\"\nclient_name = \"cn\"\n\n\
             {user} presents the certificate with\n  \
             openssl s_client -connect HOST:7800 -CAfile {ca} -cert {cert_arg} -key {key_arg}\n  \
             curl --cacert {ca} --cert {cert_arg} --key {key_arg} https://HOST:7800/v1/assign",
            toml(&authority.certificate)
        );
    }
    let host = args.names.first().map_or("localhost", |name| name.trim_start_matches("*."));
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    format!(
        "{files}\nAdd to the configuration of the node:\n\n\
         [tls]\ncert_files = [{}]\nkey_files = [{}]\nrequired = true\n\n\
         Clients have to trust the authority, for development only:\n  \
         openssl s_client -connect {host}:7800 -CAfile {ca}\n  \
         curl --cacert {ca} https://{host}:7800/v1/assign\n  \
         NODE_EXTRA_CA_CERTS={ca} node client.mjs",
        toml(cert),
        toml(key)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_hosts_and_addresses_without_more() {
        for name in ["localhost", "n1.example.org", "*.example.org", "127.0.0.1", "::1"] {
            assert!(is_name(name), "{name}");
        }
        for text in ["", "https://n1", "n1:7800", "n1 n2", "*", "[::1]", "é.example"] {
            assert!(!is_name(text), "{text}");
        }
    }
}
