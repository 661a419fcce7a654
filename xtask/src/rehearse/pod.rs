//! A pod on this machine: its init containers, the node, and a kubelet that asks, waits, signals and kills as the manifests say.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::process::ExitStatusExt as _,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};

use super::{
    fresh,
    plan::{self, Place, Plan, Probe},
};
use crate::{services, shell};

/// Before an init container that failed is run again, as kubelets do.
const BACK_OFF: &[Duration] = &[Duration::from_secs(1), Duration::from_secs(10), Duration::from_secs(20)];

/// One pod; killed when dropped.
pub(super) struct Pod {
    pub(super) name: String,
    child: Child,
    log: std::path::PathBuf,
    /// The private port in place of each port of the container, by its name.
    ports: Vec<(String, u16)>,
    startup: Asked,
    readiness: Asked,
    liveness: Asked,
    started: bool,
    ready: Option<Instant>,
    leaving: Option<Leaving>,
    ended: bool,
    grace: Duration,
    before: Duration,
}

struct Leaving {
    since: Instant,
    /// When SIGTERM was sent, and how often the readiness probe had asked by then.
    told: Option<(Instant, u64)>,
    /// The readiness probe has seen it, that long after SIGTERM.
    seen: Option<Duration>,
}

/// A probe and what it has heard.
struct Asked {
    probe: Probe,
    next: Instant,
    asked: u64,
    failures: u64,
}

impl Asked {
    fn new(probe: Probe) -> Self {
        Self { next: Instant::now() + probe.initial, asked: 0, failures: 0, probe }
    }

    /// Asks if it is time to; whether it failed as often as it may now, or succeeded.
    fn look(&mut self, ports: &[(String, u16)]) -> Option<Heard> {
        if Instant::now() < self.next {
            return None;
        }
        self.next = Instant::now() + self.probe.period;
        self.asked += 1;
        let port = ports.iter().find(|(name, _)| *name == self.probe.port);
        let status = port.and_then(|(_, port)| get(*port, &self.probe.path, self.probe.timeout));
        if status.is_some_and(|status| (200..400).contains(&status)) {
            self.failures = 0;
            return Some(Heard::Well);
        }
        self.failures += 1;
        (self.failures >= self.probe.failures_max).then_some(Heard::Failed(status))
    }
}

enum Heard {
    Well,
    /// As often as it may; the last status.
    Failed(Option<u16>),
}

impl Pod {
    /// Runs the init containers to their end, and starts the node.
    pub(super) fn begin(plan: &Plan, place: &Place, nth: usize) -> anyhow::Result<Self> {
        let name = format!("{}-{nth}", plan.set);
        let folder = fresh(place.folder.join(&name))?;
        let config = fresh(folder.join("config"))?;
        let volumes =
            [("config", config.clone()), ("keys", place.keys.clone()), ("data", fresh(folder.join("data"))?)];
        let mounts = plan::mounts(&plan.node, &volumes)?;
        // Paths in it are those of the container.
        let lines = plan.settings.lines().map(|line| match line.split_once(" = \"/") {
            Some((key, path)) => {
                let here = plan::placed(&format!("/{}", path.trim_end_matches('"')), &mounts);
                format!("{key} = \"{here}\"")
            }
            None => line.to_owned(),
        });
        fs::write(config.join("tidegate.toml"), lines.collect::<Vec<String>>().join("\n"))?;
        let ports = private_ports(plan)?;
        let sets = sets(&ports, place)?;
        for container in &plan.init {
            let mounts = plan::mounts(container, &volumes)?;
            let (args, environment) = plan::command(container, &name, &mounts)?;
            let run = || shell::output(&mut command(place, &args, &environment, &sets));
            let mut outcome = run();
            for pause in BACK_OFF {
                if outcome.is_ok() {
                    break;
                }
                thread::sleep(*pause);
                outcome = run();
            }
            outcome.with_context(|| format!("{name}: {}", container["name"]))?;
        }
        let (args, environment) = plan::command(&plan.node, &name, &mounts)?;
        let log = folder.join("log");
        let mut command = command(place, &args, &environment, &sets);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(fs::File::create(&log)?);
        let child = command.spawn().with_context(|| format!("starting {}", place.program.display()))?;
        let asked = |probe| anyhow::Ok(Asked::new(plan.probe(probe)?));
        Ok(Self {
            name,
            child,
            log,
            ports,
            startup: asked("startupProbe")?,
            readiness: asked("readinessProbe")?,
            liveness: asked("livenessProbe")?,
            started: false,
            ready: None,
            leaving: None,
            ended: false,
            grace: plan.grace,
            before: plan.before,
        })
    }

