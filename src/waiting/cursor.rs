//! Cursor of the notices of an endpoint in one partition, as versioned bytes: a version and the feed number, as varints.

use prost::encoding::{decode_varint, encode_varint};

/// Version of the layout.
const VERSION: u64 = 1;

/// Encodes a feed number up to which everything is decided.
pub(super) fn encode(number: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(11);
    encode_varint(VERSION, &mut bytes);
    encode_varint(number, &mut bytes);
    bytes
}

/// Decodes a feed number; `None` if the bytes are damaged, or of a newer version.
pub(super) fn decode(mut bytes: &[u8]) -> Option<u64> {
    let version = decode_varint(&mut bytes).ok()?;
    let number = decode_varint(&mut bytes).ok()?;
    (version == VERSION && bytes.is_empty()).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_keeps_its_bytes_and_others_are_refused() {
        assert_eq!(encode(300), [1, 0xac, 2]);
        for number in [0, 300, u64::MAX] {
            assert_eq!(decode(&encode(number)), Some(number));
        }
        for bytes in [&b""[..], b"\x01", b"\x02\x01", b"\x01\x01\x00", b"\x01\xff"] {
            assert_eq!(decode(bytes), None, "{bytes:?}");
        }
    }
}
