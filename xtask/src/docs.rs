//! Pages that are generated from the code, so that they can't say anything else.
//!
//! The page of codes is made here; the others need the library, so `tests/docs.rs` makes them.

use std::{fmt::Write as _, fs};

use anyhow::{Context as _, bail};
use tidegate_protocol::{Code, code::Reconnect};

use crate::shell::{self, Shell};

const ERRORS: &str = "docs/errors.md";

const ERRORS_HEAD: &str = "# Error and close codes

Generated from `protocol/src/code.rs` by `cargo xtask docs`; change it there.

An `Error` frame refuses one request and the connection goes on; a `Close` frame is the last one of a connection.
*Temporary* means that the same request may succeed later unchanged: try again after `retryAfterMs`. *Reconnect* is what
a client does when a `Close` carries the code: *now* (with jitter), *after* the time in `afterMs`, or *never*, because
the same attempt would end the same way. *WebSocket* is the status of the WebSocket close frame that follows.

";

/// The groups of numbers, each from its first number on.
const GROUPS: &[(u16, &str)] = &[
    (1000, "1xxx: protocol"),
    (2000, "2xxx: who and whether"),
    (3000, "30xx: closed, come back"),
    (3500, "35xx: closed for good"),
    (4000, "4xxx: flow, order, load"),
];

/// Writes the pages, or with `check` says whether they are current.
pub(crate) fn run(shell: &Shell, check: bool) -> anyhow::Result<()> {
    errors(shell, check)?;
    let words = ["test", "--quiet", "--package", "tidegate", "--test", "docs"];
    let update = if check { "0" } else { "1" };
    shell::run(shell.cargo_command(&words).env("TIDEGATE_UPDATE_DOCS", update))
}

fn errors(shell: &Shell, check: bool) -> anyhow::Result<()> {
    let path = shell.root.join(ERRORS);
    let page = errors_page();
    if check {
        let now =
            fs::read_to_string(&path).with_context(|| format!("no {ERRORS}; run `cargo xtask docs`"))?;
        if now != page {
            bail!("{ERRORS} is not what protocol/src/code.rs says; run `cargo xtask docs`");
        }
        println!("{ERRORS} is current");
        return Ok(());
    }
    fs::write(&path, page).with_context(|| format!("writing {}", path.display()))?;
    println!("wrote {ERRORS}");
    Ok(())
}

fn errors_page() -> String {
    let mut page = ERRORS_HEAD.to_owned();
    for (index, (first, title)) in GROUPS.iter().enumerate() {
        let end = GROUPS.get(index + 1).map_or(u16::MAX, |(next, _)| *next);
        let codes = Code::ALL.iter().filter(|code| (*first..end).contains(&code.number()));
        push(&mut page, format_args!("## {title}\n\n"));
        for code in codes {
            push(&mut page, format_args!("### {} {}\n\n{}\n\n", code.number(), code.name(), code.what()));
            push(&mut page, format_args!("*What to do:* {}\n\n", code.cure()));
            let temporary = if code.temporary() { "yes" } else { "no" };
            let reconnect = match code.reconnect() {
                Reconnect::Now => "now",
                Reconnect::After => "after",
                Reconnect::Never => "never",
            };
            let websocket = code.ws_close();
            push(
                &mut page,
                format_args!("Temporary: {temporary} · Reconnect: {reconnect} · WebSocket: {websocket}\n\n"),
            );
        }
    }
    page.truncate(page.trim_end().len());
    page.push('\n');
    page
}

fn push(page: &mut String, text: std::fmt::Arguments<'_>) {
    page.write_fmt(text).expect("a String takes everything");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_page_is_current() {
        let shell = Shell::here().expect("cargo names the crate");
        errors(&shell, true).expect("the page is current");
    }

    #[test]
    fn errors_page_names_every_code_once() {
        let page = errors_page();
        for code in Code::ALL {
            let title = format!("### {} {}\n", code.number(), code.name());
            assert_eq!(page.matches(&title).count(), 1, "{title}");
        }
    }

    /// Names in backticks and capitals are codes, or values of the enums that the schema defines.
    #[test]
    fn pages_name_only_codes_that_exist() {
        let shell = Shell::here().expect("cargo names the crate");
        let read = |path: &str| fs::read_to_string(shell.root.join(path)).expect(path);
        let schema = read("protocol/tidegate/v1/client.proto");
        let socket_options = ["SO_SNDBUF", "TCP_NODELAY", "TCP_NOTSENT_LOWAT", "AUTO_READ"];
        let pages = ["protocol/SPEC.md", "docs/ARCHITECTURE.md", "docs/http.md", "README.md", "CHANGELOG.md"];
        for path in pages {
            for name in read(path).split('`').skip(1).step_by(2) {
                let capitals = name.len() > 2 && name.chars().all(|c| c.is_ascii_uppercase() || c == '_');
                let known = Code::ALL.iter().any(|code| code.name() == name)
                    || schema.contains(&format!("{name} ="))
                    || socket_options.contains(&name);
                assert!(!capitals || known, "{path} names `{name}`, which is no code and in no enum");
            }
        }
    }
}