    /// Where clients reach it.
    pub(super) fn client_port(&self) -> u16 {
        self.ports.iter().find(|(name, _)| name == "client").map_or(0, |(_, port)| *port)
    }

    /// For how long it has been ready, if it is.
    pub(super) fn ready_for(&self) -> Option<Duration> {
        self.ready.map(|since| since.elapsed())
    }

    /// Whether a Service would send clients to it.
    pub(super) fn is_endpoint(&self) -> bool {
        self.ready.is_some() && self.leaving.is_none()
    }

    /// Whether its process is gone, as it should.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// How long after SIGTERM the readiness probe has seen that it leaves.
    pub(super) fn seen_leaving(&self) -> Option<Duration> {
        self.leaving.as_ref()?.seen
    }

    /// The grace begins, and `preStop` with it.
    pub(super) fn delete(&mut self) -> anyhow::Result<()> {
        if self.leaving.is_some() {
            bail!("{} is leaving already", self.name);
        }
        self.leaving = Some(Leaving { since: Instant::now(), told: None, seen: None });
        Ok(())
    }

    /// Does what is due.
    ///
    /// # Errors
    /// What a kubelet would have to kill the pod for, or find it dead by.
    pub(super) fn look(&mut self) -> anyhow::Result<()> {
        if self.ended {
            return Ok(());
        }
        if let Some(status) = self.child.try_wait()? {
            self.ended = true;
            self.ready = None;
            return match (status.code(), &self.leaving) {
                (Some(0), Some(_)) => Ok(()),
                (Some(code), Some(_)) => Err(self.bad(&format!("it left with exit code {code}"))),
                (None, _) => Err(self.bad(&format!("it was ended by signal {:?}", status.signal()))),
                (Some(code), None) => Err(self.bad(&format!("it ended by itself with exit code {code}"))),
            };
        }
        self.ask()?;
        self.leave()
    }

    fn ask(&mut self) -> anyhow::Result<()> {
        if !self.started {
            match self.startup.look(&self.ports) {
                Some(Heard::Well) => {
                    self.started = true;
                    (self.readiness.next, self.liveness.next) = (Instant::now(), Instant::now());
                }
                Some(Heard::Failed(status)) => return Err(self.failed(&self.startup, status)),
                None => return Ok(()),
            }
        }
        match self.readiness.look(&self.ports) {
            Some(Heard::Well) => _ = self.ready.get_or_insert_with(Instant::now),
            Some(Heard::Failed(status)) => {
                self.ready = None;
                let Some(leaving) = &mut self.leaving else {
                    return Err(self.failed(&self.readiness, status));
                };
                if let Some((told, asked)) = leaving.told {
                    // By the numbers: that this machine stood still meanwhile says nothing of them.
                    let probes = u32::try_from(self.readiness.asked - asked).unwrap_or(u32::MAX);
                    let latest = self.readiness.probe.period.saturating_mul(probes);
                    leaving.seen.get_or_insert(latest.min(told.elapsed()));
                }
            }
            None => {}
        }
        // A pod that leaves is not asked whether it lives.
        if self.leaving.is_none()
            && let Some(Heard::Failed(status)) = self.liveness.look(&self.ports)
        {
            return Err(self.failed(&self.liveness, status));
        }
        Ok(())
    }

