//! Step `security`, and `cargo xtask security`: an attacker's view of a node, from outside. testssl.sh judges the ports
//! with TLS, and schemathesis the admin API; connections that never finish what they begin must neither stay nor keep
//! others out; and no output has a secret of an input.

mod api;
mod floods;
mod http;
mod planted;
mod secrets;
mod slow;
mod target;
mod testssl;

use std::{path::Path, process::Command, thread};

use anyhow::{Context as _, bail};

use self::planted::Planted;
pub(crate) use self::target::TargetNode;
use crate::{
    server::ServerNode,
    shell::{self, Shell},
    tools,
};

/// How much is checked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Protocols, renegotiation and compression of the client port, few requests, and small floods: a step of the test run.
    Short,
    /// All that testssl.sh knows about both ports with TLS, many requests of schemathesis, and large floods.
    Full,
}

/// Time for a TLS handshake at the node under test, in ms.
const HANDSHAKE_MS: u64 = 3_000;

/// Log filter of the nodes under test: secrets are searched in lines of all levels.
const LOG_FILTER: &str = "log.filter=info,tidegate=trace,tidegate_protocol=trace";

/// Node whose ports have TLS.
struct TlsTarget {
    node: ServerNode,
    admin: String,
    monitor: String,
}

/// Runs the short form, and returns the number of checks.
pub(crate) fn short(shell: &Shell) -> anyhow::Result<usize> {
    run(shell, Extent::Short)
}

/// Runs the checks, and returns their number. The TLS of one node and the requests to another one are checked in parallel,
/// because both mostly wait.
pub(crate) fn run(shell: &Shell, extent: Extent) -> anyhow::Result<usize> {
    tools::ensure_program(shell, "testssl", "testssl.sh")?;
    tools::schemathesis(shell)?;
    let folder = shell.scratch("security")?;
    make_certificate(shell, &folder)?;
    thread::scope(|scope| {
        let requests = scope.spawn(|| check_requests(shell, &folder, extent));
        let tls = check_tls(shell, &folder, extent).context("TLS");
        let requests = requests.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        match (tls, requests.context("requests")) {
            (Ok(tls), Ok(requests)) => Ok(tls + requests),
            (Err(tls), Err(requests)) => bail!("{tls:#}\n{requests:#}"),
            (Err(error), _) | (_, Err(error)) => Err(error),
        }
    })
}

/// Makes a certificate for `localhost` in the folder `tls`.
fn make_certificate(shell: &Shell, folder: &Path) -> anyhow::Result<()> {
    let out = folder.join("tls");
    shell::output(Command::new(shell.built("tidegate")).arg("cert").arg("--out").arg(&out))?;
    Ok(())
}

fn check_requests(shell: &Shell, folder: &Path, extent: Extent) -> anyhow::Result<usize> {
    let settings = ["node.store=memory", LOG_FILTER];
    let mut target = TargetNode::start(shell, &folder.join("requests"), &settings.map(str::to_owned))?;
    let checks = attack(shell, &mut target, extent)?;
    target.stop()?;
    Ok(checks)
}

/// Runs all checks of requests against a node, and returns their number.
pub(crate) fn attack(shell: &Shell, target: &mut TargetNode, extent: Extent) -> anyhow::Result<usize> {
    let mut checks = api::run(shell, target, &target.folder.join("api"), extent)?;
    checks += slow::run(target, extent)?;
    checks += secrets::run(target)?;
    Ok(checks)
}

fn check_tls(shell: &Shell, folder: &Path, extent: Extent) -> anyhow::Result<usize> {
    let target = start(shell, folder)?;
    let authority = folder.join("tls/ca.pem");
    let mut checks = testssl::run(&target.node.client, &authority, &folder.join("client.json"), extent)?;
    if extent == Extent::Full {
        checks += testssl::run(&target.admin, &authority, &folder.join("admin.json"), extent)?;
    }
    checks += floods::run(&target, &authority, extent)?;
    let mut planted = Planted::default();
    planted.add_pem("the key of TLS", &folder.join("tls/node.key"))?;
    planted.add_file("the key of tokens", &target.node.key_file())?;
    checks += planted.check_log(&target.node)?;
    target.node.stop()?;
    Ok(checks)
}

/// Starts a node with the certificate on the client and the admin port.
fn start(shell: &Shell, folder: &Path) -> anyhow::Result<TlsTarget> {
    let (cert, key) = (folder.join("tls/node.pem"), folder.join("tls/node.key"));
    let settings = [
        format!("tls.cert_files=[{}]", cert.display()),
        format!("tls.key_files=[{}]", key.display()),
        "tls.required=true".to_owned(),
        format!("tls.handshake_ms={HANDSHAKE_MS}"),
        format!("admin.tls_cert={}", cert.display()),
        format!("admin.tls_key={}", key.display()),
        "listen.monitor=127.0.0.1:0".to_owned(),
        "limits.conns_per_ip=0".to_owned(),
        "node.store=memory".to_owned(),
        LOG_FILTER.to_owned(),
    ];
    let node = ServerNode::start_with(shell, &folder.join("node"), &settings)?;
    let (admin, monitor) = (node.address("admin")?, node.address("monitor")?);
    node.address("admin_certificate").context("the admin port has no TLS")?;
    Ok(TlsTarget { node, admin, monitor })
}
