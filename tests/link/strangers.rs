//! Callers that are not authenticated: they use little, and never the places of peers.

use std::{net::Ipv4Addr, sync::Arc, sync::atomic::Ordering, time::Duration};

use bytes::Bytes;
use prost::Message as _;
use tidegate::{
    link::{Link as _, Settings},
    routes::NodeBoot,
};
use tidegate_protocol::pb;
use tokio::{
    io::{AsyncWriteExt as _, copy, sink},
    net::TcpStream,
};
use tonic::transport::Endpoint;

use super::{
    Authority, CALL_TIMEOUT, End, answer, call, caller, connect_from, eventually, is_closed, listen, node,
    open, raw, with,
};

/// Connections of one address that are not authenticated.
const PER_ADDRESS_MAX: usize = 8;

/// Settings under which no deadline passes in a test.
fn patient() -> Settings {
    Settings { handshake: CALL_TIMEOUT * 10, ..open() }
}

/// Returns the address of the nth stranger: each has as many of them as it may.
fn address_of(nth: usize) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 1, u8::try_from(nth / PER_ADDRESS_MAX).unwrap() + 1)
}

#[tokio::test]
async fn s73_silent_callers_of_many_addresses_keep_no_peer_out() {
    const STRANGERS: usize = 32 * PER_ADDRESS_MAX;
    const STRANGERS_MAX: usize = 128;
    let (there, end) = (node("there", 1), Arc::new(End::default()));
    let listener = listen(there.clone(), &end, patient());
    let first = caller(patient(), &[(there.clone(), listener.address())]);
    assert_eq!(call(&first, &there).await, Ok(()));
    let mut strangers = Vec::new();
    for n in 0..STRANGERS {
        strangers.push(connect_from(address_of(n), listener.address()).await);
    }
    let closed = || strangers.iter().filter(|it| is_closed(it)).count();
    eventually("the surplus strangers are closed", async || closed() == STRANGERS - STRANGERS_MAX).await;
    // Nobody of them leaves, and no deadline passes: the peer takes the place of one while it connects.
    let second = caller(patient(), &[(there.clone(), listener.address())]);
    assert_eq!(call(&second, &there).await, Ok(()));
    eventually("one more is closed", async || closed() == STRANGERS - STRANGERS_MAX + 1).await;
    assert_eq!(call(&first, &there).await, Ok(()), "a peer is no stranger");
}

#[tokio::test]
async fn unauthenticated_callers_lose_their_permits_to_peers() {
    let ours = Authority::new();
    let secure = || with(ours.node("127.0.0.1", &ours));
    for (there, here) in [(open(), open()), (secure(), secure())] {
        let (peer, end) = (node("there", 1), Arc::new(End::default()));
        let quick = Settings { handshake: Duration::from_secs(1), ..there };
        let listener = listen(peer.clone(), &end, quick);
        let at = listener.address();
        let (mut silent, mut idle) = (Vec::new(), Vec::new());
        for n in 0..150 {
            silent.push(connect_from(address_of(n), at).await);
            // These speak HTTP/2, answer its pings and open no stream, without TLS.
            let endpoint = Endpoint::from_shared(format!("http://{at}")).unwrap();
            idle.push(endpoint.local_address(Some(address_of(150 + n).into())).connect().await);
        }
        // No idle caller leaves: connection permits are free because the handshake timeout of their holders has passed.
        let link = caller(here, &[(peer.clone(), at)]);
        eventually("a peer connects", async || call(&link, &peer).await.is_ok()).await;
        eventually("the silent connections are closed", async || silent.iter().all(is_closed)).await;
        // A caller after the peer is closed in turn, and the peer is not.
        let late = TcpStream::connect(at).await.unwrap();
        eventually("the late connection is closed", async || is_closed(&late)).await;
        assert_eq!(call(&link, &peer).await, Ok(()));
    }
}

#[tokio::test]
async fn x15_silent_callers_of_one_address_keep_nobody_else_out() {
    let (there, end) = (node("there", 1), Arc::new(End::default()));
    let listener = listen(there.clone(), &end, patient());
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(connect_from(Ipv4Addr::new(127, 0, 0, 2), listener.address()).await);
    }
    let closed = || silent.iter().filter(|it| is_closed(it)).count();
    eventually("most of them are closed", async || closed() == 300 - PER_ADDRESS_MAX).await;
    // More peers of one address than it may have strangers: each gives its place back.
    for _ in 0..2 * PER_ADDRESS_MAX {
        let link = caller(patient(), &[(there.clone(), listener.address())]);
        assert_eq!(call(&link, &there).await, Ok(()));
    }
    assert_eq!(closed(), 300 - PER_ADDRESS_MAX, "no other connection was closed for a peer");
}

