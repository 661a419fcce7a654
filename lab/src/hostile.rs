//! `tidegate-lab hostile`: what each attack of a hostile client costs honest ones.
//!
//! An honest pair exchanges messages on a fresh node, first alone, then next to the attack. The same pair on a raw loop
//! that sends everything back, next to the same bytes at the same times, shows what the machine and its kernel take of
//! that. Node and raw loop run on the CPU of servers, pair and attack on that of clients.

mod attacks;
mod frames;
mod pair;
mod replay;
mod report;
mod swarm;

use std::{
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use data_encoding::HEXLOWER_PERMISSIVE;

use crate::{
    bench::{
        ScratchFolder,
        child::{Launcher, Server},
        host::{self, Environment, Steal},
    },
    node_binary,
};
use attacks::{Attack, Target};
use pair::{HonestPair, PairCost};
use replay::Recording;
use report::{AttackReport, HEAD, HostileReport, Memory, NodeCost, RawCost};

/// Folder in memory, where the time of a sync is the kernel's alone.
const MEMORY_FOLDER: &str = "/dev/shm";
/// Time of an exchange before the first phase, which creates the conversation.
const WARM_UP: Duration = Duration::from_millis(200);
/// Interval between two measurements of memory.
const MEMORY_INTERVAL: Duration = Duration::from_millis(50);
/// Time for the node to free what the attack held, before its memory is read for the last time.
const RECOVERY: Duration = Duration::from_millis(500);

/// Arguments of the command.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Attacks to run; by default all.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub attack: Vec<String>,
    /// Seconds of a phase; each attack has four.
    #[arg(long, default_value_t = 4.0)]
    pub seconds: f64,
    /// Program of the node; by default `tidegate` in the folder of this program.
    #[arg(long, value_name = "PROGRAM")]
    pub node: Option<PathBuf>,
    /// Program of a former version, which is attacked too, for comparison; its figures fail nothing.
    #[arg(long, value_name = "PROGRAM")]
    pub before: Option<PathBuf>,
    /// Settings of the node, handed to `serve --set`.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
    /// Directory for the data of nodes; by default a new one in memory, or among the temporary files.
    #[arg(long)]
    pub directory: Option<PathBuf>,
    /// File for the report as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// File to which a row for each attack is appended, in the form of `docs/results`.
    #[arg(long, value_name = "FILE")]
    pub rows: Option<PathBuf>,
}

/// Attacks the node, and prints what that costs. It fails when an attack costs more than its limits.
pub fn run(args: &Args) -> Result<()> {
    ensure!(args.seconds > 0.0, "a phase needs some time");
    let attacks = attacks::named(&args.attack)?;
    let cpus = host::cpus();
    let (Some(first), Some(last)) = (cpus.first(), cpus.last()) else { bail!("no CPU may be used") };
    let in_memory = Path::new(MEMORY_FOLDER);
    let usual = if in_memory.is_dir() { in_memory.to_owned() } else { std::env::temp_dir() };
    let parent = args.directory.clone().unwrap_or(usual);
    let folder = ScratchFolder(parent.join(format!("tidegate-hostile-{}", std::process::id())));
    fs::create_dir_all(&folder.0).with_context(|| folder.0.display().to_string())?;
    let now = Launcher {
        tidegate: node_binary::find(args.node.as_deref(), "--node")?,
        basics: Vec::new(),
        settings: args.settings.clone(),
        server_cpus: vec![*first],
        client_cpus: vec![*last],
        directory: folder.0.clone(),
        authority: None,
        credentials: None,
    };
    let before = args.before.as_deref().map(|program| node_binary::find(Some(program), "--before"));
    let before = before.transpose()?.map(|tidegate| Launcher { tidegate, ..now.clone() });
    host::pin(&now.client_cpus)?;
    let run = Run { now, before, phase: Duration::from_secs_f64(args.seconds) };
    let steal = Steal::read();
    let environment = Environment::capture(&run.now.server_cpus, &run.now.client_cpus);
    let mut report = HostileReport { environment, attacks: Vec::new() };
    println!("{HEAD}");
    for attack in attacks {
        let outcome = run.measure(attack).with_context(|| attack.name)?;
        println!("{}", outcome.rows());
        report.attacks.push(outcome);
    }
    report.environment.steal_percent = Steal::read().percent_since(steal);
    if let Some(path) = &args.json {
        fs::write(path, serde_json::to_string_pretty(&report)?)
            .with_context(|| path.display().to_string())?;
    }
    if let Some(path) = &args.rows {
        let mut file = File::options().create(true).append(true).open(path)?;
        for outcome in &report.attacks {
            writeln!(file, "{}", outcome.result_line(&report.environment))?;
        }
    }
    let failed = report.attacks.iter().filter(|it| !it.problems.is_empty()).count();
    ensure!(failed == 0, "{failed} of {} attacks cost more than allowed", report.attacks.len());
    Ok(())
}

