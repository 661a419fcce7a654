//! The bench itself: it runs, verifies, reports, and fails when what it measures is not there.

mod support;

use std::process::Output;

use support::{Folder, lab, services};

fn bench(arguments: &[&str]) -> Output {
    support::node();
    lab(&[&["bench"], arguments].concat())
}

/// Runs a scenario with one round, where it names no other number, and returns its report.
fn figures(arguments: &[&str]) -> serde_json::Value {
    let folder = Folder::fresh();
    let (report, data) = (folder.file("report.json"), folder.file("data"));
    let rounds: &[&str] = if arguments.contains(&"--rounds") { &[] } else { &["--rounds", "1"] };
    let output = bench(&[arguments, rounds, &["--quick", "--json", &report, "--directory", &data]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(&report).expect("a report");
    serde_json::from_str(&text).expect("JSON")
}

#[test]
fn a_raw_loop_is_as_fast_as_another() {
    for scenario in ["fanout", "echo", "login"] {
        let report = figures(&[scenario, "--raw-twice", "--transport", "ws", "--rounds", "2"]);
        assert_alike(scenario, &report);
    }
}

/// Fails if the two raw sides of a report differ by a factor of four, which is a mistake of the bench whatever else runs on
/// the machine.
fn assert_alike(scenario: &str, report: &serde_json::Value) {
    let ratio = report["sections"][0]["figures"][0]["value"].as_f64().expect("a ratio");
    assert!((0.25..4.0).contains(&ratio), "{scenario}: {ratio}");
}

#[test]
fn a_node_is_measured_and_verified() {
    for scenario in ["fanout", "room", "idle"] {
        for transport in ["tcp", "ws"] {
            let report = figures(&[scenario, "--transport", transport]);
            assert_eq!(report["sections"].as_array().map(Vec::len), Some(1), "{scenario}");
        }
    }
}

#[test]
fn overload_is_measured_with_gates_and_without() {
    let report = figures(&["overload"]);
    assert!(value(&report, "capacity, accepts flat out") > 10.0, "{report}");
    for name in ["clients keep the wait", "clients ignore the wait", "without gates"] {
        assert!(value(&report, &format!("twice the capacity, {name}: accepts / knee")) > 0.01, "{report}");
    }
}

#[test]
fn logins_of_each_kind_are_measured() {
    let report = figures(&["login", "--alg", "all", "--tls", "all"]);
    for handshake in ["no TLS", "full TLS handshake", "resumed TLS handshake"] {
        for algorithm in ["HS256", "RS256", "ES256", "EdDSA"] {
            let what = format!("{algorithm}, {handshake}");
            let ratio = value(&report, &format!("logins per server CPU second, {what}, tidegate / raw"));
            // A login verifies a token and registers a route, which a raw loop does not.
            assert!(ratio > 0.0 && ratio < 2.0, "{what}: {ratio}");
        }
        assert!(value(&report, &format!("logins, {handshake}, raw")) > 10.0, "{handshake}: {report}");
    }
}

#[test]
fn fan_out_over_tls_is_measured_and_verified() {
    let report = figures(&["fanout", "--tls", "--transport", "tcp"]);
    let first = &report["sections"][0]["figures"][0];
    assert!(first["value"].as_f64().is_some_and(|ratio| ratio > 0.5), "{report}");
    let text = report.to_string();
    // A machine without OpenSSL's headers has the reason in place of the figures.
    let is_measured = text.contains("deliveries, raw OpenSSL loop");
    assert_ne!(is_measured, text.contains("Not measured, raw OpenSSL loop"), "{report}");
    assert!(text.contains("Not measured, uWebSockets over TLS: it speaks WebSocket only"), "{report}");
}

#[test]
fn memory_of_tls_connections_is_measured() {
    let report = figures(&["idle", "--tls", "--transport", "tcp"]);
    let of = |section: usize| report["sections"][section]["figures"][0]["value"].as_f64().expect("a figure");
    assert!(of(1) > of(0), "keys take memory: {report}");
    assert!(of(1) <= 12.0, "{report}");
}

#[test]
fn durable_messages_are_measured_and_found_again() {
    let sought = "messages acked, and each found";
    for scenario in ["chat", "store"] {
        let report = figures(&[scenario]);
        let figures = report["sections"][0]["figures"].as_array().expect("figures");
        let found =
            figures.iter().find(|it| it["what"].as_str().is_some_and(|what| what.starts_with(sought)));
        assert!(
            found.and_then(|it| it["value"].as_f64()).is_some_and(|rows| rows > 1_000.0),
            "{scenario}: {report}"
        );
    }
}

/// A figure of a report by its name.
fn value(report: &serde_json::Value, what: &str) -> f64 {
    let sections = report["sections"].as_array().into_iter().flatten();
    let mut figures = sections.filter_map(|it| it["figures"].as_array()).flatten();
    let found = figures.find(|it| it["what"] == what).and_then(|it| it["value"].as_f64());
    found.unwrap_or_else(|| panic!("{what}: {report}"))
}

/// Before, the bench took `behind` for a lost message and failed.
#[test]
fn pushes_that_are_left_out_are_pulled_and_counted() {
    // So few that a receiver has always more pushes to ack than may wait.
    let report = figures(&["chat", "--set", "limits.window_max=1"]);
    for when in ["flat out to people who are there", "at half load"] {
        let behinds = value(&report, &format!("frames `behind`, {when}"));
        let pulled = value(&report, &format!("messages pulled, {when}"));
        assert!(behinds > 0.0 && pulled >= behinds / 2.0, "{when}: {report}");
    }
}

#[test]
fn the_raw_log_has_a_growing_and_a_preallocated_file() {
    let report = figures(&["chat", "--raw-twice", "--transport", "ws"]);
    assert_alike("chat", &report);
    for file in ["raw", "raw, preallocated"] {
        assert!(value(&report, &format!("durable accepts, {file}")) > 1_000.0, "{file}: {report}");
        assert!(value(&report, &format!("send to ack, {file}, p99")) > 0.0, "{file}: {report}");
    }
}

/// Report of a bench on the services of the tests: returns figures by name; each has to be above 0.
fn on_services(scenario: &[&str], rounds: &str) -> impl Fn(&str) -> f64 {
    let list = services::list();
    let list = list.to_str().expect("a plain path");
    let report = figures(&[scenario, &["--rounds", rounds, "--services", list]].concat());
    move |what: &str| {
        let value = value(&report, what);
        assert!(value > 0.0, "{what}: {report}");
        value
    }
}

#[test]
fn a_large_group_is_measured_over_three_nodes() {
    let value = on_services(&["groups"], "2");
    let records = value("records of node topics per message");
    assert!((2.0..=3.0).contains(&records), "one for each node but the owner: {records}");
    assert!(value("Redis commands per message") > 1.0);
    value("from the send to the last member, mean");
    value("time to make the group");
}

#[test]
fn routes_and_what_redis_does_for_a_message_are_measured() {
    let value = on_services(&["redis"], "1");
    assert!(value("reads by Redis per accepted message") < value("commands per accepted message"));
    value("send to ack with Redis hung, p50");
    value("lookups, tidegate");
}

#[test]
fn a_take_over_by_crash_and_by_plan_is_measured() {
    let value = on_services(&["cluster"], "1");
    let session = value("session timeout (kafka.session_ms)");
    let crash = value("longest pause of a sender after kill -9 of an owner");
    assert!(crash > session / 2.0, "the time of a crash holds the session timeout: {crash} of {session}");
    value("longest pause of a sender while an owner stops by plan");
    value("partitions of the node that ended");
}

#[test]
fn chat_over_kafka_is_measured_beside_a_bare_producer_and_consumer() {
    let value = on_services(&["kafka", "--conversations", "60"], "1");
    value("accepts/s, 3 nodes / one node of this run");
    value("send, ack, push and its ack, flat out");
    for load in ["accept with nobody listening, flat out", "message to people who are there, half load"] {
        let all = value(&format!("CPU per {load}, all but the load generator"));
        let parts = ["node", "Kafka", "Postgres"].map(|name| value(&format!("CPU per {load}, {name}")));
        // Each is a median of its own rounds, so the sum may be a little more.
        assert!(parts.iter().sum::<f64>() <= all * 1.1, "{load}: {parts:?} of {all}");
        value(&format!("CPU per {load}, load generator"));
    }
    value("send to push at half load, p50");
    value("bare produce and consume at that rate, p50");
}

#[test]
fn a_server_that_does_not_start_is_a_failure() {
    let output = bench(&["fanout", "--quick", "--server-binary", "/bin/false"]);
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("ended by itself"), "{said}");
}
