//! Certificates of clients: optional, required, of strangers, and whose name is the user.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    sync::Arc,
};

use rcgen::DnType;
use rustls::{
    ClientConfig, ClientConnection, HandshakeKind, StreamOwned,
    version::{TLS12, TLS13},
};
use tidegate::config::Config;

use crate::{
    handshakes::{authority, handshake, offer, speaks},
    support::{TestNode, eventually},
    tunnel::{Authority, Pair},
};

fn start(authority: &Authority, change: impl FnOnce(&mut Config)) -> TestNode {
    let pair = authority.certify("node", &["tidegate.test"]);
    TestNode::start(|config| {
        offer(config, &[pair]);
        config.tls.client_ca = authority.file();
        change(config);
    })
}

/// Writes a certificate with that common name and alternative name.
fn certificate(authority: &Authority, common: &str, alternative: &str) -> Pair {
    authority.certify_with(&format!("{common}-{alternative}"), &[alternative], |params| {
        params.distinguished_name.push(DnType::CommonName, common);
    })
}

/// Logs in with JSON lines, and returns the answer.
fn login(node: &TestNode, config: &Arc<ClientConfig>, user: &str) -> Option<String> {
    let mut stream: StreamOwned<ClientConnection, TcpStream> =
        handshake(node.address(), "tidegate.test", config).ok()?;
    let hello = format!(r#"{{"id":1,"hello":{{"version":1,"token":"{}","device":"d"}}}}"#, node.token(user));
    stream.write_all(format!("{hello}\n").as_bytes()).ok()?;
    let mut answer = [0; 2_048];
    // In TLS 1.3 the client learns of a refused certificate by its first read.
    let length = stream.read(&mut answer).ok().filter(|length| *length > 0)?;
    Some(String::from_utf8_lossy(&answer[..length]).into_owned())
}

#[test]
fn a_required_certificate_must_be_of_the_authority() {
    let (authority, foreign) = (authority(), authority());
    let node = start(&authority, |config| {
        config.tls.required = true;
        config.tls.client_certificates = "required".into();
    });
    for version in [&TLS13, &TLS12] {
        let own = certificate(&authority, "alice", "alice");
        let config = Arc::new(authority.client_with(version, &own));
        assert!(login(&node, &config, "bob").is_some_and(|it| it.contains("welcome")), "{version:?}");
        assert!(login(&node, &Arc::new(authority.client(&[version])), "bob").is_none(), "no certificate");
        let stranger = certificate(&foreign, "alice", "alice");
        let config = Arc::new(authority.client_with(version, &stranger));
        assert!(login(&node, &config, "bob").is_none(), "a certificate of another authority");
        let expired = authority.certify_with("expired", &["alice"], |params| {
            (params.not_before, params.not_after) =
                (rcgen::date_time_ymd(2020, 1, 1), rcgen::date_time_ymd(2021, 1, 1));
        });
        let config = Arc::new(authority.client_with(version, &expired));
        assert!(login(&node, &config, "bob").is_none(), "an expired certificate");
    }
    eventually("failures are counted", || {
        (node.metric("tidegate_tls_failures_total") == Some(6.0)).then_some(())
    });
}

#[test]
fn the_name_of_a_certificate_is_the_user_of_the_token() {
    let authority = authority();
    for (part, common, alternative) in [("cn", "alice", "other"), ("san", "other", "alice")] {
        let node = start(&authority, |config| config.tls.client_name = part.into());
        let own = certificate(&authority, common, alternative);
        for version in [&TLS13, &TLS12] {
            let config = Arc::new(authority.client_with(version, &own));
            let answer = login(&node, &config, "alice").expect("an answer");
            assert!(answer.contains("welcome"), "{part}: {answer}");
            // Also when the client reconnects.
            for user in ["bob", "other", "bob"] {
                let answer = login(&node, &config, user).expect("an answer");
                assert!(
                    answer.contains("TOKEN_INVALID") && answer.contains("certificate"),
                    "{part}: {answer}"
                );
            }
            let without = Arc::new(authority.client(&[version]));
            assert!(login(&node, &without, "bob").is_some_and(|it| it.contains("welcome")), "it is optional");
        }
    }
}

#[test]
fn connections_with_certificates_are_not_resumed() {
    let (former, next) = (authority(), authority());
    let node = start(&former, |config| {
        config.tls.required = true;
        config.tls.client_certificates = "required".into();
    });
    let own = certificate(&former, "alice", "alice");
    let configs = [&TLS13, &TLS12].map(|version| Arc::new(former.client_with(version, &own)));
    for config in &configs {
        for _ in 0..2 {
            let mut stream = handshake(node.address(), "tidegate.test", config).expect("a handshake");
            speaks(&mut stream);
            assert_eq!(stream.conn.handshake_kind(), Some(HandshakeKind::Full));
        }
    }
    std::fs::rename(next.file(), former.path()).expect("a file");
    let reloads = || node.metric("tidegate_tls_reloads_total");
    eventually("the authority is read again", || (reloads() == Some(1.0)).then_some(()));
    for config in &configs {
        assert!(login(&node, config, "alice").is_none(), "the certificate is not accepted any more");
    }
}
