//! Remote keys that verify tokens: rotation, a broken server, TLS, and restarts.

use std::{
    fs,
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use data_encoding::BASE64URL_NOPAD;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, PKCS_ED25519, PublicKeyData as _};
use rustls::{
    ServerConfig, ServerConnection, StreamOwned,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
};
use serde_json::json;
use tidegate::config::Config;
use tidegate_protocol::{Code, codec::Wire};

use super::tokens::{now, pem, refused};
use crate::support::{ServerBody, TestNode, ask, eventually, hello, let_time_pass, unique_name};

/// Server of a set of keys. An empty answer means that it accepts and never answers.
struct KeyServer {
    address: SocketAddr,
    body: Arc<Mutex<Vec<u8>>>,
}

/// Answer that comes byte by byte and never ends.
const DRIP: &[u8] = b"drip";

/// Reads a request, and sends a body of spaces until the node ends the connection.
fn drip(mut stream: TcpStream) -> io::Result<()> {
    if stream.read(&mut [0; 4_096])? == 0 {
        return Ok(());
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")?;
    loop {
        stream.write_all(b" ")?;
        let_time_pass("the server is slow", Duration::from_millis(20));
    }
}

/// Reads a request and writes the answer.
fn answer(mut stream: impl Read + Write, body: &[u8]) -> io::Result<()> {
    if stream.read(&mut [0; 4_096])? == 0 {
        return Ok(());
    }
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(&[head.as_bytes(), body].concat())?;
    stream.flush()
}

impl KeyServer {
    /// Starts a server, with TLS if it has a certificate.
    fn start(body: &[u8], tls: Option<Arc<ServerConfig>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a sound part of the test");
        let (address, body) =
            (listener.local_addr().expect("a sound part of the test"), Arc::new(Mutex::new(body.to_vec())));
        let shared = Arc::clone(&body);
        thread::spawn(move || {
            let mut silent = Vec::new();
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                let body = shared.lock().expect("a sound part of the test").clone();
                if body == DRIP {
                    thread::spawn(move || drip(stream));
                    continue;
                }
                if body.is_empty() {
                    silent.push(stream);
                    continue;
                }
                // The node may refuse the certificate.
                drop(match &tls {
                    None => answer(stream, &body),
                    Some(tls) => {
                        let connection =
                            ServerConnection::new(Arc::clone(tls)).expect("a sound configuration");
                        answer(StreamOwned::new(connection, stream), &body)
                    }
                });
            }
        });
        Self { address, body }
    }

    fn set(&self, body: &[u8]) {
        *self.body.lock().expect("a sound part of the test") = body.to_vec();
    }
}

fn jwk(kid: &str, pair: &KeyPair) -> Vec<u8> {
    let x = BASE64URL_NOPAD.encode(pair.der_bytes());
    json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "use": "sig", "kid": kid, "x": x}]})
        .to_string()
        .into_bytes()
}

fn made() -> KeyPair {
    KeyPair::generate_for(&PKCS_ED25519).expect("a sound part of the test")
}

/// Returns a token of a key with this `kid`.
fn token(kid: &str, pair: &KeyPair) -> String {
    pem(pair).sign(Some(kid), &json!({"sub": "alice", "exp": now(60)})).expect("a sound part of the test")
}

fn logs_in(node: &TestNode, token: &str) -> bool {
    let mut client = node.connect(Wire::Tcp);
    let id = client.say(ask::hello(hello(token, "phone")));
    matches!(client.reply(id), ServerBody::Welcome(_))
}

fn in_time(node: &TestNode, token: &str) {
    eventually("the key is loaded", || logs_in(node, token).then_some(()));
}

/// Has a node refresh its keys each second.
fn refresh_often(config: &mut Config, url: &str) {
    config.auth.jwks_url = url.to_owned();
    config.auth.jwks_refresh_s = 1;
    config.auth.jwks_cooldown_s = 1;
    config.limits.address_logins_per_second = 0;
}

