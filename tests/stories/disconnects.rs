//! Silent clients, half-closed clients, and nodes that stop.

use std::{
    net::Shutdown,
    time::{Duration, Instant},
};

use tidegate_protocol::{Code, codec::Wire, pb};

use crate::support::{
    Client, ServerBody, Stopwatch, TestNode, ask, eventually, hello, let_time_pass, send, text_of,
};

fn fast_heartbeat(config: &mut tidegate::config::Config) {
    config.timing.heartbeat_ms = 400;
}

#[test]
fn silent_client_is_closed_after_two_and_a_half_heartbeats() {
    let node = TestNode::start(fast_heartbeat);
    // The client's last frame, its Hello, is received after this.
    let watch = Stopwatch::start();
    let mut clients: Vec<(Instant, Client)> =
        Wire::ALL.map(|wire| (Instant::now(), node.login(wire, "alice", &format!("{wire:?}")))).into();
    for (since, client) in &mut clients {
        assert_eq!(client.welcome.heartbeat_ms, 400);
        assert_eq!(client.expect_close(), Code::HeartbeatMissed, "{:?}", client.wire);
        let silence = since.elapsed();
        assert!(
            silence + Duration::from_millis(5) >= Duration::from_millis(1_000),
            "closed after {silence:?} already"
        );
        assert!(watch.elapsed() < Duration::from_millis(3_000), "closed after {silence:?} only");
    }
}

#[test]
fn client_that_only_pings_stays_connected() {
    let node = TestNode::start(|config| config.timing.heartbeat_ms = 800);
    eventually("clients that ping in time", || live_on_pings(&node).then_some(()));
}

/// Returns false if the machine let so much time pass between two pings that the end of a client proves nothing.
fn live_on_pings(node: &TestNode) -> bool {
    let mut clients: Vec<Client> =
        Wire::ALL.map(|wire| node.login(wire, "alice", &format!("{wire:?}"))).into();
    let mut by_frame = node.login(Wire::WsBinary, "alice", "ws-ping");
    let since = Instant::now();
    let (mut rounds, mut last) = (0, since);
    // A silent client would be closed after 2 s.
    while since.elapsed() < Duration::from_millis(5_000) {
        rounds += 1;
        for client in &mut clients {
            client.link.send_payload(if client.wire.framing() == tidegate_protocol::codec::Framing::Json {
                b"{}"
            } else {
                b""
            });
        }
        by_frame.link.ws_ping(b"beat");
        let_time_pass("between two pings", Duration::from_millis(200));
        if last.elapsed() > Duration::from_millis(1_000) {
            return false;
        }
        last = Instant::now();
    }
    for client in &mut clients {
        client.settle();
    }
    by_frame.settle();
    assert_eq!(by_frame.pongs, vec![b"beat".to_vec(); rounds], "each ping has its pong");
    true
}

#[test]
fn client_can_set_a_slower_heartbeat() {
    let node = TestNode::start(fast_heartbeat);
    let mut alice = node.connect(Wire::Tcp);
    let settings = pb::Settings { heartbeat_ms: 60_000, ..Default::default() };
    alice.login(pb::Hello { settings: Some(settings), ..hello(&node.token("alice"), "phone") });
    assert_eq!(alice.welcome.heartbeat_ms, 60_000);
    let_time_pass("longer than the heart of the node allows a silence", Duration::from_millis(1_500));
    alice.settle();
}

#[test]
fn half_closed_client_gets_its_answers_and_a_close() {
    let node = TestNode::start(|_| {});
    let mut bob = node.login(Wire::Tcp, "bob", "phone");
    for wire in Wire::ALL {
        for round in 0..10 {
            let mut alice = node.connect(wire);
            let welcome = alice.say(ask::hello(hello(&node.token("alice"), "phone")));
            let text = format!("{wire:?}-{round}");
            let sent = alice.say(ask::send(send("bob", &text, &text)));
            alice.link.half_close();
            assert!(matches!(alice.reply(welcome), ServerBody::Welcome(_)), "{wire:?}");
            let ack = alice.expect_ack(sent);
            assert_eq!(alice.expect_close(), Code::Bye);
            let push = bob.expect_push();
            assert_eq!((push.seq, text_of(&push)), (ack.seq, text.as_str()));
            bob.ack(&push.conversation, push.seq);
        }
    }
    eventually("only bob", || (node.conns() == 1).then_some(()));
}

#[test]
fn idle_half_closed_client_is_closed_at_once() {
    let node = TestNode::start(|_| {});
    for wire in Wire::ALL {
        let mut alice = node.login(wire, "alice", "phone");
        alice.settle();
        alice.link.half_close();
        assert_eq!(alice.expect_close(), Code::Bye, "{wire:?}");
        let nobody = node.connect(wire);
        nobody.link.half_close();
        eventually("no connection is left", || (node.conns() == 0).then_some(()));
    }
}

#[test]
fn stop_notifies_every_client_and_ends_in_time() {
    let node = TestNode::start(|config| config.node.shards = 3);
    let mut clients: Vec<Client> =
        (0..12).map(|n| node.login(Wire::ALL[n % 4], &format!("user-{n}"), "phone")).collect();
    let _silent_guest = node.connect(Wire::Tcp);
    let since = Stopwatch::start();
    let stopping = std::thread::spawn(move || {
        let data = node.stop();
        (data, since.elapsed())
    });
    for client in &mut clients {
        let close = client.take("a close", |frame| matches!(frame.body, Some(ServerBody::Close(_))));
        let Some(ServerBody::Close(close)) = close.body else { panic!("{close:?}") };
        assert_eq!(close.code, u32::from(Code::Draining.number()));
        assert_eq!((close.reconnect, close.after_ms > 0), (pb::Reconnect::After as i32, true));
        assert!(client.until_end().is_empty());
    }
    // Clients that never close their side delay the node by no more than the linger time.
    let (data, took) = stopping.join().expect("the node stops");
    assert!(took < Duration::from_secs(5), "stopping took {took:?}");
    std::fs::remove_dir_all(data).expect("the directory exists");
}

#[test]
fn restart_on_the_same_directory_accepts_tokens_and_address() {
    let node = TestNode::start(|_| {});
    let (token, address) = (node.token("alice"), node.address());
    let alice = node.login(Wire::Tcp, "alice", "phone");
    let data = node.stop();
    alice.link.stream().shutdown(Shutdown::Both).ok();
    let node = TestNode::start_on(&data, |config| config.listen.client = address);
    assert_eq!(node.address(), address);
    let mut alice = node.connect(Wire::Tcp);
    alice.login(hello(&token, "phone"));
    assert_eq!(alice.text("bob", "m1", "back again"), 1);
}
