//! Private Redis servers for the suites: on free ports, in folders of their own, ended with the test.
//!
//! Their clock can't be moved, so the suites age what they hold: every stamp in µs and every time to live.

mod faults;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Mutex,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tidegate::config;

use super::{
    port::free_redis_port,
    services::service,
    time::{eventually, eventually_within},
    unique::unique_name,
};

/// Version of the server that a suite runs over.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Version {
    V7,
    V62,
}

/// Running server; ended, and its folder removed, with the test.
pub(crate) struct Server {
    child: Mutex<Option<Child>>,
    version: Version,
    words: Vec<String>,
    pub(crate) port: u16,
    /// Port with TLS, if the server has one.
    tls_port: Option<u16>,
    pub(crate) folder: PathBuf,
}

/// Limit for the start of a server, long for busy machines.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Pattern of a stamp: a whole number of µs of this century, alone in a field or as a score.
const AGE: &str = r"
local cursor, by = '0', tonumber(ARGV[1])
local function stamp(text)
  local n = string.match(text, '^%d+$') and tonumber(text)
  return n and n > 1.5e15 and n < 4e15 and string.format('%.0f', n - by)
end
repeat
  local page = redis.call('SCAN', cursor)
  cursor = page[1]
  for _, key in ipairs(page[2]) do
    local kind = redis.call('TYPE', key).ok
    if kind == 'hash' then
      local all = redis.call('HGETALL', key)
      for at = 1, #all, 2 do
        if stamp(all[at + 1]) then redis.call('HSET', key, all[at], stamp(all[at + 1])) end
      end
    elseif kind == 'zset' then
      local all = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
      for at = 1, #all, 2 do
        local score = string.format('%.0f', tonumber(all[at + 1]))
        if stamp(score) then redis.call('ZADD', key, stamp(score), all[at]) end
      end
    end
    local left = redis.call('PTTL', key)
    if left > 0 then redis.call('PEXPIRE', key, math.floor(left - by / 1000)) end
  end
until cursor == '0'
return 1";

/// Returns the program of a server that `cargo xtask services up` started.
fn program(version: Version) -> String {
    let name = match version {
        Version::V7 => "redis7",
        Version::V62 => "redis62",
    };
    service(name)["command"][0].as_str().expect("services.json says how it was started").to_owned()
}

fn fresh_folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("redis-{}", unique_name()));
    fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// Creates an authority, and a certificate for 127.0.0.1 signed by it.
fn certify(folder: &Path) {
    let openssl = |words: &str| {
        let mut command = Command::new("openssl");
        command.args(words.split(' ')).current_dir(folder).stderr(Stdio::null());
        let status = command.status().expect("openssl is missing: install the package `openssl`");
        assert!(status.success(), "openssl {words}");
    };
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(&format!("req -x509 {key} -keyout ca.key -out ca.pem -days 2 -subj /CN=ca"));
    openssl(&format!("req {key} -keyout key.pem -out csr.pem -subj /CN=redis"));
    fs::write(folder.join("names"), "subjectAltName=IP:127.0.0.1\n").expect("a file");
    openssl("x509 -req -in csr.pem -CA ca.pem -CAkey ca.key -days 2 -extfile names -out cert.pem");
}

impl Server {
    pub(crate) fn start(version: Version) -> Self {
        Self::start_with(version, &[])
    }

    /// Starts a server with additional arguments; it writes nothing to disk by itself.
    pub(crate) fn start_with(version: Version, words: &[&str]) -> Self {
        Self::start_in(fresh_folder(), version, words, None)
    }

    /// Starts a sentinel that watches a master under the name `tidegate`.
    pub(crate) fn sentinel(master: &Self) -> Self {
        let folder = fresh_folder();
        let file = folder.join("sentinel.conf");
        let text = format!(
            "sentinel monitor tidegate 127.0.0.1 {} 1\nsentinel down-after-milliseconds tidegate 2000\n\
             sentinel failover-timeout tidegate 4000\n",
            master.port
        );
        fs::write(&file, text).expect("a file");
        let file = file.display().to_string();
        Self::start_in(folder, master.version, &[&file, "--sentinel"], None)
    }

