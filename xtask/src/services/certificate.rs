//! Certificate for 127.0.0.1, signed by its own authority, for test servers with TLS.

use std::{fs, os::unix::process::CommandExt as _, path::Path, process::Command};

use anyhow::Context as _;

use crate::shell;

/// Creates `ca.pem`, `cert.pem` and `key.pem` in the folder, as that user.
pub(super) fn make(folder: &Path, user: Option<(u32, u32)>) -> anyhow::Result<()> {
    let openssl = |words: &str| -> anyhow::Result<()> {
        let mut command = Command::new("openssl");
        if let Some((user, group)) = user {
            command.uid(user).gid(group);
        }
        command.current_dir(folder).args(words.split(' '));
        shell::output(&mut command)
            .context("openssl is missing? get the package `openssl` of your system")?;
        Ok(())
    };
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(&format!("req -x509 {key} -keyout ca.key -out ca.pem -days 30 -subj /CN=ca"))?;
    openssl(&format!("req {key} -keyout key.pem -out csr.pem -subj /CN=tidegate"))?;
    fs::write(folder.join("names"), "subjectAltName=IP:127.0.0.1\n")?;
    openssl(
        "x509 -req -in csr.pem -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 -extfile names -out cert.pem",
    )
}
