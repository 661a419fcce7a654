//! Handshakes: certificates by name and after a change, versions, refusals, and half-open ones.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

use rcgen::date_time_ymd;
use rustls::{
    ClientConfig, ClientConnection, HandshakeKind, ProtocolVersion, StreamOwned,
    pki_types::ServerName,
    version::{TLS12, TLS13},
};
use tidegate::config::Config;
use tidegate_protocol::codec::Wire;

use crate::{
    support::{TestNode, eventually, unique_name},
    tunnel::{Authority, Pair, Tunnel},
};

pub(crate) fn authority() -> Authority {
    Authority::new(&std::env::temp_dir().join(format!("tidegate-tls-{}", unique_name())))
}

/// Offers TLS with these certificates.
pub(crate) fn offer(config: &mut Config, pairs: &[Pair]) {
    config.tls.cert_files = pairs.iter().map(|pair| pair.cert.clone()).collect();
    config.tls.key_files = pairs.iter().map(|pair| pair.key.clone()).collect();
}

/// Completes a handshake for a server name.
pub(crate) fn handshake(
    to: SocketAddr,
    name: &'static str,
    config: &Arc<ClientConfig>,
) -> Result<StreamOwned<ClientConnection, TcpStream>, std::io::Error> {
    let stream = TcpStream::connect(to)?;
    stream.set_read_timeout(Some(Duration::from_secs(8)))?;
    let name = ServerName::try_from(name).expect("a sound name");
    let connection = ClientConnection::new(Arc::clone(config), name).expect("a sound configuration");
    let mut stream = StreamOwned::new(connection, stream);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock)?;
    }
    Ok(stream)
}

/// Asks for the tokens of a wrong login, which every wire answers.
pub(crate) fn speaks(stream: &mut StreamOwned<ClientConnection, TcpStream>) {
    stream.write_all(b"{\"hello\":{\"version\":9}}\n").expect("it takes a frame");
    let mut answer = [0; 16];
    stream.read_exact(&mut answer).expect("it answers");
    assert_eq!(answer[0], b'{');
}

#[test]
fn all_wires_speak_tls_of_both_versions_on_the_port_that_also_takes_plain_ones() {
    let authority = authority();
    let pair = authority.certify("node", &["tidegate.test"]);
    let node = TestNode::start(|config| offer(config, &[pair]));
    for (version, config) in authority.clients() {
        let tunnel = Tunnel::open(node.address(), "tidegate.test", config);
        for wire in [Wire::Tcp, Wire::JsonLine, Wire::WsBinary, Wire::WsText] {
            let mut plain = node.login(Wire::Tcp, "bob", "plain");
            let mut client = crate::support::Client::connect(tunnel.address, wire);
            client.login(crate::support::hello(&node.token("alice"), "tls"));
            let id = format!("{version:?}-{wire:?}");
            client.text("bob", &id, "through TLS");
            assert_eq!(plain.expect_push().msg_id, id);
            plain.text("alice", &format!("{id}-back"), "without TLS");
            assert_eq!(client.expect_push().msg_id, format!("{id}-back"));
        }
    }
}

#[test]
fn the_certificate_follows_the_name_and_the_first_serves_others() {
    let authority = authority();
    let first = authority.certify("first", &["first.test"]);
    let second = authority.certify("second", &["second.test", "*.second.test"]);
    let node = TestNode::start(|config| offer(config, &[first, second]));
    let config = Arc::new(authority.client(&[&TLS13]));
    for name in ["first.test", "second.test", "a.second.test"] {
        speaks(&mut handshake(node.address(), name, &config).expect(name));
    }
    let error = handshake(node.address(), "third.test", &config).expect_err("no certificate is valid for it");
    assert!(error.to_string().contains("not valid for name"), "{error}");
}

#[test]
fn changed_certificates_serve_new_connections_and_broken_ones_none() {
    let authority = authority();
    let pair = authority.certify("node", &["old.test"]);
    let node = TestNode::start(|config| offer(config, std::slice::from_ref(&pair)));
    let config = Arc::new(authority.client(&[&TLS13]));
    let mut before = handshake(node.address(), "old.test", &config).expect("the first certificate");
    authority.certify("node", &["new.test"]);
    let new = eventually("the new certificate", || handshake(node.address(), "new.test", &config).ok());
    drop(new);
    speaks(&mut before);
    std::fs::write(&pair.cert, "no certificate").expect("a file");
    let reloads = || node.metric("tidegate_tls_reload_errors_total");
    eventually("the broken file is noticed", || (reloads() == Some(1.0)).then_some(()));
    handshake(node.address(), "new.test", &config).expect("the former certificate stays in force");
}

