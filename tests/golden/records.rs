//! Records of the log, with what is hashed from them: a log and a store outlive the version that wrote them.

use std::fs;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tidegate_protocol::{
    machine::ledger::{edit_key, message_key, request_key},
    record::{Body, Position, Record},
};

use crate::{
    convert::{hex, unhex, with_unknown_field},
    folder::{Folder, folders_with},
    meaning,
};

const FILE: &str = "records.json";

#[derive(Deserialize, Serialize)]
struct Golden {
    name: String,
    hex: String,
    /// Hash by which a position identifies the record.
    hash: String,
    /// Key by which a retry is found; `None` where there are no retries.
    key: Option<String>,
    means: Value,
}

/// Reads a record as today's code does.
fn read(name: String, hex_digits: &str) -> Golden {
    let bytes = Bytes::from(unhex(hex_digits));
    let record = Record::decode(bytes.clone()).unwrap_or_else(|error| panic!("{name}: {error}"));
    let key = match &record.body {
        Body::Message(it) => Some(hex(&message_key(it))),
        Body::Member(it) => Some(hex(&request_key(it))),
        Body::Edit(it) => Some(hex(&edit_key(it))),
        Body::Recall(_) | Body::Prune(_) | Body::Rules(_) => None,
    };
    Golden {
        hex: hex(&record.encode()),
        hash: hex(&Position::behind(0, &bytes).hash),
        key,
        means: meaning::record(&record),
        name,
    }
}

/// Takes the records of the protocol's vectors, which hold each kind, action and role.
pub(crate) fn write(folder: &Folder) {
    let path = folder.path("../../../protocol/vectors/log/records.json");
    let vectors: Vec<Value> = serde_json::from_slice(&fs::read(path).expect("vectors")).expect("JSON");
    let text = |vector: &Value, field: &str| vector[field].as_str().expect("text").to_owned();
    let records: Vec<Golden> =
        vectors.iter().map(|vector| read(text(vector, "name"), &text(vector, "hex"))).collect();
    folder.write_list(FILE, &records);
}

#[test]
fn records_of_every_version_keep_meaning_bytes_and_hashes() {
    for folder in folders_with(FILE) {
        let records: Vec<Golden> = folder.json(FILE);
        assert!(records.len() >= 18, "{} records", records.len());
        for golden in records {
            let what = format!("{} of {}", golden.name, folder.version);
            let present = read(what.clone(), &golden.hex);
            assert_eq!(present.means, golden.means, "{what}");
            assert_eq!(present.hex, golden.hex, "{what} is written as it was");
            assert_eq!(present.hash, golden.hash, "{what}: positions in stores hold this");
            assert_eq!(present.key, golden.key, "{what}: dedup keys in stores hold this");
            let later = hex(&with_unknown_field(&unhex(&golden.hex)));
            assert_eq!(
                read(what.clone(), &later).means,
                golden.means,
                "{what}, with a field of a later version"
            );
        }
    }
}
