//! Node of the demo: a child process on a data directory, which can be killed and started again.

use std::{
    env,
    fs::{self, DirBuilder},
    net::TcpListener,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use tokio::{process::Child, time::timeout};

use super::record::User;
use crate::{
    cli::{
        http::Connection,
        up::child::{self, START_MAX},
    },
    node::Addresses,
    private,
};

/// Ports of a node by default.
const USUAL_PORT: u16 = 7_800;
/// Time for the admin port to answer.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for the node to end after SIGTERM; its clients have left before.
const STOP_MAX: Duration = Duration::from_secs(2);

/// Data directory of the demo.
pub(super) struct DataDir {
    pub(super) path: PathBuf,
    /// Whether it is removed at the end.
    pub(super) is_temporary: bool,
}

/// Running node.
pub(super) struct NodeProcess {
    data: PathBuf,
    child: Child,
    pub(super) addresses: Addresses,
}

impl DataDir {
    /// Creates a temporary directory, or uses the given one.
    pub(super) fn open(given: Option<&Path>) -> anyhow::Result<Self> {
        if let Some(path) = given {
            child::check_not_running("a node", path)?;
            let unusable = || format!("the data directory {} (--data) can't be used", path.display());
            private::enter(path).with_context(unusable)?;
            return Ok(Self { path: path.canonicalize().with_context(unusable)?, is_temporary: false });
        }
        let name = format!("tidegate-demo-{:016x}", rand::random::<u64>());
        let path = env::temp_dir().join(name);
        // An existing one could belong to another account.
        DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .with_context(|| format!("{} can't be created: name a directory with --data", path.display()))?;
        Ok(Self { path, is_temporary: true })
    }

    /// Removes a temporary directory.
    pub(super) fn remove(&self) {
        if self.is_temporary {
            // Best effort: the system clears its temporary directory.
            fs::remove_dir_all(&self.path).ok();
        }
    }
}

impl NodeProcess {
    /// Starts a node on the usual ports if they are free, otherwise on free ones; on `port` and the next one if it is
    /// given.
    pub(super) async fn start(data: &Path, port: Option<u16>) -> anyhow::Result<Self> {
        let [client, admin] = ports(port)?;
        let (child, addresses) = spawn(data, client, admin).await?;
        Ok(Self { data: data.to_owned(), child, addresses })
    }

    /// Kills the process with SIGKILL.
    pub(super) async fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill().await.context("the node can't be killed")
    }

    /// Starts the node again, on the same data and ports.
    pub(super) async fn restart(&mut self) -> anyhow::Result<()> {
        let ports = (self.addresses.client.port(), self.addresses.admin.port());
        let (child, addresses) = spawn(&self.data, ports.0, ports.1).await?;
        (self.child, self.addresses) = (child, addresses);
        Ok(())
    }

    /// Fails if the process has ended.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => {
                let log = child::log_file(&self.data);
                bail!("the node ended ({status}):\n{}", child::last_lines(&log))
            }
        }
    }

    /// Returns whether the process runs.
    pub(super) fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Ends the node, by SIGKILL if it takes too long.
    pub(super) async fn stop(&mut self) {
        child::terminate(&self.child);
        if timeout(STOP_MAX, self.child.wait()).await.is_err() {
            self.child.kill().await.ok();
        }
    }

    /// Resets the connections of a user; returns how many there were.
    pub(super) async fn cut(&self, user: User) -> anyhow::Result<u64> {
        let answer = self.post("/v1/dev/cut", &json!({"user": user.name()})).await?;
        Ok(answer["cut"].as_u64().unwrap_or_default())
    }

    /// Asks the node to record each step of the bots' messages, which it does for ten minutes.
    pub(super) async fn trace(&self) -> anyhow::Result<()> {
        for user in User::BOTH {
            self.post("/v1/trace", &json!({"user": user.name()})).await?;
        }
        Ok(())
    }

    async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        let mut admin = Connection::open(&self.addresses.admin.to_string(), ADMIN_TIMEOUT).await?;
        let (status, answer) = admin.request("POST", path, &body.to_string()).await?;
        if status != 200 {
            bail!("POST {path}: {status} {}", answer.trim());
        }
        Ok(serde_json::from_str(&answer)?)
    }
}

/// Returns the client and the admin port.
fn ports(given: Option<u16>) -> anyhow::Result<[u16; 2]> {
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    match given {
        Some(0) => Ok([0, 0]),
        Some(port) => {
            let admin = port.checked_add(1).context("--port is too high")?;
            for port in [port, admin] {
                if !is_free(port) {
                    bail!("port {port} can't be used: choose others with --port");
                }
            }
            Ok([port, admin])
        }
        None if is_free(USUAL_PORT) && is_free(USUAL_PORT + 1) => Ok([USUAL_PORT, USUAL_PORT + 1]),
        None => Ok([0, 0]),
    }
}

async fn spawn(data: &Path, client: u16, admin: u16) -> anyhow::Result<(Child, Addresses)> {
    let log = child::log_file(data);
    let file = private::options().create(true).append(true).open(&log);
    let file = file.with_context(|| format!("{} can't be written", log.display()))?;
    let mut command = child::command()?;
    // The demo shows the node as it is by default.
    for (name, _) in env::vars_os() {
        let is_setting = name.to_str().is_some_and(|name| name.starts_with("TIDEGATE_"));
        if is_setting && name != "TIDEGATE_LOG" {
            command.env_remove(name);
        }
    }
    let data_setting = format!("node.data={}", data.display());
    let listeners = [format!("listen.client=127.0.0.1:{client}"), format!("listen.admin=127.0.0.1:{admin}")];
    for set in listeners.iter().chain([&data_setting, &"admin.development=yes".to_owned()]) {
        command.args(["--set", set]);
    }
    let mut child = child::spawn(command, data, file)?;
    let addresses = child::ready("of the demo", data, &mut child, Instant::now() + START_MAX).await?;
    Ok((child, addresses))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_port_must_be_free_and_followed_by_another() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let why = ports(Some(taken.local_addr().unwrap().port())).unwrap_err().to_string();
        assert!(why.contains("--port"), "{why}");
        assert!(ports(Some(u16::MAX)).is_err());
        assert_eq!(ports(Some(0)).unwrap(), [0, 0]);
    }

    #[test]
    fn temporary_directory_is_closed_to_others_and_removed() {
        use std::os::unix::fs::MetadataExt as _;
        let data = DataDir::open(None).unwrap();
        assert_eq!(data.path.metadata().unwrap().mode() & 0o777, 0o700);
        data.remove();
        assert!(!data.path.exists());
        let given = DataDir::open(Some(&data.path)).unwrap();
        given.remove();
        assert!(given.path.exists(), "a given directory is kept");
        fs::remove_dir_all(given.path).unwrap();
    }
}
