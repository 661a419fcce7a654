//! The binary as operators use it: signals, restarts, and start errors.

#[path = "support/admin_routes.rs"]
mod admin_routes;
#[path = "support/mod.rs"]
mod support;

#[path = "process/audit.rs"]
mod audit;
#[path = "process/hooks/before.rs"]
mod before;
#[path = "process/console.rs"]
mod console;
#[path = "process/demo.rs"]
mod demo;
#[path = "process/dev.rs"]
mod dev;
#[path = "process/files.rs"]
mod files;
#[path = "process/hook_cookies.rs"]
mod hook_cookies;
#[path = "process/hook_reasons.rs"]
mod hook_reasons;
#[path = "process/hook_server.rs"]
mod hook_server;
#[path = "process/hooks.rs"]
mod hooks;
#[path = "process/keys.rs"]
mod keys;
#[path = "process/openapi.rs"]
mod openapi;
#[path = "process/origins.rs"]
mod origins;
#[path = "process/output.rs"]
mod output;
#[path = "process/private.rs"]
mod private;
#[path = "process/production.rs"]
mod production;
#[path = "process/reload.rs"]
mod reload;
#[path = "process/search/mod.rs"]
mod search;
#[path = "process/secrets.rs"]
mod secrets;
#[path = "process/stats.rs"]
mod stats;
#[path = "process/stop.rs"]
mod stop;
#[path = "process/tokens.rs"]
mod tokens;
#[path = "process/hooks/waiting.rs"]
mod waiting;
#[path = "process/hooks/webhooks.rs"]
mod webhooks;

use std::{
    process::{Command, Output, Stdio},
    time::Duration,
};

use rustix::process::Signal;
use serde_json::Value;
use support::{
    Client, Process, ServerBody, Stopwatch, ask, command, eventually, fresh_data, in_shell, let_time_pass,
    send,
};
use tidegate_protocol::{Code, codec::Wire};

/// Runs `serve` until it ends by itself.
fn fails(sets: &[&str]) -> (Output, String) {
    let data = fresh_data();
    let mut child = command(&data, sets);
    let output = child.stderr(std::process::Stdio::piped()).output().expect("the binary runs");
    std::fs::remove_dir_all(&data).ok();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, said)
}

#[test]
fn signal_notifies_clients_and_exits_with_success() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut node = Process::start(&[]);
        let mut clients: Vec<Client> =
            (0..40).map(|n| node.login(Wire::ALL[n % 4], &format!("user-{n}"), "d")).collect();
        let began = Stopwatch::start();
        node.signal(signal);
        for client in &mut clients {
            assert_eq!(client.expect_close(), Code::Draining);
        }
        drop(clients);
        let status = node.exit();
        assert_eq!(status.code(), Some(0), "{signal:?}: {}", node.stderr());
        assert!(began.elapsed() < Duration::from_secs(5), "{signal:?} took {:?}", began.elapsed());
        assert!(!node.data().join("node.json").exists(), "an ended node has no address file");
    }
}

#[test]
fn resumed_node_reads_its_input_before_closing_silent_clients() {
    let node = Process::start(&["timing.heartbeat_ms=1000"]);
    let mut clients: Vec<Client> =
        Wire::ALL.iter().map(|wire| node.login(*wire, &format!("{wire:?}"), "d")).collect();
    node.signal(Signal::STOP);
    let asked: Vec<u64> = clients.iter_mut().map(|client| client.say(ask::ping())).collect();
    let_time_pass("longer than the 2.5 s after which a client is silent", Duration::from_millis(4_000));
    node.signal(Signal::CONT);
    for (client, id) in clients.iter_mut().zip(asked) {
        assert!(matches!(client.reply(id), ServerBody::Pong(_)), "{:?}", client.wire);
    }
}

