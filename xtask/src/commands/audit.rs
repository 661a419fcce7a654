//! `cargo xtask audit`: looks for known vulnerabilities in every dependency of both lock files.
//!
//! It is not a step of the test run: advisories appear without a change of the code, and their database is on the network.

use std::{fs, path::Path};

use anyhow::Context as _;

use crate::{
    shell::{self, Shell},
    tools,
};

/// The database that cargo-deny uses by itself.
const DATABASE: &str = "https://github.com/RustSec/advisory-db";

/// Manifests with a lock file of their own.
const MANIFESTS: &[&str] = &["Cargo.toml", "fuzz/Cargo.toml"];

/// Checks both lock files by the newest advisories, or by those of a clone of the database with a branch `main`.
///
/// # Errors
/// A dependency has an advisory, or no database can be had; the text says how to get one.
pub(crate) fn run(shell: &Shell, database: Option<&Path>) -> anyhow::Result<()> {
    let program = tools::cargo_deny(shell)?;
    let scratch = shell.scratch("audit")?;
    let config = scratch.join("deny.toml");
    let text = format!("[advisories]\ndb-path = {:?}\nyanked = \"warn\"\n", scratch.join("database"));
    fs::write(&config, text)?;
    for manifest in MANIFESTS {
        println!("{manifest}:");
        let mut command = shell.command(&program);
        command.args(["--manifest-path", manifest, "--workspace", "--config"]).arg(&config);
        command.args(["check", "--hide-inclusion-graph", "advisories"]);
        if let Some(database) = database {
            let folder = database.canonicalize().with_context(|| database.display().to_string())?;
            // Git takes the local clone in place of the address.
            command.env("GIT_CONFIG_COUNT", "1").env("GIT_CONFIG_VALUE_0", DATABASE);
            command.env("GIT_CONFIG_KEY_0", format!("url.file://{}.insteadOf", folder.display()));
        }
        shell::run(&mut command).with_context(|| {
            format!(
                "{manifest} has an advisory, or no database could be had; without a network, clone {DATABASE} elsewhere and \
                 give its folder: `cargo xtask audit --database FOLDER`"
            )
        })?;
    }
    Ok(())
}
