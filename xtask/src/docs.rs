//! Pages that are generated from the code, so that they can't say anything else: the tests of the pages write them too.

use crate::{compile, shell::Shell, tests};

/// Writes the pages, or with `check` says whether they are current.
pub(crate) fn run(shell: &Shell, check: bool) -> anyhow::Result<()> {
    compile::chosen(shell, &["--test", "docs"])?;
    tests::pages(shell, !check)
}
