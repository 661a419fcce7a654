//! Pod on this machine: its init containers, the node, and a kubelet that probes, signals and kills by the manifests.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    os::unix::process::ExitStatusExt as _,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};

use super::plan::{self, Place, Plan, Probe};
use crate::{services, shell};

/// Delays before a failed init container is restarted, as kubelets use.
const BACK_OFF: &[Duration] = &[Duration::from_secs(1), Duration::from_secs(10), Duration::from_secs(20)];

/// Pod, killed on drop.
pub(super) struct Pod {
    pub(super) name: String,
    child: Child,
    log: std::path::PathBuf,
    /// Port on this machine for each port of the container, by name.
    ports: Vec<(String, u16)>,
    startup: ProbeState,
    readiness: ProbeState,
    liveness: ProbeState,
    started: bool,
    /// Time at which the node was started.
    began: Instant,
    ready: Option<Instant>,
    /// Whether the pod was ready at least once; until then a failed readiness probe is tolerated for a limited time.
    was_ready: bool,
    leaving: Option<Leaving>,
    ended: bool,
    grace: Duration,
    before: Duration,
}

struct Leaving {
    since: Instant,
    /// Time of SIGTERM, and the number of readiness probes run before it.
    terminated: Option<(Instant, u64)>,
    /// Time from SIGTERM until the readiness probe failed.
    seen: Option<Duration>,
}

/// Probe with the time of its next run and its consecutive failures.
struct ProbeState {
    probe: Probe,
    next: Instant,
    /// The number of probes that have run.
    runs: u64,
    failures: u64,
}

impl ProbeState {
    fn new(probe: Probe) -> Self {
        Self { next: Instant::now() + probe.initial, runs: 0, failures: 0, probe }
    }

    /// Returns the time after which a probe that never succeeds counts as failed.
    fn longest(&self) -> Duration {
        self.probe.initial
            + self.probe.period.saturating_mul(u32::try_from(self.probe.failures_max).unwrap_or(u32::MAX))
    }

    /// Runs the probe if it is due; returns `None` until it succeeds or reaches its failure threshold.
    fn look(&mut self, ports: &[(String, u16)]) -> Option<ProbeResult> {
        if Instant::now() < self.next {
            return None;
        }
        self.next = Instant::now() + self.probe.period;
        self.runs += 1;
        let port = ports.iter().find(|(name, _)| *name == self.probe.port);
        let status = port.and_then(|(_, port)| get(*port, &self.probe.path, self.probe.timeout));
        if status.is_some_and(|status| (200..400).contains(&status)) {
            self.failures = 0;
            return Some(ProbeResult::Well);
        }
        self.failures += 1;
        (self.failures >= self.probe.failures_max).then_some(ProbeResult::Failed(status))
    }
}

enum ProbeResult {
    Well,
    /// Failure threshold reached, with the last status.
    Failed(Option<u16>),
}

impl Pod {
    /// Runs the init containers to completion, then starts the node.
    pub(super) fn begin(plan: &Plan, place: &Place, nth: usize) -> anyhow::Result<Self> {
        let name = format!("{}-{nth}", plan.set);
        let folder = shell::emptied(place.folder.join(&name))?;
        let config = shell::emptied(folder.join("config"))?;
        let data = shell::emptied(folder.join("data"))?;
        let volumes = [("config", config.clone()), ("keys", place.keys.clone()), ("data", data)];
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
        // They are read before the node is started, which an error would leave behind.
        let startup = plan.probe("startupProbe")?;
        let (readiness, liveness) = (plan.probe("readinessProbe")?, plan.probe("livenessProbe")?);
        let (args, environment) = plan::command(&plan.node, &name, &mounts)?;
        let log = folder.join("log");
        let mut command = command(place, &args, &environment, &sets);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(fs::File::create(&log)?);
        let child = command.spawn().with_context(|| format!("starting {}", place.program.display()))?;
        Ok(Self {
            name,
            child,
            log,
            ports,
            startup: ProbeState::new(startup),
            readiness: ProbeState::new(readiness),
            liveness: ProbeState::new(liveness),
            started: false,
            began: Instant::now(),
            ready: None,
            was_ready: false,
            leaving: None,
            ended: false,
            grace: plan.grace,
            before: plan.before,
        })
    }

    /// Returns the client port on this machine.
    pub(super) fn client_port(&self) -> u16 {
        self.ports.iter().find(|(name, _)| name == "client").map_or(0, |(_, port)| *port)
    }

