//! Expiry of tokens, and their refresh on a live connection.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate_protocol::{Code, codec::Wire, pb};

use crate::{
    now, sign,
    support::{Client, ClientBody, ServerBody, TestNode, ask, hello, let_time_pass},
};

/// Starts a node without leeway, so that a token expires in the second after its `exp`.
fn node() -> TestNode {
    TestNode::start(|config| config.auth.leeway_s = 0)
}

fn token(node: &TestNode, exp: i64) -> String {
    sign(node.key(), &json!({"sub": "alice", "exp": exp}))
}

fn refresh(token: &str) -> ClientBody {
    ClientBody::Refresh(pb::Refresh { token: token.to_owned() })
}

fn login(node: &TestNode, wire: Wire, token: &str, device: &str) -> Client {
    let mut client = node.connect(wire);
    client.login(hello(token, device));
    client
}

fn end_of(node: &TestNode, device: &str) -> Option<u64> {
    let (status, body) = node.admin("GET", "/v1/users/alice/connections", &Value::Null);
    assert_eq!(status, 200, "{body}");
    let all = body["connections"].as_array().unwrap();
    all.iter().find(|it| it["device"] == device)?["expiresMs"].as_u64()
}

#[test]
fn connection_ends_with_its_token_on_every_wire() {
    let node = node();
    let exp = now(2);
    let mut clients: Vec<Client> = Wire::ALL
        .into_iter()
        .map(|wire| login(&node, wire, &token(&node, exp), &format!("{wire:?}")))
        .collect();
    for client in &mut clients {
        assert_eq!(client.expect_close(), Code::TokenExpired, "{:?}", client.wire);
        assert!(now(0) > exp, "not before the second after exp");
    }
    let mut again = node.connect(Wire::Tcp);
    assert_eq!(again.refused(ask::hello(hello(&token(&node, exp), "phone"))), Code::TokenExpired);
    login(&node, Wire::Tcp, &token(&node, now(60)), "phone").settle();
}

#[test]
fn refreshed_connection_outlives_its_first_token() {
    let node = node();
    let (first, later) = (now(3), now(600));
    let mut clients: Vec<Client> = Wire::ALL
        .into_iter()
        .map(|wire| login(&node, wire, &token(&node, first), &format!("{wire:?}")))
        .collect();
    for client in &mut clients {
        let device = format!("{:?}", client.wire);
        assert_eq!(end_of(&node, &device), Some((first as u64 + 1) * 1_000));
        client.expect_done(refresh(&token(&node, later)));
        assert_eq!(end_of(&node, &device), Some((later as u64 + 1) * 1_000));
    }
    let_time_pass("the first token expires", Duration::from_secs((first - now(0)).max(0) as u64 + 2));
    assert!(now(0) > first);
    clients.iter_mut().for_each(Client::settle);
}

#[test]
fn welcome_offers_refresh_to_clients_that_know_it() {
    let node = node();
    let token = token(&node, now(60));
    let mut knows = node.connect(Wire::WsText);
    knows.login(pb::Hello { features: vec!["refresh".into(), "later".into()], ..hello(&token, "phone") });
    assert_eq!(knows.welcome.features, ["refresh"]);
    let old = login(&node, Wire::WsText, &token, "desk");
    assert!(old.welcome.features.is_empty());
}

#[test]
fn bad_refresh_is_refused_with_its_code_and_the_connection_continues() {
    let node = node();
    let first = now(60);
    let signed = |claims: Value| sign(node.key(), &claims);
    let forged = sign(b"not the key of this node", &json!({"sub": "alice", "exp": now(600)}));
    for (name, bad, expected) in [
        ("expired", signed(json!({"sub": "alice", "exp": now(-5)})), Code::TokenExpired),
        ("the same again", token(&node, first), Code::TokenNotNewer),
        ("replayed", token(&node, first - 10), Code::TokenNotNewer),
        ("of another user", signed(json!({"sub": "bob", "exp": now(600)})), Code::TokenInvalid),
        (
            "for another device",
            signed(json!({"sub": "alice", "dev": "desk", "exp": now(600)})),
            Code::DeviceMismatch,
        ),
        ("forged", forged, Code::TokenInvalid),
        ("without an end", signed(json!({"sub": "alice"})), Code::TokenInvalid),
        ("no token", "abc".to_owned(), Code::TokenInvalid),
    ] {
        let mut client = login(&node, Wire::Tcp, &token(&node, first), "phone");
        let refusals = || node.metric("tidegate_token_refresh_refusals_total").expect("a series");
        let before = refusals();
        assert_eq!(client.refused(refresh(&bad)), expected, "{name}");
        assert!(refusals() > before, "{name}");
        client.settle();
        assert_eq!(end_of(&node, "phone"), Some((first as u64 + 1) * 1_000), "{name}");
    }
}

#[test]
fn refreshes_of_a_connection_are_limited() {
    let node = node();
    let mut client = login(&node, Wire::JsonLine, &token(&node, now(60)), "phone");
    client.expect_done(refresh(&token(&node, now(100))));
    let ServerBody::Error(error) = client.ask(refresh(&token(&node, now(200)))) else { panic!("no error") };
    assert_eq!((error.name.as_str(), error.temporary), ("RATE_LIMITED", true));
    assert!((1..=2_000).contains(&error.retry_after_ms), "{error:?}");
    let_time_pass("the wait that the node named", Duration::from_millis(error.retry_after_ms.into()));
    client.expect_done(refresh(&token(&node, now(200))));
}

#[test]
fn refresh_replaces_the_grants_of_the_token() {
    let node = node();
    let with = |rooms: &[&str], exp| sign(node.key(), &json!({"sub": "alice", "exp": exp, "rooms": rooms}));
    let mut client = login(&node, Wire::Tcp, &with(&[], now(60)), "phone");
    assert_eq!(client.refused(ask::join("hall")), Code::Forbidden);
    client.expect_done(refresh(&with(&["hall"], now(120))));
    client.expect_done(ask::join("hall"));
}
