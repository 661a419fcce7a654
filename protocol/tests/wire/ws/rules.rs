//! Rules of WebSocket framing by example: the RFC's own vectors, every violation, every limit.

use tidegate_protocol::{
    Code,
    ws::{
        CLOSE_REASON_MAX, Decoder, HEADER_MAX, Kind, Opcode, WsEvent, WsLimits, WsStep, WsViolation,
        encode_client, encode_close, encode_close_reply, encode_fragment, encode_server, mask, server_header,
    },
};

const LIMITS: WsLimits = WsLimits { message_bytes_max: 70_000, fragments_max: 4 };
const KEY: [u8; 4] = [0x37, 0xFA, 0x21, 0x3D];

/// Decodes `bytes` as one frame and returns its event as text.
fn one(decoder: &mut Decoder, bytes: &[u8]) -> Result<String, WsViolation> {
    let mut input = bytes.to_vec();
    match decoder.next(&mut input, &LIMITS)? {
        WsStep::Need { at_least } => Ok(format!("need {at_least}")),
        WsStep::Frame { consumed, event } => {
            assert_eq!(consumed, bytes.len());
            Ok(words(&event))
        }
    }
}

fn words(event: &WsEvent<'_>) -> String {
    let text = String::from_utf8_lossy;
    match event {
        WsEvent::Message { kind, payload } if payload.len() > 200 => format!("{kind:?} of {}", payload.len()),
        WsEvent::Message { kind, payload } => format!("{kind:?} {}", text(payload)),
        WsEvent::Part => "part".to_owned(),
        WsEvent::Ping(payload) => format!("ping {}", text(payload)),
        WsEvent::Pong(payload) => format!("pong {}", text(payload)),
        WsEvent::Close { code, reason } => format!("close {code:?} {reason}"),
    }
}

fn refused(bytes: &[u8]) -> WsViolation {
    one(&mut Decoder::server(), bytes).expect_err("a violation")
}

fn client(opcode: Opcode, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    encode_client(opcode, payload, KEY, &mut out);
    out
}

fn fragment(last: bool, opcode: Opcode, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    encode_fragment(last, opcode, payload, Some(KEY), &mut out);
    out
}

#[test]
fn the_examples_of_rfc_6455_section_5_7_decode() {
    let hello = b"\x81\x05Hello";
    assert_eq!(one(&mut Decoder::client(), hello).as_deref(), Ok("Text Hello"));
    let masked = b"\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58";
    assert_eq!(one(&mut Decoder::server(), masked).as_deref(), Ok("Text Hello"));

    let mut decoder = Decoder::client();
    assert_eq!(one(&mut decoder, b"\x01\x03Hel").as_deref(), Ok("part"));
    assert_eq!(one(&mut decoder, b"\x80\x02lo").as_deref(), Ok("Text Hello"));

    assert_eq!(one(&mut Decoder::client(), b"\x89\x05Hello").as_deref(), Ok("ping Hello"));
    let pong = b"\x8a\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58";
    assert_eq!(one(&mut Decoder::server(), pong).as_deref(), Ok("pong Hello"));

    let short = [&b"\x82\x7e\x01\x00"[..], &[7; 256]].concat();
    assert_eq!(one(&mut Decoder::client(), &short).as_deref(), Ok("Binary of 256"));
    let long = [&b"\x82\x7f\x00\x00\x00\x00\x00\x01\x00\x00"[..], &[7; 65_536]].concat();
    assert_eq!(one(&mut Decoder::client(), &long).as_deref(), Ok("Binary of 65536"));
}

#[test]
fn the_examples_of_rfc_6455_section_5_7_encode() {
    let mut out = Vec::new();
    encode_server(Opcode::Text, b"Hello", &mut out);
    assert_eq!(out, b"\x81\x05Hello");
    assert_eq!(client(Opcode::Text, b"Hello"), b"\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58");
    assert_eq!(client(Opcode::Pong, b"Hello"), b"\x8a\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58");
    let header = |len| {
        let mut out = Vec::new();
        server_header(Opcode::Binary, len, &mut out);
        out
    };
    assert_eq!(header(256), b"\x82\x7e\x01\x00");
    assert_eq!(header(65_536), b"\x82\x7f\x00\x00\x00\x00\x00\x01\x00\x00");
}