    /// Returns how long the pod has been ready; `None` if it is not.
    pub(super) fn ready_for(&self) -> Option<Duration> {
        self.ready.map(|since| since.elapsed())
    }

    /// Returns whether a Service would send clients to the pod.
    pub(super) fn is_endpoint(&self) -> bool {
        self.ready.is_some() && self.leaving.is_none()
    }

    /// Returns whether the process has ended after its deletion.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Returns the time from SIGTERM until the readiness probe failed.
    pub(super) fn seen_leaving(&self) -> Option<Duration> {
        self.leaving.as_ref()?.seen
    }

    /// Starts the grace period with `preStop`.
    pub(super) fn delete(&mut self) -> anyhow::Result<()> {
        if self.leaving.is_some() {
            bail!("{} is leaving already", self.name);
        }
        self.leaving = Some(Leaving { since: Instant::now(), terminated: None, seen: None });
        Ok(())
    }

    /// Runs one step of the kubelet: the probes and signals that are due.
    ///
    /// # Errors
    /// The pod is dead, or a kubelet would have to kill it.
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
                Some(ProbeResult::Well) => {
                    self.started = true;
                    (self.readiness.next, self.liveness.next) = (Instant::now(), Instant::now());
                }
                Some(ProbeResult::Failed(status)) => return Err(self.failed(&self.startup, status)),
                None => return Ok(()),
            }
        }
        match self.readiness.look(&self.ports) {
            Some(ProbeResult::Well) => {
                self.ready.get_or_insert_with(Instant::now);
                self.was_ready = true;
            }
            // A node that waits for its services is alive and not ready, and a rollout waits for it; here with a limit.
            Some(ProbeResult::Failed(_))
                if !self.was_ready
                    && self.leaving.is_none()
                    && self.began.elapsed() < self.startup.longest() => {}
            Some(ProbeResult::Failed(status)) => {
                self.ready = None;
                let Some(leaving) = &mut self.leaving else {
                    return Err(self.failed(&self.readiness, status));
                };
                if let Some((terminated, runs)) = leaving.terminated {
                    // Judged by the manifests alone, so that a stall of this machine does not count.
                    let probes = u32::try_from(self.readiness.runs - runs).unwrap_or(u32::MAX);
                    let latest = self.readiness.probe.period.saturating_mul(probes);
                    leaving.seen.get_or_insert(latest.min(terminated.elapsed()));
                }
            }
            None => {}
        }
        // Kubelets do not probe the liveness of a terminating pod.
        if self.leaving.is_none()
            && let Some(ProbeResult::Failed(status)) = self.liveness.look(&self.ports)
        {
            return Err(self.failed(&self.liveness, status));
        }
        Ok(())
    }

    fn leave(&mut self) -> anyhow::Result<()> {
        let Some(leaving) = &mut self.leaving else { return Ok(()) };
        let gone = leaving.since.elapsed();
        if leaving.terminated.is_none() && gone >= self.before {
            leaving.terminated = Some((Instant::now(), self.readiness.runs));
            shell::output(Command::new("kill").args(["-TERM", &self.child.id().to_string()]))?;
        }
        if gone >= self.grace {
            self.child.kill()?;
            let grace = self.grace.as_secs();
            return Err(self.bad(&format!("its grace of {grace} s was not enough: SIGKILL")));
        }
        Ok(())
    }

    fn failed(&self, state: &ProbeState, status: Option<u16>) -> anyhow::Error {
        let Probe { name, path, port, failures_max, .. } = &state.probe;
        let answer = status.map_or_else(|| "no answer".to_owned(), |status| format!("status {status}"));
        self.bad(&format!("{name} got {answer} for {path} on {port}, {failures_max} times"))
    }

    fn bad(&self, what: &str) -> anyhow::Error {
        let end = shell::tail(&self.log, 5).replace('\n', "\n    ");
        anyhow::anyhow!("{}: {what}; the end of its log:\n    {end}", self.name)
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        // Both fail only if the process has ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Returns a free port for each port of the container.
fn private_ports(plan: &Plan) -> anyhow::Result<Vec<(String, u16)>> {
    let ports = plan.node["ports"].as_array().into_iter().flatten();
    let named = ports.filter_map(|port| port["name"].as_str());
    named.map(|name| anyhow::Ok((name.to_owned(), services::free_port()?))).collect()
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
        // All pods here share the machine's socket memory, which each would count as its own.
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

/// Returns the HTTP status of a GET within a time limit.
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
