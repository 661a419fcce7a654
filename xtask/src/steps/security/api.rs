//! schemathesis against the admin API, by the description that the node itself returns: it generates requests that
//! follow the description and some that break it, and judges each response.

use std::{
    fs,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;

use super::{Extent, target::TargetNode};
use crate::{shell::Shell, tools};

/// Routes that are left out, and why.
const EXCLUDED: [(&str, &str); 5] = [
    ("GET /v1/events/stream", "its response has no end"),
    ("GET /v1/stats/stream", "its response has no end"),
    ("DELETE /v1/keys/{id}", "it would revoke the key of the requests"),
    ("POST /v1/drain", "it ends the process"),
    ("POST /v1/dev/abort", "it ends the process of a node that `tidegate up` started; here it is refused"),
];

/// Settings of the program, without the routes that are left out. The key comes from the environment, which other accounts
/// can't read. The wait for events is short, because each request of that route may wait.
const SETTINGS: &str = r#"
headers = { Authorization = "Bearer ${TIDEGATE_KEY}", Content-Type = "application/json" }

[[operations]]
include-name = "GET /v1/events"
parameters = { wait_ms = 20 }
"#;

/// All checks but those that don't fit: `positive_data_acceptance` takes 1.0 for an integer, and knows no rule such as
/// "one of these fields"; `ignored_auth` sends many wrong keys, which the node answers with 429 from the eleventh on;
/// `object_level_authorization` needs two accounts.
const CHECKS: [&str; 11] = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "missing_required_header",
    "unsupported_method",
    "allow_header_conformance",
    "use_after_free",
    "ensure_resource_availability",
];

/// Seed of the short form, so that the test run is the same each time.
const SHORT_SEED: u64 = 1;

/// Runs the program, and returns the number of requests that it judged.
pub(super) fn run(
    shell: &Shell,
    target: &TargetNode,
    folder: &Path,
    extent: Extent,
) -> anyhow::Result<usize> {
    fs::create_dir_all(folder)?;
    let description = target.ask("GET", "/v1/openapi.json", "")?;
    ensure!(description.status == 200, "GET /v1/openapi.json: {}", description.text);
    let description = description.body();
    let [described, settings, report] =
        ["openapi.json", "settings.toml", "report.json"].map(|it| folder.join(it));
    fs::write(&described, description)?;
    let excluded =
        EXCLUDED.map(|(route, _)| format!("\n[[operations]]\ninclude-name = \"{route}\"\nenabled = false\n"));
    fs::write(&settings, format!("{SETTINGS}{}", excluded.concat()))?;
    let mut command = shell.command(tools::schemathesis(shell)?);
    command.arg("--config-file").arg(settings).arg("run").arg(&described);
    command.args(["--url", &format!("http://{}", target.admin), "--checks", &CHECKS.join(",")]);
    command.args(["--no-color", "--generation-database", "none", "--continue-on-failure"]);
    command.args(["--request-timeout", "15", "--warnings", "off", "--suppress-health-check", "all"]);
    command.args(["--report", "json", "--report-json-path"]).arg(&report);
    let (options, seed): (&[&str], u64) = match extent {
        Extent::Short => (&["--phases", "fuzzing", "--max-examples", "6"], SHORT_SEED),
        Extent::Full => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis() as u64;
            (&["--phases", "examples,coverage,fuzzing,stateful", "--max-examples", "100"], now)
        }
    };
    command.args(options).args(["--seed", &seed.to_string()]);
    let output = command.current_dir(folder).env("TIDEGATE_KEY", &target.key).output();
    let output = output.context("starting schemathesis")?;
    let printed = [output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).into_owned()).concat();
    if !output.status.success() {
        bail!("schemathesis, seed {seed}:\n{printed}");
    }
    let routes = routes(description)?;
    let requests = judge(&fs::read_to_string(&report)?, routes)?;
    let ready = target.ask("GET", "/readyz", "")?;
    ensure!(ready.status == 200, "the node is not ready after the requests: {}", ready.text);
    println!(
        "schemathesis, seed {seed}: {requests} requests to {} routes as described; not to {}",
        routes - EXCLUDED.len(),
        EXCLUDED.map(|(route, why)| format!("{route} ({why})")).join(", ")
    );
    Ok(requests)
}

/// Returns the number of routes of a description, which has those that are left out.
fn routes(description: &str) -> anyhow::Result<usize> {
    let description: Value = serde_json::from_str(description).context("the description is JSON")?;
    let paths = description["paths"].as_object().context("a description has paths")?;
    for (route, _) in EXCLUDED {
        let (method, path) = route.split_once(' ').context("a route has a method")?;
        ensure!(
            paths.get(path).is_some_and(|it| it[method.to_lowercase()].is_object()),
            "there is no route {route} that could be left out"
        );
    }
    Ok(paths.values().filter_map(Value::as_object).map(serde_json::Map::len).sum())
}

/// Returns the number of requests of a report; fails if it has failures, or if not all routes were tested.
fn judge(report: &str, routes: usize) -> anyhow::Result<usize> {
    let report: Value = serde_json::from_str(report).context("the report of schemathesis is JSON")?;
    let number = |path: &str| report.pointer(path).and_then(Value::as_u64).unwrap_or_default() as usize;
    ensure!(report["complete"] == true, "schemathesis has not finished");
    let (tested, expected) = (number("/operations/tested"), routes - EXCLUDED.len());
    ensure!(tested == expected, "schemathesis tested {tested} routes of {expected}");
    let (requests, bad) = (number("/test_cases/generated"), number("/test_cases/with_failures"));
    ensure!(bad == 0 && number("/test_cases/errored") == 0, "schemathesis found {bad} bad responses");
    ensure!(
        requests >= tested,
        "schemathesis sent {requests} requests to {tested} routes: its report is no verdict"
    );
    Ok(requests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_is_bad_by_its_failures_and_no_verdict_without_all_routes() {
        let report = |complete: bool, tested: usize, generated: usize, failures: usize| {
            serde_json::json!({
                "complete": complete,
                "operations": {"tested": tested},
                "test_cases": {"generated": generated, "with_failures": failures, "errored": 0},
            })
            .to_string()
        };
        assert_eq!(judge(&report(true, 40, 251, 0), 45).expect("clean"), 251);
        for (bad, why) in [
            (report(true, 40, 251, 2), "2 bad responses"),
            (report(true, 38, 251, 0), "tested 38 routes of 40"),
            (report(true, 40, 0, 0), "no verdict"),
            (report(false, 40, 251, 0), "not finished"),
        ] {
            let error = judge(&bad, 45).expect_err(why).to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn description_without_a_route_that_is_left_out_fails() {
        let paths = r#"{"paths":{"/v1/stats/stream":{"get":{}},"/v1/events/stream":{"get":{}},"/v1/drain":{"post":{},"delete":{}},"/v1/dev/abort":{"post":{}},"/v1/keys/{id}":{"delete":{}}}}"#;
        assert_eq!(routes(paths).expect("all are there"), 6);
        let error = routes(&paths.replace("/v1/drain", "/v1/stop")).expect_err("one is missing").to_string();
        assert!(error.contains("POST /v1/drain"), "{error}");
    }
}
