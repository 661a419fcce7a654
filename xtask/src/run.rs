//! Runner of the steps: parallel lanes, each step a process with a log and a time limit. A failure does not end the run.

mod report;
mod speed;

use std::{
    collections::BTreeMap,
    env,
    fs::{self, File},
    os::unix::process::{CommandExt as _, ExitStatusExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use parking_lot::Mutex;
use serde_json::{Value, json};

use self::report::StepOutcome;
use crate::{
    cpu, evidence, interrupt, services,
    shell::{self, Shell},
    steps::{self, Cases, Needs, PHASES, STEPS, TestStep},
};

/// A step that takes longer than this many times its budget fails; of a gentle one the CPU time counts. The same build
/// took 450 to 670 s on machines of one kind, so less would measure the machine.
pub(crate) const TOLERANCE: f64 = 2.0;
/// A step that hangs is ended at this many times its budget.
const HANG_BUDGETS: u32 = 4;
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Lines of the log that a failed step shows.
const SHOWN: usize = 60;

/// Runs the named steps, or all if none is named, and those that they need.
pub(crate) fn run(shell: &Shell, wanted: &[String]) -> anyhow::Result<()> {
    if let Some(unknown) = wanted.iter().find(|name| steps::find(name).is_none()) {
        let known: Vec<&str> = STEPS.iter().map(|step| step.name).collect();
        bail!("there is no step `{unknown}`; the steps are {}", known.join(", "));
    }
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|it| it == name);
    let needs_build = STEPS.iter().any(|step| is_wanted(step.name) && step.needs == Needs::Build);
    let is_chosen = |name: &str| is_wanted(name) || (needs_build && name == "build");
    for step in STEPS.iter().filter(|step| is_chosen(step.name)) {
        fs::remove_dir_all(evidence::home(shell).join(step.name)).ok();
    }
    let ran_before = services::running(shell);
    fs::create_dir_all(logs(shell))?;
    let (commit, is_clean) = shell.commit()?;
    println!("seed {} (of the commit; TIDEGATE_SEED=… sets another)", shell.seed()?);
    let slowness = speed::slowness();
    if slowness > 1.0 {
        println!("this machine is slower than that of the budgets, which are {slowness:.2} times as long");
    }
    let clock = RunClock { began: Instant::now(), slowness };
    let outcomes = Mutex::new(Vec::new());
    for lanes in PHASES {
        thread::scope(|scope| {
            for lane in *lanes {
                let chosen: Vec<&TestStep> =
                    lane.iter().filter(|name| is_chosen(name)).filter_map(|name| steps::find(name)).collect();
                scope.spawn(|| chosen.into_iter().for_each(|step| one(shell, step, clock, &outcomes)));
            }
        });
    }
    let outcomes = outcomes.into_inner();
    let run =
        report::Run { commit, is_clean, is_whole: wanted.is_empty(), wall: clock.began.elapsed(), outcomes };
    run.print();
    run.save(shell)?;
    // A step that hung, or that a signal ended, stopped none of its servers.
    services::down_all_but(shell, &ran_before)?;
    if interrupt::came() {
        bail!("interrupted");
    }
    let failed: Vec<&str> = run.failed().map(|outcome| outcome.name).collect();
    if failed.is_empty() {
        return Ok(());
    }
    bail!("{} failed; their logs: {}", failed.join(", "), evidence::home(shell).display())
}

/// Start of a run, and how long its steps may take.
#[derive(Clone, Copy)]
struct RunClock {
    began: Instant,
    /// Factor of all budgets.
    slowness: f64,
}

impl RunClock {
    /// Formats the time since the run began as minutes and seconds.
    fn shown(self) -> String {
        let seconds = self.began.elapsed().as_secs();
        format!("[{:>2}:{:02}]", seconds / 60, seconds % 60)
    }

    fn budget(self, step: &TestStep) -> Duration {
        step.budget.mul_f64(self.slowness)
    }
}

/// Runs a step, unless one that it needs has failed, and records its outcome.
fn one(shell: &Shell, step: &'static TestStep, clock: RunClock, outcomes: &Mutex<Vec<StepOutcome>>) {
    let has_failed = |name: &str| {
        let outcomes = outcomes.lock();
        outcomes.iter().any(|it| it.name == name && it.failure.is_some())
    };
    let without_run =
        |why: String| StepOutcome { name: step.name, wall: None, cpu: 0.0, cases: None, failure: Some(why) };
    let outcome = if interrupt::came() {
        without_run("not run: interrupted".to_owned())
    } else if step.needs == Needs::Build && has_failed("build") {
        without_run("not run: `build` failed".to_owned())
    } else {
        println!("{} {:<12} {}", clock.shown(), step.name, step.what);
        watched(shell, step, clock).unwrap_or_else(|error| without_run(format!("{error:#}")))
    };
    let wall = outcome.wall.unwrap_or_default().as_secs_f64();
    match &outcome.failure {
        None => println!("{} {:<12} ok after {wall:.1} s", clock.shown(), step.name),
        Some(why) => {
            println!("{} {:<12} FAILED: {why}\n{}", clock.shown(), step.name, end_of_log(shell, step))
        }
    }
    outcomes.lock().push(outcome);
}

/// Returns the last lines of a failed step's log, and keeps the whole log.
fn end_of_log(shell: &Shell, step: &TestStep) -> String {
    let log = log(shell, step.name);
    evidence::keep_of(shell, step.name, &log, "log");
    shell::tail(&log, SHOWN).lines().map(|line| format!("    {line}\n")).collect()
}

fn logs(shell: &Shell) -> PathBuf {
    shell.target.join("xtask/steps")
}

fn log(shell: &Shell, step: &str) -> PathBuf {
    logs(shell).join(format!("{step}.log"))
}

/// Returns the file to which the process of a step writes its CPU time and its cases.
fn result_file(shell: &Shell, step: &str) -> PathBuf {
    logs(shell).join(format!("{step}.json"))
}

/// Starts the process of a step and waits for it; ends it if it hangs.
fn watched(shell: &Shell, step: &'static TestStep, clock: RunClock) -> anyhow::Result<StepOutcome> {
    let budget = clock.budget(step);
    let result = result_file(shell, step.name);
    fs::remove_file(&result).ok();
    let log = File::create(log(shell, step.name))?;
    let program = env::current_exe()?;
    let mut command = if step.gentle {
        let mut nice = shell.command("nice");
        nice.args(["-n", "19"]).arg(program);
        nice
    } else {
        shell.command(program)
    };
    command.args(["step", step.name]).env(evidence::STEP, step.name);
    // Ctrl-C is for this process, which ends the others.
    command.process_group(0).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    let began = Instant::now();
    let mut child = command.spawn().with_context(|| format!("starting the step {}", step.name))?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if interrupt::came() || began.elapsed() > budget * HANG_BUDGETS {
            end(&mut child);
            break None;
        }
        thread::sleep(POLL_INTERVAL);
    };
    let wall = began.elapsed();
    let record = read_record(&result);
    let cpu = record["cpu"].as_f64().unwrap_or_default();
    // A gentle step gets what the others leave, so its own work counts, not the time that it waited for a core.
    let (spent, of) = if step.gentle { (cpu, " of CPU time") } else { (wall.as_secs_f64(), "") };
    let limit = budget.as_secs_f64() * TOLERANCE;
    let failure = match status {
        None if interrupt::came() => Some("interrupted".to_owned()),
        None => Some(format!("it hung, and was ended after {:.0} s", wall.as_secs_f64())),
        Some(status) if !status.success() => Some(match status.signal() {
            Some(signal) => format!("ended by signal {signal}"),
            None => record["error"].as_str().unwrap_or("it failed").to_owned(),
        }),
        Some(_) if spent > limit => Some(format!(
            "it took {spent:.0} s{of}; its budget is {} s, and {limit:.0} s the limit",
            budget.as_secs()
        )),
        Some(_) => None,
    };
    Ok(StepOutcome { name: step.name, wall: Some(wall), cpu, cases: cases_of(&record), failure })
}

