//! Golden files of `vectors/`: every kind of frame and every code of the codec, for this and other implementations.

use std::collections::BTreeSet;

use crate::{
    support::{AnyFrame, Direction, End, KINDS, Vector, cut, vectors},
    transcript::transcripts,
};
use serde_json::value::RawValue;
use tidegate_protocol::{
    Code,
    codec::{Decoded, Detect, Framing, Preface, detect},
    pb::{client_frame, server_frame},
};

fn canonical(frame: &AnyFrame) -> String {
    String::from_utf8(frame.encode(Framing::Json)).unwrap()
}

fn as_frame(decoded: Decoded<AnyFrame>, direction: Direction) -> AnyFrame {
    match (decoded, direction) {
        (Decoded::Frame(frame), _) => frame,
        (Decoded::Empty, Direction::Client) => AnyFrame::Client(Default::default()),
        (Decoded::Empty, Direction::Server) => AnyFrame::Server(Default::default()),
    }
}

#[test]
fn every_payload_decodes_as_its_vector_states() {
    for (file, vector) in vectors() {
        let Some(framing) = vector.payload_framing() else { continue };
        let what = format!("{file}: {}", vector.name);
        let decoded = AnyFrame::decode(&vector.input(), framing, vector.direction);
        match (vector.expect.as_str(), decoded) {
            ("frame" | "no_body" | "empty", Ok(decoded)) => {
                let kind = match &decoded {
                    Decoded::Empty => "empty",
                    Decoded::Frame(frame) if frame.has_body() => "frame",
                    Decoded::Frame(_) => "no_body",
                };
                assert_eq!(kind, vector.expect, "{what}");
                let frame = as_frame(decoded, vector.direction);
                assert_eq!(canonical(&frame), vector.json.as_ref().unwrap().get(), "{what}");
            }
            (code, Err(error)) => {
                assert_eq!(error.code().name(), code, "{what}: {error}");
                assert!(vector.json.is_none(), "{what}");
            }
            (expected, decoded) => panic!("{what}: {expected}, not {decoded:?}"),
        }
    }
}

#[test]
fn every_frame_encodes_as_its_vector_states() {
    for (file, vector) in vectors() {
        if !matches!(file.as_str(), "client.json" | "server.json") {
            continue;
        }
        let what = format!("{file}: {}", vector.name);
        let json = vector.json.as_ref().unwrap().get();
        let read = AnyFrame::decode(json.as_bytes(), Framing::Json, vector.direction).expect(&what);
        let frame = as_frame(read, vector.direction);
        assert_eq!(frame.encode(Framing::Proto), vector.input(), "{what}");
        assert_eq!(canonical(&frame), json, "{what}");
    }
}

#[test]
fn every_stream_splits_as_its_vector_states_in_any_pieces() {
    for (file, vector) in vectors() {
        let framing = match vector.framing.as_str() {
            "tcp" => Framing::Proto,
            "json_line" => Framing::Json,
            _ => continue,
        };
        let what = format!("{file}: {}", vector.name);
        let expected: Vec<Box<RawValue>> = serde_json::from_str(vector.json.as_ref().unwrap().get()).unwrap();
        for piece in [1, 2, 3, 7, usize::MAX] {
            let (frames, end) = read_stream(&vector, framing, piece);
            assert_eq!(end, vector.expect, "{what}, by {piece}");
            assert_eq!(frames.len(), expected.len(), "{what}, by {piece}: {frames:?}");
            for (frame, expected) in frames.iter().zip(&expected) {
                assert_eq!(frame, expected.get(), "{what}, by {piece}");
            }
        }
    }
}

/// Reads a stream that arrives in pieces; returns the canonical JSON of its frames and the name of its end.
fn read_stream(vector: &Vector, framing: Framing, piece: usize) -> (Vec<String>, String) {
    let input = vector.input();
    let pieces = input.chunks(piece).map(<[u8]>::to_vec);
    let (payloads, end) = cut(framing, vector.limit.unwrap(), pieces);
    let mut frames = Vec::new();
    for payload in payloads {
        match AnyFrame::decode(&payload, framing, vector.direction) {
            Ok(decoded) => frames.push(canonical(&as_frame(decoded, vector.direction))),
            Err(error) => return (frames, error.code().name().to_owned()),
        }
    }
    let end = match end {
        End::Whole if input.is_empty() => "need",
        End::Whole => "frames",
        End::Need => "need",
        End::Error(error) => error.code().name(),
    };
    (frames, end.to_owned())
}

fn preface_name(detected: Detect) -> &'static str {
    match detected {
        Detect::Found(Preface::Tls) => "tls",
        Detect::Found(Preface::ProxyV1) => "proxy_v1",
        Detect::Found(Preface::ProxyV2) => "proxy_v2",
        Detect::Found(Preface::Http) => "http",
        Detect::Found(Preface::Tcp) => "tcp",
        Detect::Found(Preface::JsonLines) => "json_lines",
        Detect::NeedMore => "need",
        Detect::Unknown => detected.found().unwrap_err().code().name(),
    }
}

