//! Hot paths for `cargo xtask test counts`: run one by name n times; without arguments, print the names.
//!
//! Nothing here may depend on time, chance or addresses: the instructions of n and 2n runs are subtracted.

use std::{env, hint::black_box};

use prost::Message as _;
use tidegate_protocol::{content::Content, pb};

type Run = fn(u64);

/// Every name has a limit in `benches/counts.toml`.
const FUNCTIONS: &[(&str, Run)] = &[("push_encode", push_encode), ("send_decode", send_decode)];

fn main() {
    let mut args = env::args().skip(1);
    let Some(name) = args.next() else {
        FUNCTIONS.iter().for_each(|(name, _)| println!("{name}"));
        return;
    };
    let (_, run) = FUNCTIONS.iter().find(|(known, _)| *known == name).expect("a name from the list");
    let iterations = args.next().and_then(|n| n.parse().ok()).expect("a number of iterations");
    run(iterations);
}

/// A push of 128 bytes of text to protobuf bytes, as once per message and framing.
fn push_encode(iterations: u64) {
    let push = pb::Push {
        conversation: "g:harbour".into(),
        seq: 123_456,
        sender: "alice".into(),
        msg_id: "m-000123456".into(),
        time: 1_763_712_000_000,
        content: Some(Content::text("x".repeat(128))),
        event: None,
    };
    let frame = pb::ServerFrame { id: 0, body: Some(pb::server_frame::Body::Push(push)) };
    for _ in 0..iterations {
        black_box(black_box(&frame).encode_to_vec());
    }
}

/// A send of 128 bytes of text from protobuf bytes, as once per message accepted.
fn send_decode(iterations: u64) {
    let send = pb::Send {
        conversation: "g:harbour".into(),
        msg_id: "m-000123456".into(),
        content: Some(Content::text("x".repeat(128))),
        ..Default::default()
    };
    let frame = pb::ClientFrame { id: 7, body: Some(pb::client_frame::Body::Send(send)) };
    let bytes = bytes::Bytes::from(frame.encode_to_vec());
    for _ in 0..iterations {
        let frame = pb::ClientFrame::decode(black_box(bytes.clone())).expect("what was encoded");
        black_box(frame);
    }
}
