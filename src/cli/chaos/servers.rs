//! The servers that a cluster stands on, as `cargo xtask chaos --cluster` started and wrote them down: to be stopped, ended
//! and started again on their data.

use std::{
    fs::{self, File},
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
};
use tokio_postgres::NoTls;

/// How long a server may take to be gone, or to be back.
const PATIENCE: Duration = Duration::from_secs(20);
const TICK: Duration = Duration::from_millis(20);

/// One server, as the list says.
#[derive(Deserialize)]
pub(super) struct Server {
    pub(super) address: std::net::SocketAddr,
    pid: u32,
    command: Vec<String>,
    /// It runs in there, as the folder's owner.
    folder: PathBuf,
    /// Where its process is written down for whoever ends it at last.
    record: PathBuf,
    /// Since we started it again.
    #[serde(skip)]
    child: Option<Child>,
}

/// All three.
pub(super) struct Servers {
    pub(super) kafka: Server,
    pub(super) redis: Server,
    pub(super) postgres: Server,
    /// Of Postgres.
    pub(super) user: String,
}

impl Servers {
    /// What runs.
    pub(super) fn read(list: &Path) -> anyhow::Result<Self> {
        let text = fs::read(list)
            .with_context(|| format!("{}: run `cargo xtask chaos --cluster`", list.display()))?;
        let said: Value = serde_json::from_slice(&text)?;
        let server = |name: &str| -> anyhow::Result<Server> {
            Server::deserialize(&said[name]).with_context(|| format!("{}: {name}", list.display()))
        };
        let user = said["postgres"]["user"].as_str().context("postgres has no user")?.to_owned();
        Ok(Self { kafka: server("kafka")?, redis: server("redis7")?, postgres: server("postgres")?, user })
    }

    /// A statement to Postgres, beside all databases.
    pub(super) async fn execute(&self, sql: &str) -> anyhow::Result<()> {
        let url = format!("postgres://{}@{}/postgres", self.user, self.postgres.address);
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
        let connection = tokio::spawn(connection);
        let done = client.batch_execute(sql).await.with_context(|| sql.to_owned());
        connection.abort();
        done
    }

    /// Starts Postgres again, and waits until it has recovered.
    pub(super) async fn begin_postgres(&mut self) -> anyhow::Result<()> {
        self.postgres.begin().await?;
        let deadline = Instant::now() + PATIENCE;
        while let Err(error) = self.execute("SELECT 1").await {
            if Instant::now() > deadline {
                return Err(error.context("postgres does not recover"));
            }
            tokio::time::sleep(TICK).await;
        }
        Ok(())
    }

    /// Starts Redis again, waits until it has loaded its dump, and has it write another.
    pub(super) async fn begin_redis(&mut self) -> anyhow::Result<()> {
        self.redis.begin().await?;
        let deadline = Instant::now() + PATIENCE;
        while let Err(error) = self.tell_redis("SAVE").await {
            if Instant::now() > deadline {
                return Err(error.context("redis does not come back"));
            }
            tokio::time::sleep(TICK).await;
        }
        Ok(())
    }

    /// A command to Redis that it answers with `+OK`.
    pub(super) async fn tell_redis(&self, command: &str) -> anyhow::Result<()> {
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
    /// A file in its folder.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Sends it a signal.
    pub(super) fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw).context("no process")?;
        if started(self.pid).is_none() {
            bail!("{} ended by itself; see {}", self.command[0], self.file("log").display());
        }
        Ok(kill_process(pid, signal)?)
    }

    /// Sends it a signal that ends it, and waits until it is gone.
    pub(super) async fn end(&mut self, signal: Signal) -> anyhow::Result<()> {
        self.signal(signal)?;
        let deadline = Instant::now() + PATIENCE;
        while started(self.pid).is_some() {
            if let Some(child) = &mut self.child {
                child.try_wait()?;
            }
            if Instant::now() > deadline {
                bail!("{} does not end", self.command[0]);
            }
            tokio::time::sleep(TICK).await;
        }
        self.child = None;
        Ok(())
    }

    /// Starts it again on what it left, and waits until it listens.
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
        let child = command.spawn().with_context(|| format!("starting {program}"))?;
        self.pid = child.id().context("it ended at once")?;
        let since = started(self.pid).context("it ended at once")?;
        fs::write(&self.record, json!({"pid": self.pid, "started": since}).to_string())?;
        self.child = Some(child);
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(self.address).await.is_err() {
            if Instant::now() > deadline {
                bail!("{program} does not come back; see {}", self.file("log").display());
            }
            tokio::time::sleep(TICK).await;
        }
        Ok(())
    }
}

/// Field 22 of `/proc/PID/stat`: when the process started; none when there is no such process, or only what its parent has
/// not collected.
fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in field 2 may hold anything, blanks and brackets too.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    if state == "Z" || state == "X" { None } else { fields.nth(18)?.parse().ok() }
}
