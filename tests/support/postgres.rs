//! A Postgres of a test's own, that can be ended and put back to an older state.

use std::{
    fs,
    net::TcpListener,
    os::unix::{fs::chown, process::CommandExt as _},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::process::{Pid, Signal, kill_process};
use tokio_postgres::NoTls;

use super::{eventually, services::service};

/// A server on a port that stays the same; gone with the test.
pub struct OwnPostgres {
    folder: PathBuf,
    port: u16,
    child: Option<Child>,
}

impl OwnPostgres {
    /// Starts an empty one.
    pub fn start() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("tidegate-postgres-{}-{count}", std::process::id()));
        fs::create_dir_all(&folder).expect("a place for files");
        if let Some((user, group)) = user() {
            chown(&folder, Some(user), Some(group)).expect("root may");
        }
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = free.local_addr().expect("it is bound").port();
        drop(free);
        let mut own = Self { folder, port, child: None };
        let words = ["--no-sync", "--auth=trust", "--encoding=UTF8", "--locale=C", "--username=tidegate"];
        own.run(own.command("initdb").args(words).arg("--pgdata").arg(own.folder.join("data")));
        own.go();
        own
    }

    /// For `postgres.url`.
    pub fn url(&self) -> String {
        format!("postgres://tidegate@127.0.0.1:{}/postgres", self.port)
    }

    /// Keeps how it is now, for [`Self::put_back`]; it is away meanwhile.
    pub fn keep_a_copy(&mut self) {
        self.end(Signal::INT);
        self.run(Command::new("cp").arg("-a").arg(self.folder.join("data")).arg(self.folder.join("copy")));
        self.go();
    }

    /// It dies and comes back as it was when the copy was made.
    pub fn put_back(&mut self) {
        self.end(Signal::QUIT);
        fs::remove_dir_all(self.folder.join("data")).expect("it is not used");
        fs::rename(self.folder.join("copy"), self.folder.join("data")).expect("a copy was made");
        self.go();
    }

    fn go(&mut self) {
        let log = fs::File::create(self.folder.join("log")).expect("a place for files");
        let mut server = self.command("postgres");
        server.arg("-D").arg(self.folder.join("data")).args(["-p", &self.port.to_string()]);
        let settings =
            ["listen_addresses=127.0.0.1", "unix_socket_directories=", "fsync=off", "shared_buffers=32MB"];
        server.args(settings.iter().flat_map(|setting| ["-c", setting])).stderr(log).stdout(Stdio::null());
        self.child = Some(server.spawn().expect("postgres runs"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        eventually("postgres answers", || {
            runtime.block_on(tokio_postgres::connect(&self.url(), NoTls)).ok().map(drop)
        });
    }

    fn end(&mut self, signal: Signal) {
        let mut child = self.child.take().expect("it runs");
        kill_process(Pid::from_child(&child), signal).expect("it is ours");
        child.wait().expect("it ends");
    }

    fn command(&self, name: &str) -> Command {
        let programs = service("postgres")["programs"].as_str().expect("services.json says it").to_owned();
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

/// Root may not run it: then it runs as the user of the package.
fn user() -> Option<(u32, u32)> {
    let number = |words: &[&str]| -> u32 {
        let said = Command::new("id").args(words).output().expect("`id` is everywhere");
        String::from_utf8_lossy(&said.stdout).trim().parse().expect("a number")
    };
    (number(&["-u"]) == 0).then(|| (number(&["-u", "postgres"]), number(&["-g", "postgres"])))
}
