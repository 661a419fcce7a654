//! The page of error and close codes.

use std::{collections::BTreeSet, fmt::Write as _};

use tidegate_protocol::{Code, code::Reconnect};

use super::{pages::pages, read, settle};

const ERRORS_HEAD: &str = "# Error and close codes

Generated from `protocol/src/code.rs` by `cargo xtask docs`; change it there.

An `Error` frame refuses one request, and the connection stays open; a `Close` frame is the last one of a connection.
*Temporary* means that the same request may succeed later unchanged: try again after `retryAfterMs`. *Reconnect* is what
a client does when a `Close` carries the code: *now* (with jitter), *after* the time in `afterMs`, or *never*, because
the same attempt would end the same way. *WebSocket* is the status of the WebSocket close frame that follows.

";

/// The groups of numbers, each from its first number on.
const GROUPS: &[(u16, &str)] = &[
    (1000, "1xxx: protocol"),
    (2000, "2xxx: authentication and permission"),
    (3000, "30xx: closed, reconnect"),
    (3500, "35xx: closed, do not reconnect"),
    (4000, "4xxx: flow, order, load"),
];

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
    page.write_fmt(text).expect("writing to a String succeeds");
}

#[test]
fn codes_page_is_current() {
    settle("docs/errors.md", &errors_page());
}

#[test]
fn errors_page_names_every_code_once() {
    let page = errors_page();
    for code in Code::ALL {
        let title = format!("### {} {}\n", code.number(), code.name());
        assert_eq!(page.matches(&title).count(), 1, "{title}");
    }
}

/// Names in capitals that pages quote from elsewhere.
const OTHER_NAMES: &[&str] = &[
    // The kernel and libraries.
    "SO_SNDBUF",
    "TCP_NODELAY",
    "TCP_NOTSENT_LOWAT",
    "PR_SET_THP_DISABLE",
    "AUTO_READ",
    "NODE_EXTRA_CA_CERTS",
    // Postgres, Redis and SASL.
    "COMMIT",
    "SERIALIZABLE",
    "CROSSSLOT",
    "WAIT",
    "PLAIN",
    // What a node logs, and how its store fails.
    "LOG_REPLACED",
    "RULES_UNKNOWN",
    "UNAVAILABLE",
    // Constants, verdicts and files of this repository.
    "LEDGER_NEWEST",
    "RECORD_VERSION",
    "BROKEN",
    "MANIFEST",
    "CHROMIUM",
    // Codes of the TypeScript client alone.
    "BAD_REQUEST",
    "NO_ADDRESS",
    "NO_TOKEN",
    "OTHER_USER",
    "UNREACHABLE",
];

/// Names in backticks and capitals are codes, or values of enums in the schema.
#[test]
fn pages_name_only_codes_that_exist() {
    let schema = read("protocol/tidegate/v1/client.proto");
    let mut seen = BTreeSet::new();
    for path in pages() {
        for name in read(&path).split('`').skip(1).step_by(2) {
            if name.len() <= 2 || !name.chars().all(|c| c.is_ascii_uppercase() || c == '_') {
                continue;
            }
            let is_defined =
                Code::ALL.iter().any(|code| code.name() == name) || schema.contains(&format!("{name} ="));
            let is_variable = name.starts_with("TIDEGATE_");
            let is_known = is_defined || is_variable || OTHER_NAMES.contains(&name);
            assert!(is_known, "{path} names `{name}`, which is no code and in no enum");
            if is_defined {
                seen.insert(name.to_owned());
            }
        }
    }
    assert!(seen.len() >= 20, "the names were not found: {seen:?}");
}