    /// Starts a server with a certificate for 127.0.0.1, signed by the authority in `ca.pem` of its folder.
    pub(crate) fn tls() -> Self {
        let folder = fresh_folder();
        certify(&folder);
        Self::start_tls(folder, &[])
    }

    fn start_tls(folder: PathBuf, words: &[&str]) -> Self {
        let tls_port = free_redis_port();
        let port = tls_port.to_string();
        let tls = ["--tls-port", &port, "--tls-cert-file", "cert.pem", "--tls-key-file", "key.pem"];
        let more = ["--tls-ca-cert-file", "ca.pem", "--tls-auth-clients", "no"];
        Self::start_in(folder, Version::V7, &[&tls[..], &more[..], words].concat(), Some(tls_port))
    }

    /// Returns the port at which other servers of its cluster reach it.
    fn base_port(&self) -> u16 {
        self.tls_port.unwrap_or(self.port)
    }

    fn start_in(folder: PathBuf, version: Version, words: &[&str], tls_port: Option<u16>) -> Self {
        // Another process may take the port in the meantime: retry with another.
        for _ in 0..5 {
            let server = Self {
                child: Mutex::default(),
                version,
                words: words.iter().map(|word| (*word).to_owned()).collect(),
                port: free_redis_port(),
                tls_port,
                folder: folder.clone(),
            };
            if server.run() {
                return server;
            }
            // The replacement runs in the same folder.
            drop(server.child.lock().unwrap().take());
            std::mem::forget(server);
        }
        panic!("no redis-server stays up; see {}", folder.display());
    }

    /// Starts the process again on the contents of its folder; returns false if it ends at once.
    pub(crate) fn run(&self) -> bool {
        let log = fs::File::create(self.folder.join("log")).expect("a log file");
        let mut command = Command::new(program(self.version));
        command.args(&self.words);
        command.args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
        command.arg("--dir").arg(&self.folder).current_dir(&self.folder);
        command.stdin(Stdio::null()).stdout(log);
        let child = command.spawn().expect("redis-server runs");
        // A server that does not answer is ended as well.
        *self.child.lock().unwrap() = Some(child);
        eventually_within(START_TIMEOUT, "redis-server answers", || {
            let ended = self.child.lock().unwrap().as_mut().expect("it runs").try_wait().expect("a child");
            if ended.is_some() {
                return Some(false);
            }
            let mut conn = self.connection().ok()?;
            redis::cmd("PING").query::<String>(&mut conn).ok().map(|_| true)
        })
    }

    /// Kills the server, as a crash does.
    pub(crate) fn kill(&self) {
        if let Some(mut child) = self.child.lock().unwrap().take() {
            child.kill().and_then(|()| child.wait()).expect("it ends");
        }
    }

    /// Freezes or resumes the server.
    pub(crate) fn signal(&self, signal: Signal) {
        let child = self.child.lock().unwrap();
        let pid = Pid::from_child(child.as_ref().expect("it runs"));
        kill_process(pid, signal).expect("the process is a child");
    }

