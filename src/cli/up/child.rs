//! Child processes that serve: what `tidegate up` and `tidegate demo` share.

use std::{
    env, fs,
    net::TcpStream,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tokio::process::{Child, Command};

use crate::{
    cli::admin::find::{self, CONNECT_TIMEOUT},
    node::{Addresses, NODE_FILE},
};

/// Time for a node to start.
pub(in crate::cli) const START_MAX: Duration = Duration::from_secs(60);
/// Interval at which starting nodes are polled.
const START_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Fails if a node of that name runs on that directory.
pub(in crate::cli) fn check_not_running(name: &str, data: &Path) -> anyhow::Result<()> {
    let Ok(Addresses { admin, pid, .. }) = find::node(data, "") else { return Ok(()) };
    // A killed node leaves its file, and another program may use its pid or its port by now.
    if is_alive(pid) && TcpStream::connect_timeout(&admin, CONNECT_TIMEOUT).is_ok() {
        bail!("{name} runs already (pid {pid}): stop it, or choose another directory with --data");
    }
    Ok(())
}

fn is_alive(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| test_kill_process(pid).is_ok())
}

/// Returns the command that serves on a data directory and ends with this process; the caller adds its settings.
pub(in crate::cli) fn command() -> anyhow::Result<Command> {
    let mut command = Command::new(env::current_exe().context("the program has no name")?);
    command.args(["serve", "--leave-with", &std::process::id().to_string()]);
    // People read the logs of these nodes.
    command.args(["--set", "log.format=text"]);
    Ok(command)
}

/// Starts the node of a command, with its log in a file. It has a process group of its own, so that Ctrl-C in a
/// terminal does not reach it.
pub(in crate::cli) fn spawn(mut command: Command, data: &Path, log: fs::File) -> anyhow::Result<Child> {
    // A killed node left its file, which would look like the addresses of the new one.
    fs::remove_file(data.join(NODE_FILE)).ok();
    // Standard output would put the node's greeting, with tokens, into the log.
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).process_group(0).kill_on_drop(true);
    command.spawn().context("the node can't be started")
}

/// Waits until a node serves, and returns its addresses.
pub(in crate::cli) async fn ready(
    name: &str,
    data: &Path,
    child: &mut Child,
    until: Instant,
) -> anyhow::Result<Addresses> {
    loop {
        if let Ok(text) = fs::read(data.join(NODE_FILE)) {
            return Ok(serde_json::from_slice(&text)?);
        }
        let log = log_file(data);
        if let Some(status) = child.try_wait()? {
            bail!("node {name} did not start ({status}):\n{}", last_lines(&log));
        }
        if Instant::now() > until {
            bail!(
                "node {name} did not start in time; its log, {}, ends:\n{}",
                log.display(),
                last_lines(&log)
            );
        }
        tokio::time::sleep(START_POLL_INTERVAL).await;
    }
}

/// Returns the file with the log of the node on a data directory.
pub(in crate::cli) fn log_file(data: &Path) -> PathBuf {
    data.join("log")
}

/// Returns the end of a log.
pub(in crate::cli) fn last_lines(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(8)..].join("\n")
}

/// Asks a node to drain and end.
pub(in crate::cli) fn terminate(child: &Child) {
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
    if let Some(pid) = pid.and_then(Pid::from_raw) {
        // Fails only if the node has ended.
        kill_process(pid, Signal::TERM).ok();
    }
}
