//! The processes of a run: servers and load generators, started and ended here, through their handles only.

use super::{
    host,
    orders::{Answer, Order, Outcome, Peer, Setup, Watched},
    wire::BenchTransport,
};
use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    ffi::OsString,
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};
use tidegate::node::{Addresses, NODE_FILE};

/// Time for a server to be ready.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for a server to end.
const EXIT_TIMEOUT: Duration = Duration::from_secs(30);

/// Programs, CPUs and directory of the processes.
#[derive(Clone, Debug)]
pub(crate) struct Launcher {
    pub(crate) tidegate: PathBuf,
    /// Settings of each node, which `settings` may override.
    pub(crate) basics: Vec<String>,
    pub(crate) settings: Vec<String>,
    pub(crate) server_cpus: Vec<usize>,
    pub(crate) client_cpus: Vec<usize>,
    /// Directory of this run, for data and logs of servers.
    pub(crate) directory: PathBuf,
    /// Authority of the servers' certificate, if clients connect with TLS.
    pub(crate) authority: Option<PathBuf>,
    /// Folder of the keys that sign tokens of other algorithms than HS256.
    pub(crate) credentials: Option<PathBuf>,
}

/// Returns the settings of nodes whose figures are measured.
pub(super) fn bench_basics() -> Vec<String> {
    let basics = [
        // Members send nothing while the other side takes its turns.
        "timing.heartbeat_ms=600000",
        // The broker is measured, not the disk, unless a setting says otherwise.
        "node.store=memory",
        // A client stands for many users, who write to one another at once.
        "limits.new_conversations_per_minute=0",
        // Rooms are sampled only where that is measured.
        "rooms.rate=0",
    ];
    basics.map(str::to_owned).to_vec()
}

/// A server: a raw loop or a node.
pub(crate) struct Server {
    name: String,
    child: Child,
    log: PathBuf,
    pub(crate) address: String,
    /// Address to which the raw fan-out gets its messages, or the admin port of a node.
    pub(crate) second: String,
    /// Key of a node.
    key: String,
    /// Processes that do a part of the server's work.
    pub(super) watched: Vec<Watched>,
}

impl Launcher {
    /// Starts `command` on `cpus`: a child inherits the affinity of the thread that starts it.
    fn spawn(&self, command: &mut Command, cpus: &[usize]) -> Result<Child> {
        let own = host::cpus();
        host::pin(cpus)?;
        let child = command.spawn();
        host::pin(&own)?;
        child.with_context(|| format!("cannot start {}", command.get_program().display()))
    }

    /// Starts a raw loop: `raw-fanout`, `raw-echo`, `raw-mirror` or `raw-accept` with its arguments; or `hold` with a
    /// program that announces its ports as they do.
    pub(crate) fn raw(&self, arguments: &[&str]) -> Result<Server> {
        let name = arguments.first().copied().unwrap_or_default().to_owned();
        let log = self.directory.join(format!("{name}.log"));
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("bench").args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = self.spawn(command.stderr(File::create(&log)?), &self.server_cpus)?;
        let mut line = String::new();
        if let Some(output) = child.stdout.take() {
            BufReader::new(output).read_line(&mut line)?;
        }
        let mut ports = line.split_whitespace().map(|port| format!("127.0.0.1:{port}"));
        let mut server = Server {
            name,
            child,
            log,
            address: ports.next().unwrap_or_default(),
            second: ports.next().unwrap_or_default(),
            key: String::new(),
            watched: Vec::new(),
        };
        server.check()?;
        Ok(server)
    }

