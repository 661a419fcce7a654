//! Connections that are not of clients, and slow handshakes.

use std::time::{Duration, Instant};

use tidegate_protocol::{Code, codec::Wire, ws::Opcode};

use crate::{
    chat::{Chat, Pair},
    raw::{Raw, UPGRADE, frame, preface, ws_frame},
    support::{Process, Stopwatch, ask, hello},
};

/// Two sweeps and the delay of a shared machine, after a deadline.
const DEADLINE_TOLERANCE: Duration = Duration::from_millis(2_500);

#[test]
fn other_protocols_are_refused_at_once() {
    let node = Process::start(&[]);
    let chat = Chat::begin(&node);
    let hellos: [(&str, &[u8]); 7] = [
        ("garbage", b"\x00\xff\xfe garbage"),
        ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
        ("PROXY v1", b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n{}\n"),
        ("PROXY v2", b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c"),
        ("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        ("POST", b"POST / HTTP/1.1\r\nHost: a\r\n\r\n"),
        ("a wrong preface", b"TG/2\n"),
    ];
    for (what, bytes) in hellos {
        let mut raw = Raw::connect(node.address(), Wire::JsonLine);
        raw.send(bytes).expect("the node reads");
        raw.until_end().assert_closed(Wire::JsonLine, Code::UnknownFraming, what);
    }
    chat.end();
}

#[test]
fn request_without_an_upgrade_gets_an_http_response() {
    let node = Process::start(&[]);
    let chat = Chat::begin(&node);
    let filler = format!("{UPGRADE}Cookie: {}\r\n\r\n", "a".repeat(9_000));
    let many = format!("{UPGRADE}{}\r\n", "a: b\r\n".repeat(1_000));
    let endless = format!("GET /{}", "a".repeat(100_000));
    let requests = [
        ("a plain GET", "GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), 426),
        ("another path", UPGRADE.replace("/v1/ws", "/admin") + "\r\n", 404),
        ("a bad key", UPGRADE.replace("dGhl", "") + "\r\n", 400),
        ("an old version", UPGRADE.replace("13", "8") + "\r\n", 426),
        ("HTTP/1.0", "GET / HTTP/1.0\r\n\r\n".to_owned(), 426),
        ("no such HTTP", "GET / HTTP/9.9\r\n\r\n".to_owned(), 505),
        ("no HTTP", "GET \x01\x02\x03\r\n\r\n".to_owned(), 400),
        ("a token in the URL", UPGRADE.replace("/v1/ws", "/v1/ws?token=secret") + "\r\n", 400),
        ("another sub-protocol", format!("{UPGRADE}Sec-WebSocket-Protocol: mqtt\r\n\r\n"), 400),
        ("a foreign origin", format!("{UPGRADE}Origin: https://evil.example\r\n\r\n"), 403),
        ("a huge header", filler, 431),
        ("1,000 headers", many, 431),
        ("an endless request line", endless, 431),
    ];
    for (what, request, status) in requests {
        let mut raw = Raw::connect(node.address(), Wire::WsText);
        raw.send(request.as_bytes()).expect("the node reads");
        let output = raw.until_end();
        assert!(output.head.starts_with(&format!("HTTP/1.1 {status} ")), "{what}: {output:?}");
        assert!(output.orderly, "{what}: a reset");
    }
    chat.end();
}

#[test]
fn dribbled_request_ends_at_the_deadline() {
    let node = Process::start(&["timing.handshake_ms=400"]);
    let chat = Chat::begin(&node);
    let mut raw = Raw::connect(node.address(), Wire::WsText);
    let began = Instant::now();
    raw.send(b"GET /v1/ws HTTP/1.1\r\nCookie: ").expect("the node reads");
    raw.repeat_until_answered(
        b"a",
        Duration::from_millis(20),
        Duration::from_millis(400) + DEADLINE_TOLERANCE,
    );
    assert!(began.elapsed() >= Duration::from_millis(350), "ended early: {:?}", began.elapsed());
    let output = raw.until_end();
    assert!(output.head.starts_with("HTTP/1.1 408 "), "{output:?}");
    chat.end();
}

#[test]
fn half_open_handshakes_end_in_time_and_block_no_login() {
    const HANDSHAKE_TIMEOUT: Duration = Duration::from_millis(8_000);
    let node = Process::start(&["timing.handshake_ms=8000"]);
    let chat = Chat::begin(&node);
    let token = node.token("half");
    let began = Instant::now();
    let mut half: Vec<(Wire, Raw)> = (0..1_000)
        .map(|n| {
            let wire = Wire::ALL[n % 4];
            let mut bytes = preface(wire);
            let greeting = frame(wire, 1, ask::hello(hello(&token, "d")));
            bytes.extend(&greeting[..greeting.len() / 2]);
            // Half of them send nothing at all.
            let said = if n % 8 < 4 { &bytes[..] } else { &[] };
            let mut raw = Raw::connect(node.address(), wire);
            raw.send(said).expect("the node reads");
            (wire, raw)
        })
        .collect();
    let begun = Stopwatch::start();
    Pair::login(&node);
    assert!(node.conns() >= 1_000, "an honest login waits for no half-open handshake");
    for (n, (wire, raw)) in half.iter_mut().enumerate() {
        let wire = if n % 8 < 4 { *wire } else { Wire::JsonLine };
        raw.until_end().assert_closed(wire, Code::HandshakeTimeout, &format!("number {n}"));
    }
    assert!(began.elapsed() >= HANDSHAKE_TIMEOUT, "ended after {:?} already", began.elapsed());
    assert!(
        begun.elapsed() < HANDSHAKE_TIMEOUT + DEADLINE_TOLERANCE * 2,
        "ended after {:?} only",
        begun.elapsed()
    );
    chat.end();
}

/// A stranger may not make the node keep a whole frame of the largest size.
#[test]
fn x7_frames_before_the_login_are_small_and_few() {
    let node = Process::start(&[]);
    let chat = Chat::begin(&node);
    for wire in Wire::ALL {
        // The first bytes of a frame of 5 KB, which never ends.
        let large = frame(wire, 1, ask::hello(hello(&"t".repeat(5_000), "d")));
        let mut raw = Raw::connect(node.address(), wire);
        raw.send(&preface(wire)).expect("the node reads");
        raw.send(&large[..large.len() - 10]).expect("the node reads");
        raw.until_end().assert_closed(wire, Code::FrameTooLarge, "a large hello");
    }
    for (wire, opcode) in [(Wire::WsText, Opcode::Pong), (Wire::WsBinary, Opcode::Ping)] {
        let mut raw = Raw::connect(node.address(), wire);
        raw.send(&preface(wire)).expect("the node reads");
        raw.send(&ws_frame(opcode, b"").repeat(17)).expect("the node reads");
        raw.until_end().assert_closed(wire, Code::TooManyFrames, "control frames");
        // Fewer are not too many.
        let mut raw = Raw::connect(node.address(), wire);
        raw.send(&preface(wire)).expect("the node reads");
        raw.send(&ws_frame(opcode, b"").repeat(15)).expect("the node reads");
        raw.send(&frame(wire, 1, ask::hello(hello(&node.token("ann"), "d")))).expect("the node reads");
        raw.until("a welcome", |frames| !frames.is_empty());
    }
    chat.end();
}
