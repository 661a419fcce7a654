//! Heap of the ledger, and allocation bound of the decoder: proportional to the bytes that have arrived, never to a length that they claim.
//!
//! It is a test target of its own, because it replaces the allocator. Allocations are counted by thread: those of the test runner, at any moment, are not part of a result.
#![allow(clippy::unwrap_used)]

mod ledger;
#[path = "../wire/support.rs"]
mod support;

use allocation_counter::measure;
use support::vectors;
use tidegate_protocol::{
    Code,
    codec::{Framing, decode_client, detect, json::split_line, tcp},
};

/// Returns all bytes that this thread allocates while `work` runs, freed or not.
fn allocated<T>(work: impl FnOnce() -> T) -> u64 {
    measure(|| drop(work())).bytes_total
}

/// Allocation per input byte. An empty position takes 2 bytes on the wire and 32 in memory, in a list that doubles.
const BYTES_PER_INPUT_BYTE: u64 = 64;
/// Allocation for an error or the first element of a list, in bytes.
const BYTES_FIXED: u64 = 2_048;
/// Allocation for a list that is too long, until it is refused: the longest one, and the shorter ones it grew from.
const LIST_BYTES_MAX: u64 = 2 << 20;

#[test]
fn decoding_allocates_in_proportion_to_what_is_there() {
    let check = |what: &str, payload: &[u8], framing| {
        let bytes = allocated(|| decode_client(payload, framing));
        let max = BYTES_FIXED + BYTES_PER_INPUT_BYTE * payload.len() as u64;
        assert!(bytes <= max, "{what}: {bytes} for {}", payload.len());
    };
    for (file, vector) in vectors() {
        let input = vector.input();
        for framing in [Framing::Proto, Framing::Json] {
            check(&format!("{file}: {}", vector.name), &input, framing);
        }
    }
    // Lists of the smallest possible elements, refused before they grow.
    let refused = |what: &str, payload: &[u8], framing| {
        let bytes =
            allocated(|| assert_eq!(decode_client(payload, framing).unwrap_err().code(), Code::Malformed));
        assert!(bytes <= LIST_BYTES_MAX, "{what}: {bytes} for {}", payload.len());
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

    // A fixed seed, so that a failure is reproducible.
    let mut state = 0x2545_f491_4f6c_dd1du64;
    for round in 0..20_000 {
        let noise: Vec<u8> = (0..round % 97)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                // Every other byte is a small number, as keys and lengths are.
                if state & 0x100 == 0 { (state >> 32) as u8 } else { (state >> 32) as u8 & 0x3b }
            })
            .collect();
        check("noise", &noise, Framing::Proto);
        check("noise", &noise, Framing::Json);
        let splitters =
            allocated(|| (tcp::split(&noise, 1 << 20), split_line(&noise, 0, 1 << 20), detect(&noise)));
        assert_eq!(splitters, 0, "{noise:?}");
    }
}
