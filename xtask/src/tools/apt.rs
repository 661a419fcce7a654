//! Installation of programs from Debian packages.

use std::path::Path;

use anyhow::{Context as _, bail};

use super::cache;
use crate::shell::{self, Shell};

/// Installs `program` from its Debian package, unless it exists.
pub(crate) fn ensure_program(shell: &Shell, program: &str, package: &str) -> anyhow::Result<()> {
    if shell::have(program) {
        return Ok(());
    }
    let by_hand = format!("`{program}` is missing and could not be installed; get the package `{package}`");
    if !shell::have("apt-get") {
        bail!("{by_hand} of your system");
    }
    eprintln!("`{program}` is missing: installing the package `{package}`");
    install(shell, package).context(by_hand)
}

/// Installs the headers of OpenSSL, for the feature `kafka-tls`.
pub(crate) fn ensure_openssl(shell: &Shell) -> anyhow::Result<()> {
    if Path::new("/usr/include/openssl/ssl.h").is_file() || !shell::have("apt-get") {
        // On other systems the build names what is missing.
        return Ok(());
    }
    eprintln!("the headers of OpenSSL are missing: installing the package `libssl-dev`");
    install(shell, "libssl-dev").context("get the package `libssl-dev`: Kafka's TLS is tested with it")
}

/// Installs a Debian package.
pub(crate) fn install(shell: &Shell, package: &str) -> anyhow::Result<()> {
    // Steps run in parallel, and dpkg refuses a second process.
    let _turn = cache::lock("apt")?;
    as_root(shell, &["update", "--quiet"])?;
    as_root(shell, &["install", "--quiet", "--yes", "--no-install-recommends", package])
}

/// Puts the file of a package into the folder, without installing it.
pub(super) fn download(shell: &Shell, package: &str, folder: &Path) -> anyhow::Result<()> {
    let _turn = cache::lock("apt")?;
    as_root(shell, &["update", "--quiet"])?;
    let mut get = shell.command("apt-get");
    shell::run(get.args(["download", "--quiet", package]).current_dir(folder))
}

fn as_root(shell: &Shell, words: &[&str]) -> anyhow::Result<()> {
    let mut command = if shell::is_root()? {
        shell.command("apt-get")
    } else {
        let mut command = shell.command("sudo");
        command.args(["--non-interactive", "apt-get"]);
        command
    };
    shell::run(command.args(words).env("DEBIAN_FRONTEND", "noninteractive"))
}
