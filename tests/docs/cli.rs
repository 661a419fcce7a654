//! `docs/cli.md`: the help text of every visible command.

use clap::CommandFactory as _;

use super::generated::help;

const HEAD: &str = "# The command line

Generated from `src/cli.rs` and `src/cli/` by `cargo xtask docs`; change it there. It is what `--help` prints.

Exit codes: 0 done, 1 failed (the reason is on stderr), 2 wrong usage. `serve` has two more: 3 the drain's deadline cut connections, 4 a second signal ended
the drain. `up` exits with 0 if all nodes that it stopped exited with 0, otherwise with the code of the first one that did not.
`demo` exits with 1 also if a promise was broken.

";

/// Returns the generated page.
pub(super) fn page() -> String {
    help(HEAD, &tidegate::cli::Cli::command(), "tidegate")
}
