//! Compiler of documentation in the step `rustdoc`: when cargo tests the examples of a library, it also documents the library,
//! and so finds broken links. `cargo doc` would check all dependencies once more, which takes longer than the rest.
//!
//! It is a copy of this program with a name of its own, as the compiler is.

use std::{
    env,
    ffi::{OsStr, OsString},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context as _;

use crate::{rustc, shell};

/// Name of the copy.
const NAME: &str = "rustdoc-of-tests";

/// Names the folder of the pages.
pub(crate) const FOLDER: &str = "XTASK_RUSTDOC_FOLDER";

/// Options that pages do not take, each with its value in the next word.
const OPTIONS: &[&str] = &["--out-dir", "--test-run-directory", "--test-args"];

/// Beginnings of words that pages do not take, or that make their errors hard to read.
const BEGINNINGS: &[&str] = &["--emit=", "--error-format=", "--json="];

/// Runs as rustdoc if the program has its name.
pub(crate) fn run_if_named() -> anyhow::Result<()> {
    let Some((_, words)) = rustc::words_if_named(NAME) else { return Ok(()) };
    if words.iter().any(|word| word == "--test") {
        let folder = env::var_os(FOLDER).with_context(|| format!("{FOLDER} is not set"))?;
        document(&words, &folder)?;
    }
    Err(Command::new("rustdoc").args(words).exec()).context("starting rustdoc")
}

/// Makes the copy and returns its path.
pub(crate) fn install(target: &Path) -> anyhow::Result<PathBuf> {
    rustc::copy(target, NAME)
}

/// Documents what these words of a compiler or of a test of examples name; a broken link is an error.
pub(crate) fn document(words: &[OsString], folder: &OsStr) -> anyhow::Result<()> {
    let mut rustdoc = Command::new("rustdoc");
    rustdoc.args(words_of_pages(words)).arg("--document-private-items").arg("-o").arg(folder);
    rustdoc.args(["--deny", "warnings", "--allow", "rustdoc::private_intra_doc_links"]);
    shell::run(&mut rustdoc)
}

fn words_of_pages(words: &[OsString]) -> Vec<&OsString> {
    let mut kept = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        if OPTIONS.iter().any(|it| word == it) {
            words.next();
        } else if word != "--test" && !BEGINNINGS.iter().any(|it| text.starts_with(it)) {
            kept.push(word);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_examples_and_of_the_compiler_are_left_out() {
        let words: Vec<OsString> =
            "--crate-name a --emit=link --json=a --test src/lib.rs --test-run-directory b --out-dir c --cfg d"
                .split(' ')
                .map(OsString::from)
                .collect();
        assert_eq!(words_of_pages(&words), ["--crate-name", "a", "src/lib.rs", "--cfg", "d"]);
    }
}
