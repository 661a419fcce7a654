//! Process of a server that outlives the command that started it, identified by pid and start time.

use std::{
    fs,
    ops::Range,
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

use crate::{cpu, port, shell};

/// Time from the stop signal to SIGKILL; short, because the data is discarded anyway.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Identity of a process: a pid alone may be reused by another program.
pub(super) struct Process {
    pid: u32,
    /// Start time in clock ticks since the boot of the machine, as the kernel reports it.
    started: u64,
    /// Command line that started it; empty if another process did.
    command: Vec<String>,
}

impl Process {
    /// Starts it in a process group of its own, so that Ctrl-C here is not meant for it; its output goes to `log`.
    pub(super) fn start(command: &mut Command, log: &Path) -> anyhow::Result<Self> {
        let log = fs::File::create(log)?;
        command.process_group(0).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let mut child = command.spawn().with_context(|| format!("starting {:?}", command.get_program()))?;
        let pid = child.id();
        let started = started(pid).context("it ended at once")?;
        // Collects the exit status, so that no zombie remains when the server is stopped.
        thread::spawn(move || child.wait());
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let command = words.map(|word| word.to_string_lossy().into_owned()).collect();
        Ok(Self { pid, started, command })
    }

    /// Returns the process that `write` recorded there, if it is still running.
    pub(super) fn recorded(file: &Path) -> Option<Self> {
        let value: Value = serde_json::from_slice(&fs::read(file).ok()?).ok()?;
        // After a restart of the machine the same pid and start time may be another process. The lab, which starts servers
        // again, writes none.
        if value.get("boot").is_some_and(|it| *it != boot()) {
            return None;
        }
        let pid = u32::try_from(value["pid"].as_u64()?).ok()?;
        let process = Self { pid, started: value["started"].as_u64()?, command: Vec::new() };
        process.runs().then_some(process)
    }

    pub(super) fn write(&self, file: &Path) -> anyhow::Result<()> {
        Ok(fs::write(file, json!({"pid": self.pid, "started": self.started, "boot": boot()}).to_string())?)
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    pub(super) fn command(&self) -> &[String] {
        &self.command
    }

    pub(super) fn runs(&self) -> bool {
        started(self.pid) == Some(self.started)
    }

    /// Stops the process, with that signal first; returns once it has ended.
    pub(super) fn stop(&self, signal: &str) -> anyhow::Result<()> {
        for (signal, timeout) in [(signal, STOP_TIMEOUT), ("-KILL", KILL_TIMEOUT)] {
            if self.runs() {
                // The process may end between the check and the signal.
                drop(shell::output(Command::new("kill").args([signal, &self.pid.to_string()])));
            }
            let until = Instant::now() + timeout;
            while self.runs() && Instant::now() < until {
                thread::sleep(POLL_INTERVAL);
            }
        }
        if self.runs() {
            bail!("process {} does not end", self.pid);
        }
        Ok(())
    }
}

/// Returns the boot time of the machine.
fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}

/// Field 22 of `/proc/PID/stat`; none when there is no such process, or only one that its parent has not collected.
fn started(pid: u32) -> Option<u64> {
    // The state is field 3.
    let fields = cpu::stat(pid)?;
    let state = fields.first()?;
    if state == "Z" || state == "X" { None } else { fields.get(19)?.parse().ok() }
}

/// Ports below the ephemeral range, so that a restarted server finds its own port free.
const PORTS: Range<u16> = 10_000..20_000;

/// Reserves a port of the loopback address for a server that this process starts.
pub(crate) fn free_port() -> anyhow::Result<u16> {
    port::find(PORTS, &[0]).context("no port is free")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_start_and_stopped_alone() {
        let folder = std::env::temp_dir().join(format!("tidegate-xtask-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let [file, log] = ["process.json", "log"].map(|name| folder.join(name));
        let sleeper = || Process::start(Command::new("sleep").arg("60"), &log).expect("it starts");
        let (one, other) = (sleeper(), sleeper());
        one.write(&file).expect("it is written");
        assert_eq!(Process::recorded(&file).expect("it runs").pid(), one.pid());
        let by_lab = json!({"pid": one.pid, "started": one.started}).to_string();
        fs::write(&file, by_lab).expect("it is written");
        assert_eq!(Process::recorded(&file).expect("it runs").pid(), one.pid());
        let before = json!({"pid": one.pid, "started": one.started, "boot": "another"}).to_string();
        fs::write(&file, before).expect("it is written");
        assert!(Process::recorded(&file).is_none(), "the machine has started again since");
        let namesake = Process { pid: other.pid, started: other.started + 1, command: Vec::new() };
        namesake.write(&file).expect("it is written");
        assert!(Process::recorded(&file).is_none(), "a pid that was given again is another process");
        namesake.stop("-TERM").expect("there is nothing to stop");
        one.stop("-TERM").expect("it ends");
        assert!(!one.runs() && other.runs(), "only what was meant");
        other.stop("-TERM").expect("it ends");
        fs::remove_dir_all(folder).expect("the folder is ours");
    }
}
