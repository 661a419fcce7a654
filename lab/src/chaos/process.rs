//! The node under test: a child process that is killed through its handle, and started again on the same directory.

use std::{
    fs::{self, File},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};
use tidegate::node::{Addresses, NODE_FILE};
use tokio::process::{Child, Command};

use crate::proc_stat;

/// Time for a node to become ready.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for a node to end.
const EXIT_TIMEOUT: Duration = Duration::from_secs(30);

/// File from which the node reads its planted fault of the disk.
const DISK_FILE: &str = "disk-fault";

/// File from which libfaketime reads the shift of the clock.
const CLOCK_FILE: &str = "clock-fault";

/// A wall clock that can be shifted, by the library libfaketime in this file. The monotonic clock is not changed.
#[derive(Clone)]
pub(super) struct Clock(pub(super) PathBuf);

/// A running node.
pub(super) struct Process {
    binary: PathBuf,
    data: PathBuf,
    sets: Vec<String>,
    clock: Option<Clock>,
    child: Child,
    /// Address for clients.
    pub(super) client: SocketAddr,
    /// Address of the admin port.
    pub(super) admin: SocketAddr,
}

impl Process {
    /// Starts a node on `data`. It is killed when this is dropped, not when the lab itself is killed.
    pub(super) async fn start<S: AsRef<str>>(binary: &Path, data: &Path, sets: &[S]) -> anyhow::Result<Self> {
        Self::start_by(binary, data, sets, None).await
    }

    /// Starts a node with a clock that is right at first.
    pub(super) async fn start_by<S: AsRef<str>>(
        binary: &Path,
        data: &Path,
        sets: &[S],
        clock: Option<Clock>,
    ) -> anyhow::Result<Self> {
        let file = data.join(NODE_FILE);
        fs::remove_file(&file).ok();
        let log = File::options().create(true).append(true).open(data.join("node.log"))?;
        let mut command = Command::new(binary);
        command.arg("serve").arg("--data").arg(data);
        command.args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--shards", "2"]);
        let sets: Vec<String> = sets.iter().map(|set| set.as_ref().to_owned()).collect();
        for set in &sets {
            command.arg("--set").arg(set);
        }
        command.arg("--set").arg(format!("fault.disk_file={}", data.join(DISK_FILE).display()));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).kill_on_drop(true);
        if let Some(Clock(library)) = &clock {
            let file = data.join(CLOCK_FILE);
            fs::write(&file, "+0")?;
            command.env("LD_PRELOAD", library).env("FAKETIME_TIMESTAMP_FILE", file);
            command.env("FAKETIME_CACHE_DURATION", "1").env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        }
        let mut child = command.spawn().with_context(|| format!("starting {}", binary.display()))?;
        let deadline = Instant::now() + READY_TIMEOUT;
        loop {
            if let Some(status) = child.try_wait()? {
                bail!("the node ended by itself: {status}; see {}", data.join("node.log").display());
            }
            if let Ok(text) = fs::read(&file)
                && let Ok(Addresses { client, admin, .. }) = serde_json::from_slice(&text)
            {
                let (binary, data) = (binary.into(), data.into());
                return Ok(Self { binary, data, sets, clock, child, client, admin });
            }
            if Instant::now() > deadline {
                let (log, threads) = (data.join("node.log"), child.id().map(threads).unwrap_or_default());
                bail!(
                    "the node is not ready after {READY_TIMEOUT:?}; see {}; its threads:\n{threads}",
                    log.display()
                );
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Starts the node again after it has ended.
    pub(super) async fn restart(&mut self) -> anyhow::Result<()> {
        *self = Self::start_by(&self.binary, &self.data, &self.sets, self.clock.clone()).await?;
        Ok(())
    }

    /// Changes the program of the next start.
    pub(super) fn run_as(&mut self, binary: &Path) {
        self.binary = binary.to_owned();
    }

    /// Changes a setting of the next start; `None` restores its default.
    pub(super) fn set(&mut self, key: &str, value: Option<&str>) {
        self.sets.retain(|set| set.split_once('=').is_none_or(|(other, _)| other != key));
        self.sets.extend(value.map(|value| format!("{key}={value}")));
    }

    /// Shifts the wall clock by a number of seconds, which the node notices within a second.
    pub(super) fn set_clock(&self, seconds: i64) -> anyhow::Result<()> {
        let draft = self.data.join("clock-fault.new");
        fs::write(&draft, format!("{seconds:+}"))?;
        Ok(fs::rename(draft, self.data.join(CLOCK_FILE))?)
    }

    /// Plants a fault of the disk; an empty text removes it.
    pub(super) fn set_disk(&self, fault: &str) -> anyhow::Result<()> {
        let file = self.data.join(DISK_FILE);
        if fault.is_empty() {
            return match fs::remove_file(&file) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
                _ => Ok(()),
            };
        }
        // Renamed into place: a commit must not read half of it.
        let draft = self.data.join("disk-fault.new");
        fs::write(&draft, fault)?;
        Ok(fs::rename(draft, file)?)
    }

    /// Waits for the node to give up, which has to be a failure.
    pub(super) async fn ended(&mut self) -> anyhow::Result<()> {
        let status = tokio::time::timeout(EXIT_TIMEOUT, self.child.wait());
        let status = status.await.context("the node goes on with a broken disk")??;
        if status.success() {
            bail!("the node ended with success, though its disk was broken");
        }
        Ok(())
    }

    /// Returns the exit status of a node that has ended.
    pub(super) fn status(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Kills the node, and waits for its end.
    pub(super) async fn kill(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("the node had ended by itself: {status}; see {}", self.data.join("node.log").display());
        }
        Ok(self.child.kill().await?)
    }

    /// Stops the node with SIGTERM. It has to exit with success.
    pub(super) async fn stop(&mut self) -> anyhow::Result<()> {
        self.signal(Signal::TERM)?;
        let status =
            tokio::time::timeout(EXIT_TIMEOUT, self.child.wait()).await.context("it does not stop")??;
        if !status.success() {
            bail!("the node stopped with {status}; see {}", self.data.join("node.log").display());
        }
        Ok(())
    }

    /// Waits for the end of a node that was sent a signal.
    pub(super) async fn exit(&mut self) -> anyhow::Result<ExitStatus> {
        Ok(self.child.wait().await?)
    }

    /// Sends SIGTERM, and returns the exit status after the drain.
    pub(super) async fn terminate(&mut self) -> anyhow::Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        Ok(tokio::time::timeout(2 * EXIT_TIMEOUT, self.child.wait())
            .await
            .context("the drain does not end")??)
    }

