//! Compiler of the workspace in `cargo xtask test`: compiles tests without optimization, which halves the time of the build,
//! and lints them in the same pass, which spares the time that `cargo clippy` takes to check everything once more. The library
//! and the programs that tests drive are optimized as the profile says.
//!
//! It is a copy of this program with a name of its own, which cargo calls with the real compiler as its first argument.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{self, Command},
};

use anyhow::Context as _;

/// Name of the copy. Cargo builds again what was built with another name, and not with another program: change the number
/// when you change what is linted or optimized.
const NAME: &str = "rustc-of-tests-2";

/// File next to the copy with the words by which the tests of this program are compiled. It is no library, so `cargo test --doc`
/// leaves it out, and its documentation is checked by these words.
pub(crate) const OWN_WORDS: &str = "own.words";

/// Crates of tests that compute, so that optimized ones are faster in all.
const OPTIMIZED: &[&str] = &["world", "machines", "ledger_sim", "sim", "tidy"];

/// Runs as the compiler if the program has its name.
pub(crate) fn run_if_named() -> anyhow::Result<()> {
    let Some((program, words)) = words_if_named(NAME) else { return Ok(()) };
    let (compiler, words) = words.split_first().context("cargo names the compiler")?;
    if let Some(folder) = program.parent().filter(|_| is_own_test(words)) {
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        fs::write(folder.join(OWN_WORDS), words.join("\n"))?;
    }
    let mut command = if is_linted(words) {
        let mut clippy = Command::new(Path::new(compiler).with_file_name("clippy-driver"));
        clippy.arg(compiler);
        clippy
    } else {
        Command::new(compiler)
    };
    command.args(words);
    if is_unoptimized(words) {
        command.args(["-C", "opt-level=0"]);
    }
    let program = command.get_program().to_owned();
    Err(command.exec()).with_context(|| format!("starting {}", program.display()))
}

/// Returns the path and the further words of this program, if it has that name.
pub(crate) fn words_if_named(name: &str) -> Option<(PathBuf, Vec<OsString>)> {
    let mut words = env::args_os();
    let program = PathBuf::from(words.next()?);
    if program.file_name()? == name { Some((program, words.collect())) } else { None }
}

/// Returns the path of the copy.
pub(crate) fn path(target: &Path) -> PathBuf {
    target.join("xtask").join(NAME)
}

/// Makes the copy.
pub(crate) fn install(target: &Path) -> anyhow::Result<()> {
    copy(target, NAME).map(drop)
}

/// Copies this program and returns the path. An equal copy stays, because cargo may build everything again with a newer one.
pub(crate) fn copy(target: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let (program, path) = (env::current_exe()?, target.join("xtask").join(name));
    if fs::read(&path).is_ok_and(|former| fs::read(&program).is_ok_and(|it| it == former)) {
        return Ok(path);
    }
    fs::create_dir_all(target.join("xtask"))?;
    let fresh = path.with_extension(process::id().to_string());
    fs::copy(&program, &fresh)?;
    fs::rename(&fresh, &path).with_context(|| path.display().to_string())?;
    Ok(path)
}

fn is_unoptimized(words: &[OsString]) -> bool {
    is_test(words) && name_of(words).is_none_or(|name| !OPTIMIZED.iter().any(|it| name == *it))
}

/// Example whose instructions are counted.
const COUNTED: &str = "counts";

/// Returns whether clippy compiles this, which optimizes less: all but the libraries and programs that tests and figures run.
/// The tests of a library or program contain its code, so nothing is left out but what is not compiled for tests, and one
/// example.
fn is_linted(words: &[OsString]) -> bool {
    let is_example = |word: &OsString| word.to_str().is_some_and(|it| it.starts_with("examples/"));
    let name = name_of(words).and_then(OsStr::to_str).unwrap_or_default();
    is_test(words) || name.starts_with("build_script") || (words.iter().any(is_example) && name != COUNTED)
}

fn name_of(words: &[OsString]) -> Option<&OsStr> {
    words.iter().skip_while(|word| *word != "--crate-name").nth(1).map(OsString::as_os_str)
}

fn is_own_test(words: &[OsString]) -> bool {
    is_test(words) && name_of(words).is_some_and(|name| name == "xtask")
}

fn is_test(words: &[OsString]) -> bool {
    words.iter().any(|word| word == "--test")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn only_tests_that_do_not_compute_are_compiled_without_optimization() {
        let is_unoptimized = |text| is_unoptimized(&words(text));
        assert!(is_unoptimized("--crate-name tidegate --edition=2024 src/lib.rs --test"));
        assert!(!is_unoptimized("--crate-name tidegate --edition=2024 src/lib.rs --crate-type lib"));
        assert!(!is_unoptimized("--crate-name world --edition=2024 tests/world/main.rs --test"));
        assert!(!is_unoptimized("-vV"));
    }

    #[test]
    fn tests_and_examples_are_linted_and_what_they_run_is_not() {
        let is_linted = |text| is_linted(&words(text));
        assert!(is_linted("--crate-name tidegate --edition=2024 src/lib.rs --test"));
        assert!(is_linted("--crate-name build_script_build --edition=2024 build.rs --crate-type bin"));
        assert!(!is_linted("--crate-name counts --edition=2024 examples/counts.rs --crate-type bin"));
        assert!(is_linted("--crate-name ws_echo --edition=2024 examples/ws_echo.rs --crate-type bin"));
        assert!(!is_linted("--crate-name tidegate --edition=2024 src/main.rs --crate-type bin"));
        assert!(!is_linted("-vV"));
    }
}
