//! Property tests of the codec: any frame round-trips, however its bytes are split, and no input panics.

use crate::{
    frames::{client_frame, push, server_frame},
    support::{AnyFrame, Direction, End, cut},
};
use bytes::Bytes;
use proptest::{collection::vec, prelude::*};
use prost::Message;
use tidegate_protocol::{
    Code,
    codec::{
        Decoded, Detect, Framing, LIST_MAX, PushFrame, Split, Wire, WireError, decode_client, decode_server,
        detect, encode_client, encode_frame, json::split_line, push::put_ws_header, tcp, write_client,
    },
    content::{Content, ContentBody},
    pb,
    ws::SERVER_HEADER_MAX,
};

fn any_frame() -> impl Strategy<Value = (Direction, AnyFrame)> {
    prop_oneof![
        client_frame().prop_map(|frame| (Direction::Client, AnyFrame::Client(frame))),
        server_frame().prop_map(|frame| (Direction::Server, AnyFrame::Server(frame))),
    ]
}

/// Splits `bytes` at the given positions, which may be in any order.
fn pieces(bytes: &[u8], cuts: &[usize]) -> Vec<Vec<u8>> {
    let mut cuts: Vec<usize> = cuts.iter().map(|at| at % (bytes.len() + 1)).collect();
    cuts.extend([0, bytes.len()]);
    cuts.sort_unstable();
    cuts.windows(2).map(|pair| bytes[pair[0]..pair[1]].to_vec()).collect()
}

fn is_default(frame: &AnyFrame) -> bool {
    *frame == AnyFrame::Client(Default::default()) || *frame == AnyFrame::Server(Default::default())
}

proptest! {
    #[test]
    fn any_frame_round_trips((direction, frame) in any_frame()) {
        for framing in [Framing::Proto, Framing::Json] {
            let payload = frame.encode(framing);
            let read = AnyFrame::decode(&payload, framing, direction).unwrap();
            if is_default(&frame) {
                prop_assert_eq!(read, Decoded::Empty);
            } else {
                prop_assert_eq!(read, Decoded::Frame(frame.clone()));
            }
        }
        prop_assert!(!frame.encode(Framing::Json).contains(&b'\n'));
    }

    #[test]
    fn any_split_of_a_stream_gives_the_same_frames(
        frames in vec(client_frame(), 0..6),
        cuts in vec(any::<usize>(), 0..12),
        json in any::<bool>(),
    ) {
        let framing = if json { Framing::Json } else { Framing::Proto };
        let mut stream = Vec::new();
        for frame in &frames {
            write_client(frame, framing, &mut stream);
        }
        let (payloads, end) = cut(framing, 1 << 20, pieces(&stream, &cuts).into_iter());
        prop_assert_eq!(end, End::Whole);
        let read: Vec<_> = payloads.iter().map(|payload| decode_client(payload, framing).unwrap()).collect();
        let written: Vec<_> = frames
            .into_iter()
            .map(|frame| if frame == Default::default() { Decoded::Empty } else { Decoded::Frame(frame) })
            .collect();
        prop_assert_eq!(read, written);
    }

    #[test]
    fn any_split_of_any_bytes_ends_the_same(
        bytes in vec(prop_oneof![4 => any::<u8>(), 2 => Just(b'\n'), 2 => 0..9u8, 1 => Just(b'\r')], 0..200),
        cuts in vec(any::<usize>(), 0..12),
        limit in 0..40usize,
    ) {
        for framing in [Framing::Proto, Framing::Json] {
            let (whole, end) = cut(framing, limit, std::iter::once(bytes.clone()));
            let (cut_up, cut_end) = cut(framing, limit, pieces(&bytes, &cuts).into_iter());
            prop_assert_eq!(&whole, &cut_up);
            let code = |end: &End| match end {
                End::Error(error) => Some(error.code()),
                End::Whole | End::Need => None,
            };
            prop_assert_eq!(code(&end), code(&cut_end));
            prop_assert_eq!(end == End::Whole, cut_end == End::Whole);
        }
    }

    #[test]
    fn any_bytes_are_malformed_or_a_frame_that_round_trips(
        (direction, frame) in any_frame(),
        changes in vec((any::<usize>(), any::<u8>()), 0..4),
        noise in vec(any::<u8>(), 0..60),
    ) {
        for framing in [Framing::Proto, Framing::Json] {
            let mut near = frame.encode(framing);
            for (at, byte) in &changes {
                if !near.is_empty() {
                    let len = near.len();
                    near[at % len] = *byte;
                }
            }
            for payload in [&near, &noise] {
                match AnyFrame::decode(payload, framing, direction) {
                    Ok(Decoded::Frame(read)) if !is_default(&read) => {
                        let again = AnyFrame::decode(&read.encode(framing), framing, direction).unwrap();
                        prop_assert_eq!(again, Decoded::Frame(read));
                    }
                    Ok(_) => {}
                    Err(error) => prop_assert_eq!(error.code(), Code::Malformed),
                }
            }
        }
        let _: Detect = detect(&noise);
    }

    #[test]
    fn shared_frame_equals_a_single_encoding(frame in server_frame(), text_first in any::<bool>()) {
        let shared = PushFrame::new(&frame);
        let mut wires = Wire::ALL;
        if text_first {
            wires.reverse();
        }
        for wire in wires {
            prop_assert_eq!(shared.bytes(wire), &encode_frame(&frame, wire));
            let payload = unframed(wire, shared.bytes(wire));
            let expected = if frame == Default::default() { Decoded::Empty } else { Decoded::Frame(frame.clone()) };
            prop_assert_eq!(decode_server(payload, wire.framing()).unwrap(), expected);
        }
    }

    #[test]
    fn push_from_parts_equals_the_encoded_push(push in push(), unknown in any::<bool>()) {
        let mut push = pb::Push { event: None, recall: None, edit: None, edited: None, ..push };
        let content = push.content.get_or_insert_default();
        if unknown {
            content.unknown = vec![0x98, 0x06, 0x07];
        }
        let encoded = content.encode_to_vec();
        let pb::Push { conversation, seq, sender, msg_id, time, flags, .. } = &push;
        let parts = PushFrame::from_parts(conversation, *seq, sender, msg_id, *time, &encoded, *flags);
        let whole = PushFrame::new(&pb::ServerFrame { id: 0, body: Some(pb::server_frame::Body::Push(push)) });
        let again = PushFrame::from_push(&whole.push().unwrap());
        for wire in Wire::ALL {
            prop_assert_eq!(parts.bytes(wire), whole.bytes(wire));
            prop_assert_eq!(again.bytes(wire), whole.bytes(wire));
        }
    }
}

