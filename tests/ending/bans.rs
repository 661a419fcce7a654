//! Bans of users, devices and networks: by the admin API, at login, at accept, on open connections, and after a restart.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use serde_json::{Value, json};
use tidegate::{
    bans::BanRecord,
    fault::Fault,
    scratch::{ClockNumbers, Numbers},
    store::GuardKind,
};
use tidegate_protocol::{codec::Wire, pb};

use crate::{
    close_of,
    mesh::Mesh,
    support::{Client, ServerBody, TestNode, ask, hello},
};

/// Time within which a ban is in force on all nodes.
const IN_FORCE_MAX: Duration = Duration::from_secs(2);

fn ban(node: &TestNode, subject: &str, ttl_ms: Option<u64>) -> Value {
    let body = json!({"subject": subject, "reason": "spam", "ttlMs": ttl_ms});
    let (status, body) = node.admin("POST", "/v1/bans", &body);
    assert_eq!(status, 200, "{body}");
    body
}

/// Returns the Close frame of a login that is refused; `None` if it is welcome.
fn refused_login(node: &TestNode, user: &str, device: &str) -> Option<pb::Close> {
    let mut client = node.connect(Wire::Tcp);
    let id = client.say(ask::hello(hello(&node.token(user), device)));
    refusal(&mut client, id)
}

fn refusal(client: &mut Client, hello: u64) -> Option<pb::Close> {
    match client.reply(hello) {
        ServerBody::Welcome(_) => None,
        ServerBody::Error(error) => {
            assert_eq!(error.name, "BANNED");
            Some(close_of(client))
        }
        other => panic!("{other:?}"),
    }
}

fn assert_names_end(close: &pb::Close, name: &str, ttl_ms: u32) {
    let names_end = (ttl_ms / 2..=ttl_ms).contains(&close.after_ms);
    assert!(close.name == name && names_end, "{close:?}");
    assert_eq!(close.reconnect, pb::Reconnect::After as i32);
}

#[test]
fn banned_devices_and_users_are_closed_once_and_refused_until_lifted() {
    let node = TestNode::start(|_| {});
    let (mut phone, mut desk) =
        (node.login(Wire::Tcp, "alice", "phone"), node.login(Wire::WsText, "alice", "desk"));
    let answer = ban(&node, "device:alice/phone", Some(60_000));
    assert_eq!((&answer["inForce"], &answer["pending"]), (&true.into(), &json!([])), "{answer}");
    assert_names_end(&close_of(&mut phone), "KICKED", 60_000);
    desk.settle();
    assert_names_end(&refused_login(&node, "alice", "phone").expect("banned"), "BANNED", 60_000);
    assert_eq!(refused_login(&node, "alice", "tablet"), None);
    ban(&node, "user:alice", None);
    let close = close_of(&mut desk);
    assert_eq!((close.name.as_str(), close.reconnect), ("KICKED", pb::Reconnect::Never as i32));
    let lasting = refused_login(&node, "alice", "desk").expect("banned");
    assert_eq!((lasting.reconnect, lasting.after_ms), (pb::Reconnect::Never as i32, 0));
    assert_eq!(refused_login(&node, "bob", "phone"), None);

    let (_, list) = node.admin("GET", "/v1/bans?limit=1", &Value::Null);
    assert_eq!((&list["bans"][0]["subject"], &list["next"]), (&json!("user:alice"), &json!("user:alice")));
    let (_, list) = node.admin("GET", "/v1/bans?cursor=user:alice", &Value::Null);
    let row = &list["bans"][0];
    assert_eq!(
        (&row["subject"], &row["reason"], &row["by"]),
        (&json!("device:alice/phone"), &json!("spam"), &json!("development"))
    );
    let since = row["sinceMs"].as_u64().expect("a time");
    assert_eq!(row["untilMs"], since + 60_000);
    let (_, of) = node.admin("GET", "/v1/subjects/device:alice%2Fphone", &Value::Null);
    assert!(of["banned"] == true && of["bans"].as_array().is_some_and(|bans| bans.len() == 2), "{of}");

    let lift = |subject: &str| {
        node.admin("DELETE", &format!("/v1/bans/{subject}"), &Value::Null).1["removed"].clone()
    };
    assert_eq!((lift("user:alice"), lift("user:alice")), (true.into(), false.into()));
    assert_eq!(refused_login(&node, "alice", "desk"), None);
    assert!(refused_login(&node, "alice", "phone").is_some());

    let data = node.stop();
    let audit = fs::read_to_string(data.join("audit.jsonl")).expect("a file");
    let lines: Vec<&str> = audit.lines().filter(|line| line.contains("/v1/bans")).collect();
    assert_eq!(lines.len(), 4, "{audit}");
    assert!(lines[0].contains("device:alice/phone") && !audit.contains("spam"), "{audit}");
    let node = TestNode::start_on(&data, |_| {});
    assert!(refused_login(&node, "alice", "phone").is_some(), "it survives a restart");
    assert_eq!(refused_login(&node, "alice", "desk"), None);
}

