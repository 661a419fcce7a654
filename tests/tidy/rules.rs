//! Table of all rules, and the rules without a file of their own. A finding's message says what to do.

use std::collections::BTreeMap;

use crate::{cycles, layers, names, pages, simulation, source::Source, words};

const FILE_LINES_MAX: usize = 500;
const FUNCTION_LINES_MAX: usize = 70;
const FOLDER_FILES_MAX: usize = 20;

/// Folder without a limit: the product's top-level modules, which the table in `src/lib.rs` assigns to layers.
const UNLIMITED_FOLDER: &str = "src";

/// Violation of a rule, with its position.
pub(crate) struct Finding {
    pub(crate) path: String,
    pub(crate) line: usize,
    /// What is wrong, and what to do.
    pub(crate) what: String,
}

impl Finding {
    pub(crate) fn new(source: &Source, line: usize, what: impl Into<String>) -> Self {
        Self { path: source.path.clone(), line, what: what.into() }
    }
}

/// Check of the whole tree, because some rules compare files.
pub(crate) type Rule = fn(&[Source]) -> Vec<Finding>;

/// All rules, by the names that findings and planted violations use.
pub(crate) const RULES: &[(&str, Rule)] = &[
    ("purpose", |all| each(all, purpose)),
    ("file-length", |all| each(all, file_length)),
    ("function-length", |all| each(all, function_length)),
    ("folder-size", folder_size),
    ("layers", layers::imports_point_down),
    ("module-cycle", cycles::of_modules),
    ("file-cycle", cycles::of_files),
    ("banned-words", |all| each(all, words::banned)),
    ("no-design", |all| each(all, words::design)),
    ("subject", |all| each(all, words::subject)),
    ("type-names", names::types),
    ("tuples", |all| each(all, names::tuples)),
    ("pure-protocol", |all| each(all, pure_protocol)),
    ("deterministic", |all| each(all, simulation::deterministic)),
    ("bounded", |all| each(all, bounded)),
    ("honest-tests", |all| each(all, honest_tests)),
    ("finished", |all| each(all, finished)),
    ("no-dead-code", |all| each(all, no_dead_code)),
    ("map", layers::map),
    ("page-paths", pages::paths),
    ("lua", lua),
    ("config-documented", config_documented),
    ("supervised", |all| each(all, supervised)),
    ("metrics-enum", |all| each(all, metrics_enum)),
    ("no-machine-paths", |all| each(all, no_machine_paths)),
    ("no-lock-urls", |all| each(all, no_lock_urls)),
];

fn each(sources: &[Source], rule: fn(&Source) -> Vec<Finding>) -> Vec<Finding> {
    sources.iter().flat_map(rule).collect()
}

/// Reports code lines that contain one of `words` as a whole word.
fn forbid(source: &Source, words: &[&str], why: &str) -> Vec<Finding> {
    let mut found = Vec::new();
    for (number, line) in source.lines() {
        for word in words.iter().filter(|word| has_word(line, word)) {
            found.push(Finding::new(source, number, format!("`{word}`: {why}")));
        }
    }
    found
}

fn has_word(line: &str, word: &str) -> bool {
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let opens = word.starts_with(part_of_word) && line[..at].ends_with(part_of_word);
        let closes = word.ends_with(part_of_word) && line[at + word.len()..].starts_with(part_of_word);
        !opens && !closes
    })
}

fn purpose(source: &Source) -> Vec<Finding> {
    if !source.is_rust() || source.text.starts_with("//! ") {
        return Vec::new();
    }
    vec![Finding::new(source, 1, "start the file with `//!` and one sentence of purpose")]
}

fn file_length(source: &Source) -> Vec<Finding> {
    let lines = source.text.lines().count();
    if !source.is_rust() || lines <= FILE_LINES_MAX {
        return Vec::new();
    }
    let what = format!("{lines} lines, {FILE_LINES_MAX} allowed: split it by noun");
    vec![Finding::new(source, FILE_LINES_MAX + 1, what)]
}

fn function_length(source: &Source) -> Vec<Finding> {
    let mut found = Vec::new();
    for function in source.functions() {
        let length = function.last - function.first + 1;
        if length > FUNCTION_LINES_MAX {
            let what = format!("`{}` has {length} lines, {FUNCTION_LINES_MAX} allowed", function.name);
            found.push(Finding::new(source, function.first, what));
        }
    }
    found
}

