//! Shares of networks in the handshakes.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    sync::Arc,
    time::Duration,
};

use rustls::version::TLS13;
use socket2::{Domain, Socket, Type};

use crate::{
    handshakes::{authority, handshake, offer, speaks},
    support::{TestNode, eventually},
};

/// Opens a connection from an address of this machine.
fn open_from(from: Ipv4Addr, to: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.bind(&SocketAddr::from((from, 0)).into()).expect("an address of loopback");
    socket.connect(&to.into()).expect("it accepts");
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_secs(8))).expect("an option");
    stream
}

#[test]
fn one_address_has_few_handshakes_in_progress() {
    let authority = authority();
    let pair = authority.certify("node", &["tidegate.test"]);
    let node = TestNode::start(|config| {
        offer(config, &[pair]);
        config.tls.handshakes_per_ip = 3;
        config.tls.handshake_ms = 60_000;
    });
    let eve = Ipv4Addr::new(127, 0, 0, 66);
    let _open: Vec<TcpStream> = (0..3).map(|_| open_from(eve, node.address())).collect();
    let mut refused = open_from(eve, node.address());
    let mut refusal = String::new();
    refused.read_to_string(&mut refusal).expect("it is closed");
    assert!(refusal.contains("TOO_MANY_FROM_ADDRESS"), "{refusal}");
    let config = Arc::new(authority.client(&[&TLS13]));
    let mut bob = handshake(node.address(), "tidegate.test", &config).expect("another address has its own");
    speaks(&mut bob);
}

#[test]
fn one_address_keeps_no_other_out_when_all_places_are_taken() {
    let authority = authority();
    let pair = authority.certify("node", &["tidegate.test"]);
    let node = TestNode::start(|config| {
        offer(config, &[pair]);
        config.tls.handshakes_max = 8;
        config.tls.handshakes_per_ip = 0;
        config.tls.handshake_ms = 60_000;
    });
    let eve = Ipv4Addr::new(127, 0, 0, 66);
    let mut open: Vec<TcpStream> = (0..40)
        .map(|_| {
            let mut stream = open_from(eve, node.address());
            stream.write_all(&[0x16, 0x03, 0x01]).ok();
            stream
        })
        .collect();
    let config = Arc::new(authority.client(&[&TLS13]));
    for _ in 0..3 {
        speaks(
            &mut handshake(node.address(), "tidegate.test", &config).expect("one of the others is closed"),
        );
    }
    eventually("most of them are closed", || {
        open.retain_mut(|stream| {
            stream.set_nonblocking(true).ok();
            matches!(stream.read(&mut [0; 512]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
        });
        (open.len() <= 8).then_some(())
    });
}

#[test]
fn one_network_begins_few_handshakes_in_a_second() {
    let authority = authority();
    let pair = authority.certify("node", &["tidegate.test"]);
    let node = TestNode::start(|config| {
        offer(config, &[pair]);
        config.tls.handshakes_per_second = 2;
        config.listen.proxies = vec!["127.0.0.0/8".into()];
    });
    let began = |client: &str| {
        let mut stream = open_from(Ipv4Addr::LOCALHOST, node.address());
        let header = format!("PROXY TCP4 {client} 10.0.0.9 1 7800\r\n");
        stream.write_all(&[header.as_bytes(), &[0x16, 0x03, 0x01]].concat()).expect("it takes bytes");
        stream.set_read_timeout(Some(Duration::from_millis(300))).expect("an option");
        // A refused one is closed, perhaps with a reset.
        stream.read(&mut [0; 512]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    };
    assert_eq!([(); 3].map(|()| began("192.0.2.1")), [true, true, false]);
    assert!(began("192.0.2.2"), "another address has its own");
}
