//! The program of `docs/search.md`, over a node: it indexes histories, follows changes, and goes on after a crash.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use serde_json::{Value, json};
use tidegate_protocol::{codec::Wire, pb};

use crate::support::{Client, Process, Screen, ServerBody, WAIT_MAX, ask, becomes, fresh_data, hello};

/// Prunings, gaps, wishes and answers that no node has written, without a node.
const OFFLINE: &str = r#"
import io
import os
import sys
import urllib.error
sys.path.insert(0, sys.argv[1])
import search

class Broker:
    setting = None
    while_listing = while_reading = staticmethod(lambda: None)

    def conversations(self, path):
        self.while_listing()
        return ["g:a"]

    def history(self, conversation):
        yield [{"kind": "message", "seq": seq, "sender": "ann", "content": {"text": "apple"}} for seq in (3, 4)]
        self.while_reading()

    def wish(self, user):
        return self.setting

index, broker = search.Index(sys.argv[2]), Broker()
indexer = search.Indexer(broker, index)
indexer.note_wishes(["ann"])
found = lambda: [seq for _, seq, _, _ in index.find(["apple"])]
with index:
    for seq in (1, 2, 3):
        index.put("g:a", seq, "ann", "apple")
    index.put("g:b", 1, "ann", "apple")
    index.change("tidegate.message.pruned", {"conversation": "g:a", "upTo": 2})
assert sorted(found()) == [1, 3], found()
indexer.change_wish("ann", False)
assert found() == []
with index:
    index.put("g:b", 2, "ann", "apple")
assert found() == [], "not even what comes later"
indexer.follow_wish("ann", False)
assert index.rows("SELECT wanted FROM wishes") == [(0,)], "an erasure removes the wish, and ends no withdrawal"
broker.setting = "on"

def put_new():
    with index:
        index.put("g:new", 1, "ann", "apple")

broker.while_listing = put_new
indexer.follow_wish("ann", False)
broker.while_listing = lambda: None
indexer.read_histories()
assert sorted(found()) == [1, 3, 4], "also what came to a new conversation meanwhile"
with index:
    index.remove("conversation = 'g:new'")

def fail():
    raise KeyboardInterrupt

broker.while_listing = fail
indexer.change_wish("ann", False)
try:
    indexer.change_wish("ann", True)
except KeyboardInterrupt:
    pass
broker.while_listing = lambda: None
indexer.read_returned()
broker.while_reading = lambda: (indexer.change_wish("ann", False), indexer.change_wish("ann", True))
indexer.read_histories()
broker.while_reading = lambda: None
indexer.read_histories()
assert sorted(found()) == [3, 4], "a crash before the list, and a wish while the history is read"
broker.setting = None
indexer.follow_wish("ann", True)
assert sorted(found()) == [3, 4], found()
with index:
    index.put("g:a", 9, "ann", "apple")
indexer.stream = lambda query, cursor: iter([("gap", {}, None)])
indexer.follow()
indexer.stream = lambda query, cursor: iter([(None, None, "here")])
indexer.begin()
indexer.read_histories()
assert sorted(found()) == [3, 4] and index.state("cursor") == "here", "a gap has everything read again"

page = lambda body: urllib.error.HTTPError("http://n1", 502, "Bad Gateway", {}, io.BytesIO(body))
for body in (b"<html>", b"", b"[]", b"{}", b"null"):
    assert search.problem_of(page(body))["temporary"], body
assert search.problem_of(page(b'{"temporary": false}')) == {"temporary": False}
client = search.Tidegate(["http://n1", "http://n2"])
answers = [page(b"<html>"), io.BytesIO(b'{"fine": 1}')]

def open_next(path, headers=(), timeout=20):
    answer = answers.pop(0)
    if isinstance(answer, Exception):
        raise answer
    return answer

other = client.copy()
client.open = open_next
assert client.get("/v1/users/ann") == {"fine": 1} and client.addresses == ["http://n2", "http://n1"]
assert other.addresses == ["http://n1", "http://n2"], "each thread has a list of its own"

def broken(user):
    raise ValueError("of the test")

ended = []
os._exit = ended.append
broker.wish = broken
indexer.follow_wishes_or_end(0)
assert ended == [1], "the program does not go on without the wishes"
print("fine")
"#;

fn folder() -> PathBuf {
    let root = env::var_os("CARGO_MANIFEST_DIR").expect("cargo names the folder of the crate");
    Path::new(&root).join("examples/search")
}