#[test]
fn malformed_and_exempt_bans_are_refused() {
    let node = TestNode::start(|config| config.listen.proxies = vec!["10.0.0.0/8".into()]);
    let refused = |body: Value| {
        let (status, answer) = node.admin("POST", "/v1/bans", &body);
        assert_eq!(status, 400, "{answer}");
        format!("{} {}", answer["name"], answer["message"])
    };
    for (subject, why) in [
        ("alice", "BAD_ID"),
        ("network:0.0.0.0/0", "BAD_ID"),
        ("network:127.0.0.1", "never banned"),
        ("network:10.1.2.3", "never banned"),
    ] {
        let said = refused(json!({"subject": subject, "reason": "x"}));
        assert!(said.contains(why), "{subject}: {said}");
    }
    assert!(refused(json!({"subject": "user:a", "reason": ""})).contains("reason"));
    assert!(refused(json!({"subject": "user:a", "reason": "x", "ttlMs": 999})).contains("ttlMs"));
    let allow = json!({"reason": "office"});
    let (status, body) = node.admin("PUT", "/v1/allow/192.0.2.0%2F24", &allow);
    assert_eq!((status, &body["subject"]), (200, &json!("network:192.0.2.0/24")), "{body}");
    assert!(refused(json!({"subject": "network:192.0.2.7", "reason": "x"})).contains("192.0.2.0/24"));
    assert_eq!(node.admin("GET", "/v1/allow/192.0.2.0%2F24", &Value::Null).1["reason"], "office");
    assert_eq!(node.admin("GET", "/v1/allow", &Value::Null).1["allowed"][0]["reason"], "office");
    let (_, of) = node.admin("GET", "/v1/subjects/network:192.0.2.7", &Value::Null);
    assert!(of["exempt"].as_str().is_some_and(|why| why.contains("allow-list")), "{of}");
    assert_eq!(node.admin("DELETE", "/v1/allow/192.0.2.0%2F24", &Value::Null).1["removed"], true);
    assert_eq!(node.admin("GET", "/v1/allow/192.0.2.0%2F24", &Value::Null).0, 404);
}

/// Opens a connection, sends bytes, and returns what the node answers at first.
fn open(node: &TestNode, bytes: &str) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(node.address()).expect("it accepts");
    stream.set_read_timeout(Some(Duration::from_secs(8))).expect("an option");
    stream.write_all(bytes.as_bytes()).expect("it takes bytes");
    let answer = answer(&mut stream);
    (stream, answer)
}

fn answer(stream: &mut TcpStream) -> String {
    let mut bytes = [0; 2_048];
    let length = stream.read(&mut bytes).expect("it answers");
    String::from_utf8_lossy(&bytes[..length]).into_owned()
}

