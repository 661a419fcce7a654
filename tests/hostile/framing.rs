//! Frames with wrong lengths, without an end, or against the rules of their framing.

use std::time::Duration;

use tidegate_protocol::{Code, codec::Wire, ws::Opcode};

use crate::{
    chat::Chat,
    raw::{Raw, fragment, frame, preface, ws_frame},
    support::{Process, ServerBody, WAIT_MAX, ask, hello},
};

/// Connects and completes the handshake.
fn live(node: &Process, wire: Wire, user: &str) -> Raw {
    let mut raw = Raw::connect(node.address(), wire);
    let mut bytes = preface(wire);
    bytes.extend(frame(wire, 1, ask::hello(hello(&node.token(user), "d"))));
    raw.send(&bytes).expect("the node reads");
    raw.until("a welcome", |frames| {
        matches!(frames.first().and_then(|f| f.body.as_ref()), Some(ServerBody::Welcome(_)))
    });
    raw
}

#[test]
fn claimed_length_is_refused_before_memory_is_reserved() {
    let node = Process::start(&["limits.user_logins_per_second=0"]);
    let chat = Chat::begin(&node);
    let line = [b"{\"".as_slice(), &vec![b'a'; 70_000]].concat();
    let cases: [(&str, Wire, &[u8], Code); 8] = [
        ("2^63 in ten bytes", Wire::Tcp, b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", Code::Malformed),
        ("ten full bytes", Wire::Tcp, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f", Code::FrameTooLarge),
        ("64 MiB", Wire::Tcp, b"\x80\x80\x80\x20", Code::FrameTooLarge),
        ("a line without end", Wire::JsonLine, &line, Code::FrameTooLarge),
        ("64 MiB, binary", Wire::WsBinary, b"\x82\xff\0\0\0\0\x04\0\0\0", Code::FrameTooLarge),
        ("64 MiB, text", Wire::WsText, b"\x81\xff\0\0\0\0\x04\0\0\0", Code::FrameTooLarge),
        ("2^63", Wire::WsBinary, b"\x82\xff\x80\0\0\0\0\0\0\0", Code::Malformed),
        ("a long ping", Wire::WsBinary, b"\x89\xfe\x40\x00", Code::Malformed),
    ];
    let before = node.rss();
    for round in 0..25 {
        for (what, wire, bytes, code) in &cases {
            let mut raw = live(&node, *wire, "liar");
            raw.send(bytes).expect("the node reads");
            raw.until_end().assert_closed(*wire, *code, &format!("{what}, round {round}"));
        }
    }
    let grown = node.rss().saturating_sub(before);
    assert!(grown < 8 << 20, "memory grew by {grown} bytes");
    assert_eq!(node.metric("frames_malformed_total"), 200.0);
    chat.end();
}

#[test]
fn unfinished_frame_costs_its_bytes_and_ends_in_time() {
    let node = Process::start(&["timing.frame_ms=600"]);
    let chat = Chat::begin(&node);
    let before = node.rss();
    let mut begun: Vec<(Wire, Raw)> = (0..200)
        .map(|n| {
            let wire = Wire::ALL[n % 4];
            let mut raw = live(&node, wire, &format!("begun-{n}"));
            // Each claims 60,000 bytes and sends ten of them.
            let bytes: &[u8] = match wire {
                Wire::Tcp => b"\xe0\xd4\x030123456789",
                Wire::JsonLine => b"{\"id\":1234",
                Wire::WsBinary => b"\x82\xfe\xea\x60\x01\x02\x03\x040123456789",
                Wire::WsText => b"\x81\xfe\xea\x60\x01\x02\x03\x040123456789",
            };
            raw.send(bytes).expect("the node reads");
            (wire, raw)
        })
        .collect();
    let grown = node.rss().saturating_sub(before);
    assert!(grown < 8 << 20, "memory grew by {grown} bytes");
    for (wire, raw) in &mut begun {
        raw.until_end().assert_closed(*wire, Code::FrameTimeout, "begun and never ended");
    }
    chat.end();
}

/// Pings between the fragments do not extend the message's deadline.
#[test]
fn unfinished_fragmented_message_ends_in_time() {
    let node = Process::start(&["timing.frame_ms=500"]);
    let chat = Chat::begin(&node);
    let mut raw = live(&node, Wire::WsText, "fragments");
    raw.send(&fragment(false, Opcode::Text, b"{\"id\":")).expect("the node reads");
    let alive = ws_frame(Opcode::Pong, b"");
    raw.repeat_until_answered(&alive, Duration::from_millis(20), WAIT_MAX);
    raw.until_end().assert_closed(Wire::WsText, Code::FrameTimeout, "fragments without an end");
    chat.end();
}

#[test]
fn websocket_framing_breaches_get_their_close_status() {
    let node = Process::start(&[]);
    let chat = Chat::begin(&node);
    let one_byte: Vec<u8> = endless(b"a");
    let no_byte: Vec<u8> = endless(b"");
    let large: Vec<u8> = [
        fragment(false, Opcode::Text, &[b'a'; 60_000]),
        fragment(false, Opcode::Continuation, &[b'a'; 6_000]),
    ]
    .concat();
    let overlong: Vec<u8> = ws_frame(Opcode::Text, b"\"\xc0\xaf\"");
    let half: Vec<u8> =
        [fragment(false, Opcode::Text, b"\xc3"), fragment(true, Opcode::Continuation, b"(")].concat();
    let cases: Vec<(&str, Vec<u8>, u16, Code)> = vec![
        ("endless fragments of a byte", one_byte, 1009, Code::FrameTooLarge),
        ("endless empty fragments", no_byte, 1009, Code::FrameTooLarge),
        ("a message too large in fragments", large, 1009, Code::FrameTooLarge),
        ("an unmasked frame", b"\x81\x02{}".to_vec(), 1002, Code::Malformed),
        ("a reserved bit", b"\xc1\x82\0\0\0\0{}".to_vec(), 1002, Code::Malformed),
        ("an unknown opcode", b"\x83\x80\0\0\0\0".to_vec(), 1002, Code::Malformed),
        ("a fragmented ping", b"\x09\x80\0\0\0\0".to_vec(), 1002, Code::Malformed),
        ("a continuation of nothing", fragment(true, Opcode::Continuation, b"{}"), 1002, Code::Malformed),
        ("half a close code", ws_frame(Opcode::Close, b"\x03"), 1002, Code::Malformed),
        (
            "a close code that never travels",
            ws_frame(Opcode::Close, &1006u16.to_be_bytes()),
            1002,
            Code::Malformed,
        ),
        ("invalid UTF-8", overlong, 1007, Code::Malformed),
        ("invalid UTF-8 across fragments", half, 1007, Code::Malformed),
        ("invalid UTF-8 in a close reason", ws_frame(Opcode::Close, b"\x03\xe8\xff"), 1007, Code::Malformed),
    ];
    for (what, bytes, status, code) in cases {
        let mut raw = live(&node, Wire::WsText, "breaker");
        // The node may have closed before the last byte.
        raw.send(&bytes).ok();
        let output = raw.until_end();
        output.assert_closed(Wire::WsText, code, what);
        assert_eq!(output.status, Some(status), "{what}");
    }
    chat.end();
}

fn endless(part: &[u8]) -> Vec<u8> {
    let mut bytes = fragment(false, Opcode::Text, b"{");
    for _ in 0..5_000 {
        bytes.extend(fragment(false, Opcode::Continuation, part));
    }
    bytes
}
