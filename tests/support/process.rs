//! The real binary as a process: on free ports, with its signals, memory and counters.

use std::{
    fs::{self, File},
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Resource, Rlimit, Signal};
use serde_json::{Value, json};
use tidegate::{
    auth,
    node::{Addresses, NODE_FILE},
};
use tidegate_protocol::{Code, codec::Wire, pb};

use super::{
    Client, ServerBody, WAIT_MAX, ask, becomes, code, eventually, eventually_within, hello, http, unique_name,
};

/// Limit for the start of a node: several start at once, and services may be busy with others.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Running `tidegate serve`, killed when the test ends.
pub struct Process {
    child: Child,
    data: PathBuf,
    /// Its listening addresses.
    pub addresses: Addresses,
    key: Vec<u8>,
}

/// Node that has not announced its addresses yet; killed if nothing waits for it.
pub struct Begun {
    /// `None` once the node serves or has ended.
    child: Option<Child>,
    data: PathBuf,
}

impl Begun {
    /// Waits until the node serves.
    pub fn serves(mut self) -> Process {
        let (data, child) = (self.data.clone(), self.child.as_mut().expect("the child is set"));
        let file = data.join(NODE_FILE);
        let addresses = eventually_within(START_TIMEOUT, "the node announces its addresses", || {
            if let Some(status) = child.try_wait().expect("a child") {
                panic!("the node ended with {status}: {}", try_stderr_of(&data).unwrap_or_default());
            }
            let says = serde_json::from_slice::<Addresses>(&fs::read(&file).ok()?).ok();
            says.filter(|at| at.pid == child.id())
        });
        let key = auth::load_or_create_key(&data).expect("the node created a key");
        Process { child: self.child.take().expect("the child is set"), data, addresses, key }
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(self.child.as_ref().expect("the child is set"));
        rustix::process::kill_process(pid, signal).expect("a running node");
    }

    /// Waits until the node ends without having served.
    pub fn exit(&mut self) -> ExitStatus {
        let child = self.child.as_mut().expect("the child is set");
        let status = eventually("the node ends", || child.try_wait().expect("a child"));
        self.child = None;
        status
    }

    /// Returns what the node has written to its error stream.
    pub fn stderr(&self) -> String {
        stderr_of(&self.data)
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            eprintln!("the node said: {}", try_stderr_of(&self.data).unwrap_or_default());
            child.kill().ok();
            child.wait().ok();
        }
    }
}

impl Process {
    /// Starts a node with two shards and these `--set` values.
    pub fn start(sets: &[&str]) -> Self {
        let data = fresh_data();
        Self::start_on(&data, sets)
    }

    /// Starts a node on a data directory.
    pub fn start_on(data: &Path, sets: &[&str]) -> Self {
        Self::spawn(data, command(data, sets))
    }

    /// Starts a node by a given command, which may set the limits of the process.
    pub fn spawn(data: &Path, serve: Command) -> Self {
        Self::begin(data, serve).serves()
    }

    /// Starts a node without waiting until it serves.
    pub fn begin(data: &Path, mut serve: Command) -> Begun {
        Begun { child: Some(serve.spawn().expect("the binary runs")), data: data.to_owned() }
    }

    /// Returns the client address.
    pub fn address(&self) -> SocketAddr {
        self.addresses.client
    }

    /// Returns the admin address.
    pub fn admin(&self) -> SocketAddr {
        self.addresses.admin
    }

    /// Returns the address for probes and metrics, which the node must have.
    pub fn monitor(&self) -> SocketAddr {
        self.addresses.monitor.expect("listen.monitor is set")
    }

    /// Returns the data directory.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// Returns a token for any device of the user.
    pub fn token(&self, user: &str) -> String {
        auth::sign(&self.key, user, None, Duration::from_secs(600))
    }

    /// Logs in without a chain. When the node refuses temporarily, because Redis took over 200 ms on a busy machine, it
    /// retries as SPEC asks of clients.
    pub fn login(&self, wire: Wire, user: &str, device: &str) -> Client {
        let began = Instant::now();
        loop {
            let mut client = Client::connect(self.address(), wire);
            match client.ask(ask::hello(hello(&self.token(user), device))) {
                ServerBody::Welcome(welcome) => {
                    client.welcome = welcome;
                    return client;
                }
                ServerBody::Error(error)
                    if code(error.code) == Code::Overloaded && began.elapsed() < WAIT_MAX =>
                {
                    client.back_off(error.retry_after_ms);
                }
                other => panic!("no welcome: {other:?}"),
            }
        }
    }

    /// Opens a logged-in connection whose chain continues with `next_id`.
    pub fn login_chained(&self, wire: Wire, user: &str, device: &str, next_id: &str) -> Client {
        let mut client = Client::connect(self.address(), wire);
        client.login(pb::Hello { next_id: next_id.into(), ..hello(&self.token(user), device) });
        client
    }

