//! HAProxy and nginx in front of nodes, with the configurations of `docs/tls.md`: clients chat through them, and count for
//! their own addresses.

use std::{
    ffi::OsStr,
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};

use crate::{
    server::{Running, ServerNode},
    services::{certificate, free_port},
    shell::{self, Shell},
    tools,
};

/// Page with the configurations.
const PAGE: &str = "docs/tls.md";

/// `limits.conns_per_ip` of the nodes: the two clients of a chat fit.
const CONNS_PER_IP: usize = 2;

const READY_MAX: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Servers in the configuration of HAProxy.
const SERVERS: usize = 4;
/// Time between two checks of a server by HAProxy, and the checks during which nodes are watched.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
const CHECKS: u32 = 3;

/// Sections that the page leaves out: connections without TLS, by both versions of the PROXY header.
const PLAIN_SECTIONS: &str = "
frontend version_2
    bind VERSION_2
    default_backend version_2_nodes
backend version_2_nodes
    server n1 PLAIN_NODE check send-proxy-v2
frontend version_1
    bind VERSION_1
    default_backend version_1_nodes
backend version_1_nodes
    server n1 PLAIN_NODE check send-proxy
";

/// Scripts of clients, and what they need.
struct Clients<'a> {
    shell: &'a Shell,
    python: PathBuf,
    packages: PathBuf,
    authority: PathBuf,
    /// Number of cases so far; each has addresses and users of its own.
    cases: usize,
}

/// Runs both proxies, and returns the number of cases that passed.
pub(super) fn run(shell: &Shell, folder: &Path) -> anyhow::Result<usize> {
    tools::ensure_program(shell, "haproxy", "haproxy")?;
    tools::ensure_program(shell, "nginx", "nginx")?;
    certificate::make_authority(folder, None)?;
    certificate::sign(folder, None, "proxy", "IP:127.0.0.1", ["proxy.pem", "proxy.key"])?;
    certificate::sign(folder, None, "node", "IP:127.0.0.1", ["node.pem", "node.key"])?;
    // HAProxy reads both from one file.
    let both = [fs::read(folder.join("proxy.pem"))?, fs::read(folder.join("proxy.key"))?].concat();
    fs::write(folder.join("both.pem"), both)?;
    let python = tools::python(shell)?.join("python");
    let packages = tools::node(shell)?;
    let mut clients = Clients { shell, python, packages, authority: folder.join("ca.pem"), cases: 0 };
    haproxy(&mut clients, folder)?;
    nginx(&mut clients, folder)?;
    Ok(clients.cases)
}

fn haproxy(clients: &mut Clients<'_>, folder: &Path) -> anyhow::Result<()> {
    let limit = format!("limits.conns_per_ip={CONNS_PER_IP}");
    let settings = ["listen.proxies=[127.0.0.0/8]".to_owned(), limit];
    let plain = ServerNode::start_with(clients.shell, &folder.join("behind-haproxy"), &settings)?;
    let tls = [
        format!("tls.cert_files=[{}]", folder.join("node.pem").display()),
        format!("tls.key_files=[{}]", folder.join("node.key").display()),
        "tls.required=true".to_owned(),
    ];
    let settings = [&settings[..], &tls].concat();
    let tls = ServerNode::start_with(clients.shell, &folder.join("tls-behind-haproxy"), &settings)?;

    let [ends, passes, version_2, version_1, statistics] = addresses()?;
    let page = block(clients.shell, "haproxy")? + PLAIN_SECTIONS;
    let sections = replace(
        &page,
        &[
            (":8443", &passes),
            (":443", &ends),
            ("/etc/haproxy/chat.pem", &folder.join("both.pem").display().to_string()),
            ("10.0.0.11:7800", &plain.client),
            ("10.0.0.12:7800", &tls.client),
            ("VERSION_2", &version_2),
            ("VERSION_1", &version_1),
            ("PLAIN_NODE", &plain.client),
            ("mode tcp\n", &format!("mode tcp\n    default-server inter {}ms\n", CHECK_INTERVAL.as_millis())),
        ],
    )?;
    let file = folder.join("haproxy.cfg");
    fs::write(&file, format!("global\n    stats socket ipv4@{statistics}\n{sections}"))?;
    let mut command = clients.shell.command("haproxy");
    command.arg("-db").arg("-f").arg(&file);
    let _haproxy = start(&mut command, &folder.join("haproxy.log"), &ends)?;

    clients.chat("HAProxy, version 2", &plain, &version_2)?;
    clients.reach_limit("HAProxy, version 2", &format!("ws://{version_2}"))?;
    clients.chat("HAProxy, version 1", &plain, &version_1)?;
    clients.reach_limit("HAProxy, version 1", &format!("ws://{version_1}"))?;
    clients.chat("HAProxy that ends TLS", &plain, &format!("wss://{ends}"))?;
    clients.reach_limit("HAProxy that ends TLS", &format!("wss://{ends}"))?;
    clients.chat("HAProxy that passes TLS through", &tls, &format!("wss://{passes}"))?;
    clients.reach_limit("HAProxy that passes TLS through", &format!("wss://{passes}"))?;
    expect_healthy(&statistics, [&plain, &tls]).context("health checks of HAProxy")?;
    clients.cases += 1;
    plain.stop()?;
    tls.stop()
}

