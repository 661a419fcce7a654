//! `cargo xtask docs`: writes the pages that are generated from the code. Their own tests write them; this module writes
//! the list of steps.

use std::fs;

use anyhow::{Context as _, bail};

use crate::{
    shell::Shell,
    steps::{self, compile, nextest},
};

const TESTING: &str = "docs/internals/testing.md";

/// Writes the pages, or with `check` fails unless they are current.
pub(crate) fn run(shell: &Shell, check: bool) -> anyhow::Result<()> {
    let file = shell.root.join(TESTING);
    let page = fs::read_to_string(&file).with_context(|| TESTING.to_owned())?;
    let current = with_steps(&page).with_context(|| format!("{TESTING} has no block `steps`"))?;
    if !check {
        fs::write(&file, current)?;
    } else if current != page {
        bail!("the steps in {TESTING} are stale: run `cargo xtask docs`");
    }
    // The tests of processes record what a node answers to the examples of the admin API.
    let programs: &[&str] =
        if check { &["--test", "docs"] } else { &["--test", "docs", "--test", "process"] };
    compile::chosen(shell, programs)?;
    nextest::pages(shell, !check)
}

/// Returns the page with the steps as `cargo xtask test --list` prints them.
fn with_steps(page: &str) -> Option<String> {
    let (begin, end) = ("<!-- steps -->\n", "<!-- /steps -->\n");
    let (before, rest) = page.split_once(begin)?;
    let (_, after) = rest.split_once(end)?;
    let list: String = steps::STEPS.iter().map(|step| steps::listed(step) + "\n").collect();
    Some(format!("{before}{begin}```text\n{list}```\n{end}{after}"))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_page_on_testing_has_the_steps() {
        let shell = Shell::here().expect("cargo names the crate");
        let page = fs::read_to_string(shell.root.join(TESTING)).expect("a page");
        assert_eq!(with_steps(&page).as_ref(), Some(&page), "run `cargo xtask docs`");
    }
}
