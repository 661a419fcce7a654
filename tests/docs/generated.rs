//! Generated pages: the help of a program as Markdown, and how a page of the tree is compared or written.

use std::{env, fmt::Write as _, fs, path::Path};

use clap::Command;

/// Width at which no line wraps awkwardly, independent of the terminal.
const COLUMNS: usize = 100;

/// Returns `head`, then the help of `program` and of every visible command below it.
pub(crate) fn help(head: &str, program: &Command, name: &str) -> String {
    let mut page = head.to_owned();
    describe(program, name, 2, &mut page);
    page.truncate(page.trim_end().len());
    page.push('\n');
    page
}

/// Describes one command and those below it. Nested ones repeat no options of the command above.
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
        .expect("writing to a String succeeds");
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        describe(below, &format!("{path} {}", below.get_name()), (level + 1).min(3), page);
    }
}

/// Writes the page if requested, otherwise fails if the one in the tree differs.
pub(crate) fn settle(root: &Path, path: &str, page: &str) {
    let file = root.join(path);
    let now = fs::read_to_string(&file).unwrap_or_default();
    if now == page {
        return;
    }
    if env::var("TIDEGATE_UPDATE_DOCS").is_ok_and(|value| value == "1") {
        assert!(
            env::var_os("CI").is_none(),
            "TIDEGATE_UPDATE_DOCS is set in CI: pages would pass by being written"
        );
        // Other tests read pages concurrently, so a page is replaced atomically.
        let new = file.with_extension("new");
        fs::write(&new, page)
            .and_then(|()| fs::rename(&new, &file))
            .unwrap_or_else(|error| panic!("{path}: {error}"));
        return;
    }
    let stale = now.lines().zip(page.lines()).position(|(old, new)| old != new);
    let line = stale.unwrap_or(now.lines().count().min(page.lines().count())) + 1;
    panic!("{path} differs from the code from line {line} on: run `cargo xtask docs`");
}
