//! Servers of a cluster, as `cargo xtask chaos --cluster` started and listed them. They are stopped, killed, and
//! started again on their data.

use std::{
    fs::{self, File},
    net::SocketAddr,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    process::{Child, Command},
    time::timeout,
};
use tokio_postgres::NoTls;

use crate::proc_stat;

/// Time for a server to end, or to be back: the same as for its first start.
const RESTART_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for a broker to answer whether it is ready.
const READY_REPLY_TIMEOUT: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A server of the list.
#[derive(Deserialize)]
pub(super) struct Server {
    pub(super) address: SocketAddr,
    pid: u32,
    command: Vec<String>,
    /// Working directory of the server, which runs as the directory's owner.
    folder: PathBuf,
    /// File that names the process, for the program that ends it at last.
    record: PathBuf,
    /// Further listeners of a broker, one for each node.
    #[serde(default)]
    pub(super) ways: Vec<Way>,
    /// The process, if this program has started it again.
    #[serde(skip)]
    child: Option<Child>,
}

/// A further listener of a broker, and the address that it advertises, on which a proxy has to listen.
#[derive(Deserialize)]
pub(super) struct Way {
    pub(super) listens: SocketAddr,
    pub(super) advertised: SocketAddr,
}

/// All servers of a cluster.
pub(super) struct Servers {
    /// One broker, or three.
    pub(super) kafka: Vec<Server>,
    pub(super) redis: Server,
    pub(super) postgres: Server,
    /// User of Postgres.
    pub(super) user: String,
}

impl Servers {
    /// Reads the list of running servers.
    pub(super) fn read(list: &Path) -> anyhow::Result<Self> {
        let text = fs::read(list)
            .with_context(|| format!("{}: run `cargo xtask chaos --cluster`", list.display()))?;
        let said: Value = serde_json::from_slice(&text)?;
        let server = |name: &str| -> anyhow::Result<Server> {
            Server::deserialize(&said[name]).with_context(|| format!("{}: {name}", list.display()))
        };
        let user = said["postgres"]["user"].as_str().context("postgres has no user")?.to_owned();
        let brokers = ["kafka", "kafka2", "kafka3"].into_iter().filter(|name| said.get(name).is_some());
        let kafka = brokers.map(server).collect::<anyhow::Result<Vec<_>>>()?;
        Ok(Self { kafka, redis: server("redis7")?, postgres: server("postgres")?, user })
    }

    /// Returns the addresses of the brokers in the form of the settings.
    pub(super) fn brokers(&self) -> String {
        let addresses: Vec<String> = self.kafka.iter().map(|broker| broker.address.to_string()).collect();
        addresses.join(",")
    }

    /// Returns the index of the active controller, by the last vote that the brokers have written down.
    pub(super) fn controller(&self) -> anyhow::Result<usize> {
        let mut newest = None;
        for broker in &self.kafka {
            let file = broker.file("data/__cluster_metadata-0/quorum-state");
            let said: Value =
                serde_json::from_slice(&fs::read(&file)?).with_context(|| file.display().to_string())?;
            // While the brokers vote there is no controller, which is written as -1.
            if let (Some(epoch), Some(id)) = (said["leaderEpoch"].as_u64(), said["leaderId"].as_u64()) {
                newest = newest.max(Some((epoch, id)));
            }
        }
        let (_, id) = newest.context("the brokers have no controller")?;
        // The ids of brokers count from 1.
        Ok(usize::try_from(id)?.saturating_sub(1) % self.kafka.len())
    }

