//! TCP framing: the length of a protobuf frame as a varint, then its payload.

use super::{Split, WireError};

/// Maximum size of a length prefix, in bytes.
pub const LENGTH_BYTES_MAX: usize = 5;

/// Finds the frame at the start of `input`, whose payload may have up to `frame_bytes_max` bytes.
///
/// The claimed length is checked as soon as enough of its bits have arrived, before any of the payload. Length zero is
/// an empty frame. The result depends only on the bytes, not on how they were split on arrival.
pub fn split(input: &[u8], frame_bytes_max: usize) -> Result<Split, WireError> {
    let mut length = 0u64;
    for (at, byte) in input.iter().enumerate() {
        length |= u64::from(byte & 0x7f) << (7 * at);
        if length > frame_bytes_max as u64 {
            return Err(WireError::TooLarge { at_least: length, max: frame_bytes_max });
        }
        if byte & 0x80 == 0 {
            let start = at + 1;
            let end = start + usize::try_from(length).expect("the length is within the limit, a usize");
            return Ok(if input.len() < end {
                Split::Need { at_least: end }
            } else {
                Split::Frame { payload: start..end, consumed: end }
            });
        }
        if at + 1 == LENGTH_BYTES_MAX {
            return Err(WireError::Length);
        }
    }
    Ok(Split::Need { at_least: input.len() + 1 })
}

/// Appends the length prefix of a payload to `out`.
pub fn put_length(payload_bytes: usize, out: &mut Vec<u8>) {
    prost::encoding::encode_varint(payload_bytes as u64, out);
}
