//! Clients that send without reading: their queued output stays bounded, and they are closed `SLOW`.

use std::{
    io::Write as _,
    thread,
    time::{Duration, Instant},
};

use tidegate_protocol::{Code, codec::Wire, ws::Opcode};

use crate::{
    chat::Chat,
    raw::{Raw, frame, preface, ws_frame},
    support::{Process, ServerBody, WAIT_MAX, ask, eventually, hello, send},
};

const CHUNK: usize = 64 * 1024;

/// Setting for tests of what is bounded behind the budget of frames.
const FRAMES_UNLIMITED: &str = "limits.frames_per_second=0";

fn logged_in(node: &Process, wire: Wire, user: &str) -> Raw {
    let mut raw = Raw::connect(node.address(), wire);
    let mut bytes = preface(wire);
    bytes.extend(frame(wire, 1, ask::hello(hello(&node.token(user), "d"))));
    raw.send(&bytes).expect("the node reads");
    raw.until("a welcome", |frames| !frames.is_empty());
    raw
}

/// Returns whole frames of approximately one chunk.
fn chunk(one: &[u8]) -> Vec<u8> {
    one.repeat(CHUNK / one.len())
}

/// Sends until the node closes the connection, after it has discarded input for a while.
fn flood(raw: &mut Raw, one: &[u8]) {
    let chunk = chunk(one);
    let began = Instant::now();
    while raw.send(&chunk).is_ok() {
        assert!(began.elapsed() < WAIT_MAX, "the node does not close the connection");
    }
}

#[test]
fn pings_without_reading_end_slow_and_cost_no_memory() {
    let node = Process::start(&[FRAMES_UNLIMITED]);
    let chat = Chat::begin(&node);
    let floods = [
        (Wire::WsText, ws_frame(Opcode::Ping, &[b'p'; 125])),
        (Wire::WsBinary, ws_frame(Opcode::Ping, b"")),
        (Wire::Tcp, frame(Wire::Tcp, 1 << 40, ask::ping())),
        (Wire::Tcp, vec![0]),
        (Wire::JsonLine, frame(Wire::JsonLine, 7, ask::ping())),
        (Wire::JsonLine, b"\n".to_vec()),
        (Wire::WsText, ws_frame(Opcode::Text, b"")),
        (Wire::WsText, frame(Wire::WsText, 7, ask::next_id())),
    ];
    // The memory of the first flood belongs to the buffers that all connections share.
    flood(&mut logged_in(&node, floods[0].0, "flooder"), &floods[0].1);
    let before = node.rss();
    for (n, (wire, one)) in floods.iter().enumerate() {
        flood(&mut logged_in(&node, *wire, "flooder"), one);
        let grown = node.rss().saturating_sub(before);
        assert!(grown < 8 << 20, "flood {n}: memory grew by {grown} bytes");
    }
    node.metric_becomes("slow_closes_total", floods.len() as f64 + 1.0);
    node.metric_becomes("connections", 2.0);
    chat.end();
}

/// An empty frame is one byte and its reply thirty: the replies to one read must not be written at once.
#[test]
fn many_flooders_at_once_stay_within_their_caps() {
    const FLOODERS: usize = 60;
    let node = Process::start(&[FRAMES_UNLIMITED, "timing.write_ms=8000", "limits.control_bytes_max=65536"]);
    let chat = Chat::begin(&node);
    let mut flooders: Vec<Raw> =
        (0..FLOODERS).map(|n| logged_in(&node, Wire::JsonLine, &format!("flooder-{n}"))).collect();
    let before = node.rss();
    let blank_lines = vec![b'\n'; 256 * 1024];
    for raw in &mut flooders {
        raw.stream.set_write_timeout(Some(Duration::from_secs(1))).expect("a socket takes options");
        raw.send(&blank_lines).ok();
    }
    let mut most = 0;
    eventually("all end slow", || {
        most = most.max(node.rss().saturating_sub(before));
        (node.metric("slow_closes_total") == FLOODERS as f64).then_some(())
    });
    // Besides kernel buffers: a reply of a chunk each, and the shards' read buffers.
    assert!(most < 16 << 20, "memory grew by {most} bytes");
    chat.end();
}

#[test]
fn flooder_that_reads_at_last_gets_the_reason() {
    let node = Process::start(&[FRAMES_UNLIMITED, "timing.linger_ms=5000"]);
    let chat = Chat::begin(&node);
    for wire in [Wire::WsText, Wire::WsBinary, Wire::Tcp, Wire::JsonLine] {
        let mut raw = logged_in(&node, wire, "flooder");
        let one = match wire {
            Wire::WsText | Wire::WsBinary => ws_frame(Opcode::Ping, &[b'p'; 125]),
            Wire::Tcp | Wire::JsonLine => frame(wire, 7, ask::ping()),
        };
        let slow = node.metric("slow_closes_total") + 1.0;
        let chunk = chunk(&one);
        eventually("the node closes the connection", || {
            raw.send(&chunk).expect("the node discards input");
            (node.metric("slow_closes_total") == slow).then_some(())
        });
        raw.until_end().assert_closed(wire, Code::Slow, "a flood");
    }
    chat.end();
}

