//! `tidegate up`: a cluster of nodes on this machine against running services, for people to try.
//!
//! Each node is a process of this same binary, with ports and a data directory of its own; all of them share a token key and
//! the secret of the link. SIGINT and SIGTERM go on to them, and this process ends when they have; when it ends before, they
//! leave as well.

use std::{
    env,
    fs::{self, File, TryLockError},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{ExitCode, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use futures_util::future::join_all;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::Value;
use tokio::{
    process::{Child, Command},
    signal::unix::{SignalKind, signal},
};

use super::{
    banner,
    find::{self, CONNECT},
    topics,
};
use crate::{
    auth,
    config::Config,
    node::{Addresses, NODE_FILE},
    private,
};

/// Nodes that one machine is made to hold at most.
const NODES_MAX: u16 = 16;
/// How long a node may take to start.
const START_MAX: Duration = Duration::from_secs(60);
/// How often starting nodes are looked at.
const LOOK: Duration = Duration::from_millis(50);
/// The token key of the nodes, below the data directory.
const KEY_FILE: &str = "token.key";
/// Where `cargo xtask services up` writes down what runs, below the folder of builds.
const SERVICES: &str = "services/services.json";

/// Arguments of `tidegate up`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// How many nodes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=i64::from(NODES_MAX)))]
    nodes: u16,
    /// Configuration file (TOML) that says where Kafka, Redis and Postgres are; default: what `cargo xtask services up`
    /// started
    #[arg(long, value_name = "FILE", env = "TIDEGATE_CONFIG")]
    config: Option<PathBuf>,
    /// Directory below which each node gets its own
    #[arg(long, value_name = "DIR", default_value = "tidegate-cluster")]
    data: PathBuf,
    /// Client port of the first node; the others follow. 0 = any free ports
    #[arg(long, value_name = "PORT", default_value_t = 7800)]
    port: u16,
    /// Any configuration key of all nodes, as section.key=value; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// A node that was started.
struct Member {
    name: String,
    data: PathBuf,
    child: Child,
    ended: Option<Ended>,
}

/// How a node ended.
#[derive(Clone, Copy)]
struct Ended {
    code: i32,
    /// Whether it was told to.
    told: bool,
}

/// Starts the nodes, and runs until they have ended.
///
/// # Errors
/// The services are not there, a node does not start, or one ends by itself.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    private::close_new_files();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let names: Vec<String> = (1..=args.nodes).map(|nth| format!("n{nth}")).collect();
        // Before anything is made or changed: there may be a cluster that runs here.
        names.iter().try_for_each(|name| nobody_runs(name, &args.data.join(name)))?;
        let _alone = alone(&args.data)?;
        let ports = (0..args.nodes).map(|nth| ports(args.port, nth)).collect::<anyhow::Result<Vec<_>>>()?;
        let shared = shared(args)?;
        let config = Config::load(args.config.as_deref(), &shared)?;
        tokio::select! {
            made = topics::ensure(&config, &names) => made?,
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
            Ok(addresses) => greet(args, &config.auth.key_file, &members, &addresses)?,
            Err(error) => {
                tell_all(&members);
                wait_all(&mut members, true).await;
                return Err(error);
            }
        }
        let mut told = false;
        loop {
            // The nodes are in process groups of their own, so that Ctrl-C in a terminal is told once, from here.
            tokio::select! {
                _ = term.recv() => {}
                _ = int.recv() => {}
                () = wait_all(&mut members, told) => return Ok(outcome(&members)),
            }
            eprintln!("{}", if told { "stopping now" } else { "stopping all nodes; again to hurry" });
            tell_all(&members);
            told = true;
        }
    })
}

/// What all nodes are told; makes what they share below the data directory.
fn shared(args: &Args) -> anyhow::Result<Vec<String>> {
    let folder = args.data.canonicalize()?;
    let key = |name: &str| -> anyhow::Result<PathBuf> {
        let file = folder.join(name);
        if !file.exists() {
            auth::create_key(&file).with_context(|| format!("{} can't be made", file.display()))?;
        }
        Ok(file)
    };
    let mut sets = match &args.config {
        Some(_) => Vec::new(),
        None => services()?,
    };
    sets.push("node.profile=cluster".to_owned());
    sets.push(format!("auth.key_file={}", key(KEY_FILE)?.display()));
    sets.push(format!("link.secret_file={}", key("link.secret")?.display()));
    sets.extend(args.set.iter().cloned());
    Ok(sets)
}

/// Where the services of a checkout are; the environment may say it instead.
fn services() -> anyhow::Result<Vec<String>> {
    if env::var_os("TIDEGATE__KAFKA__BROKERS").is_some() {
        return Ok(Vec::new());
    }
    // Where builds go, services are.
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    let list = target.join(SERVICES);
    let text = fs::read(&list).with_context(|| {
        format!(
            "no services: name them with --config FILE, or run `cargo xtask services up` ({})",
            list.display()
        )
    })?;
    settings_of(&serde_json::from_slice(&text)?)
}

