//! `tidegate up`: a local cluster of nodes against running services, for evaluation.
//!
//! Each node is a process of this same binary, with ports and a data directory of its own; all share a token key and
//! the secret of the link. SIGINT and SIGTERM are passed on to the nodes, and this process ends after them. If it
//! ends first, the nodes drain as well.

use std::{
    env,
    fs::{self, File, TryLockError},
    net::TcpListener,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Instant,
};

use anyhow::{Context as _, bail};
use futures_util::future::join_all;
use serde_json::Value;
use tokio::{
    process::Child,
    signal::unix::{SignalKind, signal},
};

use self::child::START_MAX;
use super::{serve::banner, topics};
use crate::{
    auth,
    config::Config,
    node::{Addresses, NODE_FILE},
    private,
};

pub(super) mod child;

/// Most nodes that one machine is expected to hold.
const NODES_MAX: u16 = 16;
/// File of the token key that the nodes share, below the data directory.
const KEY_FILE: &str = "token.key";
/// File in which `cargo xtask services up` lists the running services, below the build directory.
const SERVICES_FILE: &str = "services/services.json";

/// Arguments of `tidegate up`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Number of nodes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=i64::from(NODES_MAX)))]
    nodes: u16,
    /// Configuration file (TOML) with the addresses of Kafka, Redis and Postgres; default: the services that
    /// `cargo xtask services up` started
    #[arg(long, value_name = "FILE", env = "TIDEGATE_CONFIG")]
    config: Option<PathBuf>,
    /// Directory that holds one data directory per node
    #[arg(long, value_name = "DIR", default_value = "tidegate-cluster")]
    data: PathBuf,
    /// Client port of the first node; the others follow; 0 selects free ports
    #[arg(long, value_name = "PORT", default_value_t = 7800)]
    port: u16,
    /// Any configuration key of all nodes, as section.key=value; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// Node that was started as a child process.
struct NodeProcess {
    name: String,
    data: PathBuf,
    child: Child,
    exit: Option<Exit>,
}

/// Exit of a node process.
#[derive(Clone, Copy)]
struct Exit {
    code: i32,
    /// Whether the node was signalled to stop.
    was_signalled: bool,
}

/// Starts the nodes, and runs until all have ended.
///
/// # Errors
/// The services are unavailable, a node does not start, or a signal arrives before all have started.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    private::close_new_files();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let names: Vec<String> = (1..=args.nodes).map(|nth| format!("n{nth}")).collect();
        // Before any change on the disk: another cluster may run here.
        names.iter().try_for_each(|name| child::check_not_running(name, &args.data.join(name)))?;
        let _lock = lock(&args.data)?;
        let ports = (0..args.nodes).map(|nth| ports(args.port, nth)).collect::<anyhow::Result<Vec<_>>>()?;
        let shared = shared(args)?;
        let config = Config::load(args.config.as_deref(), &shared)?;
        tokio::select! {
            ensured = topics::ensure(&config, &names) => ensured?,
            _ = term.recv() => bail!("stopped before a node was started"),
            _ = int.recv() => bail!("stopped before a node was started"),
        }
        let mut members = start(args, &shared, names.iter().zip(ports))?;
        let ready = tokio::select! {
            ready = all_ready(&mut members) => ready,
            _ = term.recv() => Err(anyhow::anyhow!("stopped while the nodes were starting")),
            _ = int.recv() => Err(anyhow::anyhow!("stopped while the nodes were starting")),
        };
        match ready {
            Ok(addresses) => greet(args, &config, &members, &addresses)?,
            Err(error) => {
                terminate_all(&members);
                wait_all(&mut members, true).await;
                return Err(error);
            }
        }
        let mut was_signalled = false;
        loop {
            // Nodes have process groups of their own, so that Ctrl-C in a terminal reaches them only once, from here.
            tokio::select! {
                _ = term.recv() => {}
                _ = int.recv() => {}
                () = wait_all(&mut members, was_signalled) => return Ok(outcome(&members)),
            }
            eprintln!(
                "{}",
                if was_signalled { "stopping now" } else { "stopping all nodes; again to hurry" }
            );
            terminate_all(&members);
            was_signalled = true;
        }
    })
}

/// Creates the files that all nodes share, below the data directory, and returns the settings that they share.
fn shared(args: &Args) -> anyhow::Result<Vec<String>> {
    let folder = args.data.canonicalize();
    let folder = folder
        .with_context(|| format!("the data directory {} (--data) can't be used", args.data.display()))?;
    let key = |name: &str| -> anyhow::Result<PathBuf> {
        let file = folder.join(name);
        if !file.exists() {
            auth::create_key(&file)?;
        }
        Ok(file)
    };
    let mut sets = match &args.config {
        Some(_) => Vec::new(),
        None => services()?,
    };
    sets.push("node.profile=cluster".to_owned());
    // A key that operators supplied signs no tokens for a console, and what they say of the node holds.
    let is_left_open =
        Config::load(args.config.as_deref(), &[]).map_or(true, |it| it.admin.development == "auto");
    if is_left_open && !args.set.iter().any(|set| set.trim_start().starts_with("auth.key_file")) {
        sets.push("admin.development=yes".to_owned());
    }
    sets.push(format!("auth.key_file={}", key(KEY_FILE)?.display()));
    sets.push(format!("link.secret_file={}", key("link.secret")?.display()));
    sets.extend(args.set.iter().cloned());
    Ok(sets)
}

