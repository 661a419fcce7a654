//! Codebase rules that a program can check. Each rule must catch the violations that are planted for it in strings.
//!
//! A rule without a plant fails, and so does a plant that its rule misses.

#[path = "tidy/cycles.rs"]
mod cycles;
#[path = "tidy/layers.rs"]
mod layers;
#[path = "tidy/names.rs"]
mod names;
#[path = "tidy/pages.rs"]
mod pages;
#[path = "tidy/rules.rs"]
mod rules;
#[path = "tidy/simulation.rs"]
mod simulation;
#[path = "tidy/source.rs"]
mod source;
#[path = "tidy/words.rs"]
mod words;

use std::{env, fs, path::Path};

use rules::RULES;
use source::Source;

/// Folders without files of the project: build output, data and generated inputs.
const SKIPPED: [&str; 8] = [
    ".git",
    "target",
    "node_modules",
    "tidegate-data",
    "tidegate-cluster",
    "artifacts",
    "corpus",
    "proptest-regressions",
];

#[test]
fn tree_breaks_no_rule() {
    let root = env::var("CARGO_MANIFEST_DIR").expect("cargo sets the crate's folder");
    let mut sources = Vec::new();
    read_tree(Path::new(&root), "", &mut sources);
    assert!(sources.iter().any(|source| source.path == "src/lib.rs"), "no source tree at {root}");
    let findings: Vec<String> = RULES.iter().flat_map(|(name, _)| check(name, &sources)).collect();
    assert!(findings.is_empty(), "{} findings:\n{}", findings.len(), findings.join("\n"));
}

#[test]
fn each_rule_catches_its_planted_violations() {
    let long = [("file-length", file_of(501)), ("function-length", function_of(71))];
    let long = long.iter().map(|(rule, text)| (*rule, "src/node.rs", text.as_str()));
    let plants: Vec<(&str, &str, &str)> = PLANTS.iter().copied().chain(long).collect();
    let full = folder_of("xtask/src", 21);
    assert!(!check("folder-size", &full).is_empty(), "folder-size misses its plant");
    for (rule, _) in RULES {
        let has_files = *rule == "folder-size" || PLANTS_OF_FILES.iter().any(|(name, _)| name == rule);
        assert!(
            has_files || plants.iter().any(|(name, ..)| name == rule),
            "rule {rule} has no planted violation"
        );
    }
    for (rule, path, text) in plants {
        assert!(!check(rule, &with_map(path, text)).is_empty(), "{rule} misses its plant in {path}:\n{text}");
    }
}

/// Violations across files: the rule, then each file's path and text.
const PLANTS_OF_FILES: &[(&str, &[(&str, &str)])] = &[
    (
        "module-cycle",
        &[("src/bus.rs", "use crate::store::rows::Row;\n"), ("src/store/rows.rs", "use crate::bus::Bus;\n")],
    ),
    (
        "module-cycle",
        &[
            ("xtask/src/steps/chaos.rs", "use crate::run::report;\n"),
            ("xtask/src/run.rs", "use crate::{shell, steps::STEPS};\n"),
            ("xtask/src/steps.rs", "mod chaos;\n"),
        ],
    ),
    (
        "file-cycle",
        &[
            ("src/shard/a.rs", "use super::b::B;\n"),
            ("src/shard/b.rs", "use crate::shard::{c::C};\n"),
            ("src/shard/c.rs", "fn f() {\n    super::a::f();\n}\n"),
        ],
    ),
    (
        "type-names",
        &[("src/mail.rs", "pub struct Step;\n"), ("protocol/src/ws.rs", "pub(crate) enum Step<'a> {\n}\n")],
    ),
];

#[test]
fn rules_across_files_catch_their_plants() {
    for (rule, files) in PLANTS_OF_FILES {
        let sources: Vec<Source> = files.iter().map(|(path, text)| Source::new(path, text)).collect();
        assert!(!check(rule, &sources).is_empty(), "{rule} misses its plant {files:?}");
        assert!(
            check(rule, &sources[1..]).is_empty(),
            "{rule} has a finding without the first file of {files:?}"
        );
    }
}