/// Ends a step and everything that it started.
fn end(child: &mut Child) {
    // Before the first signal: children of a process that has ended are no longer its own.
    let family: Vec<String> = cpu::family(child.id()).iter().map(u32::to_string).collect();
    for signal in ["-TERM", "-KILL"] {
        // Some may have ended meanwhile.
        drop(shell::output(Command::new("kill").arg(signal).args(&family)));
        thread::sleep(Duration::from_secs(2));
    }
    drop(child.kill());
    drop(child.wait());
}

fn read_record(file: &Path) -> Value {
    fs::read(file).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

fn cases_of(record: &Value) -> Option<Cases> {
    let cases = record["cases"].as_object()?;
    let passed = usize::try_from(cases.get("passed")?.as_u64()?).ok()?;
    let failed: Vec<String> = serde_json::from_value(cases.get("failed")?.clone()).ok()?;
    let slowest: Vec<(String, f64)> = serde_json::from_value(cases.get("slowest")?.clone()).ok()?;
    Some(Cases { passed, failed, slowest })
}

/// Runs a step in this process, and records its CPU time and its cases.
pub(crate) fn in_this_process(shell: &Shell, name: &str) -> anyhow::Result<()> {
    let step = steps::find(name).with_context(|| format!("there is no step `{name}`"))?;
    let mut result: BTreeMap<&str, Value> = BTreeMap::new();
    let outcome = (step.run)(shell).and_then(|cases| {
        let Some(Cases { passed, failed, slowest }) = cases else { return Ok(()) };
        result.insert("cases", json!({"passed": passed, "failed": failed, "slowest": slowest}));
        if failed.is_empty() { Ok(()) } else { bail!("{} cases failed", failed.len()) }
    });
    if let Err(error) = &outcome {
        result.insert("error", json!(format!("{error:#}").lines().next().unwrap_or_default()));
    }
    result.insert("cpu", json!(cpu::seconds()));
    fs::create_dir_all(logs(shell))?;
    fs::write(result_file(shell, name), json!(result).to_string())?;
    outcome
}
