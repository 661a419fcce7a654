//! The report of a run: the table at its end, and `target/xtask/last-run.json`.

use std::{
    fmt::Write as _,
    fs,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde_json::{Value, json};

use crate::{
    shell::Shell,
    steps::{self, Cases, STEPS, WHOLE_RUN_MAX},
};

/// Outcome of a step.
#[derive(Clone)]
pub(crate) struct StepOutcome {
    pub(crate) name: &'static str,
    /// Duration of the step; `None` if it did not run.
    pub(crate) wall: Option<Duration>,
    pub(crate) cpu: f64,
    pub(crate) cases: Option<Cases>,
    /// Reason of its failure; `None` if it passed.
    pub(crate) failure: Option<String>,
}

/// A run of steps.
pub(crate) struct Run {
    pub(crate) commit: String,
    /// Whether the work tree was exactly that commit.
    pub(crate) is_clean: bool,
    pub(crate) is_whole: bool,
    pub(crate) wall: Duration,
    pub(crate) outcomes: Vec<StepOutcome>,
}

impl Run {
    /// The steps that failed or could not run.
    pub(crate) fn failed(&self) -> impl Iterator<Item = &StepOutcome> {
        self.outcomes.iter().filter(|outcome| outcome.failure.is_some())
    }

    /// The outcomes in the order of the list.
    fn sorted(&self) -> impl Iterator<Item = &StepOutcome> {
        STEPS.iter().filter_map(|step| self.outcomes.iter().find(|outcome| outcome.name == step.name))
    }

    /// Returns whether a whole run took longer than planned.
    fn is_over(&self) -> bool {
        self.is_whole && self.wall > WHOLE_RUN_MAX
    }

    fn cases(&self) -> (usize, usize) {
        let cases: Vec<&Cases> = self.outcomes.iter().filter_map(|it| it.cases.as_ref()).collect();
        (cases.iter().map(|it| it.passed).sum(), cases.iter().map(|it| it.failed.len()).sum())
    }

    /// Prints the table of steps, the slowest tests, the failed cases, and the number of cases.
    pub(crate) fn print(&self) {
        println!("{}", self.table());
    }

    fn table(&self) -> String {
        let mut text = String::new();
        let mut line = |words: std::fmt::Arguments<'_>| {
            text.write_fmt(words).and_then(|()| text.write_char('\n')).expect("a String takes everything");
        };
        let slowest = self.outcomes.iter().filter_map(|it| it.cases.as_ref()).flat_map(|it| &it.slowest);
        let mut slowest: Vec<&(String, f64)> = slowest.collect();
        slowest.sort_by(|one, other| other.1.total_cmp(&one.1));
        if !slowest.is_empty() {
            line(format_args!("\n{:>8}  the 20 slowest tests", "seconds"));
        }
        for (name, seconds) in slowest.into_iter().take(20) {
            line(format_args!("{seconds:>8.1}  {name}"));
        }
        line(format_args!("\n{:<12} {:>8} {:>8} {:>8} {:>7}", "step", "wall s", "CPU s", "budget", "cases"));
        let mut cpu = 0.0;
        for outcome in self.sorted() {
            let budget = steps::find(outcome.name).map_or(0, |step| step.budget.as_secs());
            let wall = outcome.wall.unwrap_or_default().as_secs_f64();
            let cases = outcome.cases.as_ref().map_or(String::new(), |it| it.passed.to_string());
            let verdict = outcome.failure.as_deref().map_or("ok".into(), |why| format!("FAILED: {why}"));
            let name = outcome.name;
            line(format_args!(
                "{name:<12} {wall:>8.1} {:>8.1} {budget:>8} {cases:>7}  {verdict}",
                outcome.cpu
            ));
            cpu += outcome.cpu;
        }
        let wall = self.wall.as_secs_f64();
        let over = if self.is_over() { "  over: a step that grows pays for it elsewhere" } else { "" };
        let planned = if self.is_whole { WHOLE_RUN_MAX.as_secs().to_string() } else { String::new() };
        line(format_args!("{:<12} {wall:>8.1} {cpu:>8.1} {planned:>8}{over}", "total"));
        for outcome in self.failed() {
            let failed = outcome.cases.iter().flat_map(|it| &it.failed);
            failed.for_each(|case| line(format_args!("FAILED {}: {case}", outcome.name)));
        }
        let (passed, failed) = self.cases();
        if passed + failed > 0 {
            line(format_args!("\n{passed} passed, {failed} failed"));
        }
        text.truncate(text.trim_end().len());
        text
    }

    /// Writes the report of a whole run as JSON.
    pub(crate) fn save(&self, shell: &Shell) -> anyhow::Result<()> {
        if !self.is_whole {
            return Ok(());
        }
        let file = shell.target.join("xtask/last-run.json");
        Ok(fs::write(file, serde_json::to_string_pretty(&self.json())?)?)
    }

    fn json(&self) -> Value {
        let steps: Vec<Value> = self.sorted().map(step).collect();
        let slowest = self.outcomes.iter().filter_map(|it| it.cases.as_ref()).flat_map(|it| &it.slowest);
        let (passed, failed) = self.cases();
        json!({
            "commit": self.commit,
            "clean": self.is_clean,
            "verdict": if self.failed().next().is_none() { "passed" } else { "failed" },
            "ended_unix_s": SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |it| it.as_secs()),
            "cores": std::thread::available_parallelism().map_or(0, usize::from),
            "wall_s": rounded(self.wall.as_secs_f64()),
            "over": self.is_over(),
            "cases": {"passed": passed, "failed": failed},
            "steps": steps,
            "slowest_tests": slowest.map(|(name, s)| json!({"name": name, "s": s})).collect::<Vec<_>>(),
        })
    }
}

fn step(outcome: &StepOutcome) -> Value {
    json!({
        "name": outcome.name,
        "wall_s": outcome.wall.map(|it| rounded(it.as_secs_f64())),
        "cpu_s": rounded(outcome.cpu),
        "budget_s": steps::find(outcome.name).map(|step| step.budget.as_secs()),
        "cases": outcome.cases.as_ref().map(|it| it.passed),
        "failure": outcome.failure,
    })
}

/// Returns the seconds, rounded to a tenth.
fn rounded(seconds: f64) -> f64 {
    (seconds * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(name: &'static str, failure: Option<&str>) -> StepOutcome {
        let failed = failure.iter().map(|why| (*why).to_owned()).collect();
        let cases = Some(Cases { passed: 3, failed, slowest: vec![("slow".into(), 9.0)] });
        let wall = Some(Duration::from_secs(7));
        StepOutcome { name, wall, cpu: 1.5, cases, failure: failure.map(str::to_owned) }
    }

    #[test]
    fn the_table_names_what_failed_and_counts_cases() {
        let outcomes = vec![outcome("tests", Some("a case")), outcome("fmt", None)];
        let run = Run {
            commit: "c".into(),
            is_clean: true,
            is_whole: true,
            wall: Duration::from_secs(9),
            outcomes,
        };
        let table = run.table();
        assert!(table.contains("FAILED tests: a case"), "{table}");
        assert!(table.ends_with("\n6 passed, 1 failed"), "{table}");
        assert!(table.find("fmt ") < table.find("tests "), "in the order of the list: {table}");
        assert_eq!(run.json()["verdict"], "failed");
        assert_eq!(run.json()["steps"][1]["failure"], "a case");
        assert!(!table.contains("over:"), "{table}");
        let slow = Run { wall: WHOLE_RUN_MAX + Duration::from_secs(1), ..run };
        assert!(slow.table().contains("over:") && slow.json()["over"] == true);
    }
}