    /// Starts a node with `shards` shards on a directory of its own.
    pub(crate) fn tidegate(&self, label: &str, shards: usize) -> Result<Server> {
        let data = self.directory.join(label);
        fs::create_dir_all(&data)?;
        // The file of an earlier run would be taken for that of this one.
        fs::remove_file(data.join(NODE_FILE)).ok();
        let log = self.directory.join(format!("{label}.log"));
        // `bench hold` becomes the node, which ends with this process, however that ends.
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bench", "hold"]).arg(&self.tidegate).arg("serve").arg("--data").arg(&data);
        command.args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--shards", &shards.to_string()]);
        for setting in self.basics.iter().chain(&self.settings) {
            command.arg("--set").arg(setting);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log)?);
        let child = self.spawn(&mut command, &self.server_cpus)?;
        let mut server = Server {
            name: format!("tidegate ({label})"),
            child,
            log,
            address: String::new(),
            second: String::new(),
            key: String::new(),
            watched: Vec::new(),
        };
        let node = server.await_node(&data)?;
        server.key =
            fs::read_to_string(data.join("token.key")).context("token.key of the node")?.trim().into();
        (server.address, server.second) = (node.client.to_string(), node.admin.to_string());
        Ok(server)
    }

    /// Starts a load generator for `server`.
    pub(super) fn client(
        &self,
        server: &Server,
        peer: Peer,
        transport: BenchTransport,
        size: usize,
    ) -> Result<Client> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bench", "client"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = self.spawn(&mut command, &self.client_cpus)?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let mut client = Client {
            child,
            input: input.context("no pipe to the load generator")?,
            output: BufReader::new(output.context("no pipe from the load generator")?),
        };
        client.write(&Setup {
            peer,
            address: server.address.clone(),
            pid: server.child.id(),
            watched: server.watched.clone(),
            transport,
            authority: self.authority.clone(),
            credentials: self.credentials.clone(),
            spin: !self.client_cpus.iter().any(|cpu| self.server_cpus.contains(cpu)),
            size,
            run: format!("{:x}", host::now_ns()),
        })?;
        Ok(client)
    }
}

impl Server {
    /// Returns the peer as which a load generator treats this node.
    pub(super) fn peer(&self) -> Peer {
        Peer::Tidegate { key: self.key.clone() }
    }

    /// Returns the HS256 key of this node, in hex.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills the server, as a power cut would.
    pub(super) fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Fails when the server has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => {
                Err(anyhow!("{} ended by itself: {status}\n{}", self.name, last_lines(&self.log)))
            }
        }
    }

    fn await_node(&mut self, data: &Path) -> Result<Addresses> {
        let began = Instant::now();
        loop {
            self.check()?;
            if let Ok(text) = fs::read_to_string(data.join(NODE_FILE))
                && let Ok(node) = serde_json::from_str(&text)
            {
                return Ok(node);
            }
            if began.elapsed() > READY_TIMEOUT {
                bail!("{} is not ready after {READY_TIMEOUT:?}\n{}", self.name, last_lines(&self.log));
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let pid = Pid::from_child(&self.child);
        // A server that has ended needs no signal.
        kill_process(pid, Signal::TERM).ok();
        end(&mut self.child, EXIT_TIMEOUT);
    }
}

/// Turns this process into `command`; only returns when that fails.
pub(super) fn become_program(command: &[OsString]) -> Result<()> {
    let (program, arguments) = command.split_first().context("no program")?;
    let error = Command::new(program).args(arguments).exec();
    Err(error).with_context(|| format!("cannot become {}", program.display()))
}

/// Waits for a child that was asked to end, and kills it when it does not.
fn end(child: &mut Child, patience: Duration) {
    let began = Instant::now();
    while matches!(child.try_wait(), Ok(None)) {
        if began.elapsed() > patience {
            child.kill().ok();
            child.wait().ok();
            return;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn last_lines(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(10)..].join("\n")
}

/// A load generator.
pub(super) struct Client {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Client {
    fn write(&mut self, value: &impl serde::Serialize) -> Result<()> {
        writeln!(self.input, "{}", serde_json::to_string(value)?)?;
        Ok(self.input.flush()?)
    }

    /// Has the load generator carry out `order` against `server`. A failed verification is an error.
    pub(super) fn ask(&mut self, server: &mut Server, order: &Order) -> Result<Outcome> {
        self.write(order).context("the load generator is gone")?;
        let mut line = String::new();
        let count = self.output.read_line(&mut line)?;
        server.check()?;
        if count == 0 {
            bail!("the load generator ended by itself: {:?}", self.child.try_wait()?);
        }
        let answer: Answer = serde_json::from_str(&line)?;
        answer.map_err(|error| anyhow!("{}: {error}", server.name))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // A load generator has nothing to save.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
