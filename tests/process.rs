//! The binary as an operator meets it: signals, restarts, and what it says when it can't start.

#[path = "support/mod.rs"]
mod support;

use std::{
    process::Output,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use support::{Client, Process, Said, ask, command, fresh_data, send};
use tidegate_protocol::{Code, codec::Wire};

/// Runs `serve` to its end, which must come by itself.
fn fails(sets: &[&str]) -> (Output, String) {
    let data = fresh_data();
    let mut child = command(&data, sets);
    let output = child.stderr(std::process::Stdio::piped()).output().expect("the binary runs");
    std::fs::remove_dir_all(&data).ok();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, said)
}

#[test]
fn a_signal_tells_the_clients_and_ends_with_success() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut node = Process::start(&[]);
        let mut clients: Vec<Client> =
            (0..40).map(|n| node.login(Wire::ALL[n % 4], &format!("user-{n}"), "d")).collect();
        let began = Instant::now();
        node.signal(signal);
        for client in &mut clients {
            assert_eq!(client.expect_close(), Code::Draining);
        }
        drop(clients);
        let status = node.exit();
        assert_eq!(status.code(), Some(0), "{signal:?}: {}", node.said());
        assert!(began.elapsed() < Duration::from_secs(5), "{signal:?} took {:?}", began.elapsed());
        assert!(!node.data().join("node.json").exists(), "nobody is sent to a node that ended");
    }
}

#[test]
fn a_client_that_does_not_hang_up_does_not_hold_the_node() {
    let mut node = Process::start(&[]);
    let _silent: Vec<Client> = (0..5).map(|n| node.login(Wire::Tcp, &format!("user-{n}"), "d")).collect();
    let _unknown = Client::connect(node.address(), Wire::JsonLine);
    let began = Instant::now();
    node.signal(Signal::TERM);
    assert_eq!(node.exit().code(), Some(0), "{}", node.said());
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[test]
fn a_client_that_takes_nothing_is_cut_at_the_deadline_and_counted() {
    let mut node = Process::start(&[
        "drain.deadline_ms=2500",
        "drain.flush_ms=500",
        "socket.send_buffer_bytes=16384",
        "limits.outbox_bytes_max=524288",
        "limits.window_bytes_max=8388608",
    ]);
    let mut alice = node.login(Wire::Tcp, "alice", "d");
    let stalled = node.login(Wire::Tcp, "bob", "d");
    let text = "x".repeat(30_000);
    (0..60).for_each(|n| _ = alice.text("bob", &format!("m{n}"), &text));
    node.signal(Signal::TERM);
    assert_eq!(alice.expect_close(), Code::Draining);
    let status = node.exit();
    assert_eq!(status.code(), Some(3), "{}", node.said());
    assert!(node.said().contains("the deadline cut 1 connections"), "{}", node.said());
    drop(stalled);
}

#[test]
fn a_second_signal_ends_a_slow_drain() {
    let mut node = Process::start(&["drain.max_rate=1"]);
    let mut clients: Vec<Client> =
        (0..30).map(|n| node.login(Wire::ALL[n % 4], &format!("user-{n}"), "d")).collect();
    node.signal(Signal::INT);
    for client in &mut clients {
        client.take("a GoAway", |frame| matches!(frame.body, Some(Said::GoAway(_))));
    }
    let again = Instant::now();
    node.signal(Signal::INT);
    for client in &mut clients {
        assert_eq!(client.expect_close(), Code::Draining);
    }
    let status = node.exit();
    assert_eq!(status.code(), Some(4), "{}", node.said());
    assert!(again.elapsed() < Duration::from_secs(4), "{:?}", again.elapsed());
}

#[test]
fn a_second_node_on_the_same_data_goes_on_with_its_key() {
    let mut first = Process::start(&[]);
    let (data, token) = (first.data().to_owned(), first.token("alice"));
    first.signal(Signal::TERM);
    assert!(first.exit().success());
    let second = Process::start_on(&data, &[]);
    let mut alice = Client::connect(second.address(), Wire::WsText);
    alice.login(support::hello(&token, "d"));
    alice.settle();
}

#[test]
fn a_port_in_use_is_named() {
    let node = Process::start(&[]);
    let taken = format!("listen.client={}", node.address());
    let (output, said) = fails(&[&taken]);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("listen.client {}", node.address())) && said.contains("in use"), "{said}");
    let taken = format!("listen.admin={}", node.addresses.admin);
    let (output, said) = fails(&[&taken]);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("listen.admin {}", node.addresses.admin)), "{said}");
}

#[test]
fn an_unknown_key_is_refused_with_the_nearest_one() {
    let (output, said) = fails(&["limits.conn_max=5"]);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("did you mean limits.conns_max?"), "{said}");
    let (output, said) = fails(&["timing.write_ms=0", "node.shards=many"]);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("shards"), "{said}");
}

