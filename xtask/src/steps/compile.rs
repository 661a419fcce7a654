//! Step `build`: compiles all programs of the other steps once, so that these do not call cargo to build.

use std::{
    fs,
    path::{Path, PathBuf},
};

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

/// What cargo printed during the build, warnings of compiler and clippy included, also those of what was built before.
const OUTPUT: &str = "xtask/build.log";

/// Builds all programs, examples and tests.
pub(crate) fn all(shell: &Shell) -> anyhow::Result<()> {
    tools::ensure_openssl(shell)?;
    let binaries = test_programs(shell, &[ALL, FEATURES].concat(), &new_output(shell)?)?;
    write_lists(shell, &binaries)
}

/// Builds the tests of the protocol crate, and of the product those that these words choose, all where there are none:
/// `--test cluster`, `--lib`.
pub(crate) fn chosen(shell: &Shell, chosen: &[&str]) -> anyhow::Result<()> {
    if chosen.is_empty() {
        return all(shell);
    }
    tools::ensure_openssl(shell)?;
    let output = new_output(shell)?;
    let product = test_programs(shell, &[PRODUCT, FEATURES, chosen].concat(), &output)?;
    let protocol = test_programs(shell, PROTOCOL, &output)?;
    write_lists(shell, &merged(product, protocol)?)
}

/// Fails with the warnings of the build, in which clippy compiled all tests and examples.
pub(crate) fn deny_warnings(shell: &Shell) -> anyhow::Result<()> {
    let output = fs::read_to_string(shell.target.join(OUTPUT)).context("the output of the build")?;
    let warned: Vec<&str> = output.lines().filter(|line| is_sum_of_warnings(line)).collect();
    if warned.is_empty() {
        return Ok(());
    }
    println!("{output}");
    bail!("warnings are errors:\n{}", warned.join("\n"))
}

/// Returns whether cargo says in this line how many warnings a target has.
fn is_sum_of_warnings(line: &str) -> bool {
    line.starts_with("warning: `") && line.contains("` (") && line.contains(" generated ")
}

fn new_output(shell: &Shell) -> anyhow::Result<PathBuf> {
    let path = shell.target.join(OUTPUT);
    fs::create_dir_all(shell.target.join("xtask"))?;
    fs::write(&path, "").with_context(|| path.display().to_string())?;
    Ok(path)
}

/// Writes the files that nextest reads.
fn write_lists(shell: &Shell, binaries: &Value) -> anyhow::Result<()> {
    let words = ["metadata", "--format-version=1", "--all-features", "--no-deps", "--locked"];
    let (metadata, _) = shell::output(&mut shell.cargo_command(&words))?;
    fs::write(shell.target.join(METADATA), metadata)?;
    fs::write(shell.target.join(BINARIES), binaries.to_string())?;
    Ok(())
}

/// Builds these packages and returns the list of their test programs, as nextest reads it; adds what cargo prints to a file.
fn test_programs(shell: &Shell, words: &[&str], output: &Path) -> anyhow::Result<Value> {
    let mut list = shell.command(tools::nextest(shell)?);
    list.args(["nextest", "list", "--list-type", "binaries-only", "--message-format", "json"]);
    list.args(["--cargo-profile", shell.profile, "--locked"]).args(words);
    // `deny_warnings` reads what cargo prints, in the form that it has by default.
    list.env("CARGO_TERM_COLOR", "never").env("CARGO_TERM_QUIET", "false").env("CARGO_TERM_VERBOSE", "false");
    shell.set_build(&mut list);
    let text = shell::stdout_and_log(&mut list, output)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_seen_by_the_line_that_counts_them() {
        let one = "warning: `tidegate` (lib test) generated 1 warning (run `cargo fix --lib` to apply 1 suggestion)";
        assert!(is_sum_of_warnings(one));
        assert!(!is_sum_of_warnings("   Compiling tidegate v0.1.0"));
        assert!(!is_sum_of_warnings("warning: unused variable: `generated`"));
    }
}
