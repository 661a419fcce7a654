//! `tidegate up` as users run it: the printed commands work as printed, a killed node is replaced, and nothing is left
//! behind.

use std::{
    collections::BTreeMap,
    fs,
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    thread,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tidegate_protocol::codec::Wire;

use crate::support::{
    Client, Cluster, Screen, eventually, fresh_data, hello, http, service, terminal, text_of,
};

/// Folder like that of a checkout with running services, and what separates its cluster from those of other tests.
struct Place {
    ground: Cluster,
    folder: PathBuf,
}

/// Running command and the lines of both of its streams; killed when the test ends.
struct Running {
    child: Child,
    screen: Screen,
}

/// Node as printed by `tidegate up`.
struct Node {
    clients: SocketAddr,
    admin: SocketAddr,
    pid: Pid,
}

impl Place {
    fn new() -> Self {
        let (ground, folder) = (Cluster::prepare(0, &[]), fresh_data());
        let services = folder.join("target/services");
        fs::create_dir_all(&services).expect("a folder");
        let mut list: BTreeMap<&str, Value> =
            ["kafka", "redis7", "postgres"].map(|name| (name, service(name))).into();
        let of_postgres = list.get_mut("postgres").expect("the entry exists");
        of_postgres["url"] = ground.setting("postgres.url=").into();
        let text = serde_json::to_vec(&list).expect("JSON");
        fs::write(services.join("services.json"), text).expect("a file");
        Self { ground, folder }
    }

    /// Runs `tidegate up` with these arguments, on free ports.
    fn up(&self, words: &[&str]) -> Running {
        Running::start(&mut self.command(words))
    }

    /// Runs the same in a terminal.
    fn up_in_terminal(&self, words: &[&str]) -> Running {
        Running::start_in_terminal(self.command(words))
    }

    fn command(&self, words: &[&str]) -> Command {
        // As from a terminal, also where the tests run under `nohup`.
        let mut command = Command::new("env");
        command
            .args(["--default-signal=HUP", env!("CARGO_BIN_EXE_tidegate"), "up", "--port", "0"])
            .args(words);
        let names =
            ["kafka.partitions", "kafka.topic", "kafka.group", "kafka.node_topic", "kafka.event_topic"];
        for name in names.into_iter().chain(["redis.prefix"]) {
            command.args(["--set", &format!("{name}={}", self.ground.setting(&format!("{name}=")))]);
        }
        command.current_dir(&self.folder).env_remove("CARGO_TARGET_DIR");
        command
    }

    /// Builds the command of a printed line.
    fn typed(&self, line: &str) -> Command {
        let mut words = line.split_whitespace();
        let mut command = Command::new(words.next().expect("a program"));
        command.args(words).current_dir(&self.folder);
        command
    }

    /// Runs a printed line and returns its output.
    fn answer(&self, line: &str) -> String {
        let Output { status, stdout, stderr } = self.typed(line).output().expect("the program runs");
        let said = String::from_utf8_lossy(&stdout).into_owned();
        assert!(status.success(), "{line}: {status} {said} {}", String::from_utf8_lossy(&stderr));
        said
    }

    /// Waits until no node of this folder runs.
    fn wait_for_no_nodes(&self) {
        // Their shared keys are named with their whole path.
        let name = self.folder.file_name().and_then(|name| name.to_str()).expect("a plain name");
        eventually("no node is left behind", || running(&format!("{name}/")).is_empty().then_some(()));
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.folder).ok();
    }
}

/// Returns the processes that have this among their arguments.
fn running(word: &str) -> Vec<String> {
    let entries = fs::read_dir("/proc").expect("Linux").flatten();
    let commands = entries.filter_map(|entry| fs::read_to_string(entry.path().join("cmdline")).ok());
    commands.filter(|words| words.contains(word)).collect()
}

/// Returns the parent of a process.
fn parent(pid: Pid) -> u32 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).expect("it runs");
    let after_name = stat.rsplit_once(')').expect("a name in brackets").1;
    after_name.split_whitespace().nth(1).and_then(|pid| pid.parse().ok()).expect("a number")
}