/// Returns the payload of an encoded frame, by an independent parser of the headers.
fn unframed(wire: Wire, bytes: &[u8]) -> &[u8] {
    let (first, payload) = match wire {
        Wire::Tcp => match tcp::split(bytes, usize::MAX).unwrap() {
            Split::Frame { payload, consumed } if consumed == bytes.len() => return &bytes[payload],
            other => panic!("{other:?}"),
        },
        Wire::JsonLine => match split_line(bytes, 0, usize::MAX).unwrap() {
            Split::Frame { payload, consumed } if consumed == bytes.len() => return &bytes[payload],
            other => panic!("{other:?}"),
        },
        Wire::WsBinary => (0x82, ws_payload(bytes)),
        Wire::WsText => (0x81, ws_payload(bytes)),
    };
    assert_eq!(bytes[0], first);
    payload
}

fn ws_payload(bytes: &[u8]) -> &[u8] {
    let (len, start) = match bytes[1] {
        126 => (usize::from(u16::from_be_bytes(bytes[2..4].try_into().unwrap())), 4),
        127 => (usize::try_from(u64::from_be_bytes(bytes[2..10].try_into().unwrap())).unwrap(), 10),
        short => (usize::from(short), 2),
    };
    assert_eq!(bytes.len(), start + len);
    &bytes[start..]
}

#[test]
fn list_has_at_most_10_000_entries_in_both_framings() {
    for (entries, fits) in [(LIST_MAX, true), (LIST_MAX + 1, false)] {
        let position = pb::Position { conversation: "g:a".to_owned(), seq: 1 };
        let sync = pb::Sync { positions: vec![position; entries] };
        let pull = pb::Pull { seqs: vec![7; entries], ..Default::default() };
        for body in [pb::client_frame::Body::Sync(sync), pb::client_frame::Body::Pull(pull)] {
            let frame = pb::ClientFrame { id: 1, body: Some(body) };
            for framing in [Framing::Proto, Framing::Json] {
                let mut payload = Vec::new();
                encode_client(&frame, framing, &mut payload);
                match decode_client(&payload, framing) {
                    Ok(decoded) => assert!(fits && decoded == Decoded::Frame(frame.clone())),
                    Err(error) => assert!(!fits && error.code() == Code::Malformed, "{error}"),
                }
            }
        }
    }
}

#[test]
fn a_websocket_header_is_as_short_as_it_can_be() {
    let header = |len| {
        let mut out = Vec::new();
        put_ws_header(Wire::WsBinary, len, &mut out);
        assert!(out.len() <= SERVER_HEADER_MAX);
        out
    };
    assert_eq!(header(0), [0x82, 0]);
    assert_eq!(header(125), [0x82, 125]);
    assert_eq!(header(126), [0x82, 126, 0, 126]);
    assert_eq!(header(65_535), [0x82, 126, 0xff, 0xff]);
    assert_eq!(header(65_536), [0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0]);
}

#[test]
fn frames_of_all_header_sizes_are_framed_for_every_wire() {
    for size in [0, 100, 126, 200, 20_000, 65_536, 300_000] {
        let content = Content::text("x".repeat(size)).encode_to_vec();
        let shared = PushFrame::from_parts("d:a:b", 1, "a", "m", 2, &content, 0);
        for wire in Wire::ALL {
            let payload = unframed(wire, shared.bytes(wire));
            let Ok(Decoded::Frame(frame)) = decode_server(payload, wire.framing()) else {
                panic!("{size} {wire:?}")
            };
            assert_eq!(encode_frame(&frame, wire), shared.bytes(wire));
        }
        assert_eq!(unframed(Wire::Tcp, shared.bytes(Wire::Tcp)), shared.proto());
    }
}

