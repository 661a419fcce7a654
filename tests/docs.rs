//! Pages that are generated from the code, and hand-written ones that must agree with it.
//!
//! `cargo xtask docs` writes the generated pages: it runs these tests with `TIDEGATE_UPDATE_DOCS=1`.

#[path = "docs/backend.rs"]
mod backend;
#[path = "docs/cli.rs"]
mod cli;
#[path = "docs/compose.rs"]
mod compose;
#[path = "docs/config.rs"]
mod config;
#[path = "docs/errors.rs"]
mod errors;
#[path = "docs/flaws.rs"]
mod flaws;
#[path = "docs/generated.rs"]
mod generated;
#[path = "docs/http.rs"]
mod http;
#[path = "docs/pages.rs"]
mod pages;
#[path = "docs/redis.rs"]
mod redis;
#[path = "docs/results.rs"]
mod results;
#[path = "docs/search.rs"]
mod search;
#[path = "docs/tokens.rs"]
mod tokens;
#[allow(unreachable_pub, reason = "other test binaries hand it on")]
#[path = "support/unique.rs"]
mod unique;

use std::{env, fmt::Write as _, fs, path::PathBuf};

fn root() -> PathBuf {
    // Read at run time: a target folder may serve several work trees.
    env::var_os("CARGO_MANIFEST_DIR").expect("cargo names the folder of the crate").into()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Writes the page if requested, otherwise fails if the one in the tree differs.
fn settle(path: &str, page: &str) {
    generated::settle(&root(), path, page);
}

/// Writes or compares the part of a page between `<!-- name -->` and `<!-- /name -->`.
fn settle_block(path: &str, name: &str, block: &str) {
    settle(path, &with_block(path, &read(path), name, block));
}

/// Returns the page with this block.
fn with_block(path: &str, page: &str, name: &str, block: &str) -> String {
    let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- /{name} -->\n"));
    let parts = page.split_once(&begin).and_then(|(before, rest)| Some((before, rest.split_once(&end)?.1)));
    let (before, after) = parts.unwrap_or_else(|| panic!("{path} has no block `{name}`"));
    format!("{before}{begin}{block}{end}{after}")
}

#[test]
fn settings_page_is_current() {
    settle("docs/config.md", &config::page());
}

#[test]
fn example_configuration_is_current_and_has_the_defaults() {
    settle("docs/tidegate.example.toml", &config::example());
    let path = root().join("docs/tidegate.example.toml");
    let loaded = tidegate::config::Config::load(Some(&path), &[]).expect("the example can be used");
    let json = |config| serde_json::to_value(config).expect("a configuration is JSON");
    assert_eq!(json(&loaded), json(&tidegate::config::Config::default()));
}

#[test]
fn receiver_of_the_hooks_page_is_current() {
    let program = read("tests/third_party/hooks/receiver.py");
    settle_block("docs/hooks.md", "receiver.py", &format!("```python\n{program}```\n"));
}

#[test]
fn commands_page_is_current() {
    settle("docs/cli.md", &cli::page());
}

#[test]
fn metrics_page_is_current() {
    let mut page = String::from(
        "# Metrics\n\nGenerated from `src/metrics.rs` by `cargo xtask docs`; change it there.\n\n\
         `GET /metrics` on the admin port, in the text format of Prometheus. Every series is there from the start, at 0, \
         and has no labels except the bounds of histograms ([ADR 34](internals/adr/0034-labels-of-metrics.md)). One more metric has labels: \
         `tidegate_build_info` is 1, with `version`, and the newest `rules` of the ledger that the node knows.\n\n| name | kind | what |\n|---|---|---|\n",
    );
    for (kind, name, what) in tidegate::metrics::ALL {
        writeln!(page, "| `{name}` | {kind} | {what} |").expect("writing to a String succeeds");
    }
    settle("docs/metrics.md", &page);
}

/// The table of section 4 has the defaults of a node.
#[test]
fn spec_timers_and_limits_are_the_defaults() {
    let (spec, config) = (read("protocol/SPEC.md"), tidegate::config::Config::default());
    let (timing, limits) = (config.timing, config.limits);
    let kib = |bytes: usize| format!("{} KiB", bytes / 1024);
    let seconds = |ms: u64| format!("{} s", ms / 1000);
    let rows = [
        format!("| `hello` complete, from connecting | {} |", seconds(timing.handshake_ms)),
        format!("| a frame complete, from its first byte | {} |", seconds(timing.frame_ms)),
        format!("| heartbeat, `welcome.heartbeatMs` | {} |", seconds(timing.heartbeat_ms)),
        format!("| answer to a `send` | {} |", seconds(timing.reply_ms)),
        format!(
            "| a pushed message acked | {} | sent again, at most {} times,",
            seconds(timing.ack_timeout_ms),
            timing.ack_tries
        ),
        format!("| the client takes bytes | {} |", seconds(timing.write_ms)),
        format!("| a chained message waits | {} |", seconds(timing.order_timeout_ms)),
        format!("| `limits.frameBytesMax` | {} |", kib(limits.frame_bytes_max)),
        format!("| `limits.contentBytesMax` | {} |", kib(limits.content_bytes_max)),
        format!("| `limits.inFlightMax` unanswered sends | {} |", limits.in_flight_max),
        format!(
            "| `limits.holdMax`, `limits.holdBytesMax` | {}, {} |",
            limits.hold_max,
            kib(limits.hold_bytes_max as usize)
        ),
        format!("| pushes not acked yet | {}, {} |", limits.window_max, kib(limits.window_bytes_max)),
        format!("| messages waiting to be written | {} |", kib(limits.outbox_bytes_max)),
        format!("| answers waiting to be written | {} |", kib(limits.control_bytes_max)),
        format!(
            "| frames of a connection, accepted `send`s (not those to live rooms) and first `ack`s of tracked pushes aside | {} a second, ",
            limits.frames_per_second
        ),
        format!(
            "| refused tokens from one address, or IPv6 /64; expired ones aside | {} a second |",
            limits.address_logins_per_second
        ),
        format!("| logins of a user | {} a second |", limits.user_logins_per_second),
        format!("| `join`s of a device | {} a second |", limits.joins_per_second),
        format!(
            "| queries of a user on one node, over all connections | {} a second |",
            limits.queries_per_second
        ),
        format!(
            "| direct conversations that a user writes to first, or again after a long time | {} a minute |",
            limits.new_conversations_per_minute
        ),
        format!("| connected devices of a user | {} |", limits.devices_per_user),
        format!("| rooms of a connection | {} |", limits.rooms_max),
        format!("| watches of a user on one node, over all connections | {} |", limits.watches_per_user),
        format!(
            "| lasting refusals; one less for each accepted send, and each 10 s | {} |",
            limits.errors_max
        ),
    ];
    for row in rows {
        assert!(spec.contains(&row), "protocol/SPEC.md, section 4, does not say: {row}");
    }
    let group = format!("groups up to {} members", limits.small_group_max);
    assert!(spec.contains(&group), "protocol/SPEC.md, section 7, does not say: {group}");
}