/// Reports folders with more than [`FOLDER_FILES_MAX`] Rust files; files in subfolders do not count.
fn folder_size(sources: &[Source]) -> Vec<Finding> {
    let mut folders: BTreeMap<&str, Vec<&Source>> = BTreeMap::new();
    for source in sources.iter().filter(|source| source.is_rust()) {
        let folder = source.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        folders.entry(folder).or_default().push(source);
    }
    let is_full = |(folder, files): &(&str, Vec<&Source>)| {
        *folder != UNLIMITED_FOLDER && files.len() > FOLDER_FILES_MAX
    };
    let full = folders.into_iter().filter(is_full);
    full.map(|(folder, files)| {
        let what = format!(
            "{folder}/ has {} Rust files, {FOLDER_FILES_MAX} allowed: give them folders",
            files.len()
        );
        Finding::new(files[0], 1, what)
    })
    .collect()
}

fn pure_protocol(source: &Source) -> Vec<Finding> {
    if !source.path.starts_with("protocol/src/") {
        return Vec::new();
    }
    let impure =
        ["Instant::now", "SystemTime::now", "tokio", "rand", "std::net", "TcpStream", "UdpSocket", "fs::"];
    forbid(source, &impure, "the protocol crate is pure; time and seeds are passed in")
}

fn bounded(source: &Source) -> Vec<Finding> {
    let words = [
        "unbounded_channel",
        "UnboundedSender",
        "UnboundedReceiver",
        "unbounded(",
        "unbounded::<",
        "SegQueue",
    ];
    let mut found = forbid(source, &words, "use a bounded queue, and handle the case that it is full");
    for (number, line) in source.lines() {
        let after = line.split("mpsc::channel").nth(1).unwrap_or_default();
        let after =
            if after.starts_with("::<") { after.rsplit('>').next().unwrap_or_default() } else { after };
        if after.starts_with("()") {
            found.push(Finding::new(
                source,
                number,
                "std's `mpsc::channel()` has no bound; use `sync_channel`",
            ));
        }
    }
    found
}

fn honest_tests(source: &Source) -> Vec<Finding> {
    let mut found =
        forbid(source, &["#[ignore", "should_panic"], "run the test always, and assert what it expects");
    if source.path == SLEEPING_FILE {
        return found;
    }
    let is_test_file = source.path.ends_with("/tests.rs");
    let on_virtual_clock = is_test_file && source.text.contains("start_paused = true");
    for (number, line) in source.lines() {
        if !(is_test_file || source.is_test(number)) {
            continue;
        }
        let sleeps = SLEEPS.iter().find(|word| has_word(line, word));
        if let Some(word) = sleeps.filter(|word| !on_virtual_clock || word.contains("thread")) {
            let what = format!(
                "`{word}` in a test: wait with `eventually`, pass a time to the machine, or give the reason to \
                 `let_time_pass`"
            );
            found.push(Finding::new(source, number, what));
        }
    }
    for line in timers(&source.code).filter(|line| source.is_test(*line)) {
        let what = "`eventually` waits only for the clock: give the reason to `let_time_pass`";
        found.push(Finding::new(source, line, what));
    }
    found
}

/// Calls that let time pass in a test.
const SLEEPS: [&str; 5] = ["thread::sleep(", "sleep(", "sleep_until(", "park_timeout(", "thread::yield_now("];
/// Only test file that may sleep.
const SLEEPING_FILE: &str = "tests/support/time.rs";

/// Returns the lines of `eventually` calls whose condition checks only the clock.
fn timers(code: &str) -> impl Iterator<Item = usize> {
    let calls = code.match_indices("eventually").filter_map(|(at, name)| {
        let rest = &code[at + name.len()..];
        let rest = ["_within", "_async"].iter().find_map(|end| rest.strip_prefix(end)).unwrap_or(rest);
        let call: String = in_brackets(rest)?.split_whitespace().collect();
        let (_, poll) = call.split_once("||")?;
        let (condition, _) = poll.trim_start_matches(['{', '(']).split_once(").then")?;
        let checks_clock = condition.contains("elapsed()>") || condition.contains("Instant::now()>");
        let checks_more = ["&&", "|", ";"].iter().any(|more| condition.contains(more));
        (checks_clock && !checks_more).then_some(at)
    });
    calls.map(|at| code[..at].matches('\n').count() + 1)
}

/// Returns the text between the bracket at the start of `text` and its closing bracket.
fn in_brackets(text: &str) -> Option<&str> {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        depth += i32::from(c == '(') - i32::from(c == ')');
        if depth == 0 {
            return (at > 0).then(|| &text[1..at]);
        }
    }
    None
}

fn finished(source: &Source) -> Vec<Finding> {
    forbid(source, &["todo!", "unimplemented!"], "implement it, or reply UNSUPPORTED")
}