/// Returns the settings of the services that a checkout runs; none if the environment names them.
fn services() -> anyhow::Result<Vec<String>> {
    if env::var_os("TIDEGATE__KAFKA__BROKERS").is_some() {
        return Ok(Vec::new());
    }
    // The list of services is below the build directory.
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    let list = target.join(SERVICES_FILE);
    let text = fs::read(&list).with_context(|| {
        format!(
            "no services found: name them with --config FILE, or run `cargo xtask services up` ({})",
            list.display()
        )
    })?;
    let services = serde_json::from_slice(&text);
    settings_of(
        &services
            .with_context(|| format!("{} is damaged: run `cargo xtask services up` again", list.display()))?,
    )
}

/// Returns the settings for the services listed in services.json.
fn settings_of(services: &Value) -> anyhow::Result<Vec<String>> {
    let entry = |service: &str, key: &str| {
        let missing =
            || format!("{SERVICES_FILE} does not name {service}: run `cargo xtask services up` again");
        services[service][key].as_str().with_context(missing)
    };
    Ok(vec![
        format!("kafka.brokers=[{}]", entry("kafka", "address")?),
        // There is one broker.
        "kafka.replication=1".to_owned(),
        format!("redis.urls=[{}]", entry("redis7", "url")?),
        format!("postgres.url={}", entry("postgres", "url")?),
    ])
}

/// Locks the data directory while the cluster runs, so that two that start at once do not share it.
fn lock(data: &Path) -> anyhow::Result<File> {
    // Close the directory before any file in it is opened: another account could have planted a link.
    let was_open = private::enter(data)
        .with_context(|| format!("the data directory {} (--data) can't be used", data.display()))?;
    if was_open {
        eprintln!("{} was open to other accounts; its mode is 700 now", data.display());
    }
    let file = data.join("up.lock");
    let unusable = || format!("{} can't be locked: choose another directory with --data", file.display());
    let lock = File::create(&file).with_context(unusable)?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => bail!(
            "another `tidegate up` runs on {}: stop it, or choose another directory with --data",
            data.display()
        ),
        Err(TryLockError::Error(error)) => Err(error).with_context(unusable),
    }
}

fn start<'a>(
    args: &Args,
    shared: &[String],
    nodes: impl Iterator<Item = (&'a String, [u16; 3])>,
) -> anyhow::Result<Vec<NodeProcess>> {
    let mut members: Vec<NodeProcess> = Vec::new();
    for (name, [client, admin, link]) in nodes {
        let data = args.data.join(name);
        let unwritable = || format!("{} can't be written: choose another one with --data", data.display());
        private::create_dir_all(&data).with_context(unwritable)?;
        let log = fs::File::create(child::log_file(&data)).with_context(unwritable)?;
        let mut command = child::command()?;
        command.args(args.config.iter().flat_map(|file| ["--config".as_ref(), file.as_os_str()]));
        for set in shared.iter().cloned().chain([
            format!("node.id={name}"),
            format!("node.data={}", data.display()),
            format!("listen.client=127.0.0.1:{client}"),
            format!("listen.admin=127.0.0.1:{admin}"),
            format!("link.listen=127.0.0.1:{link}"),
        ]) {
            command.args(["--set", &set]);
        }
        let child = child::spawn(command, &data, log)?;
        members.push(NodeProcess { name: name.clone(), data, child, exit: None });
    }
    Ok(members)
}

/// Returns the client, admin and link port of the nth node, all free.
fn ports(first: u16, nth: u16) -> anyhow::Result<[u16; 3]> {
    if first == 0 {
        return Ok([0; 3]);
    }
    // As for a single node, 7800, 7801 and 7802; then 7810 and so on.
    let last = nth.checked_mul(10).and_then(|step| first.checked_add(step)?.checked_add(2));
    let last = last.context("--port is too high")?;
    let ports = [last - 2, last - 1, last];
    for port in ports {
        TcpListener::bind(("127.0.0.1", port))
            .with_context(|| format!("port {port} can't be used: choose others with --port"))?;
    }
    Ok(ports)
}

async fn all_ready(members: &mut [NodeProcess]) -> anyhow::Result<Vec<Addresses>> {
    let until = Instant::now() + START_MAX;
    let mut addresses = Vec::new();
    for member in members {
        addresses.push(child::ready(&member.name, &member.data, &mut member.child, until).await?);
    }
    Ok(addresses)
}

fn terminate_all(members: &[NodeProcess]) {
    members.iter().for_each(|member| child::terminate(&member.child));
}

/// Waits until all have ended. A node that ends on its own leaves the others running, as in a cluster.
async fn wait_all(members: &mut [NodeProcess], was_signalled: bool) {
    join_all(members.iter_mut().map(|member| member.wait(was_signalled))).await;
}