    /// Fails if the node ever panicked.
    pub(super) fn check_log(&self) -> anyhow::Result<()> {
        let log = self.data.join("node.log");
        let text = fs::read_to_string(&log)?;
        match text.lines().find(|line| line.contains("panicked at")) {
            Some(line) => bail!("the node panicked: {line}; see {}", log.display()),
            None => Ok(()),
        }
    }

    /// Sends a signal. The node has not been waited for, so the process id is still its own.
    pub(super) fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let id = self.child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        Ok(kill_process(id.context("the node has ended by itself")?, signal)?)
    }
}

/// Returns a line for each thread of a process: name, state, CPU time in ticks, nice value, and the kernel function in
/// which it waits.
fn threads(process: u32) -> String {
    let Ok(tasks) = fs::read_dir(format!("/proc/{process}/task")) else { return String::new() };
    let thread_state = |task: fs::DirEntry| {
        let read = |file| fs::read_to_string(task.path().join(file)).unwrap_or_default();
        let stat = read("stat");
        // The state is field 3, user and system time are 14 and 15, nice is 19.
        let fields = proc_stat::fields(&stat);
        let field = |number: usize| fields.get(number - 3).copied().unwrap_or("?");
        let (name, wait) = (read("comm"), read("wchan"));
        format!("{} {} {}+{} nice {} {wait}\n", name.trim_end(), field(3), field(14), field(15), field(19))
    };
    tasks.filter_map(Result::ok).map(thread_state).collect()
}