fn no_dead_code(source: &Source) -> Vec<Finding> {
    let openings =
        ["let ", "use ", "pub ", "return", "mod ", "fn ", "if ", "for ", "while ", "match ", "} else"];
    let mut found = Vec::new();
    for (index, line) in source.comments.lines().enumerate() {
        let Some(comment) = line.trim().strip_prefix("// ") else { continue };
        let statement = comment.ends_with(';')
            && (is_call(comment)
                || comment.contains(" = ")
                || openings.iter().any(|word| comment.starts_with(word)));
        if statement || comment.ends_with('{') {
            found.push(Finding::new(source, index + 1, "delete commented-out code; the history has it"));
        }
    }
    found
}

/// Returns whether the comment is a call: `name(…);` is, `words (in brackets);` is prose.
fn is_call(comment: &str) -> bool {
    let opens = |(at, _)| comment[..at].ends_with(|c: char| c.is_alphanumeric() || "_!>".contains(c));
    comment.ends_with(");") && comment.match_indices('(').any(opens)
}

fn lua(sources: &[Source]) -> Vec<Finding> {
    let mut found = Vec::new();
    for script in sources.iter().filter(|source| source.path.ends_with(".lua")) {
        let name = script.path.rsplit('/').next().unwrap_or(&script.path);
        let included = |source: &Source| {
            source.is_rust()
                && source.text.lines().any(|line| line.contains("include_str!(") && line.contains(name))
        };
        if !sources.iter().any(included) {
            found.push(Finding::new(script, 1, "no `include_str!` names this script: load it or delete it"));
        }
        if !script.text.starts_with("-- KEYS") {
            found.push(Finding::new(
                script,
                1,
                "start the script with its contract: `-- KEYS …`, `-- ARGV …`",
            ));
        }
    }
    found
}

fn config_documented(sources: &[Source]) -> Vec<Finding> {
    let find = |path: &str| sources.iter().find(|source| source.path == path);
    let (Some(config), Some(page)) = (find("src/config.rs"), find("docs/config.md")) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for (number, line) in config.lines().filter(|(number, _)| !config.is_test(*number)) {
        let field =
            line.trim().strip_prefix("pub ").and_then(|rest| rest.split_once(": ")).map(|(name, _)| name);
        let Some(field) = field.filter(|name| name.chars().all(|c| c.is_alphanumeric() || c == '_')) else {
            continue;
        };
        let documented = [format!("`{field}`"), format!(".{field}`"), format!("`{field}.")];
        if !documented.iter().any(|form| page.text.contains(form)) {
            found.push(Finding::new(
                config,
                number,
                format!("`{field}` is missing in docs/config.md: regenerate the page"),
            ));
        }
    }
    found
}

/// Tasks and threads of the product, apart from those of the commands that serve nothing.
fn supervised(source: &Source) -> Vec<Finding> {
    let is_apart =
        ["src/supervised.rs", "src/cli/", "src/cli.rs"].iter().any(|it| source.path.starts_with(it));
    if !source.path.starts_with("src/") || is_apart {
        return Vec::new();
    }
    let cure = "start it by src/supervised.rs, so that its panic ends the process and names it";
    let words = [".spawn(", "task::spawn", "tokio::spawn", "thread::spawn", "spawn_local"];
    let mut found = forbid(source, &words, cure);
    found.retain(|it| !source.is_test(it.line) && !source.path.ends_with("/tests.rs"));
    found
}

fn metrics_enum(source: &Source) -> Vec<Finding> {
    if source.path == "src/metrics.rs" || source.path.starts_with("src/metrics/") {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (number, line) in source.lines() {
        for form in ["counter!(\"", "gauge!(\"", "histogram!(\""] {
            if line.contains(form) {
                found.push(Finding::new(
                    source,
                    number,
                    "take the metric's name from the enum in src/metrics.rs",
                ));
            }
        }
    }
    found
}

fn no_machine_paths(source: &Source) -> Vec<Finding> {
    let homes = ["home", "root", "work", "Users"].map(|folder| format!("/{folder}/"));
    let mut found = Vec::new();
    for (index, line) in source.text.lines().enumerate() {
        let absolute = |home: &String| {
            line.match_indices(home.as_str())
                .any(|(at, _)| !line[..at].ends_with(|c: char| c.is_alphanumeric() || "_-.}*/".contains(c)))
        };
        if homes.iter().any(absolute) {
            found.push(Finding::new(
                source,
                index + 1,
                "absolute path of one machine: write a relative path",
            ));
        }
    }
    found
}

fn no_lock_urls(source: &Source) -> Vec<Finding> {
    if !source.path.ends_with("package-lock.json") {
        return Vec::new();
    }
    let url = |(index, line): (usize, &str)| {
        line.contains("\"resolved\"").then(|| {
            Finding::new(
                source,
                index + 1,
                "regenerate the lock file with `omit-lockfile-registry-resolved=true`",
            )
        })
    };
    source.text.lines().enumerate().filter_map(url).collect()
}
