//! What decoding allocates is bounded by the bytes that are there, never by a length that they claim.
//!
//! One test in a target of its own: it counts what the whole process allocates.
#![allow(clippy::unwrap_used)]

#[path = "../wire/support.rs"]
mod support;

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use support::vectors;
use tidegate_protocol::{
    Code,
    codec::{Framing, decode_client, detect, json::split_line, tcp},
};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// All that is ever allocated while `work` runs, freed or not.
fn allocated<T>(work: impl FnOnce() -> T) -> usize {
    let region = Region::new(ALLOCATOR);
    let done = work();
    let bytes = region.change().bytes_allocated;
    drop(done);
    bytes
}

/// An empty position is two bytes on the wire and 32 in memory, in a list that doubled until it was large enough.
const PER_BYTE: usize = 64;
/// What an error or the first element of a list takes.
const AT_LEAST: usize = 2_048;
/// What a list that is too long takes until it is refused: the longest one, and the shorter ones it has grown from.
const LISTS: usize = 2 << 20;

#[test]
fn decoding_allocates_in_proportion_to_what_is_there() {
    let check = |what: &str, payload: &[u8], framing| {
        let bytes = allocated(|| decode_client(payload, framing));
        assert!(bytes <= AT_LEAST + PER_BYTE * payload.len(), "{what}: {bytes} for {}", payload.len());
    };
    for (file, vector) in vectors() {
        let input = vector.input();
        for framing in [Framing::Proto, Framing::Json] {
            check(&format!("{file}: {}", vector.name), &input, framing);
        }
    }
    // Lists of the smallest elements there are, refused before they have grown.
    let refused = |what: &str, payload: &[u8], framing| {
        let bytes =
            allocated(|| assert_eq!(decode_client(payload, framing).unwrap_err().code(), Code::Malformed));
        assert!(bytes <= LISTS, "{what}: {bytes} for {}", payload.len());
    };
    let mut positions = vec![0x3a];
    prost::encoding::encode_varint(200_000, &mut positions);
    positions.extend([0x0a, 0x00].repeat(100_000));
    refused("empty positions", &positions, Framing::Proto);
    positions.push(0xff);
    refused("positions before what is malformed", &positions, Framing::Proto);
    refused("a sync in many pieces", &[0x3a, 2, 0x0a, 0].repeat(100_000), Framing::Proto);
    let positions = format!("{{\"sync\":{{\"positions\":[{}{{}}]}}}}", "{},".repeat(65_000));
    refused("empty positions in JSON", positions.as_bytes(), Framing::Json);
    let seqs = format!("{{\"pull\":{{\"seqs\":[{}0]}}}}", "0,".repeat(100_000));
    refused("seqs in JSON", seqs.as_bytes(), Framing::Json);
    let mut seqs = vec![0x42];
    prost::encoding::encode_varint(100_004, &mut seqs);
    seqs.extend([0x1a, 0xa0, 0x8d, 0x06]);
    seqs.extend([0].repeat(100_000));
    refused("seqs", &seqs, Framing::Proto);

    // A fixed seed, so that a failure comes back.
    let mut state = 0x2545_f491_4f6c_dd1du64;
    for round in 0..20_000 {
        let noise: Vec<u8> = (0..round % 97)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                // Every other byte is near the small numbers that keys and lengths are.
                if state & 0x100 == 0 { (state >> 32) as u8 } else { (state >> 32) as u8 & 0x3b }
            })
            .collect();
        check("noise", &noise, Framing::Proto);
        check("noise", &noise, Framing::Json);
        let cutters =
            allocated(|| (tcp::split(&noise, 1 << 20), split_line(&noise, 0, 1 << 20), detect(&noise)));
        assert_eq!(cutters, 0, "{noise:?}");
    }
}