/// The settings that services.json stands for.
fn settings_of(said: &Value) -> anyhow::Result<Vec<String>> {
    let entry = |service: &str, key: &str| {
        let missing = || format!("{SERVICES} does not name {service}: run `cargo xtask services up` again");
        said[service][key].as_str().with_context(missing)
    };
    Ok(vec![
        format!("kafka.brokers=[{}]", entry("kafka", "address")?),
        // Of one broker.
        "kafka.replication=1".to_owned(),
        format!("redis.urls=[{}]", entry("redis7", "url")?),
        format!("postgres.url={}", entry("postgres", "url")?),
    ])
}

/// Two that start at once would take each other's directories; held as long as the cluster runs.
fn alone(data: &Path) -> anyhow::Result<File> {
    // Closed before anything is opened in it: another account could have put a link there.
    let was_open = private::enter(data)
        .with_context(|| format!("the data directory {} can't be used", data.display()))?;
    if was_open {
        eprintln!("{} was open to other accounts; its mode is 700 now", data.display());
    }
    let file = data.join("up.lock");
    let lock = File::create(&file).with_context(|| file.display().to_string())?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => bail!(
            "another `tidegate up` runs on {}: stop it, or choose another directory with --data",
            data.display()
        ),
        Err(TryLockError::Error(error)) => Err(error).with_context(|| file.display().to_string()),
    }
}

/// Fails while a node of that name runs on that directory.
fn nobody_runs(name: &str, data: &Path) -> anyhow::Result<()> {
    let Ok(Addresses { admin, pid, .. }) = find::node(data, "") else { return Ok(()) };
    // A node that was killed leaves its word, and the port may be somebody else's by now.
    if is_alive(pid) && TcpStream::connect_timeout(&admin, CONNECT).is_ok() {
        bail!("{name} runs already (pid {pid}): stop it, or choose another directory with --data");
    }
    Ok(())
}

fn is_alive(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| test_kill_process(pid).is_ok())
}

fn start<'a>(
    args: &Args,
    shared: &[String],
    nodes: impl Iterator<Item = (&'a String, [u16; 3])>,
) -> anyhow::Result<Vec<Member>> {
    let program = env::current_exe().context("the program has no name")?;
    let mut members: Vec<Member> = Vec::new();
    for (name, [client, admin, link]) in nodes {
        let data = args.data.join(name);
        private::create_dir_all(&data)?;
        // What a node that was killed left is not this one's word.
        fs::remove_file(data.join(NODE_FILE)).ok();
        let log = fs::File::create(data.join("log"))?;
        let mut command = Command::new(&program);
        command
            .args(["serve", "--leave-with", &std::process::id().to_string()])
            .args(args.config.iter().flat_map(|file| ["--config".as_ref(), file.as_os_str()]));
        for set in shared.iter().cloned().chain([
            format!("node.id={name}"),
            format!("node.data={}", data.display()),
            format!("listen.client=127.0.0.1:{client}"),
            format!("listen.admin=127.0.0.1:{admin}"),
            format!("link.listen=127.0.0.1:{link}"),
        ]) {
            command.args(["--set", &set]);
        }
        // Standard output has the node's greeting, with tokens.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).process_group(0).kill_on_drop(true);
        let child = command.spawn().with_context(|| format!("{} can't be run", program.display()))?;
        members.push(Member { name: name.clone(), data, child, ended: None });
    }
    Ok(members)
}

/// The ports of the nth node: for clients, for administration, for its peers.
fn ports(first: u16, nth: u16) -> anyhow::Result<[u16; 3]> {
    if first == 0 {
        return Ok([0; 3]);
    }
    // Like those of a node on its own: 7800, 7801, 7802; then 7810 and so on.
    let last = nth.checked_mul(10).and_then(|step| first.checked_add(step)?.checked_add(2));
    let last = last.context("--port is too high")?;
    let ports = [last - 2, last - 1, last];
    for port in ports {
        TcpListener::bind(("127.0.0.1", port))
            .with_context(|| format!("port {port} can't be used: choose others with --port"))?;
    }
    Ok(ports)
}

async fn all_ready(members: &mut [Member]) -> anyhow::Result<Vec<Addresses>> {
    let until = Instant::now() + START_MAX;
    let mut addresses = Vec::new();
    for member in members {
        addresses.push(loop {
            if let Ok(said) = fs::read(member.data.join(NODE_FILE)) {
                break serde_json::from_slice(&said)?;
            }
            let log = member.log();
            if let Some(status) = member.child.try_wait()? {
                bail!("node {} did not start ({status}):\n{}", member.name, last_lines(&log));
            }
            if Instant::now() > until {
                bail!(
                    "node {} did not start in time; its log, {}, ends:\n{}",
                    member.name,
                    log.display(),
                    last_lines(&log)
                );
            }
            tokio::time::sleep(LOOK).await;
        });
    }
    Ok(addresses)
}

fn last_lines(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(8)..].join("\n")
}

