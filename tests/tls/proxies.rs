//! PROXY headers: the address that counts, headers of strangers, and incomplete ones.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use proxy_header::{ProxiedAddress, ProxyHeader};

use crate::{
    handshakes::{authority, offer},
    support::{TestNode, eventually, let_time_pass},
};

const WELCOME_TO_STRANGERS: &[u8] = b"{\"hello\":{\"version\":9}}\n";

fn header(client: &str, is_v2: bool) -> Vec<u8> {
    let to: SocketAddr = if client.starts_with('[') { "[2001:db8::1]:7800" } else { "10.0.0.9:7800" }
        .parse()
        .expect("a sound address");
    let header =
        ProxyHeader::with_address(ProxiedAddress::stream(client.parse().expect("a sound address"), to));
    let mut bytes = Vec::new();
    let encoded = if is_v2 { header.encode_v2(&mut bytes) } else { header.encode_v1(&mut bytes) };
    encoded.expect("a sound header");
    bytes
}

fn open(node: &TestNode, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(node.address()).expect("it accepts");
    stream.set_read_timeout(Some(Duration::from_secs(8))).expect("an option");
    stream.write_all(bytes).expect("it takes bytes");
    stream
}

fn answer(stream: &mut TcpStream) -> String {
    let mut bytes = [0; 512];
    let length = stream.read(&mut bytes).expect("it answers");
    String::from_utf8_lossy(&bytes[..length]).into_owned()
}

#[test]
fn a_listed_proxy_names_the_client_whose_address_counts() {
    let node = TestNode::start(|config| {
        config.listen.proxies = vec!["127.0.0.0/8".into()];
        config.limits.conns_per_ip = 2;
    });
    for is_v2 in [false, true] {
        let near = |host: u16| format!("[2001:db8:{}::{host}]:4000", u16::from(is_v2));
        let mut open_ones: Vec<TcpStream> =
            (1..3).map(|host| open(&node, &header(&near(host), is_v2))).collect();
        for stream in &mut open_ones {
            stream.write_all(WELCOME_TO_STRANGERS).expect("it takes bytes");
            assert!(answer(stream).contains("BAD_VERSION"));
        }
        let held: Vec<TcpStream> = (5..7).map(|host| open(&node, &header(&near(host), is_v2))).collect();
        let mut third = open(&node, &header(&near(9), is_v2));
        assert!(answer(&mut third).contains("TOO_MANY_FROM_ADDRESS"), "the third of one /64");
        let mut other = open(&node, &header("192.0.2.7:4000", is_v2));
        other.write_all(WELCOME_TO_STRANGERS).expect("it takes bytes");
        assert!(answer(&mut other).contains("BAD_VERSION"), "another address");
        drop(held);
    }
}

#[test]
fn a_header_in_pieces_and_a_check_of_the_proxy_itself_are_fine() {
    let node = TestNode::start(|config| config.listen.proxies = vec!["127.0.0.1".into()]);
    let mut stream = open(&node, b"");
    for byte in header("192.0.2.1:1", true) {
        stream.write_all(&[byte]).expect("it takes a byte");
        let_time_pass("the node sees each byte on its own", Duration::from_millis(1));
    }
    stream.write_all(WELCOME_TO_STRANGERS).expect("it takes bytes");
    assert!(answer(&mut stream).contains("BAD_VERSION"));
    let mut local = Vec::new();
    ProxyHeader::with_local().encode_v2(&mut local).expect("a sound header");
    let mut check = open(&node, &local);
    check.write_all(WELCOME_TO_STRANGERS).expect("it takes bytes");
    assert!(answer(&mut check).contains("BAD_VERSION"));
}

#[test]
fn headers_of_strangers_and_proxies_without_one_are_refused() {
    let listed = TestNode::start(|config| {
        config.listen.proxies = vec!["127.0.0.0/8".into()];
        config.tls.handshake_ms = 500;
    });
    let mut without = open(&listed, WELCOME_TO_STRANGERS);
    assert!(answer(&mut without).contains("this proxy must send a complete PROXY header first"));
    let mut garbage = open(&listed, b"PROXY TCP4 999.0.0.1 10.0.0.1 1 2\r\n");
    assert!(answer(&mut garbage).contains("UNKNOWN_FRAMING"));
    let mut silent = open(&listed, b"PROXY TCP4 192.");
    assert!(matches!(silent.read(&mut [0]), Ok(0) | Err(_)), "closed at the deadline");
    eventually("it is counted", || {
        (listed.metric("tidegate_openings_late_total") == Some(1.0)).then_some(())
    });
    let unlisted = TestNode::start(|config| config.listen.proxies = vec!["10.0.0.0/8".into()]);
    for is_v2 in [false, true] {
        let mut stranger = open(&unlisted, &header("192.0.2.1:1", is_v2));
        let said = answer(&mut stranger);
        assert!(said.contains("UNKNOWN_FRAMING") && said.contains("listen.proxies"), "{said}");
    }
    // A listed proxy that forwards a header of its client.
    let nested = [header("192.0.2.1:1", false), header("192.0.2.2:2", true)].concat();
    assert!(answer(&mut open(&listed, &nested)).contains("UNKNOWN_FRAMING"));
    // The nodes of a process share it.
    let foreign = || listed.metric("tidegate_proxy_headers_foreign_total");
    assert_eq!(foreign(), Some(3.0));
    let authority = authority();
    let pair = authority.certify("node", &["tidegate.test"]);
    let encrypted = TestNode::start(|config| {
        offer(config, &[pair]);
        config.tls.required = true;
    });
    for is_v2 in [false, true] {
        let said = answer(&mut open(&encrypted, &header("192.0.2.1:1", is_v2)));
        assert!(said.contains("TLS_REQUIRED") && said.contains("listen.proxies"), "{said}");
    }
    assert!(answer(&mut open(&encrypted, WELCOME_TO_STRANGERS)).contains("TLS_REQUIRED"));
    assert_eq!(foreign(), Some(5.0));
}

