//! Admin API for development: tokens, cut connections and crashes, and the nodes that refuse them.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    os::unix::process::ExitStatusExt as _,
    process,
    time::Instant,
};

use rustix::process::Signal;
use serde_json::{Value, json};
use tidegate_protocol::codec::Wire;

use super::keys::{self, Keys, text};
use crate::support::{Client, Process, ServerBody, WAIT_MAX, ask, command, fresh_data, hello, http};

fn post(admin: SocketAddr, path: &str, body: &Value) -> (u16, Value) {
    let (status, body) = http::ask(admin, "POST", path, &body.to_string());
    (status, serde_json::from_str(&body).expect("JSON"))
}

/// Returns how many connections were cut.
fn cut(node: &Process, body: &Value) -> u64 {
    let (status, said) = post(node.admin(), "/v1/dev/cut", body);
    assert_eq!(status, 200, "{said}");
    said["cut"].as_u64().expect("a number")
}

/// Reads to the end of the connection, which must be a reset without a final frame.
fn expect_reset(client: &mut Client) {
    let deadline = Instant::now() + WAIT_MAX;
    while client.pump(deadline) {}
    let ended = client.ended.clone().flatten().unwrap_or_else(|| panic!("no reset; {:?}", client.inbox));
    assert!(ended.to_lowercase().contains("reset"), "{ended}");
    assert!(!client.inbox.iter().any(|frame| matches!(frame.body, Some(ServerBody::Close(_)))));
}

#[test]
fn created_token_logs_its_user_in_on_its_device_only() {
    let node = Process::start(&[]);
    let (status, said) = post(node.admin(), "/v1/dev/token", &json!({"user": "alice", "device": "web"}));
    assert_eq!((status, &said["user"], &said["device"]), (200, &"alice".into(), &"web".into()), "{said}");
    let token = said["token"].as_str().expect("a token").to_owned();
    let mut client = Client::connect(node.address(), Wire::WsText);
    client.login(hello(&token, "web"));
    assert_eq!(client.text("bob", "m1", "hello"), 1);
    let mut other = Client::connect(node.address(), Wire::WsText);
    assert!(matches!(other.ask(ask::hello(hello(&token, "phone"))), ServerBody::Error(_)));
    let (_, said) = post(node.admin(), "/v1/dev/token", &json!({"user": "bob", "ttlMs": 60_000}));
    assert_eq!(said["device"], Value::Null);
    let left = said["expiresMs"].as_u64().expect("a time") - tidegate_now_ms();
    assert!((50_000..=60_000).contains(&left), "{left} ms");
    assert!(!node.stderr().contains(&token), "the log has the token");
}

fn tidegate_now_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.expect("a time after 1970").as_millis() as u64
}

#[test]
fn wrong_wishes_are_refused_with_a_code() {
    let node = Process::start(&[]);
    let huge = "x".repeat(100_000);
    for (path, wish, name) in [
        ("token", json!({"user": ""}), "BAD_ID"),
        ("token", json!({"user": "a b"}), "BAD_ID"),
        ("token", json!({"user": huge}), "BAD_ID"),
        ("token", json!({"user": "alice", "device": "\u{e9}"}), "BAD_ID"),
        ("token", json!({"user": "alice", "ttlMs": 3_600_001}), "BAD_CONTENT"),
        ("token", json!({"user": "alice", "ttlMs": 0}), "BAD_CONTENT"),
        ("token", json!({"user": "alice", "ttlMs": -1}), "BAD_CONTENT"),
        ("token", json!({"user": "alice", "admin": true}), "BAD_CONTENT"),
        ("token", json!([]), "BAD_CONTENT"),
        ("cut", json!({}), "BAD_CONTENT"),
        ("cut", json!({"user": huge}), "BAD_ID"),
        ("cut", json!({"user": "bob", "device": ""}), "BAD_ID"),
    ] {
        let (status, said) = post(node.admin(), &format!("/v1/dev/{path}"), &wish);
        assert_eq!((status, &said["name"]), (400, &name.into()), "{path}: {said}");
    }
}

#[test]
fn only_listed_requests_are_forwarded_and_only_to_live_nodes() {
    let node = Process::start(&[]);
    for (method, path, status) in [
        ("POST", "/v1/drain", 404),
        ("GET", "/v1/drain", 400),
        ("POST", "/v1/groups", 400),
        ("POST", "/v1/dev/token", 400),
        ("POST", "/v1/dev/forward", 400),
        ("POST", "/v1/drain?x", 400),
        ("POST", "http://192.0.2.1/v1/drain", 400),
    ] {
        for name in ["n1", "n2", "../n2", ""] {
            let wish = json!({"node": name, "method": method, "path": path});
            let (answered, said) = post(node.admin(), "/v1/dev/forward", &wish);
            assert_eq!(answered, status, "{method} {path} on {name:?}: {said}");
        }
    }
}

#[test]
fn forwarding_without_the_scope_of_the_request_is_counted() {
    let keys = Keys::new();
    let key = keys.add("users", "users", &[]);
    let node = keys.start(&[]);
    for (path, status) in [("/v1/drain", 403), ("/v1/weight", 403), ("/v1/dev/cut", 404)] {
        let wish = json!({"node": "n2", "method": "POST", "path": path}).to_string();
        let reply = keys::ask(node.admin(), "POST", "/v1/dev/forward", Some(&key), &wish);
        assert_eq!(reply.status, status, "{path}: {}", text(&reply.body));
    }
    assert_eq!(node.metric("admin_scopes_missing_total"), 2.0);
}

