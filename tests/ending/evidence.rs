//! Evidence of abuse: scores, automatic bans, networks that are spared, and clients that are never scored.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tidegate_protocol::{codec::Wire, pb};

use crate::{
    close_of,
    support::{TestNode, ask, eventually, send},
};

/// Logs a user in, and sends bytes that are no frame; returns the answer to them.
fn garble(node: &TestNode, user: &str) -> String {
    let mut stream = TcpStream::connect(node.address()).expect("it accepts");
    let hello = json!({"version": 1, "token": node.token(user), "device": "phone"});
    stream.write_all(format!("{}\n", json!({"id": 1, "hello": hello})).as_bytes()).expect("it takes bytes");
    let mut bytes = [0; 2_048];
    let length = stream.read(&mut bytes).expect("it answers");
    let welcome = String::from_utf8_lossy(&bytes[..length]).into_owned();
    if !welcome.contains("welcome") {
        return welcome;
    }
    stream.write_all(b"{garbage}\n").expect("it takes bytes");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok();
    String::from_utf8_lossy(&answer).into_owned()
}

fn subject(node: &TestNode, name: &str) -> Value {
    let (status, body) = node.admin("GET", &format!("/v1/subjects/{name}"), &Value::Null);
    assert_eq!(status, 200, "{body}");
    body
}

fn count_of(view: &Value, kind: &str) -> u64 {
    let counts = view["evidence"]["counts"].as_array().expect("a list");
    counts.iter().find(|it| it["kind"] == kind).and_then(|it| it["count"].as_u64()).unwrap_or(0)
}

#[test]
fn prober_is_banned_and_recorded_and_the_users_of_its_network_are_spared() {
    let file = std::env::temp_dir().join(format!("tidegate-security-{}.jsonl", std::process::id()));
    let node = TestNode::start(|config| {
        config.evidence.loopback = true;
        config.evidence.file = file.clone();
    });
    let mut bob = node.login(Wire::Tcp, "bob", "phone");
    let mut mallory = node.login(Wire::Tcp, "mallory", "desk");
    for _ in 0..6 {
        let answer = garble(&node, "mallory");
        assert!(["MALFORMED", "BANNED"].iter().any(|name| answer.contains(name)), "{answer}");
    }
    let close = close_of(&mut mallory);
    assert_eq!((close.name.as_str(), close.reconnect), ("KICKED", pb::Reconnect::After as i32));
    assert!((500_000..=600_000).contains(&close.after_ms), "{close:?}");
    assert!(garble(&node, "mallory").contains("BANNED"));

    let view = subject(&node, "user:mallory");
    let ban = &view["bans"][0];
    assert_eq!((&view["banned"], &ban["by"]), (&json!(true), &json!("automatic")), "{view}");
    assert!(ban["reason"].as_str().is_some_and(|why| why.contains(" frame_malformed")), "{view}");
    assert!(count_of(&view, "frame_malformed") >= 5 && view["evidence"]["formerBans"] == 1, "{view}");
    let network = subject(&node, "network:127.0.0.1");
    assert!(
        network["evidence"]["spared"].as_str().is_some_and(|why| why.starts_with("1 users")),
        "{network}"
    );
    assert_eq!(network["banned"], false);
    bob.settle();
    let (_, evidence) = node.admin("GET", "/v1/evidence", &Value::Null);
    assert_eq!(evidence["scores"][0]["subject"], "network:127.0.0.1/32", "{evidence}");
    assert!(evidence["scores"][0]["score"].as_u64().is_some_and(|score| score >= 100), "{evidence}");
    assert!(node.metric("tidegate_evidence_frame_malformed_total").is_some_and(|count| count >= 5.0));
    assert!(node.metric("tidegate_automatic_bans_total").is_some_and(|count| count >= 1.0));

    node.admin("DELETE", "/v1/bans/user:mallory", &Value::Null);
    node.login(Wire::Tcp, "mallory", "desk");
    assert_eq!(subject(&node, "user:mallory")["evidence"]["score"], 0, "a lifted ban begins again");
    let data = node.stop();
    let audit = fs::read_to_string(data.join("audit.jsonl")).expect("a file");
    let lines: Vec<&str> = audit.lines().filter(|line| line.contains("\"automatic\"")).collect();
    assert!(lines.len() == 1 && lines[0].contains("user:mallory"), "{audit}");
    let lines = fs::read_to_string(&file).expect("a file");
    fs::remove_file(&file).expect("it is there");
    let is_garbage = |line: &str| {
        let row: Value = serde_json::from_str(line).expect("JSON");
        row["kind"] == "frame_malformed" && row["user"] == "mallory" && row["address"] == "127.0.0.1"
    };
    assert!(lines.lines().any(is_garbage) && !lines.contains("{garbage}"), "{lines}");
}