fn tell_all(members: &[Member]) {
    for member in members {
        let pid = member.child.id().and_then(|pid| i32::try_from(pid).ok());
        if let Some(pid) = pid.and_then(Pid::from_raw) {
            // Gone already, else.
            kill_process(pid, Signal::TERM).ok();
        }
    }
}

/// Until all have ended. One that ends by itself leaves the others running, as in a cluster.
async fn wait_all(members: &mut [Member], told: bool) {
    join_all(members.iter_mut().map(|member| member.wait(told))).await;
}

/// The first bad exit code of those that were told to stop; when nobody was, of all.
fn outcome(members: &[Member]) -> ExitCode {
    let ended = || members.iter().filter_map(|member| member.ended);
    let any_told = ended().any(|end| end.told);
    let code = ended().filter(|end| end.told == any_told).map(|end| end.code).find(|code| *code != 0);
    ExitCode::from(u8::try_from(code.unwrap_or(0)).unwrap_or(1))
}

impl Member {
    /// Says so once it has ended.
    async fn wait(&mut self, told: bool) {
        if self.ended.is_some() {
            return;
        }
        let how = self.child.wait().await;
        let name = &self.name;
        match &how {
            Ok(status) if told => eprintln!("{name} ended ({status})"),
            Ok(status) => {
                eprintln!("{name} ended ({status}), the others go on; its log: {}", self.log().display())
            }
            Err(error) => eprintln!("{name} can't be waited for: {error}"),
        }
        let code = how.ok().and_then(|status| status.code()).unwrap_or(1);
        self.ended = Some(Ended { code, told });
        // Nobody is sent to it any more.
        fs::remove_file(self.data.join(NODE_FILE)).ok();
    }

    fn log(&self) -> PathBuf {
        self.data.join("log")
    }
}

fn greet(args: &Args, key: &Path, members: &[Member], addresses: &[Addresses]) -> anyhow::Result<()> {
    let program = banner::program();
    println!();
    println!("tidegate {}: a cluster of {} nodes", env!("CARGO_PKG_VERSION"), members.len());
    for (member, at) in members.iter().zip(addresses) {
        let (name, data) = (&member.name, member.data.display());
        println!("  {name:<3} clients {}  admin http://{}  pid {}  data {data}", at.client, at.admin, at.pid);
    }
    let (Some(first), Some(last), Some(at)) = (members.first(), members.last(), addresses.first()) else {
        return Ok(());
    };
    let [all, data, one] = [&args.data, &last.data, &first.data]
        .map(|path| banner::quoted(&path.to_string_lossy()).into_owned());
    let own = args.data.join(KEY_FILE).canonicalize().ok().filter(|own| own == key);
    let own = own.map(|own| auth::read_key(&own)).transpose().context("the token key")?;
    banner::tokens(own.as_deref(), &format!("{program} token alice --data {one}"));
    println!();
    println!("  try, in more terminals:");
    println!("    {program} tail --user bob --data {all}");
    println!("    {program} send --user alice --to bob --data {data} hello");
    println!("    {program} where bob --data {all}");
    println!("    {program} nodes --data {all}");
    println!("    {program} owners --data {all}");
    if members.len() > 1 {
        println!(
            "    kill -9 {}     ends {} as a crash does; bob goes elsewhere, others take over",
            at.pid, first.name
        );
    }
    println!();
    println!("  Ctrl-C stops all nodes.");
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_services_json_says_is_a_sound_configuration() {
        let said = json!({
            "kafka": {"address": "127.0.0.1:9092"},
            "redis7": {"url": "redis://127.0.0.1:6379"},
            "postgres": {"url": "postgres://tidegate@127.0.0.1:5432/tidegate"},
        });
        let mut sets = settings_of(&said).unwrap();
        sets.push("node.profile=cluster".into());
        let config = Config::load(None, &sets).unwrap();
        assert_eq!(config.kafka.brokers, ["127.0.0.1:9092"]);
        assert_eq!(config.redis.urls, ["redis://127.0.0.1:6379"]);
        assert_eq!(config.postgres.url, "postgres://tidegate@127.0.0.1:5432/tidegate");
        let why = settings_of(&json!({"redis7": {"url": "x"}})).unwrap_err().to_string();
        assert!(why.contains("kafka"), "{why}");
    }

    #[test]
    fn each_node_has_ports_of_its_own() {
        assert_eq!(ports(0, 2).unwrap(), [0; 3]);
        assert!(ports(65_530, 1).is_err());
    }

    #[test]
    fn one_cluster_a_directory() {
        let data = env::temp_dir().join(format!("tidegate-up-{}", std::process::id()));
        let first = alone(&data).unwrap();
        let refused = format!("{:#}", alone(&data).unwrap_err());
        assert!(refused.contains("--data"), "{refused}");
        // What is left of one that has ended is in nobody's way.
        first.unlock().unwrap();
        alone(&data).unwrap().unlock().unwrap();
        fs::remove_dir_all(data).unwrap();
    }
}