fn python() -> Command {
    let mut python = Command::new("python3");
    python.env("PYTHONDONTWRITEBYTECODE", "1");
    python
}

/// Program that fills an index; killed at its end.
struct Indexer(Child);

impl Indexer {
    /// Starts it, and waits until it has read all histories.
    fn start(node: &Process, index: &Path) -> Self {
        let mut child = python()
            .arg(folder().join("search.py"))
            .args(["follow", &format!("http://{}", node.admin())])
            .arg(index)
            .env("SEARCH_WISHES_SECONDS", "0.1")
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 is installed");
        let screen = Screen::of(child.stdout.take().expect("a pipe"));
        screen.line("the histories are read", |line| line == "following");
        Self(child)
    }
}

impl Drop for Indexer {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Waits until the index finds exactly these for a word.
fn finds(index: &Path, word: &str, wanted: &[&str]) {
    let find = || {
        let output = python().arg(folder().join("search.py")).arg("find").arg(index).arg(word).output();
        let output = output.expect("python3 is installed");
        assert!(output.status.success(), "{output:?}");
        let mut lines: Vec<String> =
            String::from_utf8(output.stdout).expect("text").lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    becomes(WAIT_MAX, &format!("the hits of {word}"), find, |lines| lines == wanted);
}

fn change(node: &Process, method: &str, path: &str, body: &Value) -> u64 {
    let answer = node.http(method, path, &body.to_string());
    let answer: Value = serde_json::from_str(&answer).unwrap_or_else(|_| panic!("{path}: {answer}"));
    answer["seq"].as_u64().unwrap_or_else(|| panic!("{path}: {answer}"))
}

fn say(node: &Process, from: &str, to: &str, text: &str) -> u64 {
    change(node, "POST", "/v1/messages", &json!({"to": to, "from": from, "content": {"text": text}}))
}

#[test]
fn index_is_right_through_edits_recalls_wishes_and_a_crash() {
    let (node, folder) = (Process::start(&[]), fresh_data());
    std::fs::create_dir_all(&folder).expect("a folder");
    let index = folder.join("index.db");
    node.group("team", &["ann".to_owned(), "bob".to_owned()]);
    assert_eq!(say(&node, "ann", "g:team", "red apple"), 2);
    assert_eq!(say(&node, "bob", "g:team", "green apple"), 3);
    say(&node, "ann", "bob", "blue plum");
    let indexer = Indexer::start(&node, &index);
    finds(&index, "apple", &["g:team/2 ann: red apple", "g:team/3 bob: green apple"]);
    let message = |seq: u64| format!("/v1/conversations/g:team/messages/{seq}");
    change(&node, "PATCH", &message(2), &json!({"content": {"text": "red pear"}}));
    change(&node, "DELETE", &message(3), &json!({}));
    assert_eq!(say(&node, "bob", "g:team", "yellow apple"), 6);
    finds(&index, "apple", &["g:team/6 bob: yellow apple"]);
    drop(indexer);
    finds(&index, "pear", &["g:team/2 ann: red pear"]);
    // What happens while it is away.
    assert_eq!(say(&node, "ann", "g:team", "apple pie"), 7);
    change(&node, "PATCH", &message(7), &json!({"content": {"text": "apple pie with cream"}}));
    change(&node, "DELETE", &message(2), &json!({}));
    let mut bob = Client::connect(node.address(), Wire::Tcp);
    let settings = Some(pb::Settings { search: "off".into(), ..pb::Settings::default() });
    let welcome = bob.ask(ask::hello(pb::Hello { settings, ..hello(&node.token("bob"), "phone") }));
    assert!(matches!(welcome, ServerBody::Welcome(_)), "{welcome:?}");
    let _indexer = Indexer::start(&node, &index);
    finds(&index, "apple", &["g:team/7 ann: apple pie with cream"]);
    finds(&index, "pear", &[]);
    finds(&index, "plum", &["d:ann:bob/1 ann: blue plum"]);
    std::fs::remove_dir_all(folder).ok();
}

#[test]
fn index_follows_prunings_gaps_and_wishes() {
    let index = fresh_data();
    let output = python().args(["-c", OFFLINE]).arg(folder()).arg(&index).output();
    let output = output.expect("python3 is installed");
    assert!(output.status.success() && output.stdout == b"fine\n", "{output:?}");
    for suffix in ["", "-wal", "-shm"] {
        std::fs::remove_file(format!("{}{suffix}", index.display())).ok();
    }
}
