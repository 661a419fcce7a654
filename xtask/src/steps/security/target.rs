//! Node with planted secrets, keys on its admin port, and clients in plaintext and over TLS.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};

use super::{http, planted::Planted};
use crate::{
    server::{Running, ServerNode},
    shell::{self, Shell},
};

/// Scopes of the key that the checks use.
const SCOPES: &str = "read,content,messages,groups,users,operate,evidence";

/// Longest wait for an answer to an honest client.
const HONEST_MAX: Duration = Duration::from_secs(2);

/// Node under test.
pub(crate) struct TargetNode {
    pub(super) node: ServerNode,
    pub(super) admin: String,
    /// Key of the admin port with all scopes.
    pub(super) key: String,
    pub(super) planted: Planted,
    pub(super) folder: PathBuf,
}

impl TargetNode {
    /// Starts a node with its data below the folder, and with these settings.
    pub(crate) fn start(shell: &Shell, folder: &Path, settings: &[String]) -> anyhow::Result<Self> {
        fs::create_dir_all(folder)?;
        super::make_certificate(shell, folder)?;
        let file = |name: &str| folder.join(name).display().to_string();
        let mut planted = Planted::default();
        let mut key = Command::new(shell.built("tidegate"));
        key.args(["key", "add", "root", "--scope", SCOPES, "--file", &file("admin.keys")]);
        key.args(["--out", &file("root.key")]);
        shell::output(&mut key)?;
        let key = fs::read_to_string(folder.join("root.key"))?.trim().to_owned();
        // After the id, which is no secret.
        planted.add("the admin key", key.get(13..).context("a key has an id and a secret")?);
        let hook = planted.base64("the secret of hooks")?;
        let hooks = folder.join("hooks.secret");
        fs::write(&hooks, format!("whsec_{hook}\n"))?;
        fs::set_permissions(&hooks, fs::Permissions::from_mode(0o600))?;
        planted.add_pem("the key of TLS", &folder.join("tls/node.key"))?;
        // Nothing answers there: the port is free again.
        let closed = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let own = [
            format!("admin.keys_file={}", file("admin.keys")),
            format!("hooks.secret_file={}", file("hooks.secret")),
            format!("hooks.login_url=http://{closed}/login"),
            format!("tls.cert_files=[{}]", file("tls/node.pem")),
            format!("tls.key_files=[{}]", file("tls/node.key")),
            "limits.conns_per_ip=0".to_owned(),
        ];
        let node = ServerNode::start_with(shell, &folder.join("data"), &[&own, settings].concat())?;
        planted.add_file("the key of tokens", &node.key_file())?;
        let admin = node.address("admin")?;
        Ok(Self { node, admin, key, planted, folder: folder.to_owned() })
    }

    /// Returns the address that clients connect to.
    pub(crate) fn client(&self) -> &str {
        &self.node.client
    }

    /// Returns the id of the node's process.
    pub(crate) fn pid(&self) -> u32 {
        self.node.pid()
    }

    /// Stops the node by SIGTERM, and checks that it exits successfully.
    pub(crate) fn stop(self) -> anyhow::Result<()> {
        self.node.stop()
    }

    /// Sends a request with the key to the admin port.
    pub(super) fn ask(&self, method: &str, path: &str, body: &str) -> anyhow::Result<http::HttpAnswer> {
        let key = format!("Authorization: Bearer {}\r\nContent-Type: application/json", self.key);
        http::ask(&self.admin, &format!("{method} {path} HTTP/1.1\r\n{key}"), body)
    }

    /// Checks that the admin port and the client port serve others: a request with the key, and a login over TLS from
    /// another address of this machine. Returns the longer of the two times.
    pub(super) fn serves_others(&self, token: &str) -> anyhow::Result<Duration> {
        let began = Instant::now();
        let nodes = self.ask("GET", "/v1/nodes", "")?;
        let of_admin = began.elapsed();
        ensure!(nodes.status == 200, "GET /v1/nodes: {}", nodes.text);
        let began = Instant::now();
        self.log_in_by_tls(token)?;
        let longest = of_admin.max(began.elapsed());
        ensure!(longest <= HONEST_MAX, "another client had to wait for {longest:?}");
        Ok(longest)
    }

    fn log_in_by_tls(&self, token: &str) -> anyhow::Result<()> {
        let mut client = Command::new("openssl");
        client.args(["s_client", "-quiet", "-bind", "127.0.0.77:0", "-verify_return_error"]);
        client.args(["-servername", "localhost", "-connect", &self.node.client, "-CAfile"]);
        client.arg(self.folder.join("tls/ca.pem")).stdin(Stdio::piped()).stdout(Stdio::piped());
        let client = client.stderr(Stdio::null()).spawn().context("starting openssl s_client")?;
        let mut client = Running(client);
        let mut stdin = client.0.stdin.take().context("stdin is piped")?;
        let stdout = client.0.stdout.take().context("stdout is piped")?;
        writeln!(stdin, "{}", hello(token, "honest"))?;
        let (sender, lines) = mpsc::sync_channel(1);
        thread::spawn(move || {
            let mut line = String::new();
            let read = BufReader::new(stdout).read_line(&mut line);
            // The receiver was dropped if the check stopped waiting.
            drop(sender.send(read.map(|_| line)));
        });
        let line = lines.recv_timeout(HONEST_MAX).context("no answer to a login over TLS")??;
        ensure!(line.contains("\"welcome\""), "a login over TLS: {line}");
        Ok(())
    }

    /// Sends lines of JSON to the client port, each after the answer to the one before; returns the answers.
    pub(super) fn talk(&self, lines: &[String]) -> anyhow::Result<String> {
        let mut stream = TcpStream::connect(&self.node.client)?;
        stream.set_read_timeout(Some(HONEST_MAX))?;
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut answers = String::new();
        for line in lines {
            stream.write_all(format!("{line}\n").as_bytes())?;
            // A refused client gets its reason, and then the end.
            reader.read_line(&mut answers)?;
        }
        Ok(answers)
    }
}

/// Returns the first line of a client.
pub(super) fn hello(token: &str, device: &str) -> String {
    format!("{{\"id\":1,\"hello\":{{\"version\":1,\"token\":\"{token}\",\"device\":\"{device}\"}}}}")
}