/// Programs and times of a run.
struct Run {
    now: Launcher,
    before: Option<Launcher>,
    phase: Duration,
}

impl Run {
    /// Measures one attack on the former version, on the present one, and on the raw loop.
    fn measure(&self, attack: &'static Attack) -> Result<AttackReport> {
        let before = match &self.before {
            Some(launcher) => Some(self.on_node(launcher, attack, "before").context("the former version")?.0),
            None => None,
        };
        let (node, recording) = self.on_node(&self.now, attack, "now")?;
        let raw = self.on_raw(attack, &recording).context("the raw loop")?;
        let Attack { name, what, conns, .. } = *attack;
        let (seconds, problems) = (self.phase.as_secs_f64(), Vec::new());
        Ok(AttackReport { name, what, conns, seconds, before, node, raw, ratio: 0.0, problems }.judge())
    }

    fn on_node(&self, launcher: &Launcher, attack: &Attack, label: &str) -> Result<(NodeCost, Recording)> {
        let label = format!("{}-{label}", attack.name);
        let mut server = launcher.tidegate(&label, 1)?;
        let target = target(&server)?;
        let mut pair = HonestPair::on_node(&target)?;
        alone(&mut pair, WARM_UP)?;
        let calm = alone(&mut pair, self.phase)?;
        (attack.prepare)(&target)?;
        let mut memory = Memory { before: host::rss_anon(server.pid())?, ..Memory::default() };
        let stop = AtomicBool::new(false);
        let (attacked, attack_outcome) = thread::scope(|scope| {
            let hostile = scope.spawn(|| swarm::attack(attack, &target, &stop));
            let honest = scope.spawn(|| pair.talk(&stop));
            let began = Instant::now();
            while began.elapsed() < self.phase {
                thread::sleep(MEMORY_INTERVAL.min(self.phase));
                // A node that has ended is reported below.
                memory.peak = memory.peak.max(host::rss_anon(server.pid()).unwrap_or(0));
            }
            stop.store(true, Ordering::Relaxed);
            (joined(honest.join()), joined(hostile.join()))
        });
        server.check()?;
        let (attack_log, recording) = attack_outcome?;
        thread::sleep(RECOVERY);
        memory.after = host::rss_anon(server.pid())?;
        let cost = NodeCost { calm, attacked: attacked?, memory, attack: attack_log };
        drop(pair);
        drop(server);
        fs::remove_dir_all(launcher.directory.join(&label)).ok();
        Ok((cost, recording))
    }

    fn on_raw(&self, attack: &Attack, recording: &Recording) -> Result<RawCost> {
        let server = self.now.raw(&["raw-mirror"])?;
        let mut pair = HonestPair::on_raw(&server.address)?;
        alone(&mut pair, WARM_UP)?;
        let calm = alone(&mut pair, self.phase)?;
        let stop = AtomicBool::new(false);
        let (attacked, bytes) = thread::scope(|scope| {
            let hostile = scope.spawn(|| {
                swarm::give_way();
                Ok(recording.replay(&server.address, attack.is_deaf, &stop))
            });
            let honest = scope.spawn(|| pair.talk(&stop));
            thread::sleep(self.phase);
            stop.store(true, Ordering::Relaxed);
            (joined(honest.join()), joined(hostile.join()))
        });
        Ok(RawCost { calm, attacked: attacked?, bytes: bytes? })
    }
}

/// Lets the pair talk for a time, with nobody else.
fn alone(pair: &mut HonestPair, time: Duration) -> Result<PairCost> {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let honest = scope.spawn(|| pair.talk(&stop));
        thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
        joined(honest.join())
    })
}

/// Returns the result of a thread; its panic is an error.
fn joined<T>(result: thread::Result<Result<T>>) -> Result<T> {
    result.unwrap_or_else(|_| Err(anyhow!("a thread of the measurement panicked")))
}

fn target(server: &Server) -> Result<Target> {
    let key = HEXLOWER_PERMISSIVE.decode(server.key().as_bytes()).context("the key of the node is no hex")?;
    Ok(Target { clients: server.address.clone(), admin: server.second.clone(), key })
}