    /// Starts a broker again, and waits until it answers.
    pub(super) async fn begin_kafka(&mut self, nth: usize) -> anyhow::Result<()> {
        let broker = &mut self.kafka[nth];
        broker.begin().await?;
        let deadline = Instant::now() + RESTART_TIMEOUT;
        while !matches!(timeout(READY_REPLY_TIMEOUT, knows_versions(broker.address)).await, Ok(Ok(true))) {
            if Instant::now() > deadline {
                bail!("kafka does not come back:\n{}", broker.last_words());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Executes a statement in the database `postgres`.
    pub(super) async fn execute(&self, sql: &str) -> anyhow::Result<()> {
        let url = format!("postgres://{}@{}/postgres", self.user, self.postgres.address);
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
        let connection = tokio::spawn(connection);
        let done = client.batch_execute(sql).await.with_context(|| sql.to_owned());
        connection.abort();
        done
    }

    /// Has Postgres sync its whole file system after a crash: file by file would take longer than a fault may last.
    pub(super) async fn recover_quickly(&self) {
        // Versions before PostgreSQL 14 do not have the setting.
        if let Err(error) = self.execute("ALTER SYSTEM SET recovery_init_sync_method = 'syncfs'").await {
            eprintln!("chaos: Postgres will recover slowly: {error:#}");
        }
    }

    /// Drops the database of a run.
    pub(super) async fn drop_database(&self, name: &str) -> anyhow::Result<()> {
        self.execute(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await
    }

    /// Starts Postgres again, and waits until it has recovered.
    pub(super) async fn begin_postgres(&mut self) -> anyhow::Result<()> {
        self.postgres.begin().await?;
        let deadline = Instant::now() + RESTART_TIMEOUT;
        while let Err(error) = self.execute("SELECT 1").await {
            if Instant::now() > deadline {
                return Err(error.context("postgres does not recover"));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Starts Redis again, waits until it has loaded its dump, and has it write another one.
    pub(super) async fn begin_redis(&mut self) -> anyhow::Result<()> {
        self.redis.begin().await?;
        let deadline = Instant::now() + RESTART_TIMEOUT;
        while let Err(error) = self.run_redis_command("SAVE").await {
            if Instant::now() > deadline {
                return Err(error.context("redis does not come back"));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Sends Redis a command whose answer has to be `+OK`.
    pub(super) async fn run_redis_command(&self, command: &str) -> anyhow::Result<()> {
        let mut stream = TcpStream::connect(self.redis.address).await?;
        stream.write_all(format!("{command}\r\n").as_bytes()).await?;
        let mut answer = [0; 5];
        stream.read_exact(&mut answer).await?;
        if &answer != b"+OK\r\n" {
            bail!("{command}: {:?}", String::from_utf8_lossy(&answer));
        }
        Ok(())
    }
}

impl Server {
    /// Returns the path of a file in the server's directory.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Sends a signal.
    pub(super) fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw).context("no process")?;
        if started(self.pid).is_none() {
            bail!("{} ended by itself:\n{}", self.command[0], self.last_words());
        }
        Ok(kill_process(pid, signal)?)
    }

    /// Sends a signal that ends the server, and waits for the end.
    pub(super) async fn end(&mut self, signal: Signal) -> anyhow::Result<()> {
        self.signal(signal)?;
        let deadline = Instant::now() + RESTART_TIMEOUT;
        // Waits until the process id is free: Postgres takes a process that was not collected for a running server.
        while Path::new(&format!("/proc/{}", self.pid)).exists() {
            if let Some(child) = &mut self.child {
                child.try_wait()?;
            }
            if Instant::now() > deadline {
                bail!("{} does not end", self.command[0]);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        self.child = None;
        Ok(())
    }

    /// Kills the server and all its children with SIGKILL, as the end of the machine would.
    pub(super) async fn crash(&mut self) -> anyhow::Result<()> {
        let children = children(self.pid)?;
        self.end(Signal::KILL).await?;
        // Some children end with their parent, and their id may be another process's by now.
        for (pid, since) in &children {
            if started(*pid) == Some(*since)
                && let Some(pid) = i32::try_from(*pid).ok().and_then(Pid::from_raw)
            {
                kill_process(pid, Signal::KILL).ok();
            }
        }
        let deadline = Instant::now() + RESTART_TIMEOUT;
        while children.iter().any(|(pid, since)| started(*pid) == Some(*since)) {
            if Instant::now() > deadline {
                bail!("the children of {} do not end", self.command[0]);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Starts the server again on its data, and waits until it listens.
    pub(super) async fn begin(&mut self) -> anyhow::Result<()> {
        let (program, words) = self.command.split_first().context("no command")?;
        let owner = fs::metadata(&self.folder)?;
        let log = File::options().append(true).open(self.file("log"))?;
        let mut command = Command::new(program);
        command.args(words).current_dir(&self.folder).process_group(0);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        if rustix::process::getuid().as_raw() != owner.uid() {
            command.uid(owner.uid()).gid(owner.gid());
        }
        let mut child = command.spawn().with_context(|| format!("starting {program}"))?;
        self.pid = child.id().context("it ended at once")?;
        let since = started(self.pid).context("it ended at once")?;
        fs::write(&self.record, json!({"pid": self.pid, "started": since}).to_string())?;
        let deadline = Instant::now() + RESTART_TIMEOUT;
        while TcpStream::connect(self.address).await.is_err() {
            if let Some(status) = child.try_wait()? {
                bail!("{program} does not come back, {status}:\n{}", self.last_words());
            }
            if Instant::now() > deadline {
                bail!("{program} does not come back:\n{}", self.last_words());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        self.child = Some(child);
        Ok(())
    }

    /// Returns the end of the log, which is deleted with the directory.
    fn last_words(&self) -> String {
        let log = fs::read(self.file("log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }
}

/// Returns whether a broker answers ApiVersions, the first request of every client: then it is ready.
async fn knows_versions(address: SocketAddr) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect(address).await?;
    // Length, api 18, version 0, number 1, no name.
    stream.write_all(&[0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 1, 0xff, 0xff]).await?;
    let mut answer = [0; 10];
    stream.read_exact(&mut answer).await?;
    Ok(answer[4..] == [0, 0, 0, 1, 0, 0])
}

/// Returns the start of a process in the kernel's ticks; `None` if there is no such process, or if only its parent has
/// not collected it.
fn started(pid: u32) -> Option<u64> {
    stat(pid).map(|(_, since)| since)
}

/// Returns the running children of a process, and the start of each.
fn children(parent: u32) -> anyhow::Result<Vec<(u32, u64)>> {
    let numbers = fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let child = |pid: u32| stat(pid).filter(|(of, _)| *of == parent).map(|(_, since)| (pid, since));
    Ok(numbers.filter_map(child).collect())
}

/// Returns the parent and the start of a process, fields 4 and 22 of `/proc/PID/stat`.
fn stat(pid: u32) -> Option<(u32, u64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields = proc_stat::fields(&stat);
    // A process that its parent has not collected.
    if ["Z", "X"].contains(fields.first()?) {
        return None;
    }
    Some((fields.get(1)?.parse().ok()?, fields.get(19)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_found_with_its_start() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("it starts");
        let found = children(std::process::id()).expect("a list");
        let since = started(child.id()).expect("it runs");
        assert!(found.contains(&(child.id(), since)), "{found:?}");
        child.kill().expect("it is ours");
        child.wait().expect("it ends");
        assert_eq!(started(child.id()), None);
    }
}
