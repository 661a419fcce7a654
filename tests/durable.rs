//! Durability under SIGKILL: the real binary, killed at random moments while clients send, restarted, and its store
//! moved to another node.
#![allow(clippy::unwrap_used)]

#[path = "support/seed.rs"]
mod seed;
#[allow(dead_code, unreachable_pub, reason = "other test binaries use the rest of it, and hand it on")]
#[path = "support/time.rs"]
mod time;
#[allow(unreachable_pub, reason = "other test binaries hand it on")]
#[path = "support/unique.rs"]
mod unique;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use seed::seed;
use serde_json::{Value, json};
use tidegate::{auth, embedded::FORMAT};
use time::{eventually_within, let_time_pass};
use unique::unique_name;

const WAIT_MAX: Duration = Duration::from_secs(20);
const ROUNDS: u64 = 12;
const CLIENTS: usize = 6;
/// Limit of unanswered sends of a client.
const IN_FLIGHT: usize = 16;

/// Data directory, removed when the test ends.
struct Data(PathBuf);

impl Data {
    fn fresh() -> Self {
        let path = std::env::temp_dir().join(format!("tidegate-durable-{}", unique_name()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn serve(&self) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.arg("serve").arg("--data").arg(&self.0);
        let sets = ["listen.client=127.0.0.1:0", "listen.admin=127.0.0.1:0", "node.shards=1"];
        let more = fs::read_to_string(self.0.join("sets")).unwrap_or_default();
        for set in sets.into_iter().chain(more.lines()) {
            command.arg("--set").arg(set);
        }
        // Appended to: two nodes write it at the same time.
        let errors = File::options().create(true).append(true).open(self.0.join("stderr")).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors).spawn().unwrap()
    }

    fn stderr(&self) -> String {
        fs::read_to_string(self.0.join("stderr")).unwrap()
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

/// Node that is killed with SIGKILL, at the latest when it is dropped.
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    fn start(data: &Data) -> Self {
        let file = data.0.join("node.json");
        fs::remove_file(&file).ok();
        let mut child = data.serve();
        let node: Value = eventually("a node that is ready", || {
            assert!(child.try_wait().unwrap().is_none(), "it ended: {}", data.stderr());
            serde_json::from_slice(&fs::read(&file).ok()?).ok()
        });
        Self { child, address: node["client"].as_str().unwrap().parse().unwrap() }
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Polls until there is a result.
fn eventually<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    eventually_within(WAIT_MAX, what, look)
}

/// Client on JSON lines.
struct Client {
    stream: TcpStream,
    lines: BufReader<TcpStream>,
}

impl Client {
    /// Logs in; `None` if the node has died.
    fn login(address: SocketAddr, key: &[u8], user: &str) -> Option<Self> {
        Self::login_on("cli", address, key, user)
    }

    fn login_on(device: &str, address: SocketAddr, key: &[u8], user: &str) -> Option<Self> {
        let stream = TcpStream::connect(address).ok()?;
        stream.set_read_timeout(Some(WAIT_MAX)).ok()?;
        stream.set_nodelay(true).ok()?;
        let lines = BufReader::new(stream.try_clone().ok()?);
        let mut client = Self { stream, lines };
        let token = auth::sign(key, user, None, Duration::from_secs(600));
        client.say(&json!({"id": 1, "hello": {"version": 1, "token": token, "device": device}}))?;
        client.until(|frame| frame.get("welcome").cloned())?;
        Some(client)
    }

    fn say(&mut self, frame: &Value) -> Option<()> {
        self.stream.write_all(format!("{frame}\n").as_bytes()).ok()
    }

    fn until<T>(&mut self, mut wanted: impl FnMut(&Value) -> Option<T>) -> Option<T> {
        loop {
            let mut line = String::new();
            if self.lines.read_line(&mut line).ok()? == 0 {
                return None;
            }
            // The last line of a killed node may be cut.
            let frame: Value = serde_json::from_str(&line).ok()?;
            if let Some(found) = wanted(&frame) {
                return Some(found);
            }
        }
    }

    fn send(&mut self, to: &str, msg_id: &str, attempt: u32) -> Option<()> {
        let content = json!({"text": format!("this is {msg_id}")});
        self.say(&json!({"id": 2, "send": {"toUser": to, "msgId": msg_id, "attempt": attempt, "content": content}}))
    }

    /// Returns a whole conversation in order: seq, and the text if there is one.
    fn pull(&mut self, conversation: &str) -> Vec<(u64, String)> {
        self.say(&json!({"id": 7, "pull": {"conversation": conversation, "limit": 100}})).unwrap();
        let page = self.until(|frame| frame.get("page").cloned()).unwrap();
        let messages = page["messages"].as_array().unwrap().iter().rev();
        let text = |it: &Value| it["content"]["text"].as_str().unwrap_or("").to_owned();
        messages.map(|it| (it["seq"].as_u64().unwrap(), text(it))).collect()
    }

    /// Returns the user's state of a conversation.
    fn state(&mut self, conversation: &str) -> Value {
        self.say(&json!({"id": 8, "sync": {}})).unwrap();
        let state = |frame: &Value| {
            frame.get("conversationState").filter(|it| it["conversation"] == conversation).cloned()
        };
        self.until(state).unwrap()
    }

    /// Returns the next ack: id, seq, whether it is a duplicate.
    fn ack(&mut self) -> Option<(String, u64, bool)> {
        self.until(|frame| {
            assert!(frame.get("error").is_none(), "{frame}");
            let ack = frame.get("sendAck")?;
            let duplicate = ack.get("duplicate").and_then(Value::as_bool).unwrap_or(false);
            Some((ack["msgId"].as_str()?.to_owned(), ack["seq"].as_u64()?, duplicate))
        })
    }
}

/// Acked messages of one sender: message id → seq.
type Acked = BTreeMap<String, u64>;

/// Sends until the node dies; returns the acked messages, and the ids in doubt.
fn busy(address: SocketAddr, key: &[u8], sender: usize, round: u64) -> (Acked, Vec<String>) {
    let (mut acked, mut sent) = (Acked::new(), 0);
    let id = |number: u64| format!("r{round}-{number}");
    let Some(mut client) = Client::login(address, key, &format!("sender{sender}")) else {
        return (acked, Vec::new());
    };
    let mut in_doubt = Vec::new();
    'alive: loop {
        while in_doubt.len() < IN_FLIGHT {
            in_doubt.push(id(sent));
            sent += 1;
            let newest = in_doubt.last().unwrap().clone();
            if client.send(&format!("receiver{sender}"), &newest, 0).is_none() {
                break 'alive;
            }
        }
        let Some((msg_id, seq, duplicate)) = client.ack() else { break };
        assert!(!duplicate, "{msg_id} was not sent before");
        in_doubt.retain(|it| *it != msg_id);
        acked.insert(msg_id, seq);
    }
    (acked, in_doubt)
}

/// Sends everything again: acked messages keep their seq, those in doubt get one now.
fn settle(
    address: SocketAddr,
    key: &[u8],
    sender: usize,
    acked: &mut Acked,
    new: &[String],
    in_doubt: &[String],
) {
    let mut client = Client::login(address, key, &format!("sender{sender}")).expect("a node that runs");
    let ids: Vec<&String> = new.iter().chain(in_doubt).collect();
    for some in ids.chunks(64) {
        for msg_id in some {
            client.send(&format!("receiver{sender}"), msg_id, 1).expect("a node that runs");
        }
        for msg_id in some {
            let (answered, seq, duplicate) = client.ack().expect("an ack");
            assert_eq!(answered, **msg_id, "acks arrive in the order of the sends");
            if let Some(before) = acked.insert(answered, seq) {
                assert_eq!((seq, duplicate), (before, true), "sender {sender}: {msg_id} was acked");
            }
        }
    }
}

fn token_key(data: &Path) -> Vec<u8> {
    auth::load_or_create_key(data).unwrap()
}

#[test]
fn acked_messages_survive_kill_9_with_seqs_without_holes() {
    let data = Data::fresh();
    let mut all = vec![Acked::new(); CLIENTS];
    let mut server = Server::start(&data);
    let key = token_key(&data.0);
    let mut random = StdRng::seed_from_u64(seed());
    for round in 0..ROUNDS {
        let address = server.address;
        let rounds: Vec<_> = thread::scope(|scope| {
            let senders: Vec<_> = (0..CLIENTS)
                .map(|sender| {
                    scope.spawn({
                        let key = &key;
                        move || busy(address, key, sender, round)
                    })
                })
                .collect();
            let moment = Duration::from_millis(random.random_range(20..400));
            let_time_pass("to a moment in the middle of it, another one each time", moment);
            server.kill();
            senders.into_iter().map(|sender| sender.join().unwrap()).collect()
        });
        server = Server::start(&data);
        for (sender, (acked, in_doubt)) in rounds.into_iter().enumerate() {
            let new: Vec<String> = acked.keys().cloned().collect();
            all[sender].extend(acked);
            settle(server.address, &key, sender, &mut all[sender], &new, &in_doubt);
            let mut seqs: Vec<u64> = all[sender].values().copied().collect();
            seqs.sort_unstable();
            let whole: Vec<u64> = (1..=seqs.len() as u64).collect();
            assert_eq!(seqs, whole, "sender {sender}, round {round}: a hole or a seq twice");
        }
    }
    let count: usize = all.iter().map(Acked::len).sum();
    println!("{count} messages over {ROUNDS} kills: none lost, none renumbered");
    assert!(count > 1_000, "the clients were busy: {count}");
}

#[test]
fn second_node_on_the_same_directory_is_refused() {
    let data = Data::fresh();
    let _first = Server::start(&data);
    let mut second = data.serve();
    let status = eventually("an end", || second.try_wait().unwrap());
    assert!(!status.success());
    assert!(data.stderr().contains("in use by another node; stop that one first"), "{}", data.stderr());
}

/// Runs `tidegate store`; returns whether it succeeded, and its output.
fn store(words: &[&str], data: &Data) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    let output = command.arg("store").args(words).arg("--data").arg(&data.0).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(said).unwrap())
}