#[test]
fn node_stopped_during_its_start_exits_in_order() {
    let data = fresh_data();
    std::fs::create_dir_all(&data).expect("a folder");
    let key = data.join("key");
    tidegate::auth::create_key(&key).expect("a file");
    let key = format!("auth.key_file={}", key.display());
    // There is no Redis, so it waits, with no request in flight.
    let cluster = ["node.profile=cluster", "node.ids=2", "kafka.brokers=[127.0.0.1:1]", &key];
    let away = ["redis.urls=[redis://127.0.0.1:1]", "postgres.url=postgres://nobody@127.0.0.1:1/none"];
    let mut node = Process::begin(&data, command(&data, &[&cluster[..], &away[..]].concat()));
    eventually("the node waits", || node.stderr().contains("waiting for dependencies").then_some(()));
    let began = Stopwatch::start();
    node.signal(Signal::TERM);
    let status = node.exit();
    assert!(began.elapsed() < Duration::from_secs(5), "after {:?}", began.elapsed());
    assert_eq!(status.code(), Some(0), "{}", node.stderr());
    assert!(node.stderr().contains("stopped before the node had started"), "{}", node.stderr());
    std::fs::remove_dir_all(&data).ok();
}

#[test]
fn open_file_limit_is_raised_and_a_shortage_reported() {
    let data = fresh_data();
    let serve = command(&data, &["limits.conns_max=100000000"]);
    let mut limited = in_shell("ulimit -Sn 1024", &serve);
    let errors = std::fs::File::create(data.join("stderr")).expect("a file");
    limited.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors);
    let mut node = Process::spawn(&data, limited);
    let ready: Value = serde_json::from_str(&node.http("GET", "/readyz?verbose", "")).expect("JSON");
    let allowed = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    let clients = ready["connsMax"].as_u64().expect("a number");
    assert_eq!(clients, allowed.map_or(100_000_000, |files| (files - 640).min(100_000_000)));
    let warns = node.stderr().contains("limits.conns_max 100000000: the limit of open files allows");
    assert_eq!(warns, clients < 100_000_000, "{}", node.stderr());
    node.signal(Signal::TERM);
    assert_eq!(node.exit().code(), Some(0));
}