/// What is left of a node without one of its parts would look healthy, so the process ends and says which it was.
/// Faults are compiled into debug builds only.
#[cfg(debug_assertions)]
#[test]
fn a_node_that_loses_a_shard_or_its_owner_ends_with_failure() {
    for (part, named) in [("shard", "a shard ended by itself"), ("owner", "the owner ended by itself")] {
        let mut node = Process::start(&[
            "fault.panic_on_msg_id=boom",
            &format!("fault.panic_in={part}"),
            "node.store=memory",
        ]);
        let mut alice = node.login(Wire::Tcp, "alice", "d");
        assert!(alice.text("bob", "m1", "all is well") > 0);
        alice.say(ask::send(send("bob", "boom", "!")));
        let status = node.exit();
        assert_eq!(status.code(), Some(1), "{part}: {}", node.said());
        assert!(node.said().contains(named), "{part}: {}", node.said());
    }
}

/// Runs another command of the binary: its status, and all that it says.
fn runs(words: &[&str]) -> (Option<i32>, String) {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_tidegate")).args(words).output();
    let output = output.expect("the binary runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout) + &text(&output.stderr))
}

#[test]
fn a_drain_is_planned_on_paper() {
    let public = ["--set", "drain.lb_delay_ms=5000"];
    let (code, said) = runs(&[&["drain-plan", "-c", "10000"], &public[..]].concat());
    assert_eq!(code, Some(0), "{said}");
    for part in
        ["10000 clients", "5.0 s   accepting", "30.0 s   334 clients a second", "47.0 s", "52 s   to grant"]
    {
        assert!(said.contains(part), "{part} in {said}");
    }
    let (code, said) = runs(&[&["drain-plan", "-c", "50000"], &public[..]].concat());
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("50000 clients need 117000 at drain.max_rate"), "{said}");
}

#[test]
fn a_configuration_whose_drain_does_not_fit_is_refused() {
    let conns = ["config", "check", "--set", "limits.conns_max=10000", "--set", "drain.lb_delay_ms=5000"];
    let check = |more: &[&str]| runs(&[&conns[..], more].concat());
    let (code, said) = check(&["--grace", "60"]);
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = check(&["--grace", "30"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("--grace 30") && said.contains("may take 52 s"), "{said}");
    let (code, said) = check(&["--set", "drain.max_rate=100"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("drain.deadline_ms 50000") && said.contains("drain.max_rate"), "{said}");
    let (code, said) = check(&["--set", "drain.flush_ms=1"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("drain.flush_ms: at least 100 ms"), "{said}");
}

#[test]
fn the_nodes_the_owners_and_where_a_user_is_are_printed_as_tables() {
    let node = Process::start(&["node.id=harbour"]);
    let _phone = node.login(Wire::Tcp, "bob", "phone");
    let run = |words: &[&str]| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(words)
            .arg("--data")
            .arg(node.data())
            .output()
            .expect("the binary runs");
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    let nodes = run(&["nodes"]);
    let rows: Vec<Vec<&str>> = nodes.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0][..3], ["NODE", "STATE", "LEASE"]);
    assert_eq!(rows[1][..3], ["harbour", "ready", "live"]);
    assert!(run(&["owners"]).starts_with("PARTITION  OWNER"));
    let said = run(&["where", "bob"]);
    assert_eq!(
        said.lines().nth(1).map(|line| line.starts_with("phone   harbour  live")),
        Some(true),
        "{said}"
    );
    assert_eq!(run(&["where", "nobody"]), "nobody is not connected\n");
    let json: serde_json::Value = serde_json::from_str(&run(&["nodes", "--json"])).expect("JSON");
    assert_eq!(json["nodes"][0]["node"], "harbour");
}

#[test]
fn a_node_of_a_cluster_says_what_it_needs() {
    let cluster = ["node.profile=cluster", "kafka.brokers=[127.0.0.1:1]"];
    let (output, said) = fails(&cluster);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("auth.key_file") && said.contains("openssl rand -hex 32"), "{said}");
    let (_, said) = fails(&[cluster[0], cluster[1], "auth.key_file=missing.key"]);
    assert!(said.contains("auth.key_file missing.key can't be used"), "{said}");
}

#[test]
fn up_says_how_to_get_services() {
    let data = fresh_data();
    std::fs::create_dir_all(&data).expect("a folder");
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["up", "--nodes", "3"])
        .current_dir(&data)
        .env_remove("TIDEGATE__KAFKA__BROKERS")
        .output()
        .expect("the binary runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    std::fs::remove_dir_all(&data).ok();
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("cargo xtask services up") && said.contains("--config"), "{said}");
}