#[test]
fn lengths_around_the_header_limits_round_trip() {
    for len in [0, 1, 7, 8, 9, 124, 125, 126, 127, 128, 65_534, 65_535, 65_536, 65_537, 70_000] {
        let payload: Vec<u8> = (0..len).map(|i| i as u8).collect();
        for key in [None, Some(KEY), Some([0; 4])] {
            let mut bytes = Vec::new();
            encode_fragment(true, Opcode::Binary, &payload, key, &mut bytes);
            let head = match len {
                0..=125 => 2,
                126..=65_535 => 4,
                _ => 10,
            } + key.map_or(0, |_| 4);
            assert_eq!(bytes.len(), head + len);
            assert!(head <= HEADER_MAX);
            let mut decoder = if key.is_some() { Decoder::server() } else { Decoder::client() };
            let step = decoder.next(&mut bytes, &LIMITS);
            let event = WsEvent::Message { kind: Kind::Binary, payload: payload.as_slice().into() };
            assert_eq!(step, Ok(WsStep::Frame { consumed: head + len, event }), "{len} {key:?}");
        }
    }
}

#[test]
fn every_violation_has_its_close_code() {
    let table: &[(&[u8], WsViolation, u16)] = &[
        (&[0xC1], WsViolation::ReservedBits, 1002),
        (&[0xA1], WsViolation::ReservedBits, 1002),
        (&[0x91], WsViolation::ReservedBits, 1002),
        (&[0x83], WsViolation::UnknownOpcode(3), 1002),
        (&[0x8F], WsViolation::UnknownOpcode(15), 1002),
        (&[0x09], WsViolation::ControlFragmented, 1002),
        (&[0x81, 0x00], WsViolation::Unmasked, 1002),
        (&[0x89, 0xFE], WsViolation::ControlTooLong, 1002),
        (&[0x88, 0xFF], WsViolation::ControlTooLong, 1002),
        (&[0x82, 0xFE, 0, 125], WsViolation::LengthNotMinimal, 1002),
        (&[0x82, 0xFF, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF], WsViolation::LengthNotMinimal, 1002),
        (&[0x82, 0xFF, 0x80, 0, 0, 0, 0, 0, 0, 0], WsViolation::LengthTopBit, 1002),
        (&[0x80, 0x80], WsViolation::NothingToContinue, 1002),
        (&[0x88, 0x81, 0, 0, 0, 0, 3], WsViolation::CloseTooShort, 1002),
        (&[0x88, 0x82, 0, 0, 0, 0, 3, 0xED], WsViolation::CloseCode(1005), 1002),
        (&[0x88, 0x83, 0, 0, 0, 0, 3, 0xE8, 0xFF], WsViolation::NotUtf8, 1007),
        (&[0x81, 0x81, 0, 0, 0, 0, 0xFF], WsViolation::NotUtf8, 1007),
    ];
    for (bytes, violation, close) in table {
        assert_eq!(refused(bytes), *violation, "{bytes:x?}");
        assert_eq!(violation.close_code(), *close);
        assert_eq!(violation.code(), Code::Malformed);
        assert!(violation.to_string().len() <= CLOSE_REASON_MAX);
    }
    assert_eq!(one(&mut Decoder::client(), &[0x81, 0x80]), Err(WsViolation::Masked));
}

#[test]
fn message_inside_a_fragmented_one_is_refused() {
    let mut decoder = Decoder::server();
    assert_eq!(one(&mut decoder, &fragment(false, Opcode::Text, b"a")).as_deref(), Ok("part"));
    assert_eq!(one(&mut decoder, &client(Opcode::Ping, b"p")).as_deref(), Ok("ping p"));
    assert_eq!(one(&mut decoder, &fragment(false, Opcode::Continuation, b"b")).as_deref(), Ok("part"));
    assert_eq!(one(&mut decoder, &client(Opcode::Pong, b"")).as_deref(), Ok("pong "));
    assert_eq!(one(&mut decoder, &client(Opcode::Text, b"x")), Err(WsViolation::MessageOpen));
    assert_eq!(one(&mut decoder, &fragment(true, Opcode::Continuation, b"c")).as_deref(), Ok("Text abc"));
    assert_eq!(one(&mut decoder, &client(Opcode::Binary, b"x")).as_deref(), Ok("Binary x"));
}