/// Authority of the server's certificate.
struct KeyAuthority(Issuer<'static, KeyPair>, String);

impl KeyAuthority {
    fn create() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Self(Issuer::new(params, key), pem)
    }

    /// Returns the configuration of a server on this machine.
    fn server(&self) -> Arc<ServerConfig> {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("a name");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate").der().clone();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.expect("sound versions").with_no_client_auth();
        Arc::new(builder.with_single_cert(vec![certificate], key).expect("a sound pair"))
    }

    fn write(&self, file: &Path) {
        fs::write(file, &self.1).expect("a file");
    }
}

#[test]
fn remote_keys_rotate_and_survive_a_broken_server() {
    let (first, second) = (made(), made());
    let server = KeyServer::start(b"<html>garbage</html>", None);
    let url = format!("http://{}/jwks.json", server.address);
    let set = |config: &mut Config| {
        refresh_often(config, &url);
        config.auth.jwks_timeout_ms = 300;
    };
    let node = TestNode::start(set);
    let (one, two) = (token("one", &first), token("two", &second));
    assert_eq!(
        refused(&node, &one).0,
        Code::Overloaded,
        "keys that were never loaded are no fault of the client"
    );
    server.set(&jwk("one", &first));
    in_time(&node, &one);
    assert_eq!(refused(&node, &two), (Code::TokenInvalid, "no key has the token's kid".into()));
    server.set(&jwk("two", &second));
    in_time(&node, &two);
    assert!(logs_in(&node, &one), "a vanished key stays valid for a time");
    let huge = vec![b' '; 1 << 20];
    for broken in [&b"{\"keys\":[]}"[..], b"garbage", b"", DRIP, &huge] {
        server.set(broken);
        let before = node.metric("tidegate_jwks_failures_total").expect("a series");
        let is_counted =
            || (node.metric("tidegate_jwks_failures_total").expect("a series") > before).then_some(());
        eventually("the failure is counted", is_counted);
        assert!(logs_in(&node, &two), "the last good set stays in force");
    }
    let data = node.stop();
    let again = TestNode::start_on(&data, set);
    assert!(logs_in(&again, &two), "the copy on the disk is used while the server is broken");
}

#[test]
fn keys_come_over_tls_from_a_trusted_server_only() {
    let (trusted, foreign, pair) = (KeyAuthority::create(), KeyAuthority::create(), made());
    let server = KeyServer::start(&jwk("one", &pair), Some(trusted.server()));
    let file = std::env::temp_dir().join(format!("tidegate-authority-{}", unique_name()));
    foreign.write(&file);
    let node = TestNode::start(|config| {
        refresh_often(config, &format!("https://{}/jwks.json", server.address));
        config.auth.jwks_ca_file = file.clone();
    });
    eventually("the refusal of the certificate is counted", || {
        (node.metric("tidegate_jwks_failures_total").expect("a series") > 0.0).then_some(())
    });
    let one = token("one", &pair);
    assert_eq!(refused(&node, &one).0, Code::Overloaded, "no key was taken from it");
    trusted.write(&file);
    in_time(&node, &one);
    fs::remove_file(&file).expect("the file exists");
    let failures = node.metric("tidegate_jwks_failures_total");
    eventually("the missing file is counted", || {
        (node.metric("tidegate_jwks_failures_total") > failures).then_some(())
    });
    assert!(logs_in(&node, &one), "the last good set stays in force");
}

#[test]
fn withdrawn_key_is_forgotten_at_a_restart() {
    let (first, second) = (made(), made());
    let server = KeyServer::start(&jwk("one", &first), None);
    let url = format!("http://{}/jwks.json", server.address);
    let node = TestNode::start(|config| refresh_often(config, &url));
    let (one, two) = (token("one", &first), token("two", &second));
    in_time(&node, &one);
    server.set(&jwk("two", &second));
    in_time(&node, &two);
    assert!(logs_in(&node, &one), "a vanished key stays valid for a time");
    let again = TestNode::start_on(&node.stop(), |config| refresh_often(config, &url));
    assert!(logs_in(&again, &two));
    assert_eq!(refused(&again, &one), (Code::TokenInvalid, "no key has the token's kid".into()));
}