/// Returns the first bad exit code of the nodes that were signalled to stop; of all nodes if none was.
fn outcome(members: &[NodeProcess]) -> ExitCode {
    let exits = || members.iter().filter_map(|member| member.exit);
    let any_signalled = exits().any(|exit| exit.was_signalled);
    let relevant = exits().filter(|exit| exit.was_signalled == any_signalled);
    let code = relevant.map(|exit| exit.code).find(|code| *code != 0);
    ExitCode::from(u8::try_from(code.unwrap_or(0)).unwrap_or(1))
}

impl NodeProcess {
    /// Waits until the node has ended, and reports it.
    async fn wait(&mut self, was_signalled: bool) {
        if self.exit.is_some() {
            return;
        }
        let how = self.child.wait().await;
        let name = &self.name;
        match &how {
            Ok(status) if was_signalled => eprintln!("{name} ended ({status})"),
            Ok(status) => {
                eprintln!(
                    "{name} ended ({status}), the others keep running; its log: {}",
                    self.log().display()
                )
            }
            Err(error) => eprintln!("{name} can't be waited for: {error}"),
        }
        let code = how.ok().and_then(|status| status.code()).unwrap_or(1);
        self.exit = Some(Exit { code, was_signalled });
        // Commands must not connect to it.
        fs::remove_file(self.data.join(NODE_FILE)).ok();
    }

    fn log(&self) -> PathBuf {
        child::log_file(&self.data)
    }
}

fn greet(
    args: &Args,
    config: &Config,
    members: &[NodeProcess],
    addresses: &[Addresses],
) -> anyhow::Result<()> {
    let program = banner::program();
    banner::line("");
    banner::line(format_args!(
        "tidegate {}: a cluster of {} nodes",
        env!("CARGO_PKG_VERSION"),
        members.len()
    ));
    for (member, at) in members.iter().zip(addresses) {
        let (name, data) = (&member.name, member.data.display());
        banner::line(format_args!(
            "  {name:<3} clients {}  admin http://{}  pid {}  data {data}",
            at.client, at.admin, at.pid
        ));
    }
    let (Some(first), Some(last), Some(at)) = (members.first(), members.last(), addresses.first()) else {
        return Ok(());
    };
    let [all, data, one] = [&args.data, &last.data, &first.data]
        .map(|path| banner::quoted(&path.to_string_lossy()).into_owned());
    let own = args.data.join(KEY_FILE).canonicalize().ok().filter(|own| *own == config.auth.key_file);
    let own = own.map(|own| {
        auth::read_key(&own).with_context(|| format!("the token key {} can't be used", own.display()))
    });
    let own = own.transpose()?;
    banner::console(config.console(), config.is_development(), &at.admin_url());
    banner::tokens(own.as_deref(), &format!("{program} token alice --data {one}"));
    banner::line("");
    banner::line(format_args!("  or in more terminals:"));
    banner::line(format_args!("    {program} tail --user bob --data {all}"));
    banner::line(format_args!("    {program} send --user alice --to bob --data {data} hello"));
    banner::line(format_args!("    {program} where bob --data {all}"));
    banner::line(format_args!("    {program} nodes --data {all}"));
    banner::line(format_args!("    {program} owners --data {all}"));
    if members.len() > 1 {
        println!(
            "    kill -9 {}     crashes {}; bob reconnects elsewhere, others take over",
            at.pid, first.name
        );
    }
    banner::line("");
    banner::line(format_args!("  Ctrl-C stops all nodes."));
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn services_json_becomes_a_valid_configuration() {
        let services = json!({
            "kafka": {"address": "127.0.0.1:9092"},
            "redis7": {"url": "redis://127.0.0.1:6379"},
            "postgres": {"url": "postgres://tidegate@127.0.0.1:5432/tidegate"},
        });
        let mut sets = settings_of(&services).unwrap();
        sets.push("node.profile=cluster".into());
        let config = Config::load(None, &sets).unwrap();
        assert_eq!(config.kafka.brokers, ["127.0.0.1:9092"]);
        assert_eq!(config.redis.urls, ["redis://127.0.0.1:6379"]);
        assert_eq!(config.postgres.url, "postgres://tidegate@127.0.0.1:5432/tidegate");
        let why = settings_of(&json!({"redis7": {"url": "x"}})).unwrap_err().to_string();
        assert!(why.contains("kafka"), "{why}");
    }

    #[test]
    fn every_node_has_its_own_ports() {
        assert_eq!(ports(0, 2).unwrap(), [0; 3]);
        assert!(ports(65_530, 1).is_err());
    }

    #[test]
    fn data_directory_holds_one_cluster_at_a_time() {
        let data = env::temp_dir().join(format!("tidegate-up-{}", std::process::id()));
        let first = lock(&data).unwrap();
        let refused = format!("{:#}", lock(&data).unwrap_err());
        assert!(refused.contains("--data"), "{refused}");
        // The lock file of a cluster that has ended blocks nothing.
        first.unlock().unwrap();
        lock(&data).unwrap().unlock().unwrap();
        fs::remove_dir_all(data).unwrap();
    }
}
