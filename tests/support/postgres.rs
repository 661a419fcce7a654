//! Private Postgres of a test, which can be stopped and restored to an older state.

use std::{
    fs,
    net::SocketAddr,
    os::unix::{fs::chown, process::CommandExt as _},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tokio_postgres::NoTls;

use super::{eventually, eventually_within, free_port, services::service_text, unique_name};

/// Limit for the start of a server, long for busy machines.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Server on a port that stays the same; ended with the test.
pub struct OwnPostgres {
    folder: PathBuf,
    port: u16,
    child: Option<Child>,
}

impl OwnPostgres {
    /// Starts an empty server.
    pub fn start() -> Self {
        let mut own = Self::prepare();
        let words = ["--no-sync", "--auth=trust", "--encoding=UTF8", "--locale=C", "--username=tidegate"];
        own.run(own.command("initdb").args(words).arg("--pgdata").arg(own.folder.join("data")));
        own.go();
        own
    }

    fn prepare() -> Self {
        let folder = std::env::temp_dir().join(format!("tidegate-postgres-{}", unique_name()));
        fs::create_dir_all(&folder).expect("the folder is created");
        if let Some((user, group)) = user() {
            chown(&folder, Some(user), Some(group)).expect("root may");
        }
        Self { folder, port: free_port(), child: None }
    }

    /// Starts a server that follows this one by streaming replication.
    pub fn standby(&self) -> Self {
        let mut copy = Self::prepare();
        let words = ["--no-sync", "--checkpoint=fast", "--wal-method=stream", "--write-recovery-conf"];
        let port = format!("--port={}", self.port);
        let place = ["--host=127.0.0.1", port.as_str(), "--username=tidegate"];
        let mut backup = copy.command("pg_basebackup");
        copy.run(backup.args(words).args(place).arg("--pgdata").arg(copy.folder.join("data")));
        copy.go();
        let streams = "SELECT count(*) FROM pg_stat_wal_receiver WHERE status = 'streaming'";
        eventually("it follows", || (copy.number(streams) == 1).then_some(()));
        copy
    }

    /// Cuts a standby off from the server that it follows, so that it lags from here on.
    pub fn cut_off(&self) {
        self.execute("ALTER SYSTEM SET primary_conninfo = ''");
        self.execute("SELECT pg_reload_conf()");
        let receivers = "SELECT count(*) FROM pg_stat_wal_receiver";
        eventually("the standby receives nothing", || (self.number(receivers) == 0).then_some(()));
    }

    /// Promotes a standby.
    pub fn promote(&self) {
        self.execute("SELECT pg_promote(true, 60)");
        eventually("the standby accepts writes", || {
            (self.number("SELECT pg_is_in_recovery()::int::bigint") == 0).then_some(())
        });
    }

    /// Kills the server, as a crash does, without a restart.
    pub fn crash(&mut self) {
        self.end(Signal::QUIT);
    }

    /// Returns the `postgres.url` of this server or another, whichever accepts writes.
    pub fn url_with(&self, other: &Self) -> String {
        format!("postgres://tidegate@127.0.0.1:{},127.0.0.1:{}/postgres", self.port, other.port)
    }

    /// Returns one number from it.
    pub fn number(&self, sql: &str) -> i64 {
        self.with(async |client| {
            client.query_one(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error}")).get(0)
        })
    }

    fn execute(&self, sql: &str) {
        self.with(async |client| {
            client.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
        });
    }

    fn with<T>(&self, ask: impl AsyncFnOnce(&tokio_postgres::Client) -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let (client, connection) =
                tokio_postgres::connect(&self.url(), NoTls).await.expect("Postgres is up");
            tokio::spawn(connection);
            ask(&client).await
        })
    }

    /// Returns its address.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// Returns the value for `postgres.url`.
    pub fn url(&self) -> String {
        format!("postgres://tidegate@127.0.0.1:{}/postgres", self.port)
    }

    /// Copies the present state for [`Self::restore_copy`]; the server is unavailable meanwhile.
    pub fn keep_a_copy(&mut self) {
        self.end(Signal::INT);
        self.run(Command::new("cp").arg("-a").arg(self.folder.join("data")).arg(self.folder.join("copy")));
        self.go();
    }

    /// Restarts the server in the state of the copy.
    pub fn restore_copy(&mut self) {
        self.end(Signal::QUIT);
        fs::remove_dir_all(self.folder.join("data")).expect("the directory is not in use");
        fs::rename(self.folder.join("copy"), self.folder.join("data")).expect("the copy exists");
        self.go();
    }

    fn go(&mut self) {
        let log = fs::File::create(self.folder.join("log")).expect("the folder is created");
        let mut server = self.command("postgres");
        server.arg("-D").arg(self.folder.join("data")).args(["-p", &self.port.to_string()]);
        let settings =
            ["listen_addresses=127.0.0.1", "unix_socket_directories=", "fsync=off", "shared_buffers=32MB"];
        server.args(settings.iter().flat_map(|setting| ["-c", setting])).stderr(log).stdout(Stdio::null());
        self.child = Some(server.spawn().expect("postgres runs"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        eventually_within(START_TIMEOUT, "postgres answers", || {
            runtime.block_on(tokio_postgres::connect(&self.url(), NoTls)).ok().map(drop)
        });
    }

    fn end(&mut self, signal: Signal) {
        let mut child = self.child.take().expect("it runs");
        kill_process(Pid::from_child(&child), signal).expect("the process is a child");
        child.wait().expect("it ends");
    }

    fn command(&self, name: &str) -> Command {
        let programs = service_text("postgres", "programs");
        let mut command = Command::new(PathBuf::from(programs).join(name));
        if let Some((user, group)) = user() {
            command.uid(user).gid(group);
        }
        command.current_dir(&self.folder);
        command
    }

    fn run(&self, command: &mut Command) {
        let output = command.output().expect("it runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

impl Drop for OwnPostgres {
    fn drop(&mut self) {
        if self.child.is_some() {
            self.end(Signal::QUIT);
        }
        fs::remove_dir_all(&self.folder).ok();
    }
}

/// Returns the account of the package, if the test runs as root, which may not run Postgres.
fn user() -> Option<(u32, u32)> {
    let number = |words: &[&str]| -> u32 {
        let said = Command::new("id").args(words).output().expect("`id` is everywhere");
        String::from_utf8_lossy(&said.stdout).trim().parse().expect("a number")
    };
    (number(&["-u"]) == 0).then(|| (number(&["-u", "postgres"]), number(&["-g", "postgres"])))
}
