//! Shared helpers of the codec tests: golden files as values, names of frame kinds, splitting of streams.
#![allow(dead_code, clippy::unwrap_used)]

use std::{fs, ops::Range, path::PathBuf};

use serde::Deserialize;
use serde_json::value::RawValue;
use tidegate_protocol::{
    codec::{self, Decoded, Framing, Split, WireError},
    pb::{self, client_frame, server_frame},
};

/// Side that sends a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Direction {
    Client,
    Server,
}

/// Entry of `vectors/*.json`; `vectors/README.md` explains the fields.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Vector {
    pub(crate) name: String,
    pub(crate) framing: String,
    pub(crate) direction: Direction,
    pub(crate) hex: Option<String>,
    pub(crate) text: Option<String>,
    pub(crate) limit: Option<usize>,
    pub(crate) json: Option<Box<RawValue>>,
    pub(crate) expect: String,
}

impl Vector {
    pub(crate) fn input(&self) -> Vec<u8> {
        match (&self.hex, &self.text) {
            (Some(hex), None) => unhex(hex),
            (None, Some(text)) => text.clone().into_bytes(),
            _ => panic!("{}: one of hex and text", self.name),
        }
    }

    pub(crate) fn payload_framing(&self) -> Option<Framing> {
        match self.framing.as_str() {
            "proto" => Some(Framing::Proto),
            "json" => Some(Framing::Json),
            _ => None,
        }
    }
}

fn unhex(hex: &str) -> Vec<u8> {
    assert!(hex.len().is_multiple_of(2), "{hex}");
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

/// Returns a folder of this crate.
pub(crate) fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Reads the JSON files of a folder as (name, text), in order of their names.
pub(crate) fn json_files(name: &str) -> Vec<(String, String)> {
    let entries = fs::read_dir(folder(name)).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = entries
        .filter(|path| path.extension().is_some_and(|end| end == "json"))
        .map(|path| {
            (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read_to_string(&path).unwrap())
        })
        .collect();
    files.sort();
    files
}

/// Reads all vectors of `vectors/*.json`, each with its file name.
pub(crate) fn vectors() -> Vec<(String, Vector)> {
    let mut all = Vec::new();
    for (file, text) in json_files("vectors") {
        let vectors: Vec<Vector> =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(!vectors.is_empty(), "{file}");
        all.extend(vectors.into_iter().map(|vector| (file.clone(), vector)));
    }
    all
}

/// Frame of either side.
#[allow(clippy::large_enum_variant, reason = "a test has one at a time")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum AnyFrame {
    Client(pb::ClientFrame),
    Server(pb::ServerFrame),
}

impl AnyFrame {
    pub(crate) fn decode(
        payload: &[u8],
        framing: Framing,
        direction: Direction,
    ) -> Result<Decoded<Self>, WireError> {
        fn wrap<F>(decoded: Decoded<F>, side: impl Fn(F) -> AnyFrame) -> Decoded<AnyFrame> {
            match decoded {
                Decoded::Frame(frame) => Decoded::Frame(side(frame)),
                Decoded::Empty => Decoded::Empty,
            }
        }
        match direction {
            Direction::Client => {
                codec::decode_client(payload, framing).map(|frame| wrap(frame, Self::Client))
            }
            Direction::Server => {
                codec::decode_server(payload, framing).map(|frame| wrap(frame, Self::Server))
            }
        }
    }

    pub(crate) fn encode(&self, framing: Framing) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Client(frame) => codec::encode_client(frame, framing, &mut out),
            Self::Server(frame) => codec::encode_server(frame, framing, &mut out),
        }
        out
    }

    pub(crate) fn has_body(&self) -> bool {
        match self {
            Self::Client(frame) => frame.body.is_some(),
            Self::Server(frame) => frame.body.is_some(),
        }
    }

    /// Returns the side and the name of its kind.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Client(frame) => frame.body.as_ref().map_or("client none", client_kind),
            Self::Server(frame) => frame.body.as_ref().map_or("server none", server_kind),
        }
    }
}