#[test]
fn a_session_is_resumed_with_a_ticket() {
    let authority = authority();
    let pair = authority.certify("node", &["tidegate.test"]);
    let node = TestNode::start(|config| offer(config, &[pair]));
    for version in [&TLS13, &TLS12] {
        let config = Arc::new(authority.client(&[version]));
        let kind = || {
            let mut stream = handshake(node.address(), "tidegate.test", &config).expect("a handshake");
            // Tickets of TLS 1.3 arrive behind the handshake.
            speaks(&mut stream);
            stream.conn.handshake_kind()
        };
        assert_eq!(kind(), Some(HandshakeKind::Full));
        assert_eq!(kind(), Some(HandshakeKind::Resumed), "{version:?}");
    }
}

#[test]
fn only_what_is_allowed_gets_in() {
    let authority = authority();
    let pair = authority.certify("node", &["tidegate.test"]);
    let node = TestNode::start(|config| {
        offer(config, &[pair]);
        config.tls.required = true;
        config.tls.min_version = "1.3".into();
    });
    let mut plain = TcpStream::connect(node.address()).expect("it accepts");
    plain.write_all(b"TG/1\n").expect("it takes bytes");
    let mut refusal = String::new();
    plain.read_to_string(&mut refusal).expect("it is closed");
    assert!(refusal.contains("\"code\":1012") && refusal.contains("TLS_REQUIRED"), "{refusal}");
    let old = Arc::new(authority.client(&[&TLS12]));
    let error = handshake(node.address(), "tidegate.test", &old).expect_err("TLS 1.2 is off");
    assert!(error.to_string().contains("ProtocolVersion"), "the alert says why: {error}");
    let mut http2 = authority.client(&[&TLS13]);
    http2.alpn_protocols = vec![b"h2".to_vec()];
    let error = handshake(node.address(), "tidegate.test", &Arc::new(http2)).expect_err("no such protocol");
    assert!(error.to_string().contains("NoApplicationProtocol"), "{error}");
    let mut browser = authority.client(&[&TLS13]);
    browser.alpn_protocols = vec![b"http/1.1".to_vec()];
    let mut stream = handshake(node.address(), "tidegate.test", &Arc::new(browser)).expect("as a browser");
    assert_eq!(stream.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
    assert_eq!(stream.conn.protocol_version(), Some(ProtocolVersion::TLSv1_3));
    speaks(&mut stream);
    eventually("failures are counted", || {
        (node.metric("tidegate_tls_failures_total") == Some(2.0)).then_some(())
    });
}

#[test]
fn a_wrong_key_stops_the_start_with_its_cure() {
    let authority = authority();
    let (one, other) = (authority.certify("one", &["a.test"]), authority.certify("other", &["b.test"]));
    let mut config = Config::default();
    config.node.data = std::env::temp_dir().join(format!("tidegate-tls-data-{}", unique_name()));
    config.listen.client = ([127, 0, 0, 1], 0).into();
    config.listen.admin = ([127, 0, 0, 1], 0).into();
    let start = |pair: Pair| {
        let mut config = config.clone();
        offer(&mut config, &[pair]);
        let started = tidegate::node::Node::start(&config, &tokio::sync::watch::Sender::new(false));
        format!("{:#}", started.err().expect("it can't start"))
    };
    let wrong = start(Pair { cert: one.cert.clone(), key: other.key });
    assert!(wrong.contains("name the key that belongs to the first certificate"), "{wrong}");
    let missing = start(Pair { cert: one.cert, key: "/nonexistent/key".into() });
    assert!(missing.contains("/nonexistent/key can't be used"), "{missing}");
}

#[test]
fn an_expired_certificate_is_served_and_refused_by_clients() {
    let authority = authority();
    let pair = authority.certify_with("node", &["tidegate.test"], |params| {
        (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
    });
    let node = TestNode::start(|config| offer(config, &[pair]));
    let config = Arc::new(authority.client(&[&TLS13]));
    let failures = || node.metric("tidegate_tls_failures_total").expect("a series");
    let before = failures();
    let error =
        handshake(node.address(), "tidegate.test", &config).expect_err("the client looks at its clock");
    assert!(error.to_string().contains("expired"), "{error}");
    eventually("the refusal of the client is counted", || (failures() > before).then_some(()));
    assert_eq!(node.metric("tidegate_tls_certificate_expires_seconds"), Some(1_609_459_200.0));
    authority.certify("node", &["tidegate.test"]);
    eventually("its replacement", || handshake(node.address(), "tidegate.test", &config).ok());
}

#[test]
fn a_certificate_without_its_key_keeps_the_former_pair_in_force() {
    let authority = authority();
    let pair = authority.certify("node", &["old.test"]);
    let other = authority.certify("other", &["new.test"]);
    let node = TestNode::start(|config| offer(config, std::slice::from_ref(&pair)));
    let config = Arc::new(authority.client(&[&TLS13]));
    // A renewal writes two files: between them the certificate has no key.
    std::fs::rename(&other.cert, &pair.cert).expect("a file");
    let errors = || node.metric("tidegate_tls_reload_errors_total");
    eventually("the half is noticed", || (errors() == Some(1.0)).then_some(()));
    speaks(&mut handshake(node.address(), "old.test", &config).expect("the former pair"));
    std::fs::rename(&other.key, &pair.key).expect("a file");
    eventually("the whole pair", || handshake(node.address(), "new.test", &config).ok());
}

#[test]
fn a_handshake_byte_by_byte_ends_at_its_deadline() {
    let authority = authority();
    let pair = authority.certify("node", &["tidegate.test"]);
    let node = TestNode::start(|config| {
        offer(config, &[pair]);
        config.tls.handshake_ms = 1_000;
    });
    let config = Arc::new(authority.client(&[&TLS13]));
    let name = ServerName::try_from("tidegate.test").expect("a sound name");
    let mut client = ClientConnection::new(config, name).expect("a sound configuration");
    let mut hello = Vec::new();
    client.write_tls(&mut hello).expect("a hello");
    let mut stream = TcpStream::connect(node.address()).expect("it accepts");
    stream.set_read_timeout(Some(Duration::from_millis(50))).expect("an option");
    let began = Instant::now();
    // Each byte is in time, all of them together are not.
    let closed = hello.iter().any(|byte| {
        let written = stream.write_all(&[*byte]);
        written.is_err() || matches!(stream.read(&mut [0]), Ok(0))
    });
    assert!(closed && began.elapsed() < Duration::from_secs(6), "open after {:?}", began.elapsed());
    eventually("it is counted", || (node.metric("tidegate_openings_late_total") == Some(1.0)).then_some(()));
}

#[test]
fn connections_that_have_sent_nothing_get_a_code_when_the_node_stops() {
    let authority = authority();
    let pair = authority.certify("node", &["tidegate.test"]);
    let node = TestNode::start(|config| offer(config, &[pair]));
    let mut silent = TcpStream::connect(node.address()).expect("it accepts");
    silent.set_read_timeout(Some(Duration::from_secs(8))).expect("an option");
    eventually("the connection is counted", || (node.conns() == 1).then_some(()));
    node.stop();
    let mut refusal = String::new();
    silent.read_to_string(&mut refusal).expect("it is closed");
    assert!(refusal.contains("DRAINING"), "{refusal:?}");
}

#[test]
fn half_open_handshakes_end_at_their_deadline_and_delay_nobody() {
    let authority = authority();
    let pair = authority.certify("node", &["tidegate.test"]);
    let node = TestNode::start(|config| {
        offer(config, &[pair]);
        config.tls.handshake_ms = 1_000;
        config.tls.handshakes_max = 300;
    });
    let config = Arc::new(authority.client(&[&TLS13]));
    // The start of a client's first record, and nothing more.
    let open: Vec<TcpStream> = (0..200)
        .map(|_| {
            let mut stream = TcpStream::connect(node.address()).expect("it accepts");
            stream.write_all(&[0x16, 0x03, 0x01, 0x02, 0x00, 0x01]).expect("it takes bytes");
            stream
        })
        .collect();
    speaks(&mut handshake(node.address(), "tidegate.test", &config).expect("a place is left"));
    for mut stream in open {
        stream.set_read_timeout(Some(Duration::from_secs(8))).expect("an option");
        assert!(matches!(stream.read(&mut [0; 1]), Ok(0) | Err(_)), "it is closed");
        stream.shutdown(Shutdown::Both).ok();
    }
    eventually("it is counted", || {
        (node.metric("tidegate_openings_late_total") == Some(200.0)).then_some(())
    });
}

#[test]
fn too_many_half_open_handshakes_are_refused_and_counted() {
    let authority = authority();
    let pair = authority.certify("node", &["tidegate.test"]);
    let node = TestNode::start(|config| {
        offer(config, &[pair]);
        config.tls.handshakes_max = 8;
        config.tls.handshake_ms = 60_000;
    });
    let before = node.metric("tidegate_connections_refused_total").expect("a metric");
    let _open: Vec<TcpStream> =
        (0..100).map(|_| TcpStream::connect(node.address()).expect("it accepts")).collect();
    let refused = || node.metric("tidegate_connections_refused_total").expect("a metric") - before;
    // Each thread holds its share, and as many wait in its queue.
    eventually("the others are refused", || (refused() >= 70.0).then_some(()));
}