#[test]
fn clean_code_has_no_findings() {
    for (path, text) in CLEAN {
        let sources = with_map(path, text);
        let findings: Vec<String> = RULES.iter().flat_map(|(name, _)| check(name, &sources)).collect();
        assert!(findings.is_empty(), "{path}: {}\n{text}", findings.join("\n"));
    }
}

#[test]
fn full_folder_and_product_root_pass() {
    for (folder, files) in [("xtask/src", 20), ("tests", 20), ("src", 41)] {
        assert!(check("folder-size", &folder_of(folder, files)).is_empty(), "{folder}");
    }
}

#[test]
fn file_and_function_at_the_limit_pass() {
    assert!(check("file-length", &with_map("src/node.rs", &file_of(500))).is_empty());
    assert!(check("function-length", &with_map("src/node.rs", &function_of(70))).is_empty());
}

/// Builds a folder with `files` Rust files, and one more in a subfolder, which does not count.
fn folder_of(folder: &str, files: usize) -> Vec<Source> {
    let paths = (0..files).map(|n| format!("{folder}/file_{n}.rs"));
    paths
        .chain([format!("{folder}/file_0/part.rs")])
        .map(|path| Source::new(&path, "//! A file.\n"))
        .collect()
}

fn file_of(lines: usize) -> String {
    format!("//! A file.\n{}", "const A: u8 = 1;\n".repeat(lines - 1))
}

fn function_of(lines: usize) -> String {
    let body = "        g();\n".repeat(lines - 8);
    let text = "        let text = \"\nat the margin\n\";\n";
    format!("impl A {{\n    fn f<T>(a: T)\n    where\n        T: B,\n    {{\n{text}{body}    }}\n}}\n")
}

fn check(rule: &str, sources: &[Source]) -> Vec<String> {
    let (_, run) = RULES.iter().find(|(name, _)| *name == rule).expect("the rule is listed");
    let findings = run(sources);
    findings.iter().map(|f| format!("{}:{}: {rule}: {}", f.path, f.line, f.what)).collect()
}

fn with_map(path: &str, text: &str) -> Vec<Source> {
    let map = "//! | 6 | `main`, [`cli`], `node` | a |\n//! | 4 | `shard`, `partition` | b |\n\
               //! | 3 | `conversation`, `login`, `delivery`, `room`, `peer` | c |\n\
               //! | 2 | [`bus`], [`store`], [`embedded`] | d |\n//! | 1 | [`routes`], `config`, `metrics` | e |\n";
    let lab = "//! | 2 | [`bench`], [`chaos`] | a |\n//! | 1 | [`link`], [`proxy`] | b |\n";
    let page = "The file: `known`, `listen.client`.\n";
    vec![
        Source::new("src/lib.rs", map),
        Source::new("lab/src/lib.rs", lab),
        Source::new("docs/config.md", page),
        Source::new(path, text),
    ]
}

fn read_tree(folder: &Path, prefix: &str, into: &mut Vec<Source>) {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut entries: Vec<_> = entries.map(|entry| entry.expect("a readable folder").path()).collect();
    entries.sort();
    for path in entries {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        if SKIPPED.contains(&name) {
            continue;
        }
        let relative = format!("{prefix}{name}");
        if path.is_dir() {
            read_tree(&path, &format!("{relative}/"), into);
        } else if path.is_file()
            && let Ok(text) = fs::read_to_string(&path)
        {
            into.push(Source::new(&relative, &text));
        }
    }
}