#[test]
fn cut_resets_the_sockets_of_one_device_or_of_all() {
    let node = Process::start(&[]);
    let mut alice = node.login(Wire::Tcp, "alice", "phone");
    for wire in Wire::ALL {
        let mut phone = node.login(wire, "bob", "phone");
        let mut web = node.login(wire, "bob", "web");
        assert_eq!(cut(&node, &json!({"user": "bob", "device": "phone"})), 1, "{wire:?}");
        expect_reset(&mut phone);
        web.settle();
        // The device can log in at once, and has missed nothing.
        let mut phone = node.login(wire, "bob", "phone");
        assert_eq!(cut(&node, &json!({"user": "bob"})), 2, "{wire:?}");
        expect_reset(&mut phone);
        expect_reset(&mut web);
        assert_eq!(cut(&node, &json!({"user": "bob"})), 0, "{wire:?}");
    }
    assert_eq!(cut(&node, &json!({"user": "nobody"})), 0);
    alice.settle();
}

#[test]
fn message_to_a_cut_device_waits_for_it() {
    let node = Process::start(&[]);
    let mut alice = node.login(Wire::Tcp, "alice", "phone");
    let mut bob = node.login(Wire::WsText, "bob", "web");
    assert_eq!(alice.text("bob", "m1", "before"), 1);
    assert_eq!(bob.expect_push().seq, 1);
    assert_eq!(cut(&node, &json!({"user": "bob", "device": "web"})), 1);
    expect_reset(&mut bob);
    assert_eq!(alice.text("bob", "m2", "while bob is away"), 2);
    let mut bob = node.login(Wire::WsText, "bob", "web");
    let states = bob.sync(&[]);
    assert_eq!(states[0].max_seq, 2, "{states:?}");
}

#[test]
fn only_a_node_of_a_development_cluster_crashes_on_request() {
    let node = Process::start(&[]);
    let (status, said) = post(node.admin(), "/v1/dev/abort", &json!({}));
    assert_eq!((status, &said["name"]), (403, &"FORBIDDEN".into()), "{said}");
    assert!(said["cure"].as_str().is_some_and(|cure| cure.contains("tidegate up")), "{said}");
    let data = fresh_data();
    let mut serve = command(&data, &[]);
    serve.args(["--leave-with", &process::id().to_string()]);
    let mut node = Process::spawn(&data, serve);
    let mut stream = TcpStream::connect(node.admin()).expect("an admin port");
    let request = "POST /v1/dev/abort HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\r\n";
    stream.write_all(request.as_bytes()).expect("the admin port reads");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok();
    assert!(answer.is_empty(), "{}", String::from_utf8_lossy(&answer));
    assert_eq!(node.exit().signal(), Some(Signal::ABORT.as_raw()));
    fs::remove_dir_all(&data).ok();
}

#[test]
fn node_for_operation_refuses_all_of_it() {
    let data = fresh_data();
    let mut serve = command(&data, &["admin.development=no"]);
    serve.args(["--leave-with", &process::id().to_string()]);
    let node = Process::spawn(&data, serve);
    let mut bob = node.login(Wire::Tcp, "bob", "phone");
    for (path, wish) in [
        ("token", json!({"user": "alice"})),
        ("cut", json!({"user": "bob"})),
        ("abort", json!({})),
        ("token", json!({"user": "not an id"})),
        ("forward", json!({"node": "n2", "method": "POST", "path": "/v1/drain"})),
    ] {
        let (status, said) = post(node.admin(), &format!("/v1/dev/{path}"), &wish);
        assert_eq!((status, &said["name"]), (403, &"FORBIDDEN".into()), "{path}: {said}");
        assert!(said["cure"].as_str().is_some_and(|cure| cure.contains("admin.development")), "{said}");
    }
    bob.settle();
}

#[test]
fn pages_on_loopback_may_connect_to_a_node_for_development() {
    let upgrade = |node: &Process, origin: &str| {
        let head = "GET /v1/ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
        let mut stream = TcpStream::connect(node.address()).expect("a client port");
        stream.set_read_timeout(Some(WAIT_MAX)).expect("a socket takes options");
        stream.write_all(format!("{head}Origin: {origin}\r\n\r\n").as_bytes()).expect("the port reads");
        let mut line = [0; 12];
        stream.read_exact(&mut line).expect("a status");
        String::from_utf8_lossy(&line[9..]).into_owned()
    };
    let node = Process::start(&[]);
    let port = node.admin().port();
    for host in ["127.0.0.1", "localhost", "[::1]"] {
        assert_eq!(upgrade(&node, &format!("http://{host}:{port}")), "101", "{host}");
    }
    for origin in ["https://evil.example", "http://localhost.evil.example:1", "null"] {
        assert_eq!(upgrade(&node, origin), "403", "{origin}");
    }
    let operated = Process::start(&["admin.development=no", "listen.origins=[https://chat.example]"]);
    let own = format!("http://{}", operated.admin());
    assert_eq!(upgrade(&operated, &own), "403", "the console of a node for operation");
    assert_eq!(upgrade(&operated, "https://chat.example"), "101");
}
