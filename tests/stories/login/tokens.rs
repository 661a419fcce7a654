//! Tokens of every algorithm and with grants, on a whole node.

use std::{
    fs,
    path::PathBuf,
    time::{SystemTime, UNIX_EPOCH},
};

use aws_lc_rs::{
    encoding::{AsDer as _, PublicKeyX509Der},
    rsa::{KeyPair as RsaKeyPair, KeySize},
    signature::KeyPair as _,
};
use data_encoding::{BASE64, BASE64URL_NOPAD};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ED25519};
use serde_json::{Value, json};
use tidegate::{auth::SigningKey, config::Config};
use tidegate_protocol::{Code, codec::Wire};

use crate::{
    assign::raw,
    support::{ServerBody, TestNode, ask, code, hello, send, unique_name},
};

pub(super) fn now(later: i64) -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970").as_secs() as i64 + later
}

pub(super) fn pem(pair: &KeyPair) -> SigningKey {
    SigningKey::from_pem(pair.serialize_pem().as_bytes()).expect("a supported kind")
}

/// Folder of key files, removed at the end.
struct Keys {
    folder: PathBuf,
    rsa: SigningKey,
    rsa_pem: String,
    p256: SigningKey,
    ed: SigningKey,
}

impl Keys {
    fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("tidegate-keys-{}", unique_name()));
        fs::create_dir(&folder).expect("a folder");
        let rsa = RsaKeyPair::generate(KeySize::Rsa2048).expect("a sound part of the test");
        let der: PublicKeyX509Der<'_> = rsa.public_key().as_der().expect("a sound part of the test");
        let rsa_pem = format!(
            "-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n",
            BASE64.encode(der.as_ref())
        );
        let p256 = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a sound part of the test");
        let ed = KeyPair::generate_for(&PKCS_ED25519).expect("a sound part of the test");
        fs::write(folder.join("rsa"), &rsa_pem).expect("a sound part of the test");
        fs::write(folder.join("p256"), p256.public_key_pem()).expect("a sound part of the test");
        fs::write(folder.join("ed"), ed.public_key_pem()).expect("a sound part of the test");
        Self { folder, rsa: SigningKey::Rsa(Box::new(rsa)), rsa_pem, p256: pem(&p256), ed: pem(&ed) }
    }

    fn configure(&self, config: &mut Config) {
        let entry = |kid: &str| format!("{kid}={}", self.folder.join(kid).display());
        config.auth.key_files = ["rsa", "p256", "ed"].map(entry).to_vec();
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.folder));
    }
}

/// Returns code and text of the refusal of a login.
pub(super) fn refused(node: &TestNode, token: &str) -> (Code, String) {
    let mut client = node.connect(Wire::JsonLine);
    let id = client.say(ask::hello(hello(token, "phone")));
    match client.reply(id) {
        ServerBody::Error(error) => (code(error.code), error.message),
        other => panic!("no error: {other:?}"),
    }
}

/// Starts a node that takes the tokens of one back end for one audience.
fn strict_node(keys: &Keys) -> TestNode {
    TestNode::start(|config| {
        keys.configure(config);
        config.auth.issuers = vec!["back-end".into()];
        config.auth.audiences = vec!["chat".into()];
        config.auth.max_lifetime_s = 3_600;
        config.auth.token_bytes_max = 2_048;
        config.limits.address_logins_per_second = 0;
    })
}

/// Returns claims that such a node accepts.
fn good() -> Value {
    json!({"sub": "alice", "exp": now(60), "iss": "back-end", "aud": "chat"})
}

#[test]
fn each_algorithm_logs_in() {
    let keys = Keys::new();
    let node = strict_node(&keys);
    for (kid, key) in [("rsa", &keys.rsa), ("p256", &keys.p256), ("ed", &keys.ed)] {
        let token = key.sign(Some(kid), &good()).expect("a sound part of the test");
        for _ in 0..2 {
            node.connect(Wire::Tcp).login(hello(&token, "phone"));
        }
        let request = format!("GET /v1/assign HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {token}\r\n\r\n");
        assert!(raw(node.address(), &request).starts_with("HTTP/1.1 200"), "{kid}");
        let broken = format!("{}AAAA", &token[..token.len() - 4]);
        let request = format!("GET /v1/assign HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {broken}\r\n\r\n");
        assert!(raw(node.address(), &request).starts_with("HTTP/1.1 401"), "{kid}");
    }
}