fn nginx(clients: &mut Clients<'_>, folder: &Path) -> anyhow::Result<()> {
    // Not all of 127.0.0.0/8, where the clients are: the address of a forwarder is no client's.
    let settings =
        ["listen.forwarders=[127.0.0.1/32]".to_owned(), format!("limits.conns_per_ip={CONNS_PER_IP}")];
    let node = ServerNode::start_with(clients.shell, &folder.join("behind-nginx"), &settings)?;
    let [tls] = addresses()?;
    let server = replace(
        &block(clients.shell, "nginx")?,
        &[
            ("listen 443 ssl", &format!("listen {tls} ssl")),
            ("/etc/nginx/chat.pem", &folder.join("proxy.pem").display().to_string()),
            ("/etc/nginx/chat.key", &folder.join("proxy.key").display().to_string()),
            ("10.0.0.11:7800", &node.client),
        ],
    )?;
    // One process, which ends with the step.
    let main = "daemon off;\nmaster_process off;\npid nginx.pid;\nevents {}\n";
    let buffers: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|name| format!("{name}_temp_path {name}_temp;\n"))
        .collect();
    let file = folder.join("nginx.conf");
    fs::write(&file, format!("{main}http {{\naccess_log off;\n{buffers}{server}}}\n"))?;
    let mut command = clients.shell.command("nginx");
    command.arg("-e").arg("stderr").arg("-p").arg(folder).arg("-c").arg(&file);
    let _nginx = start(&mut command, &folder.join("nginx.log"), &tls)?;

    clients.chat("nginx", &node, &format!("wss://{tls}"))?;
    clients.reach_limit("nginx", &format!("wss://{tls}"))?;
    node.stop()
}

impl Clients<'_> {
    /// Two users talk through a proxy, with the library of Node: that of Python uses a TLS connection in two threads at
    /// once, so that one in a hundred upgrades is never sent, whatever the server.
    fn chat(&mut self, proxy: &str, node: &ServerNode, address: &str) -> anyhow::Result<()> {
        self.cases += 1;
        let mut command = self.script("node", "chat.mjs");
        command.args(["ws-proto", address]);
        for person in ["alice", "bob"] {
            let user = format!("{person}-{}", self.cases);
            let token = node.token(&user)?;
            command.args([user, token]);
        }
        shell::run(&mut command).with_context(|| format!("two users don't talk through {proxy}"))
    }

    /// Two addresses reach their limit separately.
    fn reach_limit(&mut self, proxy: &str, url: &str) -> anyhow::Result<()> {
        self.cases += 1;
        let mut command = self.script(&self.python, "limit.py");
        command.args([url, &CONNS_PER_IP.to_string()]);
        command.args([2, 3].map(|host| format!("127.0.{}.{host}", self.cases)));
        shell::run(&mut command)
            .with_context(|| format!("connections through {proxy} don't count for the client's address"))
    }

    fn script(&self, program: impl AsRef<OsStr>, name: &str) -> Command {
        let mut command = self.shell.command(program);
        command.arg(self.shell.root.join("tests/third_party").join(name));
        command.env("TIDEGATE_CA", &self.authority).env("PYTHONDONTWRITEBYTECODE", "1");
        command.env("NODE_EXTRA_CA_CERTS", &self.authority).env("TIDEGATE_NODE_DIR", &self.packages);
        command
    }
}

