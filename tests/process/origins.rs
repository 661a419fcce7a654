//! X5: requests that a web page can make a browser send to the admin port are refused on all routes.

use std::{fs, net::SocketAddr};

use serde_json::{Value, json};
use tidegate_protocol::codec::Wire;

use crate::{
    admin_routes::admin_routes,
    support::{Process, command, eventually, free_port, fresh_data, http},
};

const EVIL: &str = "Host: evil.example\r\n";
const JSON: &str = "Content-Type: application/json\r\n";

/// Returns methods and paths of all routes of the admin port.
fn routes() -> Vec<(String, String)> {
    let example = |path: String| path.replace("{user}", "bob").replace("{id}", "team");
    admin_routes().into_iter().map(|(method, path)| (method, example(path))).collect()
}

/// Returns the status and reply of a request with these headers; a refusal has a code and a cure.
fn get_reply(port: SocketAddr, method: &str, path: &str, headers: &str) -> (u16, Value) {
    let (status, body) = http::ask_by(port, &format!("{method} {path} HTTP/1.1\r\n{headers}"), "{}");
    let body: Value = serde_json::from_str(&body).unwrap_or_default();
    if [400, 403, 415, 421].contains(&status) {
        let text = |key: &str| body[key].as_str().is_some_and(|text| !text.is_empty());
        assert!(body["code"].is_u64() && text("message") && text("cure"), "{method} {path}: {body}");
    }
    (status, body)
}

/// Asserts that the requests before changed nothing.
fn is_untouched(node: &Process) {
    let admin = node.addresses.admin;
    let of = |path: &str| http::ask(admin, "GET", path, "");
    assert_eq!(of("/v1/groups/team").0, 404);
    let ready: Value = serde_json::from_str(&of("/readyz?verbose").1).expect("JSON");
    assert_eq!((&ready["state"], &ready["drain"]), (&"ready".into(), &Value::Null));
}

#[test]
fn x5_every_route_refuses_foreign_hosts_and_pages() {
    let node = Process::start(&[]);
    let admin = node.addresses.admin;
    let host = format!("Host: {admin}\r\n");
    let page = |header: &str| format!("{host}{JSON}{header}\r\n");
    for (method, path) in routes().iter().chain(&[("GET".into(), "/".into()), ("POST".into(), "/x".into())]) {
        let status = |headers: &str| get_reply(admin, method, path, headers).0;
        let named = format!("{method} {path}");
        assert_eq!(status(&format!("{EVIL}{JSON}")), 421, "{named}");
        assert_eq!(status(&format!("Host: evil.example:{}\r\n{JSON}", admin.port())), 421, "{named}");
        assert_eq!(status(JSON), 400, "{named} without a host");
        assert_eq!(status(&format!("{host}{EVIL}{JSON}")), 400, "{named} with two");
        for header in [
            "Origin: https://evil.example",
            "Origin: null",
            "Origin: http://localhost:3000",
            "Sec-Fetch-Site: cross-site",
            "Sec-Fetch-Site: same-site",
        ] {
            assert_eq!(status(&page(header)), 403, "{named} {header}");
        }
    }
    is_untouched(&node);
}

#[test]
fn x5_changes_are_refused_without_the_content_type_of_json() {
    let node = Process::start(&[]);
    let admin = node.addresses.admin;
    let changes: Vec<_> = routes().into_iter().filter(|(method, _)| method != "GET").collect();
    assert!(changes.iter().any(|(method, path)| method == "POST" && path == "/v1/drain"), "{changes:?}");
    for (method, path) in &changes {
        for kind in ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"] {
            let kind = if kind.is_empty() { String::new() } else { format!("Content-Type: {kind}\r\n") };
            let (status, said) = get_reply(admin, method, path, &format!("Host: localhost\r\n{kind}"));
            assert_eq!(status, 415, "{method} {path} {kind}: {said}");
        }
    }
    is_untouched(&node);
}