/// Violations within one file: rule, path and text.
const PLANTS: &[(&str, &str, &str)] = &[
    ("purpose", "src/node.rs", "use std::fmt;\n"),
    ("purpose", "xtask/src/main.rs", "// Not a purpose.\n"),
    ("layers", "src/bus.rs", "use crate::shard::Shard;\n"),
    ("layers", "src/shard/hub.rs", "use crate::{\n    bus::Bus,\n    cli::{Flags},\n};\n"),
    ("layers", "src/shard/hub.rs", "fn f() -> super::super::node::Node {\n}\n"),
    ("layers", "src/conversation/history.rs", "use crate::login::Login;\n"),
    ("layers", "src/conversation/history.rs", "use crate::bus::{Bus, local::LocalBus};\n"),
    ("layers", "src/shard.rs", "fn f() {\n    routes::memory::new();\n}\n"),
    ("layers", "src/conversation.rs", "use crate::{bus::Bus, store::PostgresStore};\n"),
    ("layers", "src/cli/store.rs", "use crate::embedded::{EmbeddedStore, Stats};\n"),
    ("layers", "src/shard.rs", "fn f() -> embedded::EmbeddedBus {\n}\n"),
    ("layers", "src/room.rs", "use crate::delivery::Router;\n"),
    ("layers", "src/delivery/router.rs", "use crate::{bus::Bus, room::Rooms};\n"),
    ("layers", "src/peer.rs", "use crate::room::Rooms;\n"),
    ("layers", "src/attic.rs", "use std::fmt;\n"),
    ("layers", "src/node.rs", "use tidegate_lab::proxy::Proxy;\n"),
    ("layers", "src/node.rs", "#[path = \"../lab/src/proxy.rs\"]\nmod proxy;\n"),
    ("layers", "Cargo.toml", "tidegate-lab = { path = \"lab\" }\n"),
    ("layers", "lab/src/proxy.rs", "use crate::bench::Args;\n"),
    ("layers", "lab/src/attic.rs", "use std::fmt;\n"),
    ("banned-words", "src/node.rs", "//! Sends it anew.\n"),
    ("banned-words", "src/node.rs", "fn f() {\n    warn!(\"whoever comes\");\n}\n"),
    ("banned-words", "docs/a.md", "A node that is no more.\n"),
    ("banned-words", "tests/story.rs", "// Sends it anew.\n"),
    ("no-design", "src/node.rs", "//! As the design says (DESIGN 3).\n"),
    ("no-design", "docs/a.md", "See DESIGN 3.\n"),
    ("subject", "src/node.rs", "/// It, there.\npub conn: u64,\n"),
    ("subject", "src/node.rs", "/// What they are worth.\nrows: u64,\n"),
    ("tuples", "src/shard.rs", "fn f(a: A, (b, c): (B, C)) {\n}\n"),
    (
        "tuples",
        "lab/src/bench.rs",
        "fn f<T: Fn(A) -> B>(\n    &self,\n    (mut b, c): &(B, C),\n    d: D,\n) {\n}\n",
    ),
    ("tuples", "tests/s.rs", "pub(super) async fn f((a, b): Pair, c: Option<(C, D)>) -> E {\n}\n"),
    ("subject", "tests/story.rs", "/// The same to one user.\nfn to_one() {\n}\n"),
    ("pure-protocol", "protocol/src/codec.rs", "let now = Instant::now();\n"),
    ("pure-protocol", "protocol/src/codec.rs", "let now = std::time::SystemTime::now();\n"),
    ("pure-protocol", "protocol/src/machine/chain.rs", "use tokio::time::Instant;\n"),
    ("pure-protocol", "protocol/src/codec.rs", "use std::{fs, io};\nlet text = fs::read_to_string(path);\n"),
    ("pure-protocol", "protocol/src/machine/chain.rs", "let n = rand::random();\n"),
    ("deterministic", "src/room.rs", "use std::{sync::Arc, time::Instant};\nlet now = Instant::now();\n"),
    ("deterministic", "src/room.rs", "let now = std::time::Instant::now();\n"),
    ("deterministic", "src/room.rs", "let now = SystemTime::now();\n"),
    (
        "deterministic",
        "src/room.rs",
        "tokio::select! {\n    // Whichever comes first.\n    () = a => {}\n}\n",
    ),
    ("bounded", "src/shard.rs", "let (tx, rx) = mpsc::unbounded_channel();\n"),
    ("bounded", "src/shard.rs", "let (tx, rx) = std::sync::mpsc::channel();\n"),
    ("bounded", "src/shard.rs", "let (tx, rx) = mpsc::channel::<Vec<u8>>();\n"),
    ("bounded", "src/shard.rs", "let (tx, rx) = crossbeam::channel::unbounded();\n"),
    ("honest-tests", "tests/story.rs", "fn waits() {\n    thread::sleep(SECOND);\n}\n"),
    (
        "honest-tests",
        "src/node.rs",
        "fn a() {}\n\n#[cfg(test)]\nmod tests {\n    fn t() {\n        sleep(S);\n    }\n}\n",
    ),
    ("honest-tests", "src/login/tests.rs", "//! Story.\nfn waits() {\n    time::sleep(SECOND).await;\n}\n"),
    (
        "honest-tests",
        "src/login/tests.rs",
        "//! Story.\n#[tokio::test(start_paused = true)]\nasync fn f() {\n    thread::sleep(SECOND);\n}\n",
    ),
    ("honest-tests", "tests/story.rs", "fn waits() {\n    thread::park_timeout(SECOND);\n}\n"),
    (
        "honest-tests",
        "tests/story.rs",
        "fn waits() {\n    while busy() {\n        thread::yield_now();\n    }\n}\n",
    ),
    (
        "honest-tests",
        "tests/story.rs",
        "fn f() {\n    eventually(\"time passes\", || (begun.elapsed() >= LONG).then_some(()));\n}\n",
    ),
    (
        "honest-tests",
        "tests/story.rs",
        "fn f() {\n    eventually_within(LONG, &what, || {\n        (Instant::now() > next).then_some(())\n    });\n}\n",
    ),
    ("honest-tests", "tests/story.rs", "#[test]\n#[ignore = \"slow\"]\nfn f() {}\n"),
    ("honest-tests", "src/node.rs", "#[should_panic]\nfn f() {}\n"),
    ("finished", "src/node.rs", "fn f() {\n    todo!()\n}\n"),
    ("finished", "src/node.rs", "fn f() {\n    unimplemented!()\n}\n"),
    ("supervised", "src/drain.rs", "fn f() {\n    tokio::spawn(run());\n}\n"),
    ("supervised", "src/drain.rs", "fn f() {\n    tasks.spawn(run());\n}\n"),
    ("no-dead-code", "src/node.rs", "fn f() {\n    // let x = g();\n}\n"),
    ("no-dead-code", "src/node.rs", "// self.flush(now);\n"),
    ("no-dead-code", "src/node.rs", "    // if x {\n"),
    ("map", "docs/internals/ARCHITECTURE.md", "Only `node` and `shard`.\n"),
    ("page-paths", "docs/internals/ARCHITECTURE.md", "A push goes to `delivery/ruoter`.\n"),
    ("page-paths", "docs/GLOSSARY.md", "| record | one entry | `Record`, `protocol/src/recrod.rs` |\n"),
    ("page-paths", "docs/internals/adr/0001-a.md", "The test (`src/nobody.rs::a_test`) shows it.\n"),
    ("lua", "redis/lost.lua", "-- KEYS 1 hash; ARGV 1 n\nreturn 1\n"),
    ("lua", "redis/lost.lua", "return 1\n"),
    (
        "config-documented",
        "src/config.rs",
        "pub struct C {\n    /// Not on the page.\n    pub secret_of_ours: u32,\n}\n",
    ),
    ("metrics-enum", "src/shard.rs", "metrics::counter!(\"my_own\").increment(1);\n"),
    ("no-machine-paths", "docs/a.md", concat!("run it in `/", "home/me/tidegate`\n")),
    ("no-machine-paths", "src/node.rs", concat!("const A: &str = \"/", "root/x\";\n")),
    ("no-lock-urls", "tests/third_party/package-lock.json", "\"resolved\": \"a url\",\n"),
];