/// A frame of one byte costs as much as one of hundreds, so frames are limited in addition to bytes.
#[test]
fn x9_flooders_that_read_are_read_slowly_then_closed() {
    const PER_SECOND: u64 = 500;
    const AT_ONCE: u64 = 2_000;
    let node = Process::start(&["node.shards=1"]);
    let chat = Chat::begin(&node);
    let floods = [
        (Wire::Tcp, vec![0]),
        (Wire::JsonLine, b"\n".to_vec()),
        (Wire::JsonLine, frame(Wire::JsonLine, 7, ask::next_id())),
        (Wire::WsText, ws_frame(Opcode::Ping, b"")),
        (Wire::WsBinary, ws_frame(Opcode::Pong, b"")),
        (Wire::Tcp, frame(Wire::Tcp, 0, ask::ack("d:flooder-5:nobody", 1))),
    ];
    let (began, read_before) = (Instant::now(), node.metric("frames_in_total"));
    let readers: Vec<_> = floods
        .iter()
        .enumerate()
        .map(|(n, (wire, one))| {
            let mut raw = logged_in(&node, *wire, &format!("flooder-{n}"));
            // Some floods have no answer until the close.
            raw.stream.set_read_timeout(Some(WAIT_MAX * 3)).expect("a socket takes options");
            let mut writer = raw.stream.try_clone().expect("a socket");
            let (wire, chunk) = (*wire, chunk(one));
            thread::spawn(move || while writer.write_all(&chunk).is_ok() {});
            (wire, thread::spawn(move || raw.until_end()))
        })
        .collect();
    for (n, (wire, reader)) in readers.into_iter().enumerate() {
        let received = reader.join().expect("a reader");
        assert_eq!(received.close(), Some(Code::TooManyFrames), "flood {n} over {wire:?}");
        assert!(received.frames.len() + received.pongs <= (AT_ONCE + 12 * PER_SECOND) as usize);
    }
    let took = began.elapsed();
    assert!(took >= Duration::from_secs(10), "closed after {took:?} already");
    let most = floods.len() as u64 * (AT_ONCE + PER_SECOND * (took.as_secs() + 1));
    // The honest pair exchanges far fewer than that.
    let read = node.metric("frames_in_total") - read_before;
    assert!(read < (most + 10_000) as f64, "{read} frames were read in {took:?}");
    chat.end();
}

/// A plain close with unread input would send a reset, which destroys the last frames.
#[test]
fn input_after_a_close_does_not_destroy_the_last_frames() {
    let node = Process::start(&[]);
    let chat = Chat::begin(&node);
    let rest = vec![b'x'; 4 << 20];
    for wire in Wire::ALL {
        let mut raw = logged_in(&node, wire, "breaker");
        let breach: &[u8] = match wire {
            Wire::Tcp => b"\xff\xff\xff\xff\xff",
            Wire::JsonLine => b"no json\n",
            Wire::WsBinary | Wire::WsText => b"\x81\x00",
        };
        raw.send(breach).expect("the node reads");
        raw.send(&rest).expect("the node discards");
        let code = if wire == Wire::Tcp { Code::FrameTooLarge } else { Code::Malformed };
        raw.until_end().assert_closed(wire, code, "a breach and much input");
    }
    let mut http = Raw::connect(node.address(), Wire::WsText);
    http.send(b"GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n").expect("the node reads");
    http.send(&rest).expect("the node discards");
    let output = http.until_end();
    assert!(output.orderly && output.head.starts_with("HTTP/1.1 426 "), "{output:?}");
    chat.end();
}

/// A member who sends faster than a room can be served is refused; the room's queue stays bounded.
#[test]
fn room_flooded_by_a_member_costs_no_memory() {
    const MEMBERS: usize = 300;
    let node = Process::start(&[
        FRAMES_UNLIMITED,
        "node.shards=1",
        "limits.outbox_bytes_max=8192",
        "limits.control_bytes_max=8388608",
    ]);
    let mut members: Vec<Raw> = (0..MEMBERS)
        .map(|n| {
            let mut raw = logged_in(&node, Wire::Tcp, &format!("member-{n}"));
            raw.send(&frame(Wire::Tcp, 2, ask::join("hall"))).expect("the node reads");
            raw
        })
        .collect();
    for raw in &mut members {
        raw.until("joined", |frames| {
            frames.iter().any(|frame| matches!(frame.body, Some(ServerBody::Done(_))))
        });
    }
    let mut talker = node.login(Wire::Tcp, "talker", "d");
    talker.ask(ask::join("hall"));
    let before = node.rss();
    let text = "a".repeat(400);
    let said: Vec<u8> = frame(Wire::Tcp, 0, ask::send(send("r:hall", "m", &text))).repeat(40_000);
    let writer = talker.link.stream().try_clone().expect("a socket");
    let thread = std::thread::spawn(move || Raw::over(writer, Wire::Tcp).send(&said));
    let mut most = 0;
    let mut replies = 0;
    while replies < 40_000 {
        match talker.take("an answer", |_| true).body {
            Some(ServerBody::SendAck(_) | ServerBody::Error(_)) => replies += 1,
            other => panic!("no answer: {other:?}"),
        }
        if replies % 500 == 0 {
            most = most.max(node.rss().saturating_sub(before));
        }
    }
    thread.join().expect("a writer").expect("the node reads");
    // Outboxes of 8 KiB and the shared frames in them, not the 20 MB that were sent.
    assert!(most < 12 << 20, "memory grew by {most} bytes");
}
