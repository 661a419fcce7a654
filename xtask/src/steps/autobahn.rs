//! Step `autobahn`: runs the Autobahn cases, by kosoku, against `examples/ws_echo`. All that apply must pass.

use std::fs;

use anyhow::{Context as _, bail};

use crate::{
    server,
    shell::{self, Shell},
    tools,
};

/// Sections 1-7, 9 and 10; 12 and 13 are permessage-deflate, which the broker does not offer.
const CASES: usize = 301;
const NOT_OFFERED: [&str; 2] = ["12.*", "13.*"];

/// Kosoku's words for cases that passed.
const PASSED: [&str; 3] = ["OK", "NON-STRICT", "INFORMATIONAL"];

/// Runs the cases, and returns the number that passed.
pub(crate) fn run(shell: &Shell) -> anyhow::Result<usize> {
    let python = tools::python(shell)?;
    let folder = shell.scratch("autobahn")?;
    let report = folder.join("report");
    let (_echo, port) = server::start_example(shell, "ws_echo", &folder.join("ws_echo.log"))?;
    let mut command = shell.command(python.join("kosoku"));
    command.args(["--mode", "fuzzingclient", "--parallelism", "2", "--outdir"]).arg(&report);
    command.args(NOT_OFFERED.iter().flat_map(|cases| ["--exclude", cases]));
    // The report is read even after a failure: it says more than the exit code.
    let outcome = shell::run(command.arg(format!("ws://127.0.0.1:{port}")));
    let index = report.join("index.json");
    let text = fs::read_to_string(&index).with_context(|| format!("no report {}", index.display()))?;
    judge(&text).with_context(|| format!("details: {}", report.join("index.html").display()))?;
    outcome.map(|()| CASES)
}

/// Fails if cases are missing, because none may be skipped silently.
fn judge(index: &str) -> anyhow::Result<()> {
    let index: serde_json::Value = serde_json::from_str(index)?;
    let agents = index.as_object().context("the report is an object by agent")?;
    let mut cases = 0;
    let mut failed = Vec::new();
    for (case, result) in agents.values().filter_map(|agent| agent.as_object()).flatten() {
        cases += 1;
        let words = ["behavior", "behaviorClose"].map(|key| result[key].as_str().unwrap_or("missing"));
        if !words.iter().all(|word| PASSED.contains(word)) {
            failed.push(format!("{case}: {}, close {}", words[0], words[1]));
        }
    }
    if !failed.is_empty() {
        bail!("{} of {cases} cases failed:\n  {}", failed.len(), failed.join("\n  "));
    }
    if cases != CASES {
        bail!("{cases} cases ran, {CASES} are expected");
    }
    println!("{cases} cases passed");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(cases: usize, last: &str) -> String {
        let case = |n: usize| {
            let word = if n + 1 == cases { last } else { "OK" };
            format!(r#""1.{n}": {{"behavior": "{word}", "behaviorClose": "OK"}}"#)
        };
        let cases: Vec<String> = (0..cases).map(case).collect();
        format!(r#"{{"echo": {{{}}}}}"#, cases.join(","))
    }

    #[test]
    fn a_full_report_without_failures_passes() {
        judge(&report(CASES, "NON-STRICT")).expect("all passed");
    }

    #[test]
    fn one_failure_or_a_missing_case_fails() {
        assert!(judge(&report(CASES, "FAILED")).is_err());
        assert!(judge(&report(CASES - 1, "OK")).is_err());
        assert!(judge("{}").is_err());
    }
}
