//! Steps `fmt`, `clippy`, `rustdoc` and `fuzz-build`, which check the code without running it.

use super::compile::{ALL, FEATURES};
use crate::{
    shell::{self, Shell},
    tools,
};

pub(crate) fn format(shell: &Shell) -> anyhow::Result<()> {
    shell.cargo(&["fmt", "--all", "--check"])
}

/// Lints with the profile and features of the build, whose build scripts and macros it shares.
pub(crate) fn clippy(shell: &Shell) -> anyhow::Result<()> {
    tools::ensure_openssl(shell)?;
    let words = ["clippy", "--profile", shell.profile, "--locked", "--all-targets"];
    let strict = ["--", "-D", "warnings"];
    shell.cargo(&[&words[..], ALL, FEATURES, &strict[..]].concat())
}

/// Fails on broken links and on examples that do not compile.
pub(crate) fn rustdoc(shell: &Shell) -> anyhow::Result<()> {
    let words = [
        "doc",
        "--profile",
        shell.profile,
        "--locked",
        "--no-deps",
        "--document-private-items",
        "--workspace",
    ];
    let mut doc = shell.cargo_command(&[&words[..], FEATURES].concat());
    shell::run(doc.env("RUSTDOCFLAGS", "--deny warnings --allow rustdoc::private_intra_doc_links"))?;
    shell.cargo(&[&["test", "--doc", "--profile", shell.profile, "--locked"], ALL, FEATURES].concat())
}

/// Checks that the fuzz crate compiles. It is a separate workspace, because libFuzzer needs a nightly toolchain; its
/// dependencies are those that clippy has checked.
pub(crate) fn fuzz(shell: &Shell) -> anyhow::Result<()> {
    let words =
        ["check", "--profile", shell.profile, "--locked", "--bins", "--manifest-path", "fuzz/Cargo.toml"];
    shell.cargo(&words)
}