#[test]
fn exported_store_moves_to_another_node_unchanged() {
    let (old, new) = (Data::fresh(), Data::fresh());
    let server = Server::start(&old);
    let mut client = Client::login(server.address, &token_key(&old.0), "ann").unwrap();
    for number in 1..=5 {
        client.send("bob", &format!("m{number}"), 0).unwrap();
        assert_eq!(client.ack().unwrap().1, number);
    }
    let (fine, said) = store(&["check"], &old);
    assert!(!fine && said.contains("in use by another node; stop that one first"), "{said}");
    server.kill();
    let (fine, said) = store(&["check"], &old);
    assert!(fine && said.contains("is sound"), "{said}");
    let (fine, said) = store(&["stats", "--json"], &old);
    let stats: Value = serde_json::from_str(&said).unwrap();
    assert!(fine && stats["messages"] == 5 && stats["keys"] == 5, "{said}");
    let (fine, said) = store(&["stats"], &old);
    assert!(fine && said.contains(&format!("\n{:<16} {:>16}\n", "  messages", 5)), "{said}");
    assert!(said.contains("\npartition 0: archived to "), "{said}");
    let file = old.0.join("export.jsonl");
    let file = file.to_str().unwrap();
    let (fine, said) = store(&["export", "--output", file], &old);
    assert!(fine && said.contains("lines"), "{said}");
    let (fine, said) = store(&["export", "--output", file], &old);
    assert!(!fine && said.contains("name a file that does not exist"), "{said}");
    let (fine, said) = store(&["import", file, "--dry-run"], &new);
    assert!(fine && !new.0.join("store").exists(), "{said}");
    let (fine, said) = store(&["import", file], &new);
    assert!(fine, "{said}");
    let (fine, said) = store(&["import", file], &new);
    assert!(!fine && said.contains("exists already"), "{said}");
    let server = Server::start(&new);
    let mut client = Client::login(server.address, &token_key(&new.0), "ann").unwrap();
    client.send("bob", "m3", 1).unwrap();
    assert_eq!(client.ack().unwrap(), ("m3".into(), 3, true));
    client.send("bob", "m6", 0).unwrap();
    assert_eq!(client.ack().unwrap(), ("m6".into(), 6, false));
}

