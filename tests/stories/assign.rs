//! Client assignment: queried on the client port, with the token that logs the client in.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
};

use serde_json::{Value, json};

use crate::support::{TestNode, WAIT_MAX, eventually};

/// Returns the whole reply of the client port.
pub(crate) fn raw(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("a node");
    stream.set_read_timeout(Some(WAIT_MAX)).expect("a socket takes options");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the node replies, and closes the connection");
    answer
}

/// Returns status and body of `GET /v1/assign`.
fn ask(node: &TestNode, query: &str, token: &str) -> (u16, Value) {
    let request =
        format!("GET /v1/assign{query} HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {token}\r\n\r\n");
    let answer = raw(node.address(), &request);
    let (head, body) = answer.split_once("\r\n\r\n").expect("an HTTP response");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, serde_json::from_str(body).expect("JSON"))
}

#[test]
fn client_with_a_valid_token_is_assigned_to_nodes() {
    let node = TestNode::start(|config| config.assign.ttl_ms = 7_000);
    let address = node.address();
    let expected = |address: String| json!({"addresses": [{"node": "n1", "address": address}], "ttlMs": 7_000, "stale": false});
    assert_eq!(ask(&node, "", &node.token("ann")), (200, expected(address.to_string())));
    assert_eq!(ask(&node, "?transport=tcp", &node.token("ann")), (200, expected(format!("tcp://{address}"))));
    assert_eq!(
        ask(&node, "?transport=ws&count=1", &node.token("ann")),
        (200, expected(format!("ws://{address}")))
    );
    let (status, said) = ask(&node, "", "no.token.atall");
    assert_eq!((status, &said["name"]), (401, &json!("TOKEN_INVALID")));
    assert!(said["cure"].as_str().is_some_and(|cure| !cure.is_empty()));
    assert_eq!(ask(&node, "?transport=smoke", &node.token("ann")).0, 400);
    eventually("no connection is left", || (node.conns() == 0).then_some(()));
}

#[test]
fn assigned_addresses_are_the_configured_ones() {
    let named = ["wss://chat.example.org/v1/ws", "tcp://chat.example.org:7900", "10.0.0.1:7800"];
    let node = TestNode::start(|config| config.assign.addresses = named.map(str::to_owned).to_vec());
    let assigned = |query: &str| {
        let (status, said) = ask(&node, query, &node.token("ann"));
        assert_eq!(status, 200);
        let all = said["addresses"].as_array().expect("a list");
        all.iter().map(|it| it["address"].as_str().expect("text").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(assigned(""), named);
    assert_eq!(assigned("?transport=ws"), ["wss://chat.example.org/v1/ws", "ws://10.0.0.1:7800"]);
    assert_eq!(assigned("?transport=tcp&count=1"), ["tcp://chat.example.org:7900"]);
}

#[test]
fn web_page_with_a_listed_origin_may_query() {
    let node = TestNode::start(|config| config.listen.origins = vec!["https://chat.example.org".into()]);
    let request = |method: &str, origin: &str| {
        format!(
            "{method} /v1/assign HTTP/1.1\r\nHost: h\r\nOrigin: {origin}\r\nAuthorization: Bearer {}\r\n\r\n",
            node.token("ann")
        )
    };
    let allow = "Access-Control-Allow-Origin: https://chat.example.org\r\n";
    let preflight = raw(node.address(), &request("OPTIONS", "https://chat.example.org"));
    assert!(preflight.starts_with("HTTP/1.1 204 ") && preflight.contains(allow), "{preflight}");
    assert!(preflight.contains("Access-Control-Allow-Headers: authorization\r\n"), "{preflight}");
    let response = raw(node.address(), &request("GET", "https://chat.example.org"));
    assert!(response.starts_with("HTTP/1.1 200 ") && response.contains(allow), "{response}");
    let refused = raw(node.address(), &request("GET", "https://evil.example"));
    assert!(refused.starts_with("HTTP/1.1 403 "), "{refused}");
}

#[test]
fn draining_node_is_not_assigned_and_its_weight_can_change() {
    let node = TestNode::start(|config| {
        config.drain.lb_delay_ms = 60_000;
        config.drain.deadline_ms = 120_000;
    });
    let _phone = node.login(tidegate_protocol::codec::Wire::Tcp, "bob", "phone");
    let (status, said) = node.admin("POST", "/v1/weight", &json!({"weight": 7, "share": 30}));
    assert_eq!((status, said), (200, json!({"weight": 7, "share": 30})));
    assert_eq!(node.admin("POST", "/v1/weight", &json!({"share": 101})).0, 400);
    eventually("the node names itself no longer", || {
        let row = node.admin("GET", "/v1/nodes", &Value::Null).1["nodes"][0].clone();
        (row["weight"] == 7 && row["share"] == 30 && row["drain"].is_null()).then_some(())
    });
    assert_eq!(node.admin("POST", "/v1/drain", &Value::Null).0, 202);
    eventually("the answer is empty", || {
        let (status, said) = ask(&node, "", &node.token("ann"));
        assert_eq!(status, 200, "a cordoned node still replies");
        (said["addresses"] == json!([])).then_some(())
    });
    eventually("the drain is visible", || {
        let row = node.admin("GET", "/v1/nodes", &Value::Null).1["nodes"][0].clone();
        let drain = &row["drain"];
        (row["state"] == "cordoned" && drain["phase"] == "cordoned" && drain["from"] == 1).then_some(())
    });
    assert_eq!(node.admin("DELETE", "/v1/drain", &Value::Null).0, 200);
    eventually("the node names itself again", || {
        (ask(&node, "", &node.token("ann")).1["addresses"] != json!([])).then_some(())
    });
}