#[tokio::test]
async fn x15_handshakes_that_do_not_end_keep_nobody_out() {
    let (there, end) = (node("there", 1), Arc::new(End::default()));
    let listener = listen(there.clone(), &end, patient());
    let mut silent = Vec::new();
    for _ in 0..4 {
        let channel = raw::connect(listener.address()).await;
        for _ in 0..8 {
            silent.push(raw::open_on(channel.clone(), "").await.unwrap());
        }
    }
    let link = caller(patient(), &[(there.clone(), listener.address())]);
    assert_eq!(call(&link, &there).await, Ok(()));
    // Each of these connections has three handshakes, and the other streams have ended.
    for (n, lane) in silent.iter_mut().enumerate().filter(|(n, _)| n % 8 >= 3) {
        let ended = tokio::time::timeout(CALL_TIMEOUT, lane.receive()).await;
        assert_eq!(ended, Ok(None), "stream {n}");
    }
}

/// Returns the first message of a later version, with an unknown field of that size.
fn hello(to: &NodeBoot, padding: usize) -> Bytes {
    let run = |of: &NodeBoot| Some(pb::LinkNode { node: of.node.to_string(), boot: of.boot });
    let (from, to) = (run(&node("here", 1)), run(to));
    let hello = pb::LinkHello { version: 2, from, to, nonce: vec![7; 32].into() };
    let step = Some(pb::exchange_request::Step::Hello(hello));
    let mut bytes = pb::ExchangeRequest { step }.encode_to_vec();
    // Field 15, with a length.
    bytes.push(15 << 3 | 2);
    prost::encode_length_delimiter(padding, &mut bytes).unwrap();
    bytes.resize(bytes.len() + padding, 0);
    bytes.into()
}

#[tokio::test]
async fn x15_first_messages_and_headers_are_small() {
    let (there, end) = (node("there", 1), Arc::new(End::default()));
    let listener = listen(there.clone(), &end, patient());
    for (padding, is_accepted) in [(0, true), (3_000, true), (5_000, false), (1 << 20, false)] {
        let mut lane = raw::open(listener.address()).await;
        lane.send(hello(&there, padding)).await;
        let reply = tokio::time::timeout(CALL_TIMEOUT, lane.receive()).await.expect("an end");
        assert_eq!(reply.is_some(), is_accepted, "{padding} bytes");
    }
    for (header, is_accepted) in [(2_000, true), (10_000, false), (20_000, false)] {
        let channel = raw::connect(listener.address()).await;
        let is_answered = match raw::open_on(channel, &"x".repeat(header)).await {
            Ok(mut lane) => {
                lane.send(hello(&there, 0)).await;
                tokio::time::timeout(CALL_TIMEOUT, lane.receive()).await.expect("an end").is_some()
            }
            Err(_) => false,
        };
        assert_eq!(is_answered, is_accepted, "{header} bytes");
    }
    // A peer may send more than that, from its first call on.
    for _ in 0..4 {
        let link = caller(patient(), &[(there.clone(), listener.address())]);
        let large = (0..20_000).flat_map(|_| answer()).collect();
        assert_eq!(link.answers(&there, large).await, Ok(()));
    }
    assert_eq!(end.answers.load(Ordering::SeqCst), 4 * 20_000);
}

#[tokio::test]
async fn x15_caller_that_floods_before_its_proof_is_closed() {
    const MUCH: usize = 32 << 20;
    let (there, end) = (node("there", 1), Arc::new(End::default()));
    let listener = listen(there.clone(), &end, patient());
    let at = listener.address();
    // HTTP/2: the preface with empty settings, then pings, which a server may not refuse.
    let preface = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), &[0, 0, 0, 4, 0, 0, 0, 0, 0]].concat();
    let ping = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    let (mut from, mut to) = TcpStream::connect(at).await.unwrap().into_split();
    let pongs = tokio::spawn(async move { copy(&mut from, &mut sink()).await.unwrap_or_default() });
    to.write_all(&preface).await.unwrap();
    let (pings, mut sent) = (ping.repeat(1_000), 0);
    while sent < MUCH && to.write_all(&pings).await.is_ok() {
        sent += pings.len();
    }
    assert!(sent < MUCH, "the caller was not closed");
    let answered = pongs.await.unwrap();
    assert!(answered < 100_000, "{answered} bytes were answered");
    let link = caller(patient(), &[(there.clone(), at)]);
    assert_eq!(call(&link, &there).await, Ok(()));
}
