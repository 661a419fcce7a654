//! The first minutes of a new user: the banner in a terminal, the commands that it names, and the pages, typed block by
//! block.

#[path = "support/mod.rs"]
mod support;

use std::{
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};
use support::{Screen, WAIT_MAX, becomes, eventually, terminal, unique_name};

/// Path at which `cargo run --release` puts the program, and by which it calls it.
const PROGRAM: &str = "target/release/tidegate";

/// Checkout as a user sees it after `cargo build --release`: a folder with the program, and nothing else.
struct Checkout(PathBuf);

impl Checkout {
    fn fresh() -> Self {
        let folder = env::temp_dir().join(format!("tidegate-banner-{}", unique_name()));
        fs::create_dir_all(folder.join("target/release")).expect("the folder is created");
        symlink(env!("CARGO_BIN_EXE_tidegate"), folder.join(PROGRAM)).expect("the link is created");
        Self(folder)
    }

    /// Builds a shell command, as typed in this folder.
    fn shell(&self, typed: &str) -> Command {
        let mut command = Command::new("sh");
        // Diagnostics share the screen with results.
        command.arg("-c").arg(format!("exec 2>&1; {typed}")).current_dir(&self.0);
        for inherited in ["TIDEGATE_DATA", "TIDEGATE_CONFIG", "TIDEGATE_LOG"] {
            command.env_remove(inherited);
        }
        command
    }
}

impl Drop for Checkout {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

/// Node in a terminal of its own.
struct Node {
    child: Child,
    log: PathBuf,
    banner: Vec<String>,
}

impl Node {
    /// Starts the node as `cargo run --release` does, but on free ports.
    fn start(checkout: &Checkout) -> Self {
        let (stdout, person) = terminal();
        let log = checkout.0.join("log");
        let mut command = checkout.shell(&format!("exec {PROGRAM} 2>{}", log.display()));
        for port in ["CLIENT", "ADMIN"] {
            command.env(format!("TIDEGATE__LISTEN__{port}"), "127.0.0.1:0");
        }
        let child = command.stdin(Stdio::null()).stdout(stdout).spawn().expect("`sh` is everywhere");
        let mut node = Self { child, log, banner: Vec::new() };
        // From here on only the node has the shell's side of the terminal.
        drop(command);
        let screen = Screen::of(person);
        screen.line("the end of the banner", |line| line.starts_with("  or by hand"));
        node.banner = screen.lines().into_iter().filter(|line| !line.is_empty()).collect();
        node
    }

    /// Returns the commands that the banner suggests.
    fn commands(&self) -> Vec<String> {
        self.banner.iter().filter_map(|line| line.strip_prefix("    ")).map(str::to_owned).collect()
    }

    /// Returns the port behind a name of the banner.
    fn port(&self, name: &str) -> String {
        let line =
            self.banner.iter().find(|line| line.trim_start().starts_with(name)).expect("the banner names it");
        let port = line.split("127.0.0.1:").nth(1).expect("an address");
        port.chars().take_while(char::is_ascii_digit).collect()
    }

