//! JSON framing: payloads, and lines of a stream (SPEC section 2).
//!
//! Proto3 JSON with one deviation: 64-bit integers are written as numbers. The decoder accepts lowerCamelCase and
//! original names, integers as numbers or strings of digits (`1e3` and `2.0` are integers too), enums as names or
//! numbers, base64 of either alphabet with or without padding, and `null` for absent. It ignores unknown fields. It
//! refuses a duplicate known field, two kinds in one frame or content, an unknown enum name, and an array in place of
//! an object.

use serde::{Deserialize, Serialize};

use super::{Decoded, Split, WireError};

/// Finds the line at the start of `input`, which may have up to `frame_bytes_max` bytes plus LF or CR LF.
///
/// `scanned` is the input length of the previous call if that returned [`Split::Need`] for this line, else zero, so a
/// line that arrives byte by byte is scanned once. A line that is too long is refused before its end arrives. The
/// payload excludes the LF and a CR before it.
pub fn split_line(input: &[u8], scanned: usize, frame_bytes_max: usize) -> Result<Split, WireError> {
    let too_large = |at_least: usize| WireError::TooLarge { at_least: at_least as u64, max: frame_bytes_max };
    let from = scanned.min(input.len());
    let until = input.len().min(frame_bytes_max.saturating_add(2)).max(from);
    let Some(found) = memchr::memchr(b'\n', &input[from..until]) else {
        let line_bytes = without_cr(input).len();
        return if line_bytes > frame_bytes_max {
            Err(too_large(line_bytes))
        } else {
            Ok(Split::Need { at_least: input.len() + 1 })
        };
    };
    let line = from + found;
    let end = without_cr(&input[..line]).len();
    if end > frame_bytes_max {
        return Err(too_large(end));
    }
    Ok(Split::Frame { payload: 0..end, consumed: line + 1 })
}

fn without_cr(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

pub(super) fn decode<F>(payload: &[u8]) -> Result<Decoded<F>, WireError>
where
    F: Default + PartialEq + for<'de> Deserialize<'de>,
{
    // serde_json does not check the parts that it skips.
    let text = std::str::from_utf8(payload).map_err(|error| WireError::Utf8(error.valid_up_to()))?;
    if text.bytes().all(|byte| byte.is_ascii_whitespace()) {
        return Ok(Decoded::Empty);
    }
    let frame: F = serde_json::from_str(text).map_err(|error| match error.classify() {
        serde_json::error::Category::Data => WireError::JsonShape(error.column()),
        _ => WireError::JsonSyntax(error.column()),
    })?;
    // `{}` is the JSON form of an empty frame; any key would need a quote.
    if frame == F::default() && !payload.contains(&b'"') {
        return Ok(Decoded::Empty);
    }
    Ok(Decoded::Frame(frame))
}

pub(super) fn encode<F: Serialize>(frame: &F, out: &mut Vec<u8>) {
    serde_json::to_writer(out, frame).expect("a Vec accepts all writes, and our map keys are strings");
}
