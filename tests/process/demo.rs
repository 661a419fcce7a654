//! `tidegate demo` as a newcomer runs it: each break with its judgement, a planted fault, and a stop by Ctrl-C.

use std::{
    fs,
    io::{self, BufRead as _, BufReader},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use crate::support::{Screen, Stopwatch, eventually_within, fresh_data, http, terminal};

/// Limit for a round of all breaks on a busy machine.
const ROUND_MAX: Duration = Duration::from_secs(180);
/// Limit for an end by Ctrl-C on a busy machine: the last judgement has two times three seconds, the node two.
const STOP_MAX: Duration = Duration::from_secs(15);
/// Judgement of a break that broke no promise.
const NOTHING_BROKEN: &str = "lost 0  doubled 0  out of order 0  ✓";

/// Running demo with the lines that it has printed; killed when the test ends.
struct Demo {
    child: Child,
    screen: Screen,
    folder: PathBuf,
}

impl Demo {
    /// Runs the demo with these arguments on free ports; temporary files are in the folder.
    fn start(folder: &Path, words: &[&str]) -> Self {
        let mut command = command(folder, words);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the program runs");
        let screen = Screen::of(child.stdout.take().expect("a pipe"));
        screen.add(child.stderr.take().expect("a pipe"));
        Self { child, screen, folder: folder.to_owned() }
    }

    /// Returns the admin address in the banner.
    fn admin(&self) -> SocketAddr {
        let line = self.screen.line("the address to open", |line| line.contains("open  http://"));
        let address = line.split("http://").nth(1).and_then(|rest| rest.split('/').next());
        address.and_then(|address| address.parse().ok()).expect("an address")
    }

    fn exit(&mut self) -> ExitStatus {
        let status =
            eventually_within(ROUND_MAX, "the demo ends", || self.child.try_wait().expect("a child"));
        // Its last lines may still be in the pipes.
        eventually_within(ROUND_MAX, "its output ends", || self.screen.has_ended().then_some(()));
        status
    }

    fn text(&self) -> String {
        self.screen.lines().join("\n")
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        fs::remove_dir_all(&self.folder).ok();
    }
}

fn command(folder: &Path, words: &[&str]) -> Command {
    fs::create_dir_all(folder).expect("the folder is created");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(["demo", "--port", "0"]).args(words).env("TMPDIR", folder);
    // Settings of other nodes do not reach that of the demo.
    command.env("TIDEGATE__LISTEN__CLIENT", "127.0.0.1:1").env("TIDEGATE_DATA", "/nowhere");
    command.stdin(Stdio::null()).stderr(Stdio::piped());
    command
}

#[test]
fn each_break_is_judged_and_breaks_no_promise() {
    let folder = fresh_data();
    let data = folder.join("kept");
    let path = data.to_str().expect("a plain path").to_owned();
    let mut demo = Demo::start(&folder, &["--every", "1", "--rounds", "1", "--data", &path]);
    let admin = demo.admin();
    demo.screen.line("a message", |line| line.contains("ada → ben"));
    let (status, page) = http::ask(admin, "GET", "/messages?user=ada", "");
    assert!(status == 200 && page.contains("<html"), "{status} {page}");
    let (_, trace) = http::ask(admin, "GET", "/v1/trace?user=ada", "");
    assert!(trace.contains("d:ada:ben"), "the messages of the bots are traced: {trace}");
    let status = demo.exit();
    let text = demo.text();
    assert!(status.success(), "{status}: {text}");
    for what in
        ["is reset while", "says bye", "SIGKILL", "sends a message twice", "loses the link", "acks none"]
    {
        let lines = demo.screen.lines();
        let times = lines.iter().filter(|line| line.contains("break ") && line.contains(what));
        assert_eq!(times.count(), 1, "{what}: {text}");
    }
    let judgements: Vec<String> =
        demo.screen.lines().into_iter().filter(|line| line.contains("doubled ")).collect();
    // One for each break, and one at the end.
    assert_eq!(judgements.len(), 7, "{text}");
    for judgement in &judgements {
        assert!(judgement.contains(NOTHING_BROKEN), "{judgement}");
        let words: Vec<&str> = judgement.split_whitespace().collect();
        assert_eq!([words[0], words[2], words[4]], ["sent", "acked", "delivered"], "{judgement}");
        assert!(words[1] == words[3] && words[3] == words[5], "all is acked and delivered: {judgement}");
    }
    let sent = |line: &String| line.split_whitespace().nth(1).and_then(|count| count.parse::<u32>().ok());
    assert!(
        judgements.iter().take(6).is_sorted_by(|a, b| sent(a) < sent(b)),
        "the counts are totals: {text}"
    );
    assert!(text.contains("1 of 2 marked as a duplicate; ben was shown it once"), "{text}");
    assert!(text.contains(", a duplicate; ben was shown it once"), "{text}");
    assert!(text.contains("closed the link as SLOW"), "{text}");
    assert!(text.contains("no promise was broken: both histories"), "{text}");
    assert!(
        text.contains(
            "6 breaks: 1 link reset, 1 absence, 1 node kill, 1 double send, 1 lost ack, 1 frozen client"
        ),
        "{text}"
    );
    assert!(!text.contains('\u{1b}'), "colours only in a terminal: {text:?}");
    assert!(
        data.join("log").exists() && !data.join("node.json").exists(),
        "the data of an ended node is kept"
    );
}

/// Returns the process id of the demo's node.
fn node_of(folder: &Path) -> Pid {
    let data = fs::read_dir(folder).expect("a folder").next().expect("the data").expect("an entry").path();
    let text = fs::read_to_string(data.join("node.json")).expect("the node runs");
    let pid = serde_json::from_str::<serde_json::Value>(&text).expect("JSON")["pid"].as_i64();
    pid.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)).expect("a process id")
}

