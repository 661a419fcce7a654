//! Step `build`: compiles all programs of the other steps once, so that these do not call cargo to build.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, bail};
use serde_json::Value;

use crate::{
    shell::{self, Shell},
    tools,
};

/// Features of the image, with which everything is tested: Kafka's TLS and SCRAM (ADR 8).
pub(crate) const FEATURES: &[&str] = &["--features", "tidegate/kafka-tls"];

/// Every package at once, so that each dependency is compiled once.
pub(crate) const ALL: &[&str] = &["--workspace"];

/// Packages without the protocol crate.
const PRODUCT: &[&str] = &["--workspace", "--exclude", "tidegate-protocol"];

const PROTOCOL: &[&str] = &["--package", "tidegate-protocol"];

/// The files that nextest reads: the test programs that were built, and the packages as cargo describes them.
pub(crate) const BINARIES: &str = "xtask/binaries.json";
pub(crate) const METADATA: &str = "xtask/metadata.json";

/// Builds all programs, examples and tests.
pub(crate) fn all(shell: &Shell) -> anyhow::Result<()> {
    tools::ensure_openssl(shell)?;
    let binaries = test_programs(shell, &[ALL, FEATURES].concat())?;
    write_lists(shell, &binaries)
}

/// Builds the tests of the protocol crate, and of the product those that these words choose, all where there are none:
/// `--test cluster`, `--lib`.
pub(crate) fn chosen(shell: &Shell, chosen: &[&str]) -> anyhow::Result<()> {
    if chosen.is_empty() {
        return all(shell);
    }
    tools::ensure_openssl(shell)?;
    let product = test_programs(shell, &[PRODUCT, FEATURES, chosen].concat())?;
    let protocol = test_programs(shell, PROTOCOL)?;
    write_lists(shell, &merged(product, protocol)?)
}

/// Writes the files that nextest reads.
fn write_lists(shell: &Shell, binaries: &Value) -> anyhow::Result<()> {
    let words = ["metadata", "--format-version=1", "--all-features", "--no-deps", "--locked"];
    let (metadata, _) = shell::output(&mut shell.cargo_command(&words))?;
    fs::create_dir_all(shell.target.join("xtask"))?;
    fs::write(shell.target.join(METADATA), metadata)?;
    fs::write(shell.target.join(BINARIES), binaries.to_string())?;
    Ok(())
}

/// Builds these packages and returns the list of their test programs, as nextest reads it.
fn test_programs(shell: &Shell, words: &[&str]) -> anyhow::Result<Value> {
    let mut list = shell.command(tools::nextest(shell)?);
    list.args(["nextest", "list", "--list-type", "binaries-only", "--message-format", "json"]);
    list.args(["--cargo-profile", shell.profile, "--locked"]).args(words);
    shell.set_build(&mut list);
    let text = shell::stdout(&mut list)?;
    serde_json::from_str(&text).context("nextest lists its programs as JSON")
}

/// The path of a test program, as nextest calls it: `tidegate::sim`.
pub(crate) fn test_program(shell: &Shell, name: &str) -> anyhow::Result<PathBuf> {
    let binaries: Value = serde_json::from_str(&fs::read_to_string(shell.target.join(BINARIES))?)?;
    let path = binaries["rust-binaries"][name]["binary-path"].as_str();
    Ok(PathBuf::from(path.with_context(|| format!("{name} was not built"))?))
}

/// Merges the two lists.
fn merged(mut all: Value, more: Value) -> anyhow::Result<Value> {
    let Some(programs) = all["rust-binaries"].as_object_mut() else { bail!("no programs in {all}") };
    let Value::Object(more) = more["rust-binaries"].clone() else { bail!("no programs in {more}") };
    programs.extend(more);
    Ok(all)
}

/// The programs of another profile, for commands that are run by hand.
pub(crate) fn programs(shell: &Shell) -> anyhow::Result<()> {
    let profile = ["--profile", shell.profile, "--locked"];
    let packages = ["--package", "tidegate", "--package", "tidegate-lab", "--bins", "--examples"];
    tools::ensure_openssl(shell)?;
    shell.cargo(&[&["build"], &profile[..], &packages[..], FEATURES].concat())
}