    /// Creates a group and returns its conversation key.
    pub fn group(&self, id: &str, members: &[String]) -> String {
        let body = json!({"id": id, "members": members}).to_string();
        let answer = self.http("POST", "/v1/groups", &body);
        let body: Value = serde_json::from_str(&answer).expect("JSON");
        body["conversation"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    }

    /// Changes the members of a group; returns the seq of the change.
    pub fn change_members(&self, id: &str, change: &Value) -> u64 {
        let answer = self.http("POST", &format!("/v1/groups/{id}/members"), &change.to_string());
        let body: Value = serde_json::from_str(&answer).expect("JSON");
        body["seq"].as_u64().unwrap_or_else(|| panic!("{answer}"))
    }

    /// Returns the number of admitted connections.
    pub fn conns(&self) -> u64 {
        let health: Value = serde_json::from_str(&self.http("GET", "/healthz", "")).expect("JSON");
        health["conns"].as_u64().expect("a number")
    }

    /// Returns a metric by its name without the prefix.
    pub fn metric(&self, name: &str) -> f64 {
        let text = self.http("GET", "/metrics", "");
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix("tidegate_")?.strip_prefix(name)?.trim().parse().ok());
        value.unwrap_or_else(|| panic!("no metric {name} in {text}"))
    }

    /// Waits until the metric has exactly that value.
    pub fn metric_becomes(&self, name: &str, value: f64) {
        becomes(WAIT_MAX, &format!("{name} = {value}"), || self.metric(name), |now| *now == value);
    }

    /// Returns the resident memory in bytes.
    pub fn rss(&self) -> u64 {
        let status = self.proc("status");
        let kib = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse::<u64>().ok());
        kib.expect("a resident size") * 1024
    }

    /// Returns the CPU time so far, user and system.
    pub fn cpu(&self) -> Duration {
        let stat = self.proc("stat");
        let after_name = stat.rsplit_once(')').expect("a name in brackets").1;
        let ticks: u64 =
            after_name.split_whitespace().skip(11).take(2).map(|n| n.parse::<u64>().expect("ticks")).sum();
        Duration::from_millis(ticks * 1_000 / rustix::param::clock_ticks_per_second())
    }

    /// Returns the number of open file descriptors.
    pub fn files(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.child.id())).expect("a running node").count()
    }

    /// Sets the soft limit of open files of the running node.
    pub fn limit_files(&self, files: u64) {
        let hard = rustix::process::getrlimit(Resource::Nofile).maximum;
        let limit = Rlimit { current: Some(files), maximum: hard };
        rustix::process::prlimit(Some(self.pid()), Resource::Nofile, limit).expect("a limit can be lowered");
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        rustix::process::kill_process(self.pid(), signal).expect("a running node");
    }

    /// Waits for the end.
    pub fn exit(&mut self) -> ExitStatus {
        eventually("the node ends", || self.child.try_wait().expect("a child"))
    }

    /// Returns what the node wrote to its error stream.
    pub fn stderr(&self) -> String {
        stderr_of(&self.data)
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn proc(&self, file: &str) -> String {
        fs::read_to_string(format!("/proc/{}/{file}", self.child.id())).expect("a running node")
    }

    /// Returns the reply of the probe port, if there is one.
    pub fn probe(&self, method: &str, path: &str) -> Option<(u16, String)> {
        Some(http::ask(self.addresses.monitor?, method, path, ""))
    }

    /// Returns the reply of the admin port.
    pub fn http(&self, method: &str, path: &str, body: &str) -> String {
        http::ask(self.addresses.admin, method, path, body).1
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the node said: {}", try_stderr_of(&self.data).unwrap_or_default());
        }
        self.child.kill().ok();
        self.child.wait().ok();
        fs::remove_dir_all(&self.data).ok();
    }
}

/// Returns a directory that no other test uses.
pub fn fresh_data() -> PathBuf {
    std::env::temp_dir().join(format!("tidegate-process-{}", unique_name()))
}

/// Builds `tidegate serve` on free ports, with its output in files of the data directory.
pub fn command(data: &Path, sets: &[&str]) -> Command {
    fs::create_dir_all(data).expect("the folder is created");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    let ports = ["listen.client=127.0.0.1:0", "listen.admin=127.0.0.1:0"];
    let defaults = ["node.shards=2", "limits.conns_per_ip=0", "log.format=text"];
    command.arg("serve").arg("--data").arg(data);
    for set in ports.iter().chain(&defaults).chain(sets) {
        command.arg("--set").arg(set);
    }
    let errors = File::create(data.join("stderr")).expect("a file");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors);
    command
}

/// Wraps a command in a shell that runs `before` first, such as `umask 022`. The streams are those of the shell.
pub fn in_shell(before: &str, program: &Command) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{before}; exec \"$0\" \"$@\"")]);
    shell.arg(program.get_program()).args(program.get_args());
    shell
}

fn stderr_of(data: &Path) -> String {
    try_stderr_of(data).unwrap_or_else(|error| panic!("{}: {error}", data.join("stderr").display()))
}

fn try_stderr_of(data: &Path) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&fs::read(data.join("stderr"))?).into_owned())
}