fn upgrade(header: &str) -> String {
    format!(
        "GET /v1/ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{header}\r\n"
    )
}

#[test]
fn an_ipv6_site_has_rising_limits_by_64_56_and_48() {
    let node = TestNode::start(|config| {
        config.listen.proxies = vec!["127.0.0.0/8".into()];
        config.limits.conns_per_ip = 1;
    });
    let begin = |site: u16, network: u16, rest: &[u8]| {
        let client = format!("[2001:db8:{site:x}:{network:x}::1]:4000");
        open(&node, &[&header(&client, true)[..], rest].concat())
    };
    let mut held = Vec::new();
    let mut hold = |site: u16, network: u16| {
        let mut stream = begin(site, network, upgrade("").as_bytes());
        let said = answer(&mut stream);
        assert!(said.starts_with("HTTP/1.1 101"), "{network:x}: {said}");
        held.push(stream);
    };
    let refused = |network: u16| {
        let said = answer(&mut begin(1, network, b""));
        assert!(said.contains("TOO_MANY_FROM_ADDRESS"), "{network:x}: {said}");
    };
    for high in 0..4 {
        (0..4).for_each(|low| hold(1, high << 8 | low));
        // The /64, and another one of the full /56.
        [0, 4].into_iter().for_each(|low| refused(high << 8 | low));
    }
    // Another /56 of the full /48.
    refused(4 << 8);
    hold(2, 0);
}

#[test]
fn forwarded_headers_of_strangers_are_ignored_and_counted() {
    let node = TestNode::start(|config| {
        config.listen.forwarders = vec!["10.0.0.0/8".into()];
        config.limits.conns_per_ip = 2;
    });
    let headers = ["X-Forwarded-For: 192.0.2.1\r\n", "forwarded: for=192.0.2.2\r\n", ""];
    let upgraded = |header: &str| {
        let mut stream = open(&node, upgrade(header).as_bytes());
        (answer(&mut stream), stream)
    };
    for header in headers {
        let (said, stream) = upgraded(header);
        assert!(said.starts_with("HTTP/1.1 101"), "{said}");
        drop(stream);
        eventually("its place is free", || (node.conns() == 0).then_some(()));
    }
    assert_eq!(node.metric("tidegate_forwarded_headers_foreign_total"), Some(2.0));
    let _two = [upgraded(headers[0]), upgraded(headers[1])];
    let said = answer(&mut open(&node, upgrade("X-Forwarded-For: 192.0.2.3\r\n").as_bytes()));
    assert!(said.contains("TOO_MANY_FROM_ADDRESS"), "all count for their own address: {said}");
}

#[test]
fn an_http_proxy_names_the_client_of_a_websocket() {
    let node = TestNode::start(|config| {
        config.listen.forwarders = vec!["127.0.0.0/8".into()];
        config.limits.conns_per_ip = 2;
    });
    let named = upgrade("X-Forwarded-For: 203.0.113.1, 192.0.2.1\r\n");
    let mut two: Vec<TcpStream> = (0..2).map(|_| open(&node, named.as_bytes())).collect();
    for stream in &mut two {
        assert!(answer(stream).starts_with("HTTP/1.1 101"));
    }
    let mut third = open(&node, named.as_bytes());
    let refusal = answer(&mut third);
    assert!(refusal.starts_with("HTTP/1.1 429") && refusal.contains("TOO_MANY_FROM_ADDRESS"), "{refusal}");
    let mut forged = open(&node, upgrade("X-Forwarded-For: 192.0.2.1, 192.0.2.2\r\n").as_bytes());
    assert!(answer(&mut forged).starts_with("HTTP/1.1 101"), "what stands before the last one is a claim");
    drop(two);
    assert_eq!(node.metric("tidegate_forwarded_headers_foreign_total"), Some(0.0), "it is a listed proxy");
    let open_again = || answer(&mut open(&node, named.as_bytes())).starts_with("HTTP/1.1 101").then_some(());
    eventually("the address has places again", open_again);
}

#[test]
fn a_node_that_reads_forwarded_ignores_the_other_header() {
    let node = TestNode::start(|config| {
        config.listen.forwarders = vec!["127.0.0.0/8".into()];
        config.listen.forwarded_header = "forwarded".into();
        config.limits.conns_per_ip = 1;
    });
    let begin = |forwarded: &str| {
        let headers = format!("Forwarded: for={forwarded}\r\nX-Forwarded-For: 192.0.2.1\r\n");
        let mut stream = open(&node, upgrade(&headers).as_bytes());
        (answer(&mut stream), stream)
    };
    let (said, _first) = begin("\"[2001:db8::1]:4711\";proto=https");
    assert!(said.starts_with("HTTP/1.1 101"), "{said}");
    let (said, _) = begin("\"[2001:db8::2]\"");
    assert!(said.starts_with("HTTP/1.1 429"), "the same /64: {said}");
    let (said, _other) = begin("203.0.113.1");
    assert!(said.starts_with("HTTP/1.1 101"), "another client with the same X-Forwarded-For: {said}");
}