/// All kinds of frames; the matches below fail to compile if a kind is missing there.
pub(crate) const KINDS: [&str; 42] = [
    "client hello",
    "client send",
    "client ack",
    "client ping",
    "client read",
    "client sync",
    "client pull",
    "client nextId",
    "client join",
    "client leave",
    "client bye",
    "client pong",
    "client recall",
    "client clear",
    "client hide",
    "client signal",
    "client react",
    "client edit",
    "client watch",
    "client refresh",
    "server push",
    "server sendAck",
    "server error",
    "server pong",
    "server welcome",
    "server done",
    "server behind",
    "server shed",
    "server notice",
    "server goAway",
    "server close",
    "server page",
    "server conversationState",
    "server syncEnd",
    "server receipt",
    "server nextIdIs",
    "server ping",
    "server cleared",
    "server hidden",
    "server signal",
    "server roomStats",
    "server presence",
];

pub(crate) fn client_kind(body: &client_frame::Body) -> &'static str {
    use client_frame::Body;
    match body {
        Body::Hello(_) => "client hello",
        Body::Send(_) => "client send",
        Body::Ack(_) => "client ack",
        Body::Ping(_) => "client ping",
        Body::Read(_) => "client read",
        Body::Sync(_) => "client sync",
        Body::Pull(_) => "client pull",
        Body::NextId(_) => "client nextId",
        Body::Join(_) => "client join",
        Body::Leave(_) => "client leave",
        Body::Bye(_) => "client bye",
        Body::Recall(_) => "client recall",
        Body::Clear(_) => "client clear",
        Body::Hide(_) => "client hide",
        Body::Signal(_) => "client signal",
        Body::Refresh(_) => "client refresh",
        Body::React(_) => "client react",
        Body::Pong(_) => "client pong",
        Body::Edit(_) => "client edit",
        Body::Watch(_) => "client watch",
    }
}

pub(crate) fn server_kind(body: &server_frame::Body) -> &'static str {
    use server_frame::Body;
    match body {
        Body::Push(_) => "server push",
        Body::SendAck(_) => "server sendAck",
        Body::Error(_) => "server error",
        Body::Pong(_) => "server pong",
        Body::Welcome(_) => "server welcome",
        Body::Done(_) => "server done",
        Body::Behind(_) => "server behind",
        Body::Shed(_) => "server shed",
        Body::Notice(_) => "server notice",
        Body::GoAway(_) => "server goAway",
        Body::Close(_) => "server close",
        Body::Page(_) => "server page",
        Body::ConversationState(_) => "server conversationState",
        Body::SyncEnd(_) => "server syncEnd",
        Body::Receipt(_) => "server receipt",
        Body::NextIdIs(_) => "server nextIdIs",
        Body::Ping(_) => "server ping",
        Body::Cleared(_) => "server cleared",
        Body::Hidden(_) => "server hidden",
        Body::Signal(_) => "server signal",
        Body::RoomStats(_) => "server roomStats",
        Body::Presence(_) => "server presence",
    }
}

/// End of a stream.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum End {
    /// The stream ends with a complete frame.
    Whole,
    /// The stream ends in the middle of a frame.
    Need,
    /// The stream contains bytes that are not a frame.
    Error(WireError),
}

/// Splits a stream that arrives in `pieces`, as a driver does, and returns the payloads.
pub(crate) fn cut(
    framing: Framing,
    limit: usize,
    pieces: impl Iterator<Item = Vec<u8>>,
) -> (Vec<Vec<u8>>, End) {
    let (mut buffer, mut scanned, mut payloads) = (Vec::new(), 0, Vec::new());
    for piece in pieces {
        buffer.extend_from_slice(&piece);
        loop {
            let split = match framing {
                Framing::Proto => codec::tcp::split(&buffer, limit),
                Framing::Json => codec::json::split_line(&buffer, scanned, limit),
            };
            match split {
                Ok(Split::Frame { payload, consumed }) => {
                    check(&payload, consumed, buffer.len(), limit);
                    payloads.push(buffer[payload].to_vec());
                    buffer.drain(..consumed);
                    scanned = 0;
                }
                Ok(Split::Need { at_least }) => {
                    assert!(at_least > buffer.len() && at_least <= limit.saturating_add(5), "{at_least}");
                    scanned = buffer.len();
                    break;
                }
                Err(error) => return (payloads, End::Error(error)),
            }
        }
    }
    let end = if buffer.is_empty() { End::Whole } else { End::Need };
    (payloads, end)
}

fn check(payload: &Range<usize>, consumed: usize, input: usize, limit: usize) {
    assert!(payload.start <= payload.end && payload.end <= consumed && consumed <= input);
    assert!(payload.len() <= limit && consumed > 0);
}
