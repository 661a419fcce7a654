//! `docs/lab.md`: what `tidegate-lab --help` says, and `docs/clients/cases.md`: the cases of the kit; `cargo xtask docs` writes
//! them.

#[path = "../../tests/docs/generated.rs"]
mod generated;

use std::{env, path::PathBuf};

use clap::CommandFactory as _;

const HEAD: &str = "# The lab

Generated from `lab/src/` by `cargo xtask docs`; change it there. It is what `tidegate-lab --help` prints.

`tidegate-lab` measures nodes, breaks them, and checks what clients saw. It is a program of its own, in the image as little as in a plain `cargo build`;
`cargo build --release --package tidegate --package tidegate-lab` puts it into the folder of the node that it starts. How figures are measured is in
[performance.md](performance.md), what is broken and judged in [testing.md](internals/testing.md).

Exit codes: 0 done, 1 failed (the reason is on stderr), 2 wrong usage.

";

#[test]
fn the_pages_of_the_lab_are_current() {
    // Read when it runs: a target folder may serve several work trees.
    let package =
        PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo names the folder of the crate"));
    let root = package.parent().expect("the lab is in the workspace");
    let page = generated::help(HEAD, &tidegate_lab::cli::Cli::command(), "tidegate-lab");
    generated::settle(root, "docs/lab.md", &page);
    let cases = tidegate_lab::kit::cases_page().expect("the cases are well formed");
    generated::settle(root, "docs/clients/cases.md", &cases);
}
