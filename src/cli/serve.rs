//! `tidegate serve`: starts a node, prints its addresses and first steps, and drains it on a signal.

use std::{io::IsTerminal as _, net::SocketAddr, path::PathBuf, process::ExitCode};

use anyhow::{Context as _, ensure};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use tidegate_protocol::machine::drain::DrainOutcome;
use tokio::sync::watch;

pub(super) mod banner;
mod signals;

use self::signals::Signals;
use crate::{
    budget::{Admission, raise_open_files},
    config::Config,
    log_limit::{self, announce},
    node::Node,
    private,
};

/// Arguments of `tidegate serve`.
#[derive(clap::Args, Debug, Default)]
pub struct Args {
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE", env = "TIDEGATE_CONFIG")]
    config: Option<PathBuf>,
    /// Data directory (node.data)
    #[arg(long, value_name = "DIR", env = "TIDEGATE_DATA")]
    data: Option<PathBuf>,
    /// Client address (listen.client); port 0 selects a free one
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Admin address (listen.admin); without keys (admin.keys_file) loopback only
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<SocketAddr>,
    /// Threads that hold connections (node.shards); 0 for one per core
    #[arg(long)]
    shards: Option<usize>,
    /// Any configuration key, as section.key=value; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Drain as on a signal when the process with this id, which started this one, ends; for `tidegate up`
    #[arg(long, value_name = "PID", hide = true)]
    leave_with: Option<u32>,
}

/// Serves until a drain completes, which SIGTERM, SIGINT or the admin API requests.
///
/// # Errors
/// The configuration is invalid, the node can't start, or a part of it breaks.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    private::close_new_files();
    // First of all: the first process of a container ignores signals without a handler, and would be killed later.
    let waits = watch::Sender::new(false);
    let signals = Signals::listen(waits.subscribe())?;
    args.leave_with.map_or(Ok(()), leave_with)?;
    let mut sets = args.set.clone();
    sets.extend(args.data.iter().map(|data| format!("node.data={}", data.display())));
    sets.extend(args.listen.iter().map(|address| format!("listen.client={address}")));
    sets.extend(args.admin.iter().map(|address| format!("listen.admin={address}")));
    sets.extend(args.shards.iter().map(|shards| format!("node.shards={shards}")));
    let mut config = Config::load(args.config.as_deref(), &sets)?;
    log_limit::start(&config.log, std::io::stderr().is_terminal())
        .map_err(|why| anyhow::anyhow!("the log can't be started: {why}"))?;
    log_limit::limit_panics();
    if config.node.ids == 0 {
        log_limit::set_node(&config.node.id);
    }
    // Only `tidegate up` names itself.
    config.admin.may_abort = args.leave_with.is_some();
    if let Some(why) = super::plan::grace_problem(&config) {
        tracing::warn!("{why}");
    }
    raise_open_files();
    if let Some(why) = too_few_files(&config) {
        tracing::warn!("{why}");
    }
    let node = Node::start(&config, &waits)?;
    log_limit::set_node(node.id());
    signals.drain_on_signal(&node);
    greet(&node, &config);
    let outcome = match node.wait() {
        Ok(outcome) => outcome,
        Err(why) => anyhow::bail!(why),
    };
    match outcome {
        DrainOutcome::Drained => announce("stopped: every client got everything"),
        DrainOutcome::Cut(conns) => {
            announce(&format!("stopped: the deadline cut {conns} connections (drain.deadline_ms)"))
        }
        DrainOutcome::Fast(conns) => {
            announce(&format!("stopped early by a second signal: {conns} connections were cut"))
        }
    }
    Ok(ExitCode::from(outcome.exit_code()))
}

/// Makes the kernel send SIGTERM once the process that started this one has ended, for any reason.
fn leave_with(starter: u32) -> anyhow::Result<()> {
    set_parent_process_death_signal(Some(Signal::TERM)).context("the signal for the end of the starter")?;
    let parent = getppid().and_then(|pid| u32::try_from(pid.as_raw_nonzero().get()).ok());
    // The starter may have ended before the kernel watched it.
    ensure!(parent == Some(starter), "process {starter}, which started this one, has ended");
    Ok(())
}

/// Returns why the limit of open files is too low for `limits.conns_max`, with the cure; `None` if it is not.
fn too_few_files(config: &Config) -> Option<String> {
    let wanted = config.limits.conns_max;
    let possible = Admission::new(wanted, 0).conns_max();
    (possible < wanted).then(|| {
        format!(
            "limits.conns_max {wanted}: the limit of open files allows {possible} clients; raise it (ulimit -Hn, LimitNOFILE), \
             or lower limits.conns_max, which capacity plans rely on"
        )
    })
}

fn greet(node: &Node, config: &Config) {
    let client = node.addresses.client;
    let data = config.node.data.display();
    banner::line(format_args!("tidegate {} node {}", env!("CARGO_PKG_VERSION"), node.id()));
    let schemes = if config.is_encrypted() { ["wss", "tls"] } else { ["ws", "tcp"] };
    let [websocket, stream] = schemes.map(|scheme| format!("{scheme}://{client}"));
    banner::line(format_args!("  clients  {websocket}  {stream}  (WebSocket, protobuf frames, JSON lines)"));
    banner::line(format_args!(
        "  admin    {}  (console, groups, health, metrics)",
        node.addresses.admin_url()
    ));
    banner::line(format_args!("  data     {data}"));
    if !node.durable {
        banner::line("");
        banner::line(format_args!(
            "  MESSAGES ARE IN MEMORY ONLY: a restart loses them (node.store = memory)."
        ));
    }
    let data = match config.node.data.to_str() {
        Some("tidegate-data") | None => String::new(),
        Some(other) => format!(" --data {}", banner::quoted(other)),
    };
    banner::console(config.console(), config.is_development(), &node.addresses.admin_url());
    if !node.addresses.has_secret {
        // Only the operator's own issuer has a key that signs tokens.
        return;
    }
    let program = banner::program();
    let is_own = config.auth.has_own_secret() && config.node.profile == "single";
    let key = (is_own && client.ip().is_loopback()).then_some(node.token_key.as_slice());
    banner::tokens(key, &format!("{program} token alice{data}"));
    if !client.ip().is_loopback() {
        return;
    }
    banner::line("");
    if config.is_encrypted() {
        banner::line(format_args!("  by hand: docs/tls.md (openssl s_client -connect {client})"));
        return;
    }
    banner::line(format_args!("  or in two more terminals:"));
    banner::line(format_args!("    {program} tail --user bob{data}"));
    banner::line(format_args!("    {program} send --user alice --to bob{data} hello"));
    banner::line(format_args!("  or by hand: docs/quickstart.md (nc {} {})", client.ip(), client.port()));
}
