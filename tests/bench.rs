//! The bench itself: it runs, verifies, reports, and fails when what it measures is not there.

#[path = "support/services.rs"]
#[allow(dead_code, reason = "others ask for one service")]
mod services;

use std::process::{Command, Output};

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .arg("bench")
        .args(arguments)
        .output()
        .expect("the binary runs")
}

fn figures(arguments: &[&str], name: &str) -> serde_json::Value {
    let file = std::env::temp_dir().join(format!("tidegate-{name}-{}.json", std::process::id()));
    let path = file.to_str().expect("a plain path");
    let output = bench(&[arguments, &["--quick", "--json", path]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(&file).expect("a report");
    std::fs::remove_file(&file).expect("the report can go");
    serde_json::from_str(&text).expect("JSON")
}

#[test]
fn a_raw_loop_is_as_fast_as_another() {
    for scenario in ["fanout", "echo", "login", "chat"] {
        let report = figures(&[scenario, "--raw-twice", "--transport", "ws"], scenario);
        let ratio = report["sections"][0]["figures"][0]["value"].as_f64().expect("a ratio");
        // Whatever else runs on the machine, a factor of four is a mistake of the bench.
        assert!((0.25..4.0).contains(&ratio), "{scenario}: {ratio}");
    }
}

#[test]
fn a_node_is_measured_and_verified() {
    for scenario in ["fanout", "room", "idle"] {
        for transport in ["tcp", "ws"] {
            let report = figures(&[scenario, "--transport", transport], &format!("node-{scenario}"));
            assert_eq!(report["sections"].as_array().map(Vec::len), Some(1), "{scenario}");
        }
    }
}

#[test]
fn durable_messages_are_measured_and_found_again() {
    let sought = "messages acked, and each found";
    for scenario in ["chat", "store"] {
        let report = figures(&[scenario], &format!("durable-{scenario}"));
        let figures = report["sections"][0]["figures"].as_array().expect("figures");
        let found =
            figures.iter().find(|it| it["what"].as_str().is_some_and(|what| what.starts_with(sought)));
        assert!(
            found.and_then(|it| it["value"].as_f64()).is_some_and(|rows| rows > 1_000.0),
            "{scenario}: {report}"
        );
    }
}

#[test]
fn a_large_group_is_measured_over_three_nodes() {
    let list = services::list();
    let report =
        figures(&["groups", "--rounds", "2", "--services", list.to_str().expect("a plain path")], "groups");
    let figures = report["sections"][0]["figures"].as_array().expect("figures");
    let value = |what: &str| {
        let found = figures.iter().find(|it| it["what"] == what).and_then(|it| it["value"].as_f64());
        found.unwrap_or_else(|| panic!("{what}: {report}"))
    };
    let records = value("records of node topics per message");
    assert!((2.0..=3.0).contains(&records), "one for each node but the owner: {records}");
    assert!(value("Redis commands per message") > 1.0);
    assert!(value("from the send to the last member, mean") > 0.0 && value("time to make the group") > 0.0);
}

#[test]
fn a_server_that_does_not_start_is_a_failure() {
    let output = bench(&["fanout", "--quick", "--server-binary", "/bin/false"]);
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("ended by itself"), "{said}");
}
