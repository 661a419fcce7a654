//! Pages that are generated from the code, and hand-written ones that must agree with it.
//!
//! `cargo xtask docs` writes the generated pages: it runs these tests with `TIDEGATE_UPDATE_DOCS=1`.

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

use std::{
    env,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

/// The hand-written pages whose links are followed.
const PAGES: &[&str] = &[
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/ARCHITECTURE.md",
    "docs/OPERATIONS.md",
    "docs/chaos-ledger.md",
    "docs/events.md",
    "docs/flaws.md",
    "docs/http.md",
    "docs/performance.md",
    "docs/postgres.md",
    "docs/store.md",
    "docs/adr/README.md",
    "k8s/README.md",
    "protocol/SPEC.md",
];

fn root() -> PathBuf {
    // Read when it runs: a target folder may serve several work trees.
    env::var_os("CARGO_MANIFEST_DIR").expect("cargo names the folder of the crate").into()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Writes the page when asked to, else fails if the one in the tree is another.
fn settle(path: &str, page: &str) {
    generated::settle(&root(), path, page);
}

#[test]
fn the_page_of_settings_is_current() {
    settle("docs/config.md", &config::page());
}

#[test]
fn the_example_configuration_is_current_and_says_the_defaults() {
    settle("docs/tidegate.example.toml", &config::example());
    let path = root().join("docs/tidegate.example.toml");
    let loaded = tidegate::config::Config::load(Some(&path), &[]).expect("the example can be used");
    let json = |config| serde_json::to_value(config).expect("a configuration is JSON");
    assert_eq!(json(&loaded), json(&tidegate::config::Config::default()));
}

#[test]
fn the_page_of_commands_is_current() {
    settle("docs/cli.md", &cli::page());
}

#[test]
fn the_page_of_metrics_is_current() {
    let mut page = String::from(
        "# Metrics\n\nGenerated from `src/metrics.rs` by `cargo xtask docs`; change it there.\n\n\
         `GET /metrics` on the admin port, in the text format of Prometheus. Every series is there from the start, at 0, \
         and has no labels.\n\n| name | kind | what |\n|---|---|---|\n",
    );
    for (kind, name, what) in tidegate::metrics::ALL {
        writeln!(page, "| `{name}` | {kind} | {what} |").expect("a String takes everything");
    }
    settle("docs/metrics.md", &page);
}

#[test]
fn every_route_of_the_admin_port_is_described() {
    let (code, page) = (read("src/api.rs"), read("docs/http.md"));
    let routes: Vec<String> = code.lines().filter_map(route).collect();
    assert!(routes.len() >= 5, "the routes were not found in src/api.rs: {routes:?}");
    for route in routes {
        assert!(page.contains(&format!("`{route}`")), "docs/http.md does not name `{route}`");
    }
}

/// `.route("/healthz", get(healthz))` as `GET /healthz`.
fn route(line: &str) -> Option<String> {
    let (path, handler) = line.trim().strip_prefix(".route(\"")?.split_once("\", ")?;
    let (method, _) = handler.split_once('(')?;
    Some(format!("{} {path}", method.to_uppercase()))
}

/// The table of section 4 says what a node does unless it is configured otherwise.
#[test]
fn the_timers_and_limits_of_the_spec_are_the_defaults() {
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
        format!("| rooms of a connection | {} |", limits.rooms_max),
        format!("| lasting refusals in a row | {} |", limits.errors_max),
    ];
    for row in rows {
        assert!(spec.contains(&row), "protocol/SPEC.md, section 4, does not say: {row}");
    }
    let group = format!("groups up to {} members", limits.small_group_max);
    assert!(spec.contains(&group), "protocol/SPEC.md, section 7, does not say: {group}");
}

#[test]
fn links_between_pages_lead_somewhere() {
    let mut broken = Vec::new();
    for page in PAGES {
        let folder = Path::new(page).parent().unwrap_or(Path::new(""));
        for target in links(&read(page)) {
            let path = target.split('#').next().unwrap_or_default();
            if !path.is_empty() && !root().join(folder).join(path).exists() {
                broken.push(format!("{page}: {target}"));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// Targets of `[text](target)` outside of code blocks, without those on the web.
fn links(page: &str) -> Vec<String> {
    let prose = page.split("```").step_by(2);
    prose
        .flat_map(|text| text.split("](").skip(1))
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target.to_owned())
        .filter(|target| !target.starts_with("http"))
        .collect()
}
