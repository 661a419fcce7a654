//! Bytes that a released version wrote: today's code reads each with its meaning, and writes the same bytes.
//!
//! `tests/golden/README.md` describes what the folders hold and how the next version gets one.

#[path = "golden/access.rs"]
mod access;
#[path = "golden/convert.rs"]
mod convert;
#[path = "golden/edits.rs"]
mod edits;
#[path = "golden/endpoints.rs"]
mod endpoints;
#[path = "golden/folder.rs"]
mod folder;
#[path = "golden/frames.rs"]
mod frames;
#[path = "golden/kafka_records.rs"]
mod kafka_records;
#[path = "golden/link.rs"]
mod link;
#[path = "golden/meaning.rs"]
mod meaning;
#[path = "golden/records.rs"]
mod records;
#[path = "golden/redis_rows.rs"]
mod redis_rows;
#[path = "golden/servers.rs"]
mod servers;
#[path = "golden/sessions.rs"]
mod sessions;
#[path = "golden/store.rs"]
mod store;
#[path = "support/mod.rs"]
mod support;
#[path = "golden/world.rs"]
mod world;
