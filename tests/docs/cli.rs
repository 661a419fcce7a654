//! `docs/cli.md`: what `--help` says, of every command that is shown.

use std::fmt::Write as _;

use clap::{Command, CommandFactory as _};

const HEAD: &str = "# The command line

Generated from `src/cli.rs` and `src/cli/` by `cargo xtask docs`; change it there. It is what `--help` prints.

Exit codes: 0 done, 1 failed (the reason is on stderr), 2 wrong usage. `serve` has two more: 3 the drain's deadline cut connections, 4 a second signal ended
the drain. `up` ends with 0 when all nodes that it told to stop did so with 0, else as the first of them that did not.

";

/// Wide enough that nothing wraps in an odd place; a terminal would give its own width.
const COLUMNS: usize = 100;

/// The page.
pub(super) fn page() -> String {
    let mut page = HEAD.to_owned();
    describe(&tidegate::cli::Cli::command(), "tidegate", 2, &mut page);
    page.truncate(page.trim_end().len());
    page.push('\n');
    page
}

/// One command and what is below it. Nested ones repeat no options of the command above.
fn describe(command: &Command, path: &str, level: usize, page: &mut String) {
    let mut shown = command
        .clone()
        .bin_name(path)
        .term_width(COLUMNS)
        .disable_help_subcommand(true)
        .mut_args(|arg| arg.hide_env_values(true));
    let help = shown.render_long_help().to_string();
    let help: Vec<&str> = help.lines().map(str::trim_end).collect();
    let marks = "#".repeat(level);
    write!(page, "{marks} `{path}`\n\n```text\n{}\n```\n\n", help.join("\n").trim_end())
        .expect("a String takes everything");
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        describe(below, &format!("{path} {}", below.get_name()), (level + 1).min(3), page);
    }
}
