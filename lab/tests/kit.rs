//! The conformance kit: a client that keeps the protocol passes every case, and each planted fault fails the case that is
//! about it.

mod support;

use std::{process::Output, thread};

use support::{LAB, lab, said};

/// By how much a client of a busy test machine may be late, in ms.
const SLACK: &str = "4000";

/// Each planted fault, and a case that names it.
const FAULTS: [(&str, &str); 22] = [
    ("no-ack", "a push is reported and acknowledged [transport tcp-json]"),
    ("ack-holes", "nothing above a hole is acknowledged"),
    ("keep-attempt", "the ack is lost [cut reset]"),
    ("new-msg-id", "UNKNOWN is sent again"),
    ("report-duplicates", "a late push"),
    ("reconnect-replaced", "a client that was replaced keeps still"),
    ("hurry", "a temporary refusal is sent again [BUSY]"),
    ("no-back-off", "the waits double"),
    ("keep-token", "the token is refused at the login [TOKEN_EXPIRED]"),
    ("ignore-holes", "a hole is pulled"),
    ("no-sync", "sync after each login"),
    ("report-recalled", "the recall comes before its message"),
    ("report-old-edits", "an edit arrives after a later one"),
    ("no-ping", "an idle client gives signs of life [transport tcp-json]"),
    ("ignore-silence", "a silent node is left [transport tcp-json]"),
    ("ignore-go-away", "the client moves in its slot [transport tcp-json]"),
    ("chain-answered", "an answered message between unanswered ones"),
    ("overtake-in-room", "a message to a room waits for its retry [BUSY]"),
    ("no-rejoin", "rooms are joined again [cut reset]"),
    ("no-refresh", "the token is replaced before it ends"),
    ("ignore-features", "the node has no reactions"),
    ("merge-reports", "a later complete report"),
];

fn kit(faults: &str, slack: &str, arguments: &[&str]) -> Output {
    let adapter = format!("'{LAB}' kit-reference {faults}");
    lab(&[&["kit", "--adapter", &adapter, "--slack", slack], arguments].concat())
}

#[test]
fn a_client_that_keeps_the_protocol_passes_every_case() {
    let output = kit("", SLACK, &[]);
    assert!(output.status.success(), "{}", said(&output));
    let text = said(&output);
    let sum = text.lines().find(|line| line.starts_with("all ")).expect("a sum");
    let counts: Vec<usize> = sum.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert!(counts[0] >= 880 && counts[1] == 0 && counts[2] == 0, "{sum}");
}

#[test]
fn the_same_cases_pass_over_a_binary_websocket() {
    let output = kit("", SLACK, &["--transport", "ws-proto"]);
    assert!(output.status.success(), "{}", said(&output));
}

#[test]
fn each_planted_fault_fails_the_case_about_it() {
    thread::scope(|scope| {
        for (fault, case) in FAULTS {
            scope.spawn(move || {
                let output = kit(&format!("--fault {fault}"), "0", &["--case", case]);
                let failed = format!("FAILED {case} ");
                assert!(
                    !output.status.success() && said(&output).contains(&failed),
                    "{fault}: {}",
                    said(&output)
                );
            });
        }
    });
}

#[test]
fn an_adapter_that_does_not_run_is_named() {
    let output = lab(&["kit", "--adapter", "false"]);
    assert!(!output.status.success());
    assert!(said(&output).contains("adapter"), "{}", said(&output));
}