/// A running node removes messages older than `retention.messages`, and keeps younger ones.
#[test]
fn node_removes_messages_past_their_retention() {
    let (old, new) = (Data::fresh(), Data::fresh());
    let server = Server::start(&old);
    let mut client = Client::login(server.address, &token_key(&old.0), "ann").unwrap();
    for number in 1..=5 {
        client.send("bob", &format!("m{number}"), 0).unwrap();
        client.ack().unwrap();
    }
    drop(client);
    server.kill();
    let (before, after) = (old.0.join("before.jsonl"), old.0.join("after.jsonl"));
    assert!(store(&["export", "--output", before.to_str().unwrap()], &old).0);
    // Three of them become two days older.
    let aged = |line: &str| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        for what in ["row", "key"] {
            if let Some(it) = line.get_mut(what).filter(|it| it["seq"].as_u64() <= Some(3)) {
                it["time"] = json!(it["time"].as_u64().unwrap() - 2 * 24 * 3_600_000);
            }
        }
        format!("{line}\n")
    };
    let lines: String = fs::read_to_string(before).unwrap().lines().map(aged).collect();
    fs::write(&after, lines).unwrap();
    let (fine, said) = store(&["import", after.to_str().unwrap()], &new);
    assert!(fine, "{said}");
    let sets = ["retention.messages=1d", "retention.sweep_ms=1000"];
    fs::write(new.0.join("sets"), sets.join("\n")).unwrap();
    let server = Server::start(&new);
    let mut client = Client::login(server.address, &token_key(&new.0), "ann").unwrap();
    let left = eventually("the old messages are removed", || {
        let left = client.pull("d:ann:bob");
        (left.len() < 5).then_some(left)
    });
    assert_eq!(left, [(4, "this is m4".to_owned()), (5, "this is m5".to_owned())]);
    client.send("bob", "m6", 0).unwrap();
    assert_eq!(client.ack().unwrap().1, 6);
}

