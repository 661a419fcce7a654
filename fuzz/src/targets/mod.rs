//! What must hold for any bytes, one function a target: fuzzed by `fuzz_targets/`, replayed by `protocol/tests/wire/corpus.rs`.
//!
//! To add one: a function here, its line in [`ALL`], a file in `fuzz_targets/`, a `[[bin]]`, a folder in `corpus/`.

use tidegate_protocol::{
    Code,
    codec::{
        self, Decoded, Detect, Framing, Preface, PushFrame, Split, Wire, WireError, detect, json::split_line,
        tcp::split,
    },
    pb,
};

/// A target: it panics when something doesn't hold.
pub type Target = fn(&[u8]);

/// All targets by name.
pub const ALL: &[(&str, Target)] =
    &[("tcp", tcp), ("json", json), ("client_proto", client_proto), ("preface", preface)];

/// The limit of frames here; small, so that a fuzzer reaches it.
const FRAME_BYTES_MAX: usize = 300;

/// A stream of protobuf frames gives the same frames and the same end whether it comes at once or byte by byte.
pub fn tcp(data: &[u8]) {
    let (at_once, by_byte) = (cut(data, data.len(), Framing::Proto), cut(data, 1, Framing::Proto));
    assert_eq!(at_once, by_byte);
    at_once.0.iter().for_each(|payload| client_payload(payload, Framing::Proto));
}

/// A stream of JSON lines does so too; and all of it is also tried as one payload of either side.
pub fn json(data: &[u8]) {
    let (at_once, by_byte) = (cut(data, data.len(), Framing::Json), cut(data, 1, Framing::Json));
    assert_eq!(at_once, by_byte);
    at_once.0.iter().for_each(|payload| client_payload(payload, Framing::Json));
    client_payload(data, Framing::Json);
    server_payload(data, Framing::Json);
}

/// A protobuf payload of either side is malformed, or a frame that can be written again.
pub fn client_proto(data: &[u8]) {
    client_payload(data, Framing::Proto);
    server_payload(data, Framing::Proto);
}

/// The preface is told as soon as it can be, and never otherwise later.
pub fn preface(data: &[u8]) {
    let mut told = None;
    for end in 0..=data.len().min(64) {
        let now = detect(&data[..end]);
        match told {
            Some(before) => assert_eq!(now, before),
            None if now != Detect::NeedMore => told = Some(now),
            None => {
                let open = Preface::ALL.iter().filter(|(sign, _)| sign.starts_with(&data[..end]));
                assert!(open.count() > 0);
            }
        }
    }
    if let Ok(Some(preface)) = detect(data).found() {
        assert!(preface.skip() <= data.len());
    }
}

/// The payloads of a stream that comes in pieces of `piece` bytes, how many bytes are left over, and the error.
fn cut(data: &[u8], piece: usize, framing: Framing) -> (Vec<&[u8]>, usize, Option<Code>) {
    let (mut start, mut seen, mut scanned, mut payloads) = (0, 0, 0, Vec::new());
    while seen < data.len() {
        seen = data.len().min(seen + piece);
        loop {
            let input = &data[start..seen];
            let answer = match framing {
                Framing::Proto => split(input, FRAME_BYTES_MAX),
                Framing::Json => split_line(input, scanned, FRAME_BYTES_MAX),
            };
            match answer {
                Ok(Split::Frame { payload, consumed }) => {
                    assert!(payload.len() <= FRAME_BYTES_MAX && consumed > 0);
                    payloads.push(&input[payload]);
                    start += consumed;
                    scanned = 0;
                }
                Ok(Split::Need { at_least }) => {
                    assert!(at_least > input.len() && at_least <= FRAME_BYTES_MAX + 5);
                    scanned = input.len();
                    break;
                }
                // What is left over after an error depends on how much was there, so it is not compared.
                Err(error) => return (payloads, 0, Some(error.code())),
            }
        }
    }
    (payloads, seen - start, None)
}

fn client_payload(payload: &[u8], framing: Framing) {
    if let Some(frame) = read(codec::decode_client(payload, framing)) {
        for framing in [Framing::Proto, Framing::Json] {
            let mut again = Vec::new();
            codec::encode_client(&frame, framing, &mut again);
            let back = read(codec::decode_client(&again, framing)).unwrap_or_default();
            match framing {
                Framing::Proto => assert_eq!(back, frame),
                Framing::Json => assert_eq!(back, without_unknown(frame.clone())),
            }
        }
    }
}

fn server_payload(payload: &[u8], framing: Framing) {
    if let Some(frame) = read(codec::decode_server(payload, framing)) {
        let mut again = Vec::new();
        codec::encode_server(&frame, Framing::Proto, &mut again);
        assert_eq!(read(codec::decode_server(&again, Framing::Proto)).unwrap_or_default(), frame);
        let shared = PushFrame::new(&frame);
        for wire in Wire::ALL {
            assert_eq!(*shared.bytes(wire), codec::encode_frame(&frame, wire));
        }
    }
}

/// The frame, unless the payload is empty or refused as it may be.
fn read<F>(decoded: Result<Decoded<F>, WireError>) -> Option<F> {
    match decoded {
        Ok(Decoded::Frame(frame)) => Some(frame),
        Ok(Decoded::Empty) => None,
        Err(error) => {
            assert_eq!(error.code(), Code::Malformed);
            None
        }
    }
}

/// JSON has no place for fields of content that are not known.
fn without_unknown(mut frame: pb::ClientFrame) -> pb::ClientFrame {
    if let Some(pb::client_frame::Body::Send(send)) = &mut frame.body
        && let Some(content) = &mut send.content
    {
        content.unknown.clear();
    }
    frame
}