/// Returns addresses on free ports.
fn addresses<const N: usize>() -> anyhow::Result<[String; N]> {
    let mut addresses = [const { String::new() }; N];
    for address in &mut addresses {
        *address = format!("127.0.0.1:{}", free_port()?);
    }
    Ok(addresses)
}

/// Returns the block of the page in that language.
fn block(shell: &Shell, language: &str) -> anyhow::Result<String> {
    let page = fs::read_to_string(shell.root.join(PAGE))?;
    let (_, after) = page
        .split_once(&format!("```{language}\n"))
        .with_context(|| format!("{PAGE} has no block in the language {language}"))?;
    Ok(after.split_once("```").with_context(|| format!("a block of {PAGE} has no end"))?.0.to_owned())
}

/// Replaces what belongs to this machine; fails if the text lacks any of it.
fn replace(text: &str, pairs: &[(&str, &str)]) -> anyhow::Result<String> {
    let mut replaced = text.to_owned();
    for (from, to) in pairs {
        ensure!(replaced.contains(from), "the configuration in {PAGE} has no `{from}`");
        replaced = replaced.replace(from, to);
    }
    Ok(replaced)
}

/// Starts a proxy that listens on `address`.
fn start(command: &mut Command, log: &Path, address: &str) -> anyhow::Result<Running> {
    let mut running = Running::start(command.stdout(Stdio::null()), log)?;
    let until = Instant::now() + READY_MAX;
    while TcpStream::connect(address).is_err() {
        let failed = running.check_alive().err();
        if failed.is_some() || Instant::now() > until {
            bail!(
                "{:?} doesn't listen on {address}; its log:\n{}",
                command.get_program(),
                shell::tail(log, 20)
            );
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(running)
}

/// Fails unless all servers of HAProxy pass their checks, and their nodes refuse none of these.
fn expect_healthy(statistics: &str, nodes: [&ServerNode; 2]) -> anyhow::Result<()> {
    let before = refusals(nodes)?;
    thread::sleep(CHECK_INTERVAL * CHECKS);
    let after = refusals(nodes)?;
    ensure!(before == after, "the nodes refused checks: before {before:?}, {CHECKS} checks later {after:?}");
    let mut stream = TcpStream::connect(statistics)?;
    stream.set_read_timeout(Some(READY_MAX))?;
    stream.write_all(b"show stat\n")?;
    let mut table = String::new();
    stream.read_to_string(&mut table)?;
    let mut rows = table.trim_start_matches("# ").lines().map(|line| line.split(',').collect::<Vec<_>>());
    let names = rows.next().context("HAProxy shows no statistics")?;
    let column = |row: &[&str], name: &str| {
        let at = names.iter().position(|it| *it == name)?;
        row.get(at).map(|value| (*value).to_owned())
    };
    let servers: Vec<_> = rows.filter(|row| row.get(1) == Some(&"n1")).collect();
    ensure!(servers.len() == SERVERS, "{} servers, {SERVERS} are expected:\n{table}", servers.len());
    for row in servers {
        let [status, failed] = ["status", "chkfail"].map(|name| column(&row, name).unwrap_or_default());
        ensure!(status == "UP" && failed == "0", "{} is {status:?}, and {failed:?} checks failed", row[0]);
    }
    Ok(())
}

/// Returns for each node the connections that it refused, and those whose first bytes were wrong or late.
fn refusals(nodes: [&ServerNode; 2]) -> anyhow::Result<Vec<String>> {
    let names =
        ["tidegate_connections_refused_total", "tidegate_tls_failures_total", "tidegate_openings_late_total"];
    let mut values = Vec::new();
    for node in nodes {
        let metrics = node.metrics()?;
        for name in names {
            let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            values.push(value.with_context(|| format!("/metrics has no {name}:\n{metrics}"))?.to_owned());
        }
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_without_an_expected_value_is_refused() {
        assert_eq!(replace("bind :443", &[(":443", "a:1")]).expect("it is there"), "bind a:1");
        assert!(replace("bind :444", &[(":443", "a:1")]).is_err());
    }
}