/// Data directory of a node with store format 1 (commit f02bc81): a direct conversation with a read mark, a group with
/// a removal and a chained sender, and a kill -9 before its last message.
fn of_format_1() -> Data {
    let data = Data::fresh();
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/durable/format-1.tar.gz");
    let status = Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(&data.0).status().unwrap();
    assert!(status.success());
    data
}

#[test]
fn node_continues_on_a_store_of_format_1() {
    let data = of_format_1();
    let marker = data.0.join("store/format.json");
    assert_eq!(fs::read_to_string(&marker).unwrap(), "{\"tidegate_store\":1}");
    let (fine, said) = store(&["check"], &data);
    assert!(fine && said.contains("is sound"), "{said}");
    let server = Server::start(&data);
    let present = format!("{{\"tidegate_store\":{FORMAT}}}");
    assert_eq!(fs::read_to_string(&marker).unwrap(), present);
    let mut alice = Client::login_on("d1", server.address, &token_key(&data.0), "alice").unwrap();
    let texts = alice.pull("d:alice:bob");
    assert_eq!(
        texts,
        [(1, "hello 1"), (2, "hello 2"), (3, "hello 3"), (4, "")].map(|(n, t)| (n, t.to_owned()))
    );
    let group = alice.pull("g:team");
    let said = ["group 1", "group 2", "group 3", "without cem", "after a crash"];
    assert_eq!(
        group.iter().map(|(_, text)| text.as_str()).filter(|it| !it.is_empty()).collect::<Vec<_>>(),
        said
    );
    let retry = json!({"id": 2, "send": {"toUser": "bob", "msgId": "a3", "attempt": 1, "content": {"text": "hello 3"}}});
    alice.say(&retry).unwrap();
    assert_eq!(alice.ack().unwrap(), ("a3".into(), 3, true), "its id is a duplicate");
    alice.send("bob", "a9", 0).unwrap();
    assert_eq!(alice.ack().unwrap(), ("a9".into(), 5, false), "the next seq follows");
    let mut bob = Client::login_on("d1", server.address, &token_key(&data.0), "bob").unwrap();
    let state = bob.state("d:alice:bob");
    assert_eq!((&state["readSeq"], &state["unread"]), (&json!(2), &json!(2)), "{state}");
    let mut cem = Client::login_on("d1", server.address, &token_key(&data.0), "cem").unwrap();
    cem.say(
        &json!({"id": 3, "send": {"conversation": "g:team", "msgId": "c9", "content": {"text": "back?"}}}),
    )
    .unwrap();
    let refused = cem.until(|frame| frame.get("error").cloned()).unwrap();
    assert_eq!(refused["name"], "NOT_A_MEMBER", "{refused}");
}