    fn leave(&mut self) -> anyhow::Result<()> {
        let Some(leaving) = &mut self.leaving else { return Ok(()) };
        let gone = leaving.since.elapsed();
        if leaving.told.is_none() && gone >= self.before {
            leaving.told = Some((Instant::now(), self.readiness.asked));
            shell::output(Command::new("kill").args(["-TERM", &self.child.id().to_string()]))?;
        }
        if gone >= self.grace {
            self.child.kill()?;
            let grace = self.grace.as_secs();
            return Err(self.bad(&format!("its grace of {grace} s was not enough: SIGKILL")));
        }
        Ok(())
    }

    fn failed(&self, asked: &Asked, status: Option<u16>) -> anyhow::Error {
        let Probe { name, path, port, failures_max, .. } = &asked.probe;
        let heard = status.map_or_else(|| "nothing".to_owned(), |status| format!("status {status}"));
        self.bad(&format!("{name} heard {heard} of {path} on {port}, {failures_max} times"))
    }

    fn bad(&self, what: &str) -> anyhow::Error {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let end = lines[lines.len().saturating_sub(5)..].join("\n    ");
        anyhow::anyhow!("{}: {what}; the end of its log:\n    {end}", self.name)
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A free port in place of each of the container's.
fn private_ports(plan: &Plan) -> anyhow::Result<Vec<(String, u16)>> {
    let ports = plan.node["ports"].as_array().into_iter().flatten();
    let named = ports.filter_map(|port| port["name"].as_str());
    // Held until all are chosen, so that they differ.
    let held = named.map(|name| {
        let port = services::free_port()?;
        Ok((name.to_owned(), port, TcpListener::bind(("127.0.0.1", port))?))
    });
    let held: Vec<(String, u16, TcpListener)> = held.collect::<anyhow::Result<_>>()?;
    Ok(held.into_iter().map(|(name, port, _)| (name, port)).collect())
}

/// Settings by which several pods fit on one machine.
fn sets(ports: &[(String, u16)], place: &Place) -> anyhow::Result<Vec<String>> {
    let port = |wanted: &str| {
        let found = ports.iter().find(|(name, _)| name == wanted);
        found.map(|(_, port)| *port).with_context(|| format!("the pod has no port {wanted}"))
    };
    let (client, link, monitor) = (port("client")?, port("link")?, port("monitor")?);
    let mut sets = place.servers.clone();
    sets.extend([
        format!("listen.client=127.0.0.1:{client}"),
        "listen.admin=127.0.0.1:0".to_owned(),
        format!("listen.monitor=127.0.0.1:{monitor}"),
        format!("link.listen=127.0.0.1:{link}"),
        format!("link.advertise=127.0.0.1:{link}"),
        // They share what is counted for one container.
        "limits.memory_counts_sockets=false".to_owned(),
    ]);
    Ok(sets)
}

fn command(place: &Place, args: &[String], environment: &[(String, String)], sets: &[String]) -> Command {
    let mut command = Command::new(&place.program);
    command.args(args).current_dir(&place.folder);
    command.args(sets.iter().flat_map(|set| ["--set", set]));
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    command
}

/// The status that a GET is answered with, in that time.
fn get(port: u16, path: &str, within: Duration) -> Option<u16> {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let mut stream = TcpStream::connect_timeout(&address, within).ok()?;
    stream.set_read_timeout(Some(within)).ok()?;
    let ask = format!("GET {path} HTTP/1.1\r\nHost: pod\r\nConnection: close\r\n\r\n");
    stream.write_all(ask.as_bytes()).ok()?;
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).ok()?;
    std::str::from_utf8(&answer).ok()?.strip_prefix("HTTP/1.1 ")?.parse().ok()
}