#[test]
fn end_of_the_terminal_stops_the_demo_and_removes_its_data() {
    let folder = fresh_data();
    let (writes, reads) = terminal();
    let mut command = command(&folder, &["--every", "60"]);
    let mut child = command.stdout(writes).spawn().expect("the program runs");
    drop(command);
    let screen = Screen::of(reads);
    screen.add(child.stderr.take().expect("a pipe"));
    let mut demo = Demo { child, screen, folder: folder.clone() };
    demo.screen.line("two messages", |line| line.contains("ben → ada"));
    let node = node_of(&folder);
    let began = Stopwatch::start();
    kill_process(Pid::from_child(&demo.child), Signal::HUP).expect("it runs");
    let status = demo.exit();
    assert_eq!(status.code(), Some(0), "{}", demo.text());
    assert!(began.elapsed() < STOP_MAX, "{:?}", began.elapsed());
    assert!(test_kill_process(node).is_err(), "the node has ended");
    let left: Vec<_> = fs::read_dir(&folder).expect("a folder").collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn reader_that_ends_early_stops_the_demo_and_removes_its_data() {
    let folder = fresh_data();
    let mut command = command(&folder, &["--every", "1"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the program runs");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let heads: Vec<_> = lines.by_ref().take(3).collect();
    assert!(heads.iter().flatten().any(|line| line.contains("demo: one node")), "{heads:?}");
    drop(lines);
    let mut demo = Demo { child, screen: Screen::of(io::empty()), folder: folder.clone() };
    assert_eq!(demo.exit().code(), Some(0));
    let left: Vec<_> = fs::read_dir(&folder).expect("a folder").collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn planted_fault_is_named_and_fails_the_demo() {
    let folder = fresh_data();
    let mut demo = Demo::start(&folder, &["--every", "1", "--for", "0.1", "--plant", "1"]);
    let status = demo.exit();
    let text = demo.text();
    assert_eq!(status.code(), Some(1), "{text}");
    assert!(text.contains("lost 1  doubled 0  out of order 0  ✗"), "{text}");
    assert!(text.contains("BROKEN  never-got: ben never got seq 1, "), "{text}");
    assert!(!text.contains("no promise was broken"), "{text}");
    let kept = text.lines().find_map(|line| line.strip_prefix("the data is kept; the node's log: "));
    assert!(kept.is_some_and(|log| Path::new(log).exists()), "{text}");
}

#[test]
fn ctrl_c_stops_the_demo_with_a_summary_and_removes_its_data() {
    let folder = fresh_data();
    let (writes, reads) = terminal();
    let mut command = command(&folder, &["--every", "60"]);
    let mut child = command.env("NO_COLOR", "1").stdout(writes).spawn().expect("the program runs");
    // From here on only the demo has its side of the terminal.
    drop(command);
    let screen = Screen::of(reads);
    screen.add(child.stderr.take().expect("a pipe"));
    let mut demo = Demo { child, screen, folder: folder.clone() };
    demo.screen.line("two messages", |line| line.contains("ben → ada"));
    let began = Stopwatch::start();
    kill_process(Pid::from_child(&demo.child), Signal::INT).expect("it runs");
    let status = demo.exit();
    let took = began.elapsed();
    let text = demo.text();
    assert_eq!(status.code(), Some(0), "{text}");
    assert!(took < STOP_MAX, "{took:?}: {text}");
    assert!(text.contains("0 breaks") && text.contains(NOTHING_BROKEN), "{text}");
    assert!(!text.contains('\u{1b}'), "NO_COLOR is respected: {text:?}");
    let left: Vec<_> = fs::read_dir(&folder).expect("a folder").collect();
    assert!(left.is_empty(), "{left:?}");
}