    /// Ends the node as Ctrl-C does.
    fn interrupt(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::INT).expect("it runs");
        let status = eventually("it ends", || self.child.try_wait().expect("a child"));
        let said = fs::read_to_string(&self.log).expect("a file");
        assert!(status.success() && said.contains("stopped: "), "{status}: {said}");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Command that keeps running while others are typed, until the test ends.
struct Background {
    child: Child,
    screen: Screen,
}

impl Background {
    fn start(checkout: &Checkout, before: &str, typed: &str) -> Self {
        let mut command = checkout.shell(&format!("{before}exec {typed}"));
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("`sh` is everywhere");
        let screen = Screen::of(child.stdout.take().expect("a pipe"));
        Self { child, screen }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Runs a command to its end and returns the lines of its output.
fn run(checkout: &Checkout, typed: &str) -> Vec<String> {
    let output = checkout.shell(typed).stdin(Stdio::null()).output().expect("`sh` is everywhere");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{typed}: {said}");
    said.lines().map(str::to_owned).collect()
}

fn page(path: &str) -> String {
    let root = env::var_os("CARGO_MANIFEST_DIR").expect("cargo names the folder of the crate");
    fs::read_to_string(Path::new(&root).join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Masks what differs between machines: tokens, ports, versions, the path of the program.
fn form(line: &str) -> String {
    let word = |word: &str| -> String {
        let number = word.trim_end_matches(')');
        if word.starts_with("eyJ") {
            "TOKEN".to_owned()
        } else if word.ends_with("/tidegate") {
            "tidegate".to_owned()
        } else if let Some((before, _)) = word.split_once("127.0.0.1:") {
            format!("{before}127.0.0.1:PORT")
        } else if !number.is_empty() && number.chars().all(|it| it.is_ascii_digit() || it == '.') {
            word.replace(number, "NUMBER")
        } else {
            word.to_owned()
        }
    };
    line.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

/// Whether a line matches what a page shows: ids and times may differ, `…` matches anything.
fn fits(shown: &str, line: &str) -> bool {
    let blur = |text: &str| -> String {
        let is_word = |letter: char| letter.is_ascii_alphanumeric();
        let is_time =
            |text: &str| text.split(':').filter(|it| it.len() == 2 && it.parse::<u8>().is_ok()).count() == 3;
        let (begin, text) = match text.split_at_checked(8) {
            Some((time, rest)) if is_time(time) => ("#", rest),
            _ => ("", text),
        };
        let mut blurred = begin.to_owned();
        for part in text.split_inclusive(|letter| !is_word(letter)) {
            let word = part.trim_end_matches(|letter| !is_word(letter));
            let long = word.len() >= 12 && word.chars().all(|letter| letter.is_ascii_hexdigit());
            blurred.push_str(&if long { part.replace(word, "#") } else { part.to_owned() });
        }
        blurred
    };
    let (shown, line) = (blur(shown), blur(line));
    let mut rest = line.as_str();
    let mut parts = shown.split('…');
    let Some(after) = rest.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    rest = after;
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.is_empty() || shown.ends_with('…')
}

/// Returns the fenced blocks of a page up to a heading, as (language, text).
fn blocks(page: &str, until: &str) -> Vec<(String, String)> {
    let page = page.split(&format!("\n{until}\n")).next().unwrap_or_default();
    let mut blocks = Vec::new();
    let mut open: Option<(String, String)> = None;
    for line in page.lines() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(language), None) => open = Some((language.to_owned(), String::new())),
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (None, Some((_, text))) => text.extend([line, "\n"]),
            (None, None) => {}
        }
    }
    blocks
}

/// Returns the blocks of the README that are typed or printed; its program in JavaScript is tested with the client, and
/// what is for production by `tests/process/production.rs`.
fn readme_blocks() -> Vec<(String, String)> {
    let mut blocks = blocks(&page("README.md"), "## In production");
    blocks.retain(|(language, _)| language != "js");
    blocks
}

/// Words of commands that keep running in the background, and the begin of their first line.
const ENDLESS: [(&str, &str); 2] = [(" tail ", "listening as "), ("curl -sN ", "retry: ")];

/// Types the commands of a page in order and compares their output with what it shows.
fn type_page(checkout: &Checkout, node: &Node, blocks: &[(String, String)]) -> usize {
    let mut running: Vec<Background> = Vec::new();
    let (mut last, mut typed, mut path) = (Vec::new(), 0, String::new());
    for (language, text) in blocks {
        match language.as_str() {
            "sh" => last.clear(),
            "text" => {
                let screens = || running.iter().map(|it| it.screen.lines()).chain([last.clone()]);
                let shown: Vec<&str> = text.lines().collect();
                // All lines of the block appear in order in one terminal.
                let is_shown = |lines: &[String]| {
                    let mut windows = lines.windows(shown.len());
                    windows.any(|some| shown.iter().zip(some).all(|(shown, line)| fits(shown, line)))
                };
                let what = format!("{shown:#?}");
                let read = || screens().collect::<Vec<_>>();
                becomes(WAIT_MAX, &what, read, |screens| screens.iter().any(|lines| is_shown(lines)));
                continue;
            }
            _ => continue,
        }
        for line in text.lines().filter(|line| !line.starts_with("cargo ")) {
            let ports = [("7800", node.port("clients")), ("7801", node.port("admin"))];
            let line = ports.iter().fold(line.to_owned(), |line, (shown, real)| line.replace(shown, real));
            typed += 1;
            if line.starts_with("export ") {
                path = format!("{line}; ");
            } else if let Some((_, begins)) = ENDLESS.iter().find(|(word, _)| line.contains(word)) {
                let it = Background::start(checkout, &path, &line);
                it.screen.line(begins, |line| line.starts_with(begins));
                running.push(it);
            } else {
                last.extend(run(checkout, &format!("{path}{line}")));
            }
        }
    }
    typed
}

#[test]
fn banner_matches_the_pages_and_its_commands_work() {
    let checkout = Checkout::fresh();
    let node = Node::start(&checkout);
    let readme = readme_blocks();
    let shown: Vec<String> = readme[1].1.lines().filter(|line| !line.is_empty()).map(form).collect();
    let printed: Vec<String> = node.banner.iter().map(|line| form(line)).collect();
    assert_eq!(shown, printed, "README.md shows what the node prints");
    let commands = node.commands();
    let [tail, send] = &commands[..] else { panic!("two commands, not {commands:?}") };
    assert!(
        tail.starts_with(PROGRAM) && send.starts_with(PROGRAM),
        "the commands start with the program: {commands:?}"
    );
    let tail = Background::start(&checkout, "", tail);
    tail.screen.line("bob listens", |line| line == "listening as bob on n1");
    assert_eq!(run(&checkout, send), ["d:alice:bob seq 1"]);
    tail.screen.line("the message arrives", |line| line.ends_with("  d:alice:bob  1  alice  hello"));
    node.interrupt();
}

#[test]
fn readme_commands_print_what_it_shows() {
    let checkout = Checkout::fresh();
    let node = Node::start(&checkout);
    let readme = readme_blocks();
    // The first two blocks are the build and the banner.
    let typed = type_page(&checkout, &node, &readme[2..]);
    assert!(typed >= 4, "{typed} commands");
    node.interrupt();
}

#[test]
fn quickstart_commands_print_what_it_shows() {
    let checkout = Checkout::fresh();
    let node = Node::start(&checkout);
    // Events arrive when users connect; the part that is typed by hand needs a pasted token.
    let quickstart = blocks(&page("docs/quickstart.md"), "## Events");
    let typed = type_page(&checkout, &node, &quickstart);
    assert!(typed >= 8, "{typed} commands");
    node.interrupt();
}

#[test]
fn backend_commands_print_what_their_page_shows() {
    let checkout = Checkout::fresh();
    let node = Node::start(&checkout);
    let typed = type_page(&checkout, &node, &blocks(&page("docs/backend.md"), "## A program"));
    assert!(typed >= 15, "{typed} commands");
    node.interrupt();
}

/// Pages whose calls of the admin API are typed on one node, one page after the other.
const CALLING_PAGES: [&str; 5] =
    ["docs/bans.md", "docs/events.md", "docs/limits.md", "docs/privacy.md", "docs/webhooks.md"];

/// What the pages take for granted: the group and the messages whose events and content they show.
const BEFORE: [(&str, &str); 5] = [
    ("groups", r#"{"id":"team","members":["ann","bob"]}"#),
    ("messages", r#"{"to":"g:team","from":"ann","content":{"text":"nine byte"},"requestId":"order-81"}"#),
    ("messages", r#"{"to":"bob","from":"ann","content":{"text":"hi 1"}}"#),
    ("messages", r#"{"to":"bob","from":"ann","content":{"text":"hi 2"}}"#),
    ("groups", r#"{"id":"tea","owner":"ann","members":["ann","bob"]}"#),
];

/// A call of a page, and the lines that the page shows as its output.
#[derive(Default)]
struct Call {
    typed: String,
    shown: Vec<String>,
}

/// Returns the calls of the fenced blocks of a page. A call may go on in the next line, after a backslash.
fn calls(page: &str) -> Vec<Call> {
    let mut calls: Vec<Call> = Vec::new();
    let (mut is_block, mut is_shell, mut goes_on) = (false, false, false);
    for line in page.lines() {
        let typed = line.strip_prefix("$ ").unwrap_or(line);
        if line.starts_with("```") {
            // A block of the shell has commands alone.
            (is_block, is_shell, goes_on) = (!is_block, line == "```sh", false);
            calls.push(Call::default());
        } else if is_block && (goes_on || typed.starts_with("curl ")) {
            if !goes_on {
                calls.push(Call::default());
            }
            goes_on = typed.ends_with('\\');
            if let Some(call) = calls.last_mut() {
                call.typed += typed.trim_end_matches('\\');
            }
        } else if is_block
            && !is_shell
            && let Some(call) = calls.last_mut()
        {
            call.shown.push(line.to_owned());
        }
    }
    calls.retain(|call| !call.typed.is_empty());
    calls
}

/// Returns the form of an answer: names and types of JSON, and of other lines the name before the colon, if it has one.
fn answer_form(line: &str) -> String {
    fn of(value: &serde_json::Value) -> serde_json::Value {
        match value {
            serde_json::Value::Object(fields) => {
                fields.iter().map(|(key, it)| (key.clone(), of(it))).collect()
            }
            // A list may be empty today.
            serde_json::Value::Array(_) => "list".into(),
            serde_json::Value::String(_) => "text".into(),
            serde_json::Value::Number(_) => "number".into(),
            serde_json::Value::Bool(_) => "bool".into(),
            serde_json::Value::Null => "null".into(),
        }
    }
    let named = line.split_once(": ").filter(|(name, _)| name.chars().all(char::is_alphabetic));
    let (name, rest) = named.unwrap_or(("", line));
    match serde_json::from_str(rest) {
        Ok(value) => format!("{name}: {}", of(&value)),
        // An event is one of a type, an id is any.
        Err(_) if name == "event" => line.to_owned(),
        Err(_) => name.to_owned(),
    }
}

/// Returns whether the lines of a page are in the output, in their order. What the page shortens has the name of its line.
fn is_answered(shown: &[String], output: &[String]) -> bool {
    let mut output = output.iter();
    shown.iter().filter(|line| !line.is_empty()).all(|shown| {
        let form = answer_form(shown);
        output.any(|line| {
            let is_short = shown.contains('…') && line.split_once(':').is_some_and(|(name, _)| name == form);
            is_short || answer_form(line) == form
        })
    })
}

#[test]
fn calls_of_the_pages_get_the_answers_that_these_show() {
    let checkout = Checkout::fresh();
    let node = Node::start(&checkout);
    let here = format!("http://127.0.0.1:{}/", node.port("admin"));
    for (route, body) in BEFORE {
        run(&checkout, &format!("curl -sSf {here}v1/{route} --json '{body}'"));
    }
    let mut typed = 0;
    for path in CALLING_PAGES {
        for call in calls(&page(path)) {
            typed += 1;
            let line = call.typed.replace("http://127.0.0.1:7801/", &here);
            if line.contains("/stream") {
                let stream = Background::start(&checkout, "", &line.replacen("curl", "curl -sS", 1));
                let what = format!("{path}: {:#?}", call.shown);
                becomes(WAIT_MAX, &what, || stream.screen.lines(), |lines| is_answered(&call.shown, lines));
                continue;
            }
            let output = run(&checkout, &line.replacen("curl", "curl -sSf", 1));
            assert!(is_answered(&call.shown, &output), "{path}: {line}: {:?} is not {output:?}", call.shown);
        }
    }
    assert!(typed >= 6, "{typed} calls");
    node.interrupt();
}