#[test]
fn x5_programs_tunnels_and_pages_of_the_port_are_served() {
    let node = Process::start(&[]);
    let admin = node.addresses.admin;
    for host in ["localhost", "127.0.0.1:9000", "[::1]:7801"] {
        let headers =
            format!("Host: {host}\r\nOrigin: http://{host}\r\nSec-Fetch-Site: same-origin\r\n{JSON}");
        assert_eq!(get_reply(admin, "GET", "/v1/nodes", &headers).0, 200, "{host}");
        let (status, said) = get_reply(admin, "POST", "/v1/weight", &headers);
        assert_eq!((status, &said["weight"]), (200, &100.into()), "{host}: {said}");
    }
    assert_eq!(get_reply(admin, "GET", "/readyz", "Host: localhost\r\nSec-Fetch-Site: none\r\n").0, 200);
    // As load balancers probe.
    let (status, _) = http::ask_by(admin, "GET /readyz HTTP/1.0\r\n", "");
    assert_eq!(status, 200);
    let (status, _) = http::ask_by(admin, &format!("POST /v1/drain HTTP/1.0\r\n{JSON}"), "");
    assert_eq!(status, 400);
    is_untouched(&node);
}

#[test]
fn x5_monitor_port_has_no_changing_route() {
    let node = Process::start(&["listen.monitor=127.0.0.1:0"]);
    let monitor = node.addresses.monitor.expect("the port is set");
    let headers = format!("{EVIL}{JSON}");
    let mut answered = Vec::new();
    for (_, path) in routes() {
        for method in ["POST", "PUT", "PATCH", "DELETE"] {
            let (status, said) = get_reply(monitor, method, &path, &headers);
            assert!([404, 405].contains(&status), "{method} {path}: {status} {said}");
        }
        // Orchestrators probe by the address of a pod.
        if get_reply(monitor, "GET", &path, &headers).0 == 200 {
            answered.push(path);
        }
    }
    assert_eq!(answered, ["/healthz", "/livez", "/readyz", "/metrics"]);
    is_untouched(&node);
}

#[test]
fn x5_get_of_traces_starts_no_trace() {
    let node = Process::start(&["trace.per_second=0"]);
    let mut alice = node.login(Wire::Tcp, "alice", "phone");
    let steps = |method: &str, query: &str, body: &str| -> (Value, usize) {
        let said = node.http(method, &format!("/v1/trace{query}"), body);
        let said: Value = serde_json::from_str(&said).expect("JSON");
        (said["watchedMs"].clone(), said["steps"].as_array().expect("a list").len())
    };
    assert_eq!(steps("GET", "?user=alice", ""), (0.into(), 0));
    alice.text("bob", "m1", "unseen");
    assert_eq!(steps("GET", "?user=alice", ""), (0.into(), 0), "a GET starts no trace");
    assert_eq!(steps("POST", "", &json!({"user": "alice"}).to_string()), (600_000.into(), 0));
    alice.text("bob", "m2", "traced");
    eventually("steps are recorded", || (steps("GET", "?msg=m2", "").1 > 0).then_some(()));
    let (left, _) = steps("GET", "?user=alice", "");
    assert!((1..=600_000).contains(&left.as_u64().expect("a number")), "a GET tells of the watch: {left}");
    assert_eq!(steps("GET", "?msg=m1", "").1, 0, "the message was sent before the trace");
}

#[test]
fn x5_starting_node_refuses_the_same_requests() {
    let data = fresh_data();
    fs::create_dir_all(&data).expect("a folder");
    let key = data.join("key");
    tidegate::auth::create_key(&key).expect("a file");
    let [admin, monitor] = [(); 2].map(|()| SocketAddr::from(([127, 0, 0, 1], free_port())));
    let sets = [
        "node.profile=cluster".to_owned(),
        "kafka.brokers=[127.0.0.1:1]".to_owned(),
        "redis.urls=[redis://127.0.0.1:1]".to_owned(),
        "postgres.url=postgres://nobody@127.0.0.1:1/none".to_owned(),
        format!("auth.key_file={}", key.display()),
        format!("listen.admin={admin}"),
        format!("listen.monitor={monitor}"),
    ];
    let node = Process::begin(&data, command(&data, &sets.each_ref().map(String::as_str)));
    eventually("the port is open", || std::net::TcpStream::connect(admin).ok());
    let refused = get_reply(admin, "GET", "/readyz", EVIL).0;
    let waits = get_reply(admin, "GET", "/readyz", "Host: localhost\r\n");
    let probed = get_reply(monitor, "GET", "/readyz", EVIL).0;
    drop(node);
    fs::remove_dir_all(&data).ok();
    assert_eq!((refused, waits.0, probed), (421, 503, 503));
    assert!(waits.1["waitsFor"].is_string(), "{}", waits.1);
}
