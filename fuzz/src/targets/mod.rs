//! Properties that hold for all inputs, one function per target.
//!
//! `fuzz_targets/` fuzzes them, and `protocol/tests/wire/corpus.rs` replays the corpus. A new target needs a function
//! here, a line in [`ALL`], a file in `fuzz_targets/`, a `[[bin]]` and a folder in `corpus/`.

pub mod session;
pub mod ws;

use tidegate_protocol::{
    Code,
    codec::{
        self, Decoded, Detect, Framing, Preface, PushFrame, Split, Wire, WireError, detect, json::split_line,
        tcp::split,
    },
    pb,
    record::Record,
};

use self::{session::session, ws::ws};

/// Fuzz target, which panics if a property does not hold.
pub type Target = fn(&[u8]);

/// All targets of this module, by name.
pub const ALL: &[(&str, Target)] = &[
    ("tcp", tcp),
    ("json", json),
    ("client_proto", client_proto),
    ("preface", preface),
    ("ws", ws),
    ("record", record),
    ("session", session),
];

/// Limit of a frame in bytes; small, so that a fuzzer reaches it.
const FRAME_BYTES_MAX: usize = 300;

/// Checks that a stream of protobuf frames is split the same way whether it arrives whole or byte by byte.
pub fn tcp(data: &[u8]) {
    let whole = split_stream(data, data.len(), Framing::Proto);
    let by_byte = split_stream(data, 1, Framing::Proto);
    assert_eq!(whole, by_byte);
    whole.0.iter().for_each(|payload| client_payload(payload, Framing::Proto));
}

/// Checks the same for a stream of JSON lines, and decodes all of it as one payload of either side.
pub fn json(data: &[u8]) {
    let whole = split_stream(data, data.len(), Framing::Json);
    let by_byte = split_stream(data, 1, Framing::Json);
    assert_eq!(whole, by_byte);
    whole.0.iter().for_each(|payload| client_payload(payload, Framing::Json));
    client_payload(data, Framing::Json);
    server_payload(data, Framing::Json);
}

/// Checks that a protobuf payload of either side is malformed, or a frame that round-trips.
pub fn client_proto(data: &[u8]) {
    client_payload(data, Framing::Proto);
    server_payload(data, Framing::Proto);
}

/// Checks that the preface is detected as early as possible, and never changes with more bytes.
pub fn preface(data: &[u8]) {
    let mut detected = None;
    for end in 0..=data.len().min(64) {
        let now = detect(&data[..end]);
        match detected {
            Some(before) => assert_eq!(now, before),
            None if now != Detect::NeedMore => detected = Some(now),
            None => {
                let possible = Preface::ALL.iter().filter(|(first, _)| first.starts_with(&data[..end]));
                assert!(possible.count() > 0);
            }
        }
    }
    if let Ok(Some(preface)) = detect(data).found() {
        assert!(preface.skip() <= data.len());
    }
}

/// Checks that bytes of the log are not a record, or one that round-trips.
pub fn record(data: &[u8]) {
    if let Ok(record) = Record::decode(data.to_vec().into()) {
        assert_eq!(Record::decode(record.encode()), Ok(record));
    }
}

/// Splits a stream that arrives in pieces of `piece` bytes; returns its payloads, the number of remaining bytes, and
/// the error.
fn split_stream(data: &[u8], piece: usize, framing: Framing) -> (Vec<&[u8]>, usize, Option<Code>) {
    let (mut start, mut arrived, mut scanned, mut payloads) = (0, 0, 0, Vec::new());
    while arrived < data.len() {
        arrived = data.len().min(arrived + piece);
        loop {
            let input = &data[start..arrived];
            let result = match framing {
                Framing::Proto => split(input, FRAME_BYTES_MAX),
                Framing::Json => split_line(input, scanned, FRAME_BYTES_MAX),
            };
            match result {
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
                // After an error the remaining bytes depend on how many had arrived, so they are not compared.
                Err(error) => return (payloads, 0, Some(error.code())),
            }
        }
    }
    (payloads, arrived - start, None)
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

/// Returns the frame, `None` if the payload is empty or malformed; other errors fail.
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

/// Removes unknown fields of the content, which the JSON form does not have.
fn without_unknown(mut frame: pb::ClientFrame) -> pb::ClientFrame {
    let content = match &mut frame.body {
        Some(pb::client_frame::Body::Send(send)) => send.content.as_mut(),
        Some(pb::client_frame::Body::Signal(signal)) => signal.content.as_mut(),
        _ => None,
    };
    if let Some(content) = content {
        content.unknown.clear();
    }
    frame
}
