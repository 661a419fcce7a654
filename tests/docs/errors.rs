//! The page of error and close codes.

use std::{collections::BTreeSet, fmt::Write as _};

use tidegate::{config::Config, metrics};
use tidegate_protocol::{Code, code::Reconnect};

use super::{pages::pages, read, settle};

const ERRORS_HEAD: &str = "# Error and close codes

Generated from `protocol/src/code.rs` by `cargo xtask docs`; change it there.

An `Error` frame refuses one request, and the connection stays open; a `Close` frame is the last one of a connection.
*Temporary* means that the same request may succeed later unchanged: try again after `retryAfterMs`. *Reconnect* is what
a client does when a `Close` carries the code: *now* (with jitter), *after* the time in `afterMs`, or *never*, because
the same attempt would end the same way. *WebSocket* is the status of the WebSocket close frame that follows.
[By cause](#by-cause) lists refusals of tokens, keys, proxies and hooks with their metrics.

";

/// Codes that the program does not define.
const APPLICATION: &str = r#"
## 5xxx: the application

Codes from 5000 to 5999 are those of your application: its [hook `message.before`](hooks.md#messagebefore) refuses messages with them. Their name is
`APPLICATION`, the message is the hook's, and `detail.app` has the code once more. A client that does not know a code takes it for a refusal that is not
temporary.

*What to do:* Show the message to the user. Send changed content under a new `msgId`: the refusal of the old one stays.

Temporary: no
"#;

/// Refusals at the ports, with the metric that counts each.
const BY_CAUSE: &str = r#"
## By cause

What a node refuses of clients, proxies, operators and hooks, and the metric that counts it. The `message` of an error names the cause where
several have one code.

| cause | code | counted by |
|---|---|---|
| A token whose `exp` has passed | `TOKEN_EXPIRED` | `tidegate_tokens_expired_total` |
| A revoked token | `TOKEN_REVOKED` | `tidegate_tokens_revoked_total` |
| A token whose `nbf` has not come, or that is valid for longer than `auth.max_lifetime_s` | `TOKEN_INVALID` | `tidegate_tokens_time_total` |
| A token of another issuer (`iss`) or for another audience (`aud`) | `TOKEN_INVALID` | `tidegate_tokens_foreign_total` |
| A token whose `kid` no key has | `TOKEN_INVALID` | `tidegate_tokens_unknown_key_total` |
| A token with another algorithm than that of its key, or with none | `TOKEN_INVALID` | `tidegate_tokens_algorithm_total` |
| A token that is signed with another key | `TOKEN_INVALID` | `tidegate_tokens_forged_total` |
| A token that is no JWT, larger than `auth.token_bytes_max`, or with a claim of a wrong form | `TOKEN_INVALID` | `tidegate_tokens_malformed_total` |
| A valid token while too many others wait for their check | `BUSY` | `tidegate_tokens_deferred_total` |
| A token while the keys of `auth.jwks_url` were never loaded | `OVERLOADED` | `tidegate_tokens_deferred_total` |
| Keys at `auth.jwks_url` that are unavailable, slow, too large or no set | none: the last good keys stay in force | `tidegate_jwks_failures_total` |
| A refresh with a token that does not end later, such as a replayed one | `TOKEN_NOT_NEWER` | `tidegate_token_refresh_refusals_total` |
| A certificate of the node that has expired | none: clients end the handshake | `tidegate_tls_failures_total`, `tidegate_tls_certificate_expires_seconds` |
| A certificate without its key | none: the node does not start, or the former pair stays in force | `tidegate_tls_reload_errors_total` |
| A banned network, user or device | `BANNED`; `KICKED` on open connections | `tidegate_ban_refusals_total`, `tidegate_ban_closes_total` |
| A PROXY header from outside of `listen.proxies` | `UNKNOWN_FRAMING`, or `TLS_REQUIRED` with `tls.required` | `tidegate_proxy_headers_foreign_total` |
| `X-Forwarded-For` or `Forwarded` from outside of `listen.forwarders` | none: the header is ignored | `tidegate_forwarded_headers_foreign_total` |
| A request to the admin port without a key | `KEY_INVALID` | `tidegate_admin_keys_missing_total` |
| A key that is unknown, malformed, revoked, expired, or used from a foreign network | `KEY_INVALID`; `RATE_LIMITED` after too many | `tidegate_admin_keys_refused_total` |
| A key without the scope | `SCOPE_MISSING` | `tidegate_admin_scopes_missing_total` |
| A hook `login` without an answer, or with a status of 500 or above | `HOOK_UNAVAILABLE` | `tidegate_hook_login_failures_total` |
| A hook `login` with rubbish, or a status below 500 other than 200 | `TOKEN_INVALID` | `tidegate_hook_login_failures_total` |
| A hook `allow` without a valid answer | `HOOK_UNAVAILABLE`, or none with `hooks.allow_fail = "open"` | `tidegate_hook_allow_failures_total`, `tidegate_hook_allow_unchecked_total` |
| A hook *message.before* without a valid answer | `HOOK_UNAVAILABLE`, or none with `hooks.before_fail = "open"` | `tidegate_hook_before_failures_total`, `tidegate_hook_before_unchecked_total` |
| A message that the hook *message.before* refuses | 5000 to 5999; `FORBIDDEN` while nodes of a former version run | `tidegate_hook_before_denials_total` |
"#;

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
    page.push_str(APPLICATION);
    page.push_str(BY_CAUSE);
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

#[test]
fn causes_name_only_settings_and_metrics_that_exist() {
    let keys = Config::keys();
    let mut seen = (0, 0);
    for name in BY_CAUSE.split('`').skip(1).step_by(2) {
        let name = name.split(' ').next().unwrap_or_default();
        if name.starts_with("tidegate_") {
            assert!(metrics::ALL.iter().any(|(_, known, _)| *known == name), "there is no metric {name}");
            seen.0 += 1;
        } else if name.contains('.') {
            assert!(keys.iter().any(|key| key == name), "there is no setting {name}");
            seen.1 += 1;
        }
    }
    assert!(seen.0 > 20 && seen.1 > 6, "the names were not found: {seen:?}");
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
    // Name of all codes of the application.
    "APPLICATION",
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