#[test]
fn every_preface_is_detected_as_early_as_possible() {
    for (file, vector) in vectors().iter().filter(|(_, vector)| vector.framing == "preface") {
        let input = vector.input();
        assert_eq!(preface_name(detect(&input)), vector.expect, "{file}: {}", vector.name);
        // A detected preface never changes, and more bytes are requested only while a preface can still match.
        for end in 0..input.len() {
            let early = detect(&input[..end]);
            let possible =
                Preface::ALL.iter().any(|(first, _)| first.len() > end && first.starts_with(&input[..end]));
            assert_eq!(early == Detect::NeedMore, possible, "{}", vector.name);
            assert!(early == Detect::NeedMore || early == detect(&input), "{}", vector.name);
        }
    }
}

#[test]
fn every_kind_of_frame_and_every_code_of_the_codec_has_a_vector() {
    let (mut kinds, mut expects, mut names) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for (file, vector) in vectors() {
        assert!(
            names.insert((vector.framing.clone(), vector.direction as u8, vector.name.clone())),
            "twice: {vector:?}"
        );
        if let (Some(framing), "frame", "client.json" | "server.json") =
            (vector.payload_framing(), vector.expect.as_str(), file.as_str())
        {
            let decoded = AnyFrame::decode(&vector.input(), framing, vector.direction).unwrap();
            kinds.insert(as_frame(decoded, vector.direction).kind());
        }
        expects.insert((vector.framing, vector.expect));
    }
    assert_eq!(kinds, KINDS.into_iter().collect());
    let malformed = Code::Malformed.name();
    let too_large = Code::FrameTooLarge.name();
    for (framing, expected) in [
        ("proto", vec!["frame", "no_body", "empty", malformed]),
        ("json", vec!["frame", "no_body", "empty", malformed]),
        ("tcp", vec!["frames", "need", malformed, too_large]),
        ("json_line", vec!["frames", "need", malformed, too_large]),
        (
            "preface",
            vec![
                "tls",
                "proxy_v1",
                "proxy_v2",
                "http",
                "tcp",
                "json_lines",
                "need",
                Code::UnknownFraming.name(),
            ],
        ),
    ] {
        let covered: BTreeSet<_> =
            expects.iter().filter(|(of, _)| of == framing).map(|(_, e)| e.as_str()).collect();
        assert_eq!(covered, expected.into_iter().collect(), "{framing}");
    }
}

#[test]
fn transcript_lines_are_canonical_frames_on_open_connections() {
    let all = transcripts();
    assert!(all.len() >= 5);
    for (file, transcript) in all {
        assert!(!transcript.name.is_empty() && !transcript.about.is_empty());
        let (mut now, mut open) = (0, BTreeSet::new());
        for line in &transcript.lines {
            let what = format!("{file} at {} ms", line.at);
            assert!(line.at >= now, "{what}: times must not fall");
            now = line.at;
            match (line.open, &line.client, &line.server, line.closed) {
                (Some(true), None, None, None) => {
                    assert!(open.insert(line.conn.clone()), "{what}: opened twice")
                }
                (None, None, None, Some(_)) => assert!(open.remove(&line.conn), "{what}: closed before"),
                (None, Some(json), None, None) => check_line(json.get(), Direction::Client, &what),
                (None, None, Some(json), None) => check_line(json.get(), Direction::Server, &what),
                _ => panic!("{what}: one of open, client, server, closed"),
            }
            assert!(line.closed.is_some() || open.contains(&line.conn), "{what}: not open");
        }
    }
}

fn check_line(json: &str, direction: Direction, what: &str) {
    let decoded = AnyFrame::decode(json.as_bytes(), Framing::Json, direction).expect(what);
    let frame = as_frame(decoded, direction);
    assert!(frame.has_body(), "{what}");
    assert_eq!(canonical(&frame), json, "{what}");
    let again = AnyFrame::decode(&frame.encode(Framing::Proto), Framing::Proto, direction).expect(what);
    assert_eq!(as_frame(again, direction), frame, "{what}");
    let coded = match &frame {
        AnyFrame::Server(frame) => match &frame.body {
            Some(server_frame::Body::Error(error)) => Some((error.code, &error.name, Some(error.temporary))),
            Some(server_frame::Body::Close(close)) => Some((close.code, &close.name, None)),
            _ => None,
        },
        AnyFrame::Client(frame) => {
            assert!(
                !matches!(&frame.body, Some(client_frame::Body::Send(send)) if send.content.is_none()),
                "{what}"
            );
            None
        }
    };
    if let Some((number, name, temporary)) = coded {
        let code = Code::from_number(number.try_into().expect(what)).expect(what);
        assert_eq!(code.name(), name, "{what}");
        assert!(temporary.is_none_or(|temporary| temporary == code.temporary()), "{what}");
    }
}
