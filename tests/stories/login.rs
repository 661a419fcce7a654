//! Login, refusal, and Bye.

mod remote_keys;
mod tokens;

use std::time::Duration;

use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::json;
use tidegate::auth;
use tidegate_protocol::{
    Code,
    codec::{Framing, Wire},
    pb,
};

use crate::support::{ServerBody, TestNode, ask, code, hello, send};

#[test]
fn welcome_has_what_a_client_needs() {
    let node = TestNode::start(|config| {
        config.node.id = "node-7".into();
        config.timing.heartbeat_ms = 12_345;
        config.limits.hold_max = 17;
    });
    for wire in Wire::ALL {
        let alice = node.login(wire, "alice", "phone");
        let welcome = &alice.welcome;
        assert_eq!((welcome.node.as_str(), welcome.heartbeat_ms), ("node-7", 12_345), "{wire:?}");
        assert_eq!(welcome.resumed, Some(false));
        assert!(!welcome.session.is_empty() && !welcome.next_id.is_empty());
        assert!(welcome.server_time > 1_700_000_000_000);
        let limits = welcome.limits.unwrap_or_default();
        assert_eq!((limits.frame_bytes_max, limits.content_bytes_max), (65_536, 32_768));
        assert_eq!((limits.hold_max, limits.hold_bytes_max, limits.in_flight_max), (17, 262_144, 256));
    }
}

fn refused(node: &TestNode, wire: Wire, hello: pb::Hello) -> Code {
    let mut client = node.connect(wire);
    let refusal = client.refused(ask::hello(hello));
    assert_eq!(client.expect_close(), refusal, "the error and the close have the same code");
    refusal
}

#[test]
fn bad_tokens_are_refused_with_their_code_and_closed() {
    let node = TestNode::start(|_| {});
    let exp = |exp: u64| json!({"sub": "alice", "exp": exp});
    let sign = |claims, key: &[u8], algorithm| {
        jsonwebtoken::encode(&Header::new(algorithm), &claims, &EncodingKey::from_secret(key)).unwrap()
    };
    let far = 99_999_999_999;
    let expired = sign(exp(1_700_000_000), node.key(), Algorithm::HS256);
    let other_algorithm = sign(exp(far), node.key(), Algorithm::HS512);
    let forged = auth::sign(b"not the key of this node", "alice", None, Duration::from_secs(60));
    let no_end = sign(json!({"sub": "alice"}), node.key(), Algorithm::HS256);
    // {"alg":"none"} . {"sub":"alice","exp":99999999999}
    let unsigned = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbGljZSIsImV4cCI6OTk5OTk5OTk5OTl9.";
    for wire in Wire::ALL {
        assert_eq!(refused(&node, wire, hello(&expired, "phone")), Code::TokenExpired, "{wire:?}");
        for token in [forged.as_str(), unsigned, &other_algorithm, &no_end, "", "abc"] {
            assert_eq!(refused(&node, wire, hello(token, "phone")), Code::TokenInvalid, "{token} {wire:?}");
        }
    }
    let good = sign(exp(far), node.key(), Algorithm::HS256);
    node.connect(Wire::Tcp).login(hello(&good, "phone"));
}

#[test]
fn token_for_one_device_is_valid_for_that_device_only() {
    let node = TestNode::start(|_| {});
    let token = auth::sign(node.key(), "alice", Some("phone"), Duration::from_secs(60));
    for wire in Wire::ALL {
        assert_eq!(refused(&node, wire, hello(&token, "laptop")), Code::DeviceMismatch);
        node.connect(wire).login(hello(&token, "phone"));
    }
}

#[test]
fn malformed_hello_is_refused() {
    let node = TestNode::start(|_| {});
    let good = || hello(&node.token("alice"), "phone");
    for wire in Wire::ALL {
        assert_eq!(refused(&node, wire, pb::Hello { version: 2, ..good() }), Code::BadVersion);
        assert_eq!(refused(&node, wire, pb::Hello { version: 0, ..good() }), Code::BadVersion);
        assert_eq!(refused(&node, wire, pb::Hello { device: "a b".into(), ..good() }), Code::BadId);
        assert_eq!(refused(&node, wire, pb::Hello { device: String::new(), ..good() }), Code::BadId);
        assert_eq!(refused(&node, wire, pb::Hello { next_id: "a:b".into(), ..good() }), Code::BadId);
    }
}

