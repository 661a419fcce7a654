//! Types of the transcripts in `vectors/transcripts/`; `vectors/README.md` explains the fields.

use std::{collections::BTreeMap, fs, path::PathBuf};

use serde::Deserialize;
use serde_json::value::RawValue;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Transcript {
    pub(crate) name: String,
    pub(crate) about: String,
    pub(crate) settings: Settings,
    pub(crate) lines: Vec<Line>,
}

/// Settings of the broker in a transcript.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Settings {
    pub(crate) order_timeout_ms: Option<u64>,
    /// Nodes of connections that are not on node n1.
    pub(crate) nodes: BTreeMap<String, String>,
    /// Code names for messages that are refused before the log, by message id.
    pub(crate) refused: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Line {
    pub(crate) at: u64,
    pub(crate) conn: String,
    pub(crate) open: Option<bool>,
    pub(crate) client: Option<Box<RawValue>>,
    pub(crate) server: Option<Box<RawValue>>,
    pub(crate) closed: Option<Side>,
}

/// Side that closed the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Side {
    Client,
    Server,
}

/// Reads all transcripts, each with its file name, in order.
pub(crate) fn transcripts() -> Vec<(String, Transcript)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("vectors/transcripts");
    let mut all: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let file = path.file_name().unwrap().to_str().unwrap().to_owned();
            let text = fs::read_to_string(&path).unwrap();
            let transcript = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{file}: {error}"));
            (file, transcript)
        })
        .collect();
    all.sort_by(|(a, _), (b, _): &(String, Transcript)| a.cmp(b));
    all
}