/// Files without a violation, by path and text: past and likely false alarms.
const CLEAN: &[(&str, &str)] = &[
    (
        "src/node.rs",
        "//! Node.\n/// It takes over what another run had, and its routes.\nfn f((a, b): &(A, B)) {\n}\n",
    ),
    (
        "src/shard/hub.rs",
        "//! Hub.\nuse super::Shard;\nfn f(at: (A, B)) {\n    let (a, b): (A, B) = at;\n}\n",
    ),
    ("src/node.rs", "//! Names `mpsc::unbounded_channel`.\nuse crate::{bus::local::LocalBus, cli};\n"),
    ("src/bus.rs", "//! A port.\npub mod local;\nuse crate::{config::Config, store::Store};\n"),
    ("src/bus/local.rs", "//! An adapter.\nuse super::Bus;\nuse crate::bus::local::Inner;\n"),
    (
        "src/conversation/history.rs",
        "//! A verb.\nuse crate::{bus::Bus, routes::Routes};\nuse super::seek;\n",
    ),
    (
        "src/conversation.rs",
        "//! Verbs.\n#[cfg(test)]\nmod tests {\n    use crate::bus::local::LocalBus;\n}\n",
    ),
    (
        "src/shard.rs",
        "//! Words.\n// One sentence; and more of it.\n// Two things (a and b);\nconst A: &str = \"todo!()\";\n",
    ),
    (
        "src/shard.rs",
        "//! Bound.\nlet (tx, rx) = mpsc::channel(BOUND);\nlet c = '\"';\nlet d: &'a str = r#\"sleep(\"#;\n",
    ),
    ("tests/support/time.rs", "//! Time.\nfn let_time_pass(why: &str) {\n    thread::sleep(TICK);\n}\n"),
    (
        "src/login/tests.rs",
        "//! Story.\n#[tokio::test(start_paused = true)]\nasync fn f() {\n    time::sleep(TICK).await;\n}\n",
    ),
    (
        "tests/s.rs",
        "//! Story.\nfn f() {\n    eventually(\"it\", || (is_so() && begun.elapsed() > TICK).then_some(()));\n}\n",
    ),
    ("protocol/src/codec.rs", "//! No tokio, no rand.\nlet operand = 1;\n"),
    ("src/room.rs", "//! Time.\nuse tokio::time::Instant;\nlet now = Instant::now();\n"),
    ("src/room.rs", "//! Order.\nselect! {\n    // Fixed.\n    biased;\n    () = a => {}\n}\n"),
    ("src/cli/tail.rs", "//! A program.\nuse std::time::Instant;\nlet now = Instant::now();\n"),
    (
        "src/config.rs",
        "//! Config.\npub struct C {\n    /// Yes.\n    pub known: u32,\n    pub client: u32,\n}\n",
    ),
    ("src/config.rs", "//! Config.\n/// For `tidegate-lab chaos`.\nconst A: u8 = 1;\n"),
    (
        "lab/src/bench.rs",
        "//! Bench.\nuse crate::{link::Link, proxy::Proxy};\nuse tidegate::cli::admin::Admin;\n",
    ),
    ("tests/s.rs", "//! Story.\n#[path = \"../lab/src/proxy.rs\"]\nmod proxy;\n"),
    ("src/cli/tail.rs", "//! Tail.\nfn f() {\n    thread::spawn(run);\n}\n"),
    ("src/metrics.rs", "//! Metrics.\nfn f() {\n    metrics::counter!(\"a\").increment(1);\n}\n"),
    ("docs/a.md", "see https://example.org/home/page, target/work/x, `src/moved.rs`\n"),
    (
        "docs/internals/adr/0001-a.md",
        "`lab/src/lib`, `lab/`, `adr/0001-a.md: text`, `GET /v1/a`, `/readyz`, `target/a/b`.\n",
    ),
    ("src/conversation/tests.rs", "//! Stories.\nuse crate::{bus::LocalBus, store::MemoryStore};\n"),
    ("src/embedded.rs", "//! Adapters.\nuse crate::bus::LocalBus;\npub use self::bus::EmbeddedBus;\n"),
    ("lab/src/bench.rs", "//! Bench.\nuse tidegate::{embedded::EmbeddedStore, store::PostgresStore};\n"),
    (
        "src/cli/store.rs",
        "//! A command.\nuse crate::embedded::{Offline, Stats};\nfn f() {\n    embedded::check();\n}\n",
    ),
    ("src/bus.rs", "//! Types.\npub struct Settings;\nstruct Step;\npub(super) struct Step;\n"),
    (
        "src/shard.rs",
        "//! One value, or none.\nfn f((a, b): (A, B)) {\n}\nfn g(&self, (a, b): (A, B)) {\n}\nfn k(&self, a: (A, B), (): ()) {\n    h(|(a, b)| c);\n}\n",
    ),
];