#[test]
fn client_that_does_not_close_does_not_delay_the_exit() {
    let mut node = Process::start(&[]);
    let _silent: Vec<Client> = (0..5).map(|n| node.login(Wire::Tcp, &format!("user-{n}"), "d")).collect();
    let _unknown = Client::connect(node.address(), Wire::JsonLine);
    let began = Stopwatch::start();
    node.signal(Signal::TERM);
    assert_eq!(node.exit().code(), Some(0), "{}", node.stderr());
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[test]
fn stalled_client_is_cut_at_the_deadline_and_counted() {
    let mut node = Process::start(&[
        // Alice, who reads everything, has disconnected long before.
        "drain.deadline_ms=6000",
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
    assert_eq!(status.code(), Some(3), "{}", node.stderr());
    assert!(node.stderr().contains("the deadline cut 1 connections"), "{}", node.stderr());
    drop(stalled);
}

#[test]
fn second_signal_ends_a_slow_drain() {
    let mut node = Process::start(&["drain.max_rate=1"]);
    let mut clients: Vec<Client> =
        (0..30).map(|n| node.login(Wire::ALL[n % 4], &format!("user-{n}"), "d")).collect();
    node.signal(Signal::INT);
    for client in &mut clients {
        client.take("a GoAway", |frame| matches!(frame.body, Some(ServerBody::GoAway(_))));
    }
    let again = Stopwatch::start();
    node.signal(Signal::INT);
    for client in &mut clients {
        assert_eq!(client.expect_close(), Code::Draining);
    }
    let status = node.exit();
    assert_eq!(status.code(), Some(4), "{}", node.stderr());
    assert!(again.elapsed() < Duration::from_secs(4), "{:?}", again.elapsed());
}

#[test]
fn next_node_on_the_same_data_keeps_its_key() {
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
fn port_in_use_is_named() {
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
fn unknown_key_is_refused_with_the_nearest_one() {
    let (output, said) = fails(&["limits.conn_max=5"]);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("did you mean limits.conns_max?"), "{said}");
    let (output, said) = fails(&["timing.write_ms=0", "node.shards=many"]);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("shards"), "{said}");
}

/// A node without one of its parts would look healthy, so the process ends and names the part.
#[test]
fn node_that_loses_a_shard_or_its_owner_fails() {
    support::needs_planted_faults();
    for (part, named) in [
        ("shard", "panicked: fault injected by fault.panic_on_msg_id in fault.panic_in=shard"),
        ("owner", "an owner panicked: a fault injected"),
    ] {
        let mut node = Process::start(&[
            "fault.panic_on_msg_id=boom",
            &format!("fault.panic_in={part}"),
            "node.store=memory",
        ]);
        let mut alice = node.login(Wire::Tcp, "alice", "d");
        assert!(alice.text("bob", "m1", "all is well") > 0);
        alice.say(ask::send(send("bob", "boom", "!")));
        let status = node.exit();
        assert_eq!(status.code(), Some(1), "{part}: {}", node.stderr());
        assert!(node.stderr().contains(named), "{part}: {}", node.stderr());
    }
}

/// Runs another command of the binary; returns its status and output.
fn run_command(words: &[&str]) -> (Option<i32>, String) {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_tidegate")).args(words).output();
    let output = output.expect("the binary runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout) + &text(&output.stderr))
}

#[test]
fn drain_plan_is_printed() {
    let public = ["--set", "drain.lb_delay_ms=5000"];
    let (code, said) = run_command(&[&["drain-plan", "-c", "10000"], &public[..]].concat());
    assert_eq!(code, Some(0), "{said}");
    for part in
        ["10000 clients", "5.0 s   accepting", "30.0 s   334 clients a second", "47.0 s", "58 s   to grant"]
    {
        assert!(said.contains(part), "{part} in {said}");
    }
    let (code, said) = run_command(&[&["drain-plan", "-c", "50000"], &public[..]].concat());
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("50000 clients need 117000 at drain.max_rate"), "{said}");
}

#[test]
fn configuration_whose_drain_does_not_fit_is_refused() {
    let conns = ["config", "check", "--set", "limits.conns_max=10000", "--set", "drain.lb_delay_ms=5000"];
    let check = |more: &[&str]| run_command(&[&conns[..], more].concat());
    let (code, said) = check(&["--grace", "60"]);
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = check(&["--grace", "30"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("--grace 30") && said.contains("may take 58 s"), "{said}");
    let (code, said) = check(&["--set", "drain.max_rate=100"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("drain.deadline_ms 50000") && said.contains("drain.max_rate"), "{said}");
    let (code, said) = check(&["--set", "drain.flush_ms=1"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("drain.flush_ms: at least 100 ms"), "{said}");
}

#[test]
fn nodes_owners_and_routes_are_printed_as_tables() {
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
fn monitor_port_answers_probes_and_changes_nothing() {
    let mut node = Process::start(&["listen.monitor=127.0.0.1:0"]);
    let asked = |method: &str, path: &str| node.probe(method, path).expect("the port is set");
    assert_eq!(asked("GET", "/readyz").0, 200);
    assert!(asked("GET", "/metrics").1.contains("\ntidegate_connections 0\n"));
    for (method, path) in [("POST", "/v1/drain"), ("GET", "/v1/nodes"), ("GET", "/v1/users/bob/routes")] {
        assert_eq!(asked(method, path).0, 404, "{method} {path} is for the admin port");
    }
    assert_eq!(asked("DELETE", "/readyz").0, 405);
    node.signal(Signal::TERM);
    assert_eq!(node.exit().code(), Some(0), "{}", node.stderr());
    let (_, said) = fails(&["listen.monitor=7803"]);
    assert!(said.contains("listen.monitor: write address:port"), "{said}");
    let none = Process::start(&[]);
    assert_eq!(none.probe("GET", "/readyz"), None, "the port is not configured");
}

#[test]
fn cluster_node_reports_missing_settings() {
    let cluster = ["node.profile=cluster", "kafka.brokers=[127.0.0.1:1]"];
    let (output, said) = fails(&cluster);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("auth.key_file") && said.contains("openssl rand -hex 32"), "{said}");
    let (_, said) = fails(&[cluster[0], cluster[1], "auth.key_file=missing.key"]);
    assert!(said.contains("auth.key_file: missing.key can't be used"), "{said}");
}

#[test]
fn up_reports_how_to_get_services() {
    let data = fresh_data();
    std::fs::create_dir_all(&data).expect("a folder");
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["up", "--nodes", "3"])
        .current_dir(&data)
        .env_remove("TIDEGATE__KAFKA__BROKERS")
        .env_remove("CARGO_TARGET_DIR")
        .output()
        .expect("the binary runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    std::fs::remove_dir_all(&data).ok();
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("cargo xtask services up") && said.contains("--config"), "{said}");
}

/// Runs a command against this node; returns its output and whether it succeeded.
fn tidegate(node: &Process, words: &[&str]) -> (bool, String) {
    let admin = node.addresses.admin.to_string();
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(words)
        .args(["--admin", &admin])
        .output()
        .expect("the binary runs");
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn operator_starts_follows_and_aborts_a_drain() {
    let node = Process::start(&["drain.lb_delay_ms=60000", "drain.deadline_ms=120000"]);
    let _phone = node.login(Wire::Tcp, "bob", "phone");
    assert_eq!(tidegate(&node, &["drain", "--status"]), (true, "n1 is ready, 1 clients\n".to_owned()));
    let (fine, said) = tidegate(&node, &["drain", "--abort"]);
    assert!(!fine && said.contains("the node is ready: no drain to abort"), "{said}");
    let probe = |path: &str| -> Value {
        let body = node.http("GET", path, "");
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{path}: {error}: {body}"))
    };
    assert_eq!(probe("/readyz")["state"], "ready");
    let (fine, said) = tidegate(&node, &["drain"]);
    assert!(fine && said.starts_with("n1 is cordoned, 1 clients; cordoned 0 % of 1 gone"), "{said}");
    assert_eq!(probe("/livez")["state"], "cordoned", "it lives");
    let ready = probe("/readyz?verbose");
    assert_eq!(
        (&ready["state"], &ready["drain"]["from"], &ready["routes"]),
        (&"cordoned".into(), &1.into(), &"fine".into())
    );
    eventually("a table shows the drain", || {
        let (fine, said) = tidegate(&node, &["nodes", "--watch", "--count", "1"]);
        assert!(fine, "{said}");
        let columns = said.lines().nth(1)?;
        (said.contains("cordoned 0 % of 1 gone") && columns.contains(" DRAIN ")).then_some(())
    });
    let (fine, said) = tidegate(&node, &["nodes", "--watch", "--count", "2"]);
    assert!(fine && said.matches("NODE").count() == 2, "{said}");
    assert_eq!(tidegate(&node, &["drain", "--abort"]), (true, "n1 is ready, 1 clients\n".to_owned()));
}

#[test]
fn too_short_grace_period_is_reported() {
    let check = |grace: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(["config", "check", "--set", "limits.conns_max=1000", "--set", grace])
            .output()
            .expect("the binary runs");
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (fine, said) = check("drain.grace_ms=30000");
    assert!(
        !fine && said.contains("drain.grace_ms 30000") && said.contains("terminationGracePeriodSeconds"),
        "{said}"
    );
    assert!(check("drain.grace_ms=60000").0 && check("drain.grace_ms=0").0);
}

#[test]
fn tail_follows_events_across_a_restart() {
    let mut node = Process::start(&[]);
    let data = node.data().to_owned();
    let mut tail = std::process::Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["tail", "--events", "--json", "--kept", "--count", "3", "--data"])
        .arg(&data)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(tail.stdout.take().expect("a pipe")));
    let mut next = || -> serde_json::Value {
        let line = lines.next().expect("the tail continues").expect("text");
        serde_json::from_str(&line).expect("one event per line")
    };
    let ann = node.login(Wire::Tcp, "ann", "phone");
    let came = next();
    assert_eq!((&came["type"], &came["subject"]), (&"tidegate.online".into(), &"ann".into()));
    drop(ann);
    assert_eq!(next()["id"], came["id"].as_str().expect("text").replace("online", "offline"));
    node.signal(Signal::TERM);
    node.exit();
    let again = Process::start_on(&data, &[]);
    let _bob = again.login(Wire::WsText, "bob", "phone");
    assert_eq!(next()["subject"], "bob");
    let ended = tail.wait_with_output().expect("the tail ends by itself");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    assert!(
        String::from_utf8_lossy(&ended.stderr).contains("some events are missing"),
        "the tail started from the present"
    );
}