    pub(crate) fn connection(&self) -> redis::RedisResult<redis::Connection> {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.port))?;
        client.get_connection_with_timeout(Duration::from_secs(2))
    }

    /// Sends a command to the server directly.
    pub(crate) fn ask<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        self.try_ask(words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    pub(crate) fn try_ask<T: redis::FromRedisValue>(&self, words: &[&str]) -> redis::RedisResult<T> {
        let mut cmd = redis::cmd(words[0]);
        cmd.arg(&words[1..]).query(&mut self.connection()?)
    }

    pub(crate) fn run_command<T: redis::FromRedisValue>(&self, cmd: &redis::Cmd) -> T {
        let mut conn = self.connection().expect("it answers");
        cmd.query(&mut conn).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Ages everything that it holds.
    pub(crate) fn age(&self, by: Duration) {
        let _: i64 = self.ask(&["EVAL", AGE, "0", &by.as_micros().to_string()]);
    }

    /// Returns a configuration with the long deadline of suites.
    pub(crate) fn patient(&self) -> config::RedisConfig {
        config::RedisConfig { timeout_ms: CALL_TIMEOUT_MS, ..self.config() }
    }

    pub(crate) fn config(&self) -> config::RedisConfig {
        let urls = vec![format!("redis://127.0.0.1:{}", self.base_port())];
        config::RedisConfig { urls, ..config::RedisConfig::default() }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        drop(fs::remove_dir_all(&self.folder));
    }
}

/// Deadline for suites about the meaning of calls: a busy machine must not turn a reply into `Unknown`. `redis::faults`
/// tests that calls end within the default deadline.
const CALL_TIMEOUT_MS: u64 = 5_000;

pub(crate) fn cluster_config(servers: &[Server]) -> config::RedisConfig {
    let urls = servers.iter().flat_map(|server| server.config().urls).collect();
    config::RedisConfig {
        urls,
        mode: "cluster".to_owned(),
        timeout_ms: CALL_TIMEOUT_MS,
        ..config::RedisConfig::default()
    }
}

const IN_A_CLUSTER: [&str; 4] = ["--cluster-enabled", "yes", "--cluster-node-timeout", "5000"];

/// Starts three masters without replicas, each with a third of the slots.
pub(crate) fn cluster(version: Version) -> Vec<Server> {
    joined((0..3).map(|_| Server::start_with(version, &IN_A_CLUSTER)).collect())
}

/// Starts the same with TLS, also between the servers, under one authority.
pub(crate) fn tls_cluster() -> Vec<Server> {
    let first = fresh_folder();
    certify(&first);
    let more = [(); 2].map(|()| fresh_folder());
    for (folder, file) in
        more.iter().flat_map(|folder| ["ca.pem", "cert.pem", "key.pem"].map(|it| (folder, it)))
    {
        fs::copy(first.join(file), folder.join(file)).expect("a file");
    }
    let words = [&IN_A_CLUSTER[..], &["--tls-cluster", "yes"]].concat();
    joined([first].into_iter().chain(more).map(|folder| Server::start_tls(folder, &words)).collect())
}

/// Joins servers to a cluster, each with a third of the slots.
fn joined(servers: Vec<Server>) -> Vec<Server> {
    let base = servers[0].base_port().to_string();
    for (at, server) in servers.iter().enumerate() {
        // One by one: 6.2 has no slot ranges.
        let slots: Vec<String> = (at * 16_384 / 3..(at + 1) * 16_384 / 3).map(|it| it.to_string()).collect();
        let words = ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots.iter().map(String::as_str));
        let _: String = server.ask(&words.collect::<Vec<_>>());
        let _: String = server.ask(&["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()]);
        let _: String = server.ask(&["CLUSTER", "MEET", "127.0.0.1", &base]);
    }
    for server in &servers {
        eventually("the cluster is complete", || {
            let info: String = server.ask(&["CLUSTER", "INFO"]);
            let whole = info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3");
            (whole && info.contains("cluster_slots_assigned:16384")).then_some(())
        });
    }
    servers
}

/// Adds a replica of one master, and waits until all servers know it.
pub(crate) fn add_copy(master: &Server, others: &[Server]) -> Server {
    let copy = Server::start_with(master.version, &IN_A_CLUSTER);
    let _: String = copy.ask(&["CLUSTER", "MEET", "127.0.0.1", &master.port.to_string()]);
    let id: String = master.ask(&["CLUSTER", "MYID"]);
    for server in others.iter().chain([master, &copy]) {
        eventually("all servers know each other", || {
            let info: String = server.ask(&["CLUSTER", "INFO"]);
            info.contains(&format!("cluster_known_nodes:{}", others.len() + 2)).then_some(())
        });
    }
    eventually("the replica knows its master", || {
        copy.try_ask::<String>(&["CLUSTER", "REPLICATE", &id]).ok()
    });
    copy
}