#[test]
fn clients_of_this_machine_are_seen_and_never_scored() {
    let node = TestNode::start(|_| {});
    let mut mallory = node.login(Wire::Tcp, "mallory", "desk");
    let mut probe = |n: usize| {
        let id = mallory.say(ask::send(send(&format!("g:guess-{n}"), &format!("m{n}"), "x")));
        mallory.expect_error(id);
    };
    for _ in 0..4 {
        probe(0);
        // Longer than the time in which several probes count as one.
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(120) {
            node.conns();
        }
    }
    for _ in 0..6 {
        assert!(garble(&node, "mallory").contains("MALFORMED"));
    }
    eventually("the frames are counted", || {
        (count_of(&subject(&node, "user:mallory"), "frame_malformed") == 6).then_some(())
    });
    let probes = || count_of(&subject(&node, "user:mallory"), "probe");
    assert_eq!(probes(), 1, "each request was for the same group");
    eventually("a probe of another group counts", || {
        probe(1);
        (probes() == 2).then_some(())
    });
    let view = subject(&node, "user:mallory");
    assert!(view["banned"] == false && view["evidence"]["score"] == 0, "{view}");
}

/// Sends one line from an address that a proxy names, and waits until the node ends the connection.
fn speak_from(node: &TestNode, address: &str, line: &str) -> String {
    let mut stream = TcpStream::connect(node.address()).expect("it accepts");
    let bytes = format!("PROXY TCP4 {address} 10.0.0.9 4000 7800\r\n{line}\n");
    stream.write_all(bytes.as_bytes()).expect("it takes bytes");
    let mut answer = Vec::new();
    // A reset ends it as well.
    stream.read_to_end(&mut answer).ok();
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn network_of_strangers_is_banned_unless_healthy_users_are_behind_it() {
    let node = TestNode::start(|config| {
        config.listen.proxies = vec!["127.0.0.0/8".into()];
        config.limits.address_logins_per_second = 0;
    });
    let hello = |token: &str| format!(r#"{{"id":1,"hello":{{"version":1,"token":"{token}","device":"d"}}}}"#);
    let mut user = TcpStream::connect(node.address()).expect("it accepts");
    let bytes = format!("PROXY TCP4 198.51.100.1 10.0.0.9 4000 7800\r\n{}\n", hello(&node.token("ann")));
    user.write_all(bytes.as_bytes()).expect("it takes bytes");
    assert!(user.read(&mut [0; 2_048]).is_ok_and(|length| length > 0));
    for address in ["192.0.2.1", "198.51.100.1"] {
        for _ in 0..12 {
            let answer = speak_from(&node, address, &hello("no.token.atall"));
            assert!(["TOKEN_INVALID", "BANNED"].iter().any(|name| answer.contains(name)), "{answer}");
        }
    }
    eventually("the strangers are refused", || {
        speak_from(&node, "192.0.2.1", "x").contains("BANNED").then_some(())
    });
    let view = subject(&node, "network:192.0.2.1");
    assert_eq!(view["bans"][0]["by"], "automatic", "{view}");
    eventually("the other network is spared", || {
        subject(&node, "network:198.51.100.1")["evidence"]["spared"].is_string().then_some(())
    });
    assert_eq!(subject(&node, "network:198.51.100.1")["banned"], false);
    assert_eq!(subject(&node, "user:ann")["evidence"]["score"], 0);
    let (_, bans) = node.admin("GET", "/v1/bans", &Value::Null);
    assert_eq!(bans["bans"].as_array().map(Vec::len), Some(1), "{bans}");
}

#[test]
fn access_logs_of_a_gateway_ban_a_network_and_are_refused_without_entries() {
    let node = TestNode::start(|config| config.evidence.captcha_paths = vec!["/captcha".into()]);
    let entry = |address: &str, uri: &str, status: u64| json!({"route_id": "1", "client_ip": address, "uri": uri, "status": status, "@timestamp": "2026-11-28T16:00:08+00:00"});
    let mut entries: Vec<Value> = (0..21).map(|n| entry("192.0.2.50", &format!("/k/{n}"), 403)).collect();
    entries.extend((0..3).map(|_| entry("192.0.2.50", "/captcha/new", 200)));
    entries.extend([entry("192.0.2.51", "/", 200), entry("unix:", "/", 403)]);
    let (status, answer) = node.admin("POST", "/v1/evidence/apisix", &json!(entries));
    assert_eq!((status, answer), (200, json!({"entries": 26, "noted": 21, "unusable": 1})));
    let (status, answer) = node.admin("POST", "/v1/evidence/apisix", &entry("192.0.2.51", "/x", 404));
    assert_eq!((status, &answer["noted"]), (200, &json!(0)), "a broken image");
    eventually("the network is banned", || {
        (subject(&node, "network:192.0.2.50")["banned"] == true).then_some(())
    });
    let view = subject(&node, "network:192.0.2.51");
    assert_eq!((&view["banned"], count_of(&view, "gateway_not_found")), (&json!(false), 0), "{view}");
    assert_eq!(node.admin("POST", "/v1/evidence/apisix", &json!("secret")).1["name"], "BAD_CONTENT");
    let many = vec![entry("192.0.2.51", "/", 200); 1_001];
    assert_eq!(node.admin("POST", "/v1/evidence/apisix", &json!(many)).0, 400);
}

#[test]
fn evidence_of_a_user_is_erased_from_memory_and_file_and_a_ban_stays() {
    let file = std::env::temp_dir().join(format!("tidegate-erased-{}.jsonl", std::process::id()));
    let node = TestNode::start(|config| {
        config.evidence.loopback = true;
        config.evidence.file = file.clone();
    });
    for user in ["mallory", "ann"] {
        assert!(garble(&node, user).contains("MALFORMED"));
    }
    let has_lines = |user: &str| fs::read_to_string(&file).is_ok_and(|lines| lines.contains(user));
    eventually("both are recorded", || (has_lines("mallory") && has_lines("ann")).then_some(()));
    let ban = json!({"subject": "user:mallory", "reason": "spam"});
    assert_eq!(node.admin("POST", "/v1/bans", &ban).0, 200);
    let (status, erased) = node.admin("DELETE", "/v1/evidence/user:mallory", &Value::Null);
    let expected = json!({"subject": "user:mallory", "inForce": true, "pending": []});
    assert_eq!((status, erased), (200, expected));
    let view = subject(&node, "user:mallory");
    assert_eq!((&view["banned"], &view["evidence"]["score"]), (&json!(true), &json!(0)), "{view}");
    assert_eq!(view["evidence"]["counts"], json!([]));
    eventually("the lines are gone", || (!has_lines("mallory")).then_some(()));
    assert!(has_lines("ann") && subject(&node, "user:ann")["evidence"]["score"] != 0, "others keep theirs");
    let (_, erased) = node.admin("DELETE", "/v1/evidence/network:2001:db8::1", &Value::Null);
    assert_eq!(erased["subject"], "network:2001:db8::/64");
    assert_eq!(node.admin("DELETE", "/v1/evidence/mallory", &Value::Null).0, 400);
    fs::remove_file(&file).expect("it is there");
}