impl Running {
    fn start(command: &mut Command) -> Self {
        let streams = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = streams.spawn().expect("the program runs");
        let screen = Screen::of(child.stdout.take().expect("a pipe"));
        screen.add(child.stderr.take().expect("a pipe"));
        Self { child, screen }
    }

    fn start_in_terminal(mut command: Command) -> Self {
        let (writes, reads) = terminal();
        let streams = command.stdin(Stdio::null()).stdout(writes).stderr(Stdio::piped());
        let mut child = streams.spawn().expect("the program runs");
        let screen = Screen::of(reads);
        screen.add(child.stderr.take().expect("a pipe"));
        Self { child, screen }
    }

    /// Waits for a line that contains this text.
    fn says(&self, what: &str) -> String {
        self.screen.line(what, |line| line.contains(what))
    }

    fn said(&self) -> Vec<String> {
        self.screen.lines()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    /// Waits for the end and returns the exit code.
    fn exit(&mut self) -> Option<i32> {
        eventually("it ends", || self.child.try_wait().expect("a child")).code()
    }

    /// Returns what `tidegate up` prints of the nodes, once all of them run.
    fn nodes(&self, count: usize) -> Vec<Node> {
        self.says(".events");
        // Each node has the usual time to start.
        self.says(&format!("a cluster of {count} nodes"));
        self.says("Ctrl-C stops all nodes.");
        let after = |line: &str, what: &str| -> String {
            let rest = line.split_once(what).unwrap_or_else(|| panic!("no {what} in {line}")).1;
            rest.split_whitespace().next().expect("a word").to_owned()
        };
        let node = |nth: usize| {
            let line = self.says(&format!("  n{nth}  clients "));
            Node {
                clients: after(&line, "clients ").parse().expect("an address"),
                admin: after(&line, "admin http://").parse().expect("an address"),
                pid: after(&line, "pid ").parse().ok().and_then(Pid::from_raw).expect("a process"),
            }
        };
        (1..=count).map(node).collect()
    }

    /// Returns the printed line to be typed that contains this text.
    fn next(&self, what: &str) -> String {
        let found = self
            .said()
            .into_iter()
            .find_map(|line| Some(line.strip_prefix("    ")?.to_owned()).filter(|line| line.contains(what)));
        found.unwrap_or_else(|| panic!("no {what} in {:?}", self.said()))
    }

    fn token(&self, user: &str) -> String {
        let line = self.says(&format!("token for {user}: "));
        line.rsplit(' ').next().expect("a word").to_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{}", self.said().join("\n"));
        }
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Repeats a command until its output has a row that begins with each of these. Redis may be late for one reply.
fn becomes(place: &Place, line: &str, wanted: &[&str]) {
    eventually(&format!("{line}: {wanted:?}"), || {
        let said = place.typed(line).output().expect("the program runs").stdout;
        let said = String::from_utf8_lossy(&said).into_owned();
        wanted.iter().all(|it| said.lines().any(|row| words(row).starts_with(it))).then_some(())
    });
}

/// Returns a row of a table with one space between its cells.
fn words(row: &str) -> String {
    row.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn up_prints_working_commands_and_replaces_a_killed_node() {
    let place = Place::new();
    let mut up = place.up_in_terminal(&["--nodes", "3"]);
    let nodes = up.nodes(3);
    for node in &nodes {
        assert_eq!(parent(node.pid), up.child.id(), "the parent is `tidegate up`");
    }
    for name in ["n1", "n2", "n3"] {
        up.says(&format!("{}.{name}  created: partitions 1", place.ground.setting("kafka.node_topic=")));
    }

    // In further terminals.
    let tail = Running::start(&mut place.typed(&up.next(" tail ")));
    tail.says("listening as bob on n1");
    assert_eq!(place.answer(&up.next(" send ")), "d:alice:bob seq 1\n");
    tail.says("  d:alice:bob  1  alice  hello");
    // With the printed tokens, on the other two nodes.
    let login = |nth: usize, user: &str| {
        let mut client = Client::connect(nodes[nth].clients, Wire::WsText);
        client.login(hello(&up.token(user), "phone"));
        client
    };
    let (mut bob, mut alice) = (login(1, "bob"), login(2, "alice"));
    assert_eq!(alice.text("bob", "m2", "by hand"), 2);
    let push = bob.expect_push();
    assert_eq!((push.seq, text_of(&push)), (2, "by hand"));
    bob.ack("d:alice:bob", 2);
    tail.says("  d:alice:bob  2  alice  by hand");

    becomes(&place, &up.next(" where "), &["cli-tail n1 live", "phone n2 live"]);
    becomes(&place, &up.next(" nodes "), &["n1 ready live 1 ", "n2 ready live 1 ", "n3 ready live 1 "]);
    becomes(&place, &up.next(" owners "), &["0 n", "1 n", "2 n", "3 n"]);
    for node in &nodes {
        eventually("each node lists all nodes and their partitions", || {
            let (status, said) = http::ask(node.admin, "GET", "/v1/nodes", "");
            let said: Value = serde_json::from_str(&said).expect("JSON");
            let all = said["nodes"].as_array().expect("a list");
            let owned: usize = all.iter().filter_map(|node| Some(node["owns"].as_array()?.len())).sum();
            (status == 200 && all.len() == 3 && owned == 4).then_some(())
        });
    }

    // The line ends with a comment that says what it does.
    let kill = up.next("kill -9 ");
    assert_eq!(kill.split_whitespace().nth(2), Some(nodes[0].pid.as_raw_nonzero().to_string().as_str()));
    kill_process(nodes[0].pid, Signal::KILL).expect("it runs");
    let ended = up.says("n1 ended");
    assert!(ended.contains("SIGKILL") && ended.contains("the others keep running"), "{ended}");
    let log = ended.rsplit(' ').next().expect("a file");
    assert!(place.folder.join(log).is_file(), "{ended}");
    tail.says("listening as bob on n2");
    assert_eq!(place.answer(&up.next(" send ")), "d:alice:bob seq 3\n");
    tail.says("  d:alice:bob  3  alice  hello");
    assert_eq!(bob.expect_push().seq, 3);
    bob.ack("d:alice:bob", 3);
    becomes(&place, &up.next(" where "), &["cli-tail n2 live", "phone n2 live"]);

    up.signal(Signal::INT);
    up.says("stopping all nodes; again to hurry");
    assert_eq!(up.exit(), Some(0), "every stopped node ended without an error");
    for name in ["n2", "n3"] {
        up.says(&format!("{name} ended (exit status: 0)"));
    }
    place.wait_for_no_nodes();
}

#[test]
fn closed_terminal_or_killed_parent_leaves_no_node() {
    let place = Place::new();
    for signal in [Signal::HUP, Signal::KILL] {
        let mut up = place.up(&["--nodes", "2"]);
        up.nodes(2);
        up.signal(signal);
        assert_eq!(up.exit(), None, "`tidegate up` ended by {signal:?}");
        place.wait_for_no_nodes();
    }
}

#[test]
fn second_up_on_the_same_data_is_refused_harmlessly() {
    let place = Place::new();
    // With a key that another program made.
    let key = format!("auth.key_file={}", place.ground.token_key().display());
    let mut first = place.up(&["--nodes", "2", "--set", &key]);
    let nodes = first.nodes(2);
    assert!(!first.said().iter().any(|line| line.contains("eyJ")), "tokens of a given key are not printed");
    let wish = json!({"user": "alice"}).to_string();
    let (status, said) = http::ask(nodes[0].admin, "POST", "/v1/dev/token", &wish);
    assert_eq!(status, 403, "nor created for a console: {said}");
    let token = place.answer(&first.next(" token alice "));
    Client::connect(nodes[1].clients, Wire::Tcp).login(hello(token.trim(), "phone"));
    let mut second = place.up(&["--nodes", "2"]);
    assert_eq!(second.exit(), Some(1));
    second.says(&format!("n1 runs already (pid {})", nodes[0].pid.as_raw_nonzero()));
    becomes(&place, &first.next(" nodes "), &["n1 ready live", "n2 ready live"]);
    // A second signal makes the nodes hurry.
    first.signal(Signal::INT);
    first.says("stopping all nodes; again to hurry");
    first.signal(Signal::TERM);
    assert!(matches!(first.exit(), Some(0 | 4)));
    place.wait_for_no_nodes();
}

#[test]
fn ctrl_c_ends_up_while_it_waits_for_kafka() {
    let place = Place::new();
    // Accepts connections and sends nothing.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let brokers = format!("kafka.brokers=[{}]", silent.local_addr().expect("it listens"));
    let mut up = place.up(&["--set", &brokers]);
    silent.set_nonblocking(true).expect("a socket takes options");
    let _connection = eventually("the node connects to Kafka", || silent.accept().ok());
    up.signal(Signal::INT);
    assert_eq!(up.exit(), Some(1));
    up.says("stopped before a node was started");
    assert!(!place.folder.join("tidegate-cluster/n1").exists());
}

#[test]
fn console_of_one_node_reaches_the_others() {
    let place = Place::new();
    let mut up = place.up(&["--nodes", "3"]);
    let nodes = up.nodes(3);
    let admin = nodes[0].admin;
    let forward = |node: &str, method: &str, path: &str, body: Value| {
        let wish = json!({"node": node, "method": method, "path": path, "body": body}).to_string();
        let (status, said) = http::ask(admin, "POST", "/v1/dev/forward", &wish);
        (status, serde_json::from_str::<Value>(&said).expect("JSON"))
    };
    eventually("the node names the consoles of the others", || {
        let facts: Value = serde_json::from_str(&http::ask(admin, "GET", "/v1/console", "").1).expect("JSON");
        let peers = facts["peers"].as_array().expect("a list").iter();
        let mut consoles: Vec<&str> = peers.filter_map(|peer| peer["admin"].as_str()).collect();
        consoles.sort_unstable();
        let mut known = [format!("http://{}", nodes[1].admin), format!("http://{}", nodes[2].admin)];
        known.sort_unstable();
        (consoles == known).then_some(())
    });
    let page = http::exchange(admin, "GET /try HTTP/1.1\r\nHost: localhost\r\n", "");
    let policy = page.field("content-security-policy").expect("a policy");
    for node in &nodes {
        assert!(policy.contains(&format!(" ws://{}", node.clients)), "{policy}");
    }
    let (_, said) = forward("n1", "POST", "/v1/dev/cut", json!({"user": "bob"}));
    assert_eq!(said["name"], "NOT_FOUND", "its own requests need no forwarding: {said}");
    let token = http::ask(admin, "POST", "/v1/dev/token", &json!({"user": "bob"}).to_string()).1;
    let token: Value = serde_json::from_str(&token).expect("JSON");
    let mut bob = Client::connect(nodes[1].clients, Wire::WsText);
    bob.login(hello(token["token"].as_str().expect("a token"), "web"));
    let (status, said) = forward("n2", "POST", "/v1/dev/cut", json!({"user": "bob", "device": "web"}));
    assert_eq!((status, &said["node"], &said["cut"]), (200, &"n2".into(), &1.into()), "{said}");
    eventually("the link of bob is cut", || {
        bob.listen(std::time::Duration::from_millis(10));
        bob.has_ended().then_some(())
    });
    let (status, said) = forward("n3", "POST", "/v1/drain", Value::Null);
    assert_eq!((status, &said["state"]), (202, &"cordoned".into()), "{said}");
    up.says("n3 ended (exit status: 0)");
    let (status, said) = forward("n2", "POST", "/v1/dev/abort", json!({}));
    assert_eq!((status, said), (200, json!({"node": "n2", "aborted": true})));
    let ended = up.says("n2 ended");
    assert!(ended.contains("SIGABRT"), "{ended}");
    up.signal(Signal::INT);
    up.exit();
    place.wait_for_no_nodes();
}
