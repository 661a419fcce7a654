//! Certificates, signed by an authority of their own, for test servers with TLS.

use std::{fs, os::unix::process::CommandExt as _, path::Path, process::Command};

use anyhow::Context as _;

use crate::shell;

/// New P-256 key without a password.
const NEW_KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";

/// Creates `ca.pem`, `cert.pem` and `key.pem` for 127.0.0.1 in the folder, as that user.
pub(super) fn make(folder: &Path, user: Option<(u32, u32)>) -> anyhow::Result<()> {
    make_authority(folder, user)?;
    sign(folder, user, "tidegate", "IP:127.0.0.1", ["cert.pem", "key.pem"])
}

/// Creates an authority in the folder: `ca.pem` and `ca.key`.
pub(crate) fn make_authority(folder: &Path, user: Option<(u32, u32)>) -> anyhow::Result<()> {
    let words = format!("req -x509 {NEW_KEY} -keyout ca.key -out ca.pem -days 30 -subj /CN=ca");
    openssl(folder, user, &words)
}

/// Creates a certificate and its key in these files, for a subject and its alternative names, signed by the authority in
/// the folder.
pub(crate) fn sign(
    folder: &Path,
    user: Option<(u32, u32)>,
    subject: &str,
    names: &str,
    [certificate, key]: [&str; 2],
) -> anyhow::Result<()> {
    openssl(folder, user, &format!("req {NEW_KEY} -keyout {key} -out csr.pem -subj /CN={subject}"))?;
    fs::write(folder.join("names"), format!("subjectAltName={names}\n"))?;
    let authority = "-CA ca.pem -CAkey ca.key -CAcreateserial -days 30";
    openssl(folder, user, &format!("x509 -req -in csr.pem {authority} -extfile names -out {certificate}"))
}

fn openssl(folder: &Path, user: Option<(u32, u32)>, words: &str) -> anyhow::Result<()> {
    let mut command = Command::new("openssl");
    if let Some((user, group)) = user {
        command.uid(user).gid(group);
    }
    command.current_dir(folder).args(words.split(' '));
    shell::output(&mut command).context("openssl is missing? get the package `openssl` of your system")?;
    Ok(())
}
