//! Steps `fmt`, `rustdoc` and `fuzz-build`, which check the code without running it.

use std::{ffi::OsString, fs};

use anyhow::Context as _;

use super::compile::{ALL, FEATURES};
use crate::{
    rustc, rustdoc,
    shell::{self, Shell},
};

pub(crate) fn format(shell: &Shell) -> anyhow::Result<()> {
    shell.cargo(&["fmt", "--all", "--check"])
}

/// Fails on broken links and on examples that do not compile.
pub(crate) fn rustdoc(shell: &Shell) -> anyhow::Result<()> {
    let folder = shell.scratch("rustdoc")?;
    let words = ["test", "--doc", "--profile", shell.profile, "--locked"];
    let mut test = shell.cargo_command(&[&words[..], ALL, FEATURES].concat());
    test.env("RUSTDOC", rustdoc::install(&shell.target)?).env(rustdoc::FOLDER, &folder);
    shell::run(&mut test)?;
    let own = shell.target.join("xtask").join(rustc::OWN_WORDS);
    let own = fs::read_to_string(&own).with_context(|| {
        let cure = "`touch xtask/src/main.rs` and build again, so that its tests are compiled";
        format!("{} can't be read: {cure}", own.display())
    })?;
    let own: Vec<OsString> = own.lines().map(OsString::from).collect();
    rustdoc::document(&own, folder.as_os_str())?;
    fs::remove_dir_all(&folder)?;
    Ok(())
}

/// Checks that the fuzz crate compiles. It is a separate workspace, because libFuzzer needs a nightly toolchain; its
/// dependencies are those that clippy has checked.
pub(crate) fn fuzz(shell: &Shell) -> anyhow::Result<()> {
    let words =
        ["check", "--profile", shell.profile, "--locked", "--bins", "--manifest-path", "fuzz/Cargo.toml"];
    shell.cargo(&words)
}