#[test]
fn each_fault_has_its_text_and_counter() {
    let keys = Keys::new();
    let node = strict_node(&keys);
    let with = |name: &str, value: Value| {
        let mut claims = good();
        claims[name] = value;
        keys.ed.sign(Some("ed"), &claims).expect("a sound part of the test")
    };
    let confused = SigningKey::Secret(keys.rsa_pem.clone().into_bytes())
        .sign(Some("rsa"), &good())
        .expect("a sound part of the test");
    let unsigned = {
        let part = |value: Value| BASE64URL_NOPAD.encode(value.to_string().as_bytes());
        format!("{}.{}.", part(json!({"alg": "none", "kid": "ed"})), part(good()))
    };
    let faults = [
        (with("exp", json!(now(-100))), Code::TokenExpired, "has expired", "expired"),
        (with("nbf", json!(now(50))), Code::TokenInvalid, "not valid yet", "time"),
        (with("exp", json!(now(9_000))), Code::TokenInvalid, "valid for longer", "time"),
        (with("aud", json!("shop")), Code::TokenInvalid, "another audience", "foreign"),
        (with("iss", json!("other")), Code::TokenInvalid, "another issuer", "foreign"),
        (
            keys.ed.sign(Some("x"), &good()).expect("a sound part of the test"),
            Code::TokenInvalid,
            "no key has",
            "unknown_key",
        ),
        (
            keys.ed.sign(None, &good()).expect("a sound part of the test"),
            Code::TokenInvalid,
            "no key has",
            "unknown_key",
        ),
        (
            keys.ed.sign(Some("rsa"), &good()).expect("a sound part of the test"),
            Code::TokenInvalid,
            "algorithm",
            "algorithm",
        ),
        (confused, Code::TokenInvalid, "algorithm", "algorithm"),
        (unsigned, Code::TokenInvalid, "not signed", "algorithm"),
        (with("pad", json!("x".repeat(2_048))), Code::TokenInvalid, "larger", "malformed"),
        (with("rooms", json!(["a b"])), Code::TokenInvalid, "well formed", "malformed"),
    ];
    for (token, expected, text, counter) in faults {
        let name = format!("tidegate_tokens_{counter}_total");
        let before = node.metric(&name).expect("a series");
        let (code, message) = refused(&node, &token);
        assert_eq!(code, expected, "{message}");
        assert!(message.contains(text), "{message}");
        assert!(node.metric(&name).expect("a series") > before, "{name}");
    }
}

#[test]
fn grants_of_a_token_are_enforced() {
    let node = TestNode::start(|_| {});
    let secret = SigningKey::Secret(node.key().to_vec());
    let claims = json!({
        "sub": "alice", "exp": now(60), "rooms": ["lobby", "team-*"], "to": ["bob", "r:lobby"],
        "org": "acme", "chan": "web", "prio": 3, "jti": "t1",
    });
    let token = secret.sign(None, &claims).expect("a sound part of the test");
    for wire in Wire::ALL {
        let mut alice = node.connect(wire);
        alice.login(hello(&token, &format!("{wire:?}")));
        alice.expect_done(ask::join("lobby"));
        alice.expect_done(ask::join("team-7"));
        assert_eq!(alice.refused(ask::join("private")), Code::Forbidden);
        let id = format!("{wire:?}");
        alice.send(send("r:lobby", &format!("{id}1"), "x"));
        assert_eq!(alice.refused(ask::send(send("r:team-7", &format!("{id}2"), "x"))), Code::Forbidden);
        assert_eq!(alice.refused(ask::send(send("d:alice:carol", &format!("{id}3"), "x"))), Code::Forbidden);
        alice.send(send("d:alice:bob", &format!("{id}4"), "x"));
        assert_eq!(alice.refused(ask::signal("d:alice:carol", "typing", "")), Code::Forbidden);
        // A refused join leaves no trace: the limit of rooms still counts two.
        alice.expect_done(ask::join("lobby"));
    }
}