#[test]
fn frames_before_hello_and_a_second_hello_are_refused() {
    let node = TestNode::start(|_| {});
    for wire in Wire::ALL {
        for body in [ask::ping(), ask::send(send("bob", "m1", "hi")), ask::bye(), ask::join("hall")] {
            let mut early = node.connect(wire);
            early.say(body);
            assert_eq!(early.expect_close(), Code::BadState, "{wire:?}");
        }
        let mut twice = node.login(wire, "alice", "phone");
        twice.say(ask::hello(hello(&node.token("alice"), "phone")));
        assert_eq!(twice.expect_close(), Code::BadState, "{wire:?}");
    }
}

#[test]
fn an_empty_frame_is_a_ping() {
    let node = TestNode::start(|_| {});
    for wire in Wire::ALL {
        let mut alice = node.login(wire, "alice", "phone");
        let empties: &[&[u8]] = match wire.framing() {
            Framing::Proto => &[b""],
            Framing::Json => &[b"{}", b"", b" \r"],
        };
        for empty in empties {
            alice.link.send_payload(empty);
            assert!(
                matches!(alice.reply(0), ServerBody::Pong(pong) if pong.time > 1_700_000_000_000),
                "{wire:?}"
            );
        }
        assert!(matches!(alice.ask(ask::ping()), ServerBody::Pong(_)));
    }
}

#[test]
fn unknown_frame_kind_is_unsupported_and_the_session_continues() {
    let node = TestNode::start(|_| {});
    for wire in Wire::ALL {
        let mut alice = node.login(wire, "alice", "phone");
        match wire.framing() {
            // id = 77, and a field 1000 with an empty message.
            Framing::Proto => alice.link.send_payload(&[0x08, 77, 0xc2, 0x3e, 0]),
            Framing::Json => alice.link.send_payload(br#"{"id":77,"dance":{"steps":3}}"#),
        }
        assert_eq!(alice.expect_error(77), Code::Unsupported, "{wire:?}");
        alice.settle();
    }
}

#[test]
fn bye_is_answered_then_the_node_closes() {
    let node = TestNode::start(|_| {});
    for wire in Wire::ALL {
        let mut alice = node.login(wire, "alice", "phone");
        let id = alice.say(ask::bye());
        assert!(matches!(alice.reply(id), ServerBody::Done(_)), "{wire:?}");
        assert_eq!(alice.expect_close(), Code::Bye);
        let mut quiet = node.login(wire, "alice", "phone");
        quiet.say_as(0, ask::bye());
        let all = quiet.until_end();
        assert!(
            matches!(&all[..], [pb::ServerFrame { id: 0, body: Some(ServerBody::Close(close)) }]
            if code(close.code) == Code::Bye),
            "{all:?}"
        );
    }
}

#[test]
fn sends_before_a_bye_are_answered_before_the_close() {
    let node = TestNode::start(|_| {});
    for wire in Wire::ALL {
        let mut alice = node.login(wire, "alice", "phone");
        let id = alice.say(ask::send(send("bob", &format!("{wire:?}"), "one more thing")));
        alice.say_as(0, ask::bye());
        alice.expect_ack(id);
        assert_eq!(alice.expect_close(), Code::Bye);
    }
}

#[test]
fn hello_and_what_follows_may_come_in_one_write() {
    let node = TestNode::start(|_| {});
    for wire in Wire::ALL {
        let mut alice = node.connect(wire);
        let hello = alice.say(ask::hello(hello(&node.token("alice"), "phone")));
        let sent: Vec<u64> =
            (0..3).map(|n| alice.say(ask::send(send("bob", &format!("{wire:?}{n}"), "early")))).collect();
        assert!(matches!(alice.reply(hello), ServerBody::Welcome(_)), "{wire:?}");
        let seqs: Vec<u64> = sent.into_iter().map(|id| alice.expect_ack(id).seq).collect();
        assert!(seqs.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{seqs:?}");
    }
}