#[test]
fn network_of_the_real_address_is_closed_and_refused_behind_proxies() {
    let node = TestNode::start(|config| config.listen.proxies = vec!["127.0.0.0/8".into()]);
    let hello = |user: &str| {
        format!(
            "{{\"id\":1,\"hello\":{{\"version\":1,\"token\":\"{}\",\"device\":\"d\"}}}}\n",
            node.token(user)
        )
    };
    let from =
        |address: &str, user: &str| format!("PROXY TCP4 {address} 10.0.0.9 4000 7800\r\n{}", hello(user));
    let (mut near, welcome) = open(&node, &from("192.0.2.7", "alice"));
    assert!(welcome.contains("welcome"), "{welcome}");
    let (mut far, _) = open(&node, &from("198.51.100.7", "bob"));
    ban(&node, "network:192.0.2.0/24", Some(60_000));
    let close = answer(&mut near);
    assert!(close.contains("KICKED") && close.contains("afterMs"), "{close}");
    let (_, refused) = open(&node, &from("192.0.2.8", "carol"));
    assert!(refused.contains("BANNED") && refused.contains("afterMs"), "{refused}");
    far.write_all(b"{\"id\":2,\"ping\":{}}\n").expect("it takes bytes");
    assert!(answer(&mut far).contains("pong"));
    node.admin("DELETE", "/v1/bans/network:192.0.2.0%2F24", &Value::Null);
    assert!(open(&node, &from("192.0.2.8", "carol")).1.contains("welcome"));
}

#[test]
fn upgrade_that_a_forwarder_names_for_a_banned_address_is_refused() {
    let node = TestNode::start(|config| config.listen.forwarders = vec!["127.0.0.0/8".into()]);
    ban(&node, "network:2001:db8::/32", Some(60_000));
    let upgrade = |client: &str| {
        format!(
            "GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: upgrade\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nX-Forwarded-For: {client}\r\n\r\n"
        )
    };
    let (_, refused) = open(&node, &upgrade("2001:db8:1::7"));
    assert!(refused.starts_with("HTTP/1.1 403") && refused.contains("BANNED"), "{refused}");
    assert!(refused.contains("Retry-After: 60") || refused.contains("Retry-After: 59"), "{refused}");
    assert!(open(&node, &upgrade("2001:db9::7")).1.starts_with("HTTP/1.1 101"));
}

fn put(mesh: &Mesh, nth: usize, subject: &str) {
    let record = BanRecord { reason: "spam".into(), by: "k1".into(), since_ms: 1 };
    mesh.put_entry(nth, (GuardKind::Ban, subject), Bytes::from(record.encoded()), None);
}

#[test]
fn ban_is_in_force_on_all_nodes_in_time_also_without_the_link_and_the_routes() {
    let numbers: Arc<dyn Numbers> = Arc::new(ClockNumbers::new(|| 1));
    let mesh = Mesh::start(3, &numbers);
    let mut clients = [0, 1, 2].map(|nth| mesh.login(nth, Wire::Tcp, "eve", &format!("d{nth}")));
    let mut others = [0, 1, 2].map(|nth| mesh.login(nth, Wire::Tcp, "mallory", &format!("d{nth}")));
    let mut ann = mesh.login(1, Wire::Tcp, "ann", "phone");
    let begun = Instant::now();
    put(&mesh, 1, "user:eve");
    for client in &mut clients {
        assert_eq!(close_of(client).name, "KICKED");
    }
    assert!(begun.elapsed() < IN_FORCE_MAX, "{:?}", begun.elapsed());
    (0..9).for_each(|_| mesh.node(0).link.plan("send_best_effort", Fault::Fail));
    mesh.set_peers(true, 0);
    let begun = Instant::now();
    put(&mesh, 0, "user:mallory");
    for client in &mut others {
        assert_eq!(close_of(client).name, "KICKED");
    }
    assert!(begun.elapsed() < IN_FORCE_MAX, "{:?}", begun.elapsed());
    for nth in 0..3 {
        let mut again = mesh.hello(nth, Wire::Tcp, "mallory", "new");
        assert_eq!(close_of(&mut again).name, "BANNED", "node {nth}");
    }
    ann.settle();
}