#[test]
fn only_close_codes_allowed_on_the_wire_are_accepted() {
    for code in 0..=u16::MAX {
        let mut body = code.to_be_bytes().to_vec();
        body.extend_from_slice(b"why");
        let allowed = matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999);
        let expected =
            if allowed { Ok(format!("close Some({code}) why")) } else { Err(WsViolation::CloseCode(code)) };
        assert_eq!(one(&mut Decoder::server(), &client(Opcode::Close, &body)), expected);
    }
    assert_eq!(one(&mut Decoder::server(), &client(Opcode::Close, b"")).as_deref(), Ok("close None "));
}

#[test]
fn close_reason_is_truncated_between_characters() {
    for (reason, kept) in [("é".repeat(100), "é".repeat(61)), ("e".repeat(200), "e".repeat(123))] {
        let mut out = Vec::new();
        encode_close(4014, &reason, &mut out);
        assert_eq!(one(&mut Decoder::client(), &out), Ok(format!("close Some(4014) {kept}")));
    }

    for (theirs, bytes) in [(None, &b"\x88\x00"[..]), (Some(1000), b"\x88\x02\x03\xe8")] {
        let mut out = Vec::new();
        encode_close_reply(theirs, &mut out);
        assert_eq!(out, bytes);
    }
}

#[test]
fn claimed_length_over_the_limit_is_refused_before_the_payload() {
    for claimed in [70_001_u64, 16 << 20, 1 << 40, (1 << 63) - 1] {
        let mut head = vec![0x82, 0xFF];
        head.extend_from_slice(&claimed.to_be_bytes());
        let mut decoder = Decoder::server();
        let violation = WsViolation::MessageTooLarge { claimed, max: 70_000 };
        assert_eq!(decoder.next(&mut head, &LIMITS), Err(violation));
        assert_eq!((violation.close_code(), violation.code()), (1009, Code::FrameTooLarge));
        assert_eq!(decoder.held(), 0);
    }
    let mut decoder = Decoder::server();
    let mut half = client(Opcode::Binary, &[0; 70_000])[..20].to_vec();
    assert_eq!(decoder.next(&mut half, &LIMITS), Ok(WsStep::Need { at_least: 70_014 }));
    assert_eq!(decoder.held(), 0, "waiting for a large frame allocates nothing");
}

#[test]
fn fragments_are_limited_in_total_bytes_and_count() {
    let mut decoder = Decoder::server();
    assert_eq!(one(&mut decoder, &fragment(false, Opcode::Binary, &[0; 69_999])).as_deref(), Ok("part"));
    let held = decoder.held();
    assert!((69_999..200_000).contains(&held), "{held}");
    let violation = WsViolation::MessageTooLarge { claimed: 70_001, max: 70_000 };
    assert_eq!(one(&mut decoder, &fragment(true, Opcode::Continuation, &[0; 2])[..2]), Err(violation));
    assert_eq!(
        one(&mut decoder, &fragment(true, Opcode::Continuation, &[0])).as_deref(),
        Ok("Binary of 70000")
    );
    assert_eq!((decoder.held(), decoder.is_open()), (0, false));

    let mut decoder = Decoder::server();
    assert_eq!(one(&mut decoder, &fragment(false, Opcode::Text, b"")).as_deref(), Ok("part"));
    for _ in 0..3 {
        assert_eq!(one(&mut decoder, &fragment(false, Opcode::Continuation, b"")).as_deref(), Ok("part"));
    }
    let violation = WsViolation::TooManyFragments { max: 4 };
    assert_eq!(one(&mut decoder, &fragment(true, Opcode::Continuation, b"")), Err(violation));
    assert_eq!((violation.close_code(), violation.code()), (1009, Code::FrameTooLarge));
}

#[test]
fn unmasking_equals_the_plain_loop_at_all_alignments() {
    let bytes: Vec<u8> = (0..200).map(|i| (i * 7) as u8).collect();
    for start in 0..16 {
        for len in 0..100 {
            let mut quick = bytes.clone();
            mask(&mut quick[start..start + len], KEY);
            let mut plain = bytes.clone();
            for (i, byte) in plain[start..start + len].iter_mut().enumerate() {
                *byte ^= KEY[i % 4];
            }
            assert_eq!(quick, plain, "{start} {len}");
        }
    }
}

#[test]
fn an_idle_connection_costs_sixteen_bytes() {
    assert!(size_of::<Decoder>() <= 16, "{}", size_of::<Decoder>());
}
