//! Processes of a step, which end with it.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};

use crate::shell::{self, Shell};

const READY_MAX: Duration = Duration::from_secs(20);
const STOP_MAX: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A child that is killed when dropped.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    /// Starts `command`; its stderr goes to the file `log`.
    pub(crate) fn start(command: &mut Command, log: &Path) -> anyhow::Result<Self> {
        let log = fs::File::create(log)?;
        let child = command.stderr(log).stdin(Stdio::null()).spawn();
        Ok(Self(child.with_context(|| format!("starting {:?}", command.get_program()))?))
    }

    /// Fails if the process has ended.
    pub(crate) fn check_alive(&mut self) -> anyhow::Result<()> {
        match self.0.try_wait()? {
            Some(status) => bail!("it ended by itself: {status}"),
            None => Ok(()),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only if it has ended already, as intended.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Example program that prints its port as the first line of stdout.
pub(crate) fn start_example(shell: &Shell, name: &str, log: &Path) -> anyhow::Result<(Running, u16)> {
    let program = shell.built("examples").join(name);
    let mut running = Running::start(shell.command(&program).stdout(Stdio::piped()), log)
        .with_context(|| format!("examples/{name} is built by `cargo xtask test build`"))?;
    let stdout = running.0.stdout.take().context("stdout is piped")?;
    let (sender, lines) = mpsc::sync_channel(1);
    thread::spawn(move || {
        let mut line = String::new();
        let read = BufReader::new(stdout).read_line(&mut line);
        // The receiver was dropped if the step stopped waiting.
        drop(sender.send(read.map(|_| line)));
    });
    let line = lines.recv_timeout(READY_MAX).with_context(|| format!("{name} printed no port"))??;
    let digits = line.trim().rsplit(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
    let port = digits.parse().with_context(|| format!("{name} printed {line:?} in place of its port"))?;
    Ok((running, port))
}

/// Node on ports of its own, ready for clients.
pub(crate) struct ServerNode {
    running: Running,
    program: PathBuf,
    data: PathBuf,
    /// The address that clients connect to.
    pub(crate) client: String,
}

impl ServerNode {
    /// Starts a node with its data in the empty folder `data`, and waits for `node.json`.
    pub(crate) fn start(shell: &Shell, data: &Path) -> anyhow::Result<Self> {
        Self::start_with(shell, data, &[])
    }

    /// Starts a node as [`Self::start`] does, with these settings, each `section.key=value`.
    pub(crate) fn start_with(shell: &Shell, data: &Path, settings: &[String]) -> anyhow::Result<Self> {
        let program = shell.built("tidegate");
        let mut command = shell.command(&program);
        command.arg("serve").arg("--data").arg(data);
        command.args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]).stdout(Stdio::null());
        command.args(settings.iter().flat_map(|setting| ["--set", setting]));
        let log = data.with_extension("log");
        let mut running = Running::start(&mut command, &log)?;
        let client = wait_for_client_address(&mut running, &data.join("node.json"))
            .with_context(|| format!("`tidegate serve` is not ready; its log: {}", log.display()))?;
        Ok(Self { running, program, data: data.to_owned(), client })
    }

    /// The id of its process.
    pub(crate) fn pid(&self) -> u32 {
        self.running.0.id()
    }

    /// Returns a token of that user, created by `tidegate token`.
    pub(crate) fn token(&self, user: &str) -> anyhow::Result<String> {
        let (out, _) =
            shell::output(Command::new(&self.program).args(["token", user, "--data"]).arg(&self.data))?;
        let token = out.trim().to_owned();
        if token.split('.').count() != 3 {
            bail!("`tidegate token {user}` printed {out:?}, which is not a JWT alone");
        }
        Ok(token)
    }

    /// Returns the lines of its metrics.
    pub(crate) fn metrics(&self) -> anyhow::Result<String> {
        let admin = self.address("admin")?;
        let mut stream = TcpStream::connect(&admin)?;
        stream.set_read_timeout(Some(READY_MAX))?;
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).context("reading /metrics")?;
        Ok(answer)
    }

    /// Returns the address of a port, by its name in `node.json`.
    pub(crate) fn address(&self, port: &str) -> anyhow::Result<String> {
        let file = self.data.join("node.json");
        let node: serde_json::Value = serde_json::from_str(&fs::read_to_string(&file)?)?;
        node[port].as_str().map(str::to_owned).with_context(|| format!("{} names no {port}", file.display()))
    }

    /// Returns the folder of its data.
    pub(crate) fn data(&self) -> &Path {
        &self.data
    }

    /// Returns the file with its log.
    pub(crate) fn log(&self) -> PathBuf {
        self.data.with_extension("log")
    }

    /// The file with the key that it checks tokens with.
    pub(crate) fn key_file(&self) -> PathBuf {
        self.data.join("token.key")
    }

    /// Stops the node by SIGTERM, and checks that it exits successfully.
    pub(crate) fn stop(mut self) -> anyhow::Result<()> {
        self.running.check_alive().context("before it was asked to stop")?;
        let pid = self.running.0.id().to_string();
        shell::output(Command::new("kill").args(["-TERM", &pid]))?;
        let start = Instant::now();
        while start.elapsed() < STOP_MAX {
            match self.running.0.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => bail!("`tidegate serve` left with {status} after SIGTERM"),
                None => thread::sleep(POLL_INTERVAL),
            }
        }
        bail!("`tidegate serve` is still there {STOP_MAX:?} after SIGTERM")
    }
}

fn wait_for_client_address(running: &mut Running, file: &Path) -> anyhow::Result<String> {
    let start = Instant::now();
    while start.elapsed() < READY_MAX {
        running.check_alive()?;
        // Unreadable or incomplete means not ready yet: the file may be in the middle of being written.
        if let Ok(text) = fs::read_to_string(file)
            && let Ok(value) = serde_json::from_str::<serde_json::Value>(&text)
            && let Some(address) = value["client"].as_str()
        {
            return Ok(address.to_owned());
        }
        thread::sleep(POLL_INTERVAL);
    }
    bail!("no {} within {READY_MAX:?}", file.display())
}
