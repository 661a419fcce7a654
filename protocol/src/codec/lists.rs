//! Limit on the lists of a client frame, checked before anything is allocated for them.
//!
//! An empty position takes 2 bytes on the wire and 32 in memory, so a frame within its limit could otherwise allocate
//! many times its size.

use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

/// Maximum entries of one list; more are `MALFORMED`. Some requests have a lower limit, which refuses only the request.
pub const LIST_MAX: usize = 10_000;

// Numbers of the `ClientFrame` fields that contain lists, and of the lists in them.
const PING: u32 = 5;
const SYNC: u32 = 7;
const PULL: u32 = 8;
const PONG: u32 = 13;
const HIDE: u32 = 16;
const POSITIONS: u32 = 1;
const PULL_SEQS: u32 = 3;
const HIDE_SEQS: u32 = 2;

/// Returns whether the lists of a client's protobuf payload stay within [`LIST_MAX`]. Counting stops where the payload
/// is malformed; the decoder fails at the same byte, and has allocated no more than was counted until then.
pub(super) fn are_short(payload: &[u8]) -> bool {
    // Each entry takes at least one byte.
    if payload.len() <= LIST_MAX {
        return true;
    }
    let mut count = 0;
    let mut add = |entries: usize| {
        count += entries;
        count <= LIST_MAX
    };
    each_field(payload, |tag, body| match (tag, body) {
        (PING | SYNC | PONG, Some(body)) => each_field(body, |tag, _| tag != POSITIONS || add(1)),
        (PULL | HIDE, Some(body)) => each_field(body, |field, packed| {
            let seqs = if tag == PULL { PULL_SEQS } else { HIDE_SEQS };
            field != seqs
                || add(packed.map_or(1, |numbers| numbers.iter().filter(|byte| **byte < 0x80).count()))
        }),
        _ => true,
    })
}

/// Returns whether `accept` holds for each field of a message, given its tag and, if it has a length, its bytes.
fn each_field(mut message: &[u8], mut accept: impl FnMut(u32, Option<&[u8]>) -> bool) -> bool {
    while let Ok((tag, wire_type)) = decode_key(&mut message) {
        let mut bytes = None;
        if wire_type == WireType::LengthDelimited {
            let Some((body, rest)) = decode_varint(&mut message)
                .ok()
                .and_then(|len| message.split_at_checked(usize::try_from(len).ok()?))
            else {
                return true;
            };
            (bytes, message) = (Some(body), rest);
        } else if skip_field(wire_type, tag, &mut message, DecodeContext::default()).is_err() {
            return true;
        }
        if !accept(tag, bytes) {
            return false;
        }
    }
    true
}
