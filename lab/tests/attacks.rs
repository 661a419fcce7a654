//! The attacks of `tidegate-lab hostile`: a short run measures everything that the report promises.

mod support;

use serde_json::Value;
use support::{Folder, lab, node, said};

/// Returns the report of one attack that runs for a second a phase, whatever its verdict.
fn report(attack: &str) -> Value {
    let folder = Folder::fresh();
    let (json, rows, data) = (folder.file("report.json"), folder.file("rows"), folder.file("data"));
    let node = node();
    let node = node.to_str().expect("a plain path");
    let run = ["hostile", "--attack", attack, "--seconds", "1", "--directory", &data];
    let output =
        lab(&[&run[..], &["--json", &json, "--rows", &rows, "--node", node, "--before", node]].concat());
    let text = std::fs::read_to_string(&json).unwrap_or_else(|error| panic!("{error}: {}", said(&output)));
    let report: Value = serde_json::from_str(&text).expect("JSON");
    let problems = report["attacks"][0]["problems"].as_array().expect("problems").len();
    assert_eq!(output.status.success(), problems == 0, "the exit code is the verdict: {}", said(&output));
    let printed = said(&output).lines().filter(|line| line.starts_with(&format!("| {attack} |"))).count();
    assert_eq!(printed, 2, "a row for each version: {}", said(&output));
    let row: Value = serde_json::from_str(&std::fs::read_to_string(&rows).expect("a row")).expect("JSON");
    assert!(row["kind"] == "hostile" && row["attack"] == attack && row["p99_us"].is_u64(), "{row}");
    assert_eq!(row["verdict"] == "clean", problems == 0, "{row}");
    report
}

fn above_zero(report: &Value, paths: &[&str]) {
    for path in paths {
        let value = report["attacks"][0].pointer(path).and_then(Value::as_f64).unwrap_or_default();
        assert!(value > 0.0, "{path}: {report:#}");
    }
}

#[test]
fn attack_with_frames_is_measured_on_both_versions_and_on_the_raw_loop() {
    let report = report("x16-refused");
    let costs = ["before/calm", "before/attacked", "node/calm", "node/attacked", "raw/calm", "raw/attacked"];
    for cost in costs {
        let path = |figure: &str| format!("/{cost}/{figure}");
        above_zero(&report, &[&path("exchanges"), &path("p50_us"), &path("p99_us")]);
    }
    above_zero(
        &report,
        &[
            "/ratio",
            "/raw/bytes",
            "/node/memory/before",
            "/node/memory/peak",
            "/node/attack/bytes",
            "/node/attack/logins",
            "/node/attack/refusals/BAD_CONTENT",
        ],
    );
}

#[test]
fn attack_on_the_admin_port_is_measured() {
    let report = report("x11-metrics");
    above_zero(
        &report,
        &["/node/attack/bytes", "/node/attack/bytes_back", "/raw/bytes", "/node/attacked/p99_us"],
    );
}

#[test]
fn unknown_attack_is_an_error_that_names_the_known_ones() {
    let output = lab(&["hostile", "--attack", "x99"]);
    assert!(!output.status.success() && said(&output).contains("x9-pings"), "{}", said(&output));
}
