//! Compiler of the workspace in `cargo xtask test`: compiles tests without optimization, which halves the time of the build.
//! The library and the programs that tests drive are optimized as the profile says.
//!
//! It is a copy of this program with a name of its own, which cargo calls with the real compiler as its first argument.

use std::{
    env,
    ffi::OsString,
    fs,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{self, Command},
};

use anyhow::Context as _;

/// Name of the copy.
const NAME: &str = "rustc-of-tests";

/// Crates of tests that compute, so that optimized ones are faster in all.
const OPTIMIZED: &[&str] = &["world", "machines", "ledger_sim", "sim", "wire"];

/// Runs as the compiler if the program has its name.
pub(crate) fn run_if_named() -> anyhow::Result<()> {
    let mut words = env::args_os();
    let program = words.next().map(PathBuf::from);
    if program.as_deref().and_then(Path::file_name).is_none_or(|name| name != NAME) {
        return Ok(());
    }
    let compiler = words.next().context("cargo names the compiler")?;
    let words: Vec<OsString> = words.collect();
    let mut command = Command::new(compiler);
    if is_unoptimized(&words) {
        command.args(&words).args(["-C", "opt-level=0"]);
    } else {
        command.args(&words);
    }
    Err(command.exec()).context("starting the compiler")
}

/// Returns the path of the copy.
pub(crate) fn path(target: &Path) -> PathBuf {
    target.join("xtask").join(NAME)
}

/// Makes the copy. An equal one stays, because cargo may build everything again with a newer one.
pub(crate) fn install(target: &Path) -> anyhow::Result<()> {
    let (program, path) = (env::current_exe()?, path(target));
    if fs::read(&path).is_ok_and(|former| fs::read(&program).is_ok_and(|it| it == former)) {
        return Ok(());
    }
    fs::create_dir_all(target.join("xtask"))?;
    let fresh = path.with_extension(process::id().to_string());
    fs::copy(&program, &fresh)?;
    fs::rename(&fresh, &path).with_context(|| path.display().to_string())
}

fn is_unoptimized(words: &[OsString]) -> bool {
    let name = words.iter().skip_while(|word| *word != "--crate-name").nth(1);
    words.iter().any(|word| word == "--test")
        && name.is_none_or(|name| !OPTIMIZED.iter().any(|it| name == it))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tests_that_do_not_compute_are_compiled_without_optimization() {
        let is_unoptimized =
            |text: &str| is_unoptimized(&text.split(' ').map(OsString::from).collect::<Vec<_>>());
        assert!(is_unoptimized("--crate-name tidegate --edition=2024 src/lib.rs --test"));
        assert!(!is_unoptimized("--crate-name tidegate --edition=2024 src/lib.rs --crate-type lib"));
        assert!(!is_unoptimized("--crate-name world --edition=2024 tests/world/main.rs --test"));
        assert!(!is_unoptimized("-vV"));
    }
}