#[test]
fn encoded_bytes_are_shared() {
    let shared = PushFrame::from_parts("d:a:b", 1, "a", "m", 2, &Content::text("hi").encode_to_vec(), 0);
    for wire in Wire::ALL {
        assert_eq!(shared.bytes(wire).as_ptr(), shared.bytes(wire).clone().as_ptr());
    }
}

#[test]
fn undecodable_content_is_omitted_only_in_json() {
    let shared = PushFrame::from_parts("d:a:b", 1, "a", "m", 2, b"\x0a\x02\xff\xff", 0);
    assert_eq!(
        &shared.bytes(Wire::JsonLine)[..],
        b"{\"push\":{\"conversation\":\"d:a:b\",\"seq\":1,\"sender\":\"a\",\"msgId\":\"m\",\"time\":2}}\n"
    );
    assert!(shared.proto().ends_with(b"\x32\x04\x0a\x02\xff\xff"));
}

#[test]
fn content_preserves_unknown_fields() {
    let unknown = [
        &[0x98, 0x06, 0x05][..],                           // a varint
        &[0xa1, 0x06, 1, 2, 3, 4, 5, 6, 7, 8],             // eight bytes
        &[0xa2, 0x06, 2, 0xff, 0xfe],                      // a block
        &[0xa5, 0x06, 1, 2, 3, 4],                         // four bytes
        &[0xa3, 0x06, 0x08, 0x01, 0x0b, 0x0c, 0xa4, 0x06], // a group with a group in it
    ]
    .concat();
    let mut encoded = vec![0x0a, 0x01, b'x'];
    encoded.extend_from_slice(&unknown);
    let content = Content::decode(&encoded[..]).unwrap();
    assert_eq!(content.body, Some(ContentBody::Text("x".into())));
    assert_eq!(content.unknown, unknown);
    assert_eq!(content.encode_to_vec(), encoded);
    for bad in [&[0xa4, 0x06][..], &[0xa3, 0x06], &[0xa3, 0x06, 0x0c], &[0xa3, 0x06, 0x0b, 0xa4, 0x06]] {
        Content::decode(bad).unwrap_err();
    }
}

#[test]
fn nesting_is_bounded() {
    let groups = |depth: usize| [vec![0x53; depth], vec![0x54; depth]].concat();
    assert!(Content::decode(&groups(32)[..]).is_ok());
    for depth in [33, 10_000] {
        Content::decode(&groups(depth)[..]).unwrap_err();
        // In a frame prost skips groups, up to its own depth limit.
        let frame = [[0xa3, 0x06].repeat(depth + 70), [0xa4, 0x06].repeat(depth + 70)].concat();
        let error = decode_client(&frame, Framing::Proto).unwrap_err();
        assert_eq!(error.code(), Code::Malformed);
    }
    // Nested unknown blocks are not decoded.
    let mut block = Vec::new();
    for _ in 0..10_000 {
        let mut outer = vec![0xa2, 0x06];
        prost::encoding::encode_varint(block.len() as u64, &mut outer);
        outer.append(&mut block);
        block = outer;
    }
    assert_eq!(decode_client(&block, Framing::Proto), Ok(Decoded::Frame(pb::ClientFrame::default())));
}

#[test]
fn line_scan_continues_where_the_last_call_ended() {
    // Bytes before `scanned` are not scanned again, so a newline there is not found.
    assert_eq!(split_line(b"\nab", 1, 10), Ok(Split::Need { at_least: 4 }));
    assert_eq!(split_line(b"abc\n", 3, 10), Ok(Split::Frame { payload: 0..3, consumed: 4 }));
    assert_eq!(split_line(b"abc", 99, 10), Ok(Split::Need { at_least: 4 }));
    assert_eq!(split_line(b"abc", 3, 2), Err(WireError::TooLarge { at_least: 3, max: 2 }));
    assert_eq!(split_line(b"", 0, 0), Ok(Split::Need { at_least: 1 }));
}

#[test]
fn length_is_checked_before_the_payload_arrives() {
    assert_eq!(tcp::split(&[0x7f], 200), Ok(Split::Need { at_least: 128 }));
    assert_eq!(tcp::split(&[0x81, 0x02], 256), Err(WireError::TooLarge { at_least: 257, max: 256 }));
    assert_eq!(tcp::split(&[0xff; 10], usize::MAX), Err(WireError::Length));
    let four_gib = [0xff, 0xff, 0xff, 0xff, 0x0f];
    assert!(matches!(tcp::split(&four_gib, 1 << 20), Err(WireError::TooLarge { .. })));
    assert_eq!(tcp::split(&four_gib, usize::MAX), Ok(Split::Need { at_least: 0xffff_ffff + 5 }));
}

#[test]
fn empty_bytes_stay_bytes() {
    let content = Content::data(Bytes::new());
    assert_eq!(Content::decode(&content.encode_to_vec()[..]).unwrap(), content);
}
