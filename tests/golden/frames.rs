//! Frames of the client port, as protobuf and as JSON.

use std::fs;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tidegate_protocol::codec::{self, Decoded, Framing};

use crate::{
    convert::{hex, unhex, with_unknown_field},
    folder::{Folder, versions},
};

const FILE: &str = "frames.json";

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum Direction {
    Client,
    Server,
}

/// A frame in its two forms, each canonical to the byte.
#[derive(Deserialize, Serialize)]
struct Frame {
    name: String,
    direction: Direction,
    hex: String,
    json: Box<RawValue>,
}

impl Direction {
    /// Reads a frame and writes it again.
    fn convert(self, bytes: &[u8], from: Framing, to: Framing) -> Vec<u8> {
        let mut written = Vec::new();
        match self {
            Self::Client => match codec::decode_client(bytes, from).expect("a frame of a client") {
                Decoded::Frame(frame) => codec::encode_client(&frame, to, &mut written),
                Decoded::Empty => panic!("an empty frame"),
            },
            Self::Server => match codec::decode_server(bytes, from).expect("a frame of a broker") {
                Decoded::Frame(frame) => codec::encode_server(&frame, to, &mut written),
                Decoded::Empty => panic!("an empty frame"),
            },
        }
        written
    }
}

/// Takes the frames of the protocol's vectors, which hold one of each kind at least.
pub(crate) fn write(folder: &Folder) {
    let mut frames = Vec::new();
    for direction in [Direction::Client, Direction::Server] {
        let name = format!("{direction:?}").to_lowercase();
        let path = folder.path(&format!("../../../protocol/vectors/{name}.json"));
        let vectors: Vec<serde_json::Value> =
            serde_json::from_slice(&fs::read(path).expect("vectors")).expect("JSON");
        for vector in vectors {
            let text = |field: &str| vector[field].as_str().expect("text").to_owned();
            let json = direction.convert(&unhex(&text("hex")), Framing::Proto, Framing::Json);
            let json = serde_json::from_slice(&json).expect("JSON");
            frames.push(Frame { name: text("name"), direction, hex: text("hex"), json });
        }
    }
    folder.write_list(FILE, &frames);
}

#[test]
fn frames_of_every_version_keep_their_meaning_and_bytes() {
    for folder in versions() {
        let frames: Vec<Frame> = folder.json(FILE);
        assert!(frames.len() > 40, "{} frames", frames.len());
        for Frame { name, direction, hex: golden, json } in frames {
            let what = format!("{} of {}", name, folder.version);
            let read = direction.convert(&unhex(&golden), Framing::Proto, Framing::Json);
            assert_eq!(String::from_utf8_lossy(&read), json.get(), "{what}");
            let written = direction.convert(json.get().as_bytes(), Framing::Json, Framing::Proto);
            assert_eq!(hex(&written), golden, "{what}");
            // Fields that a later version may add at the end of a frame do no harm.
            let later = with_unknown_field(&unhex(&golden));
            let read = direction.convert(&later, Framing::Proto, Framing::Json);
            assert_eq!(String::from_utf8_lossy(&read), json.get(), "{what}, with a field of a later version");
        }
    }
}
