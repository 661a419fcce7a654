//! WebSocket encoder: frames of a server, and frames of a client with a given masking key.

use bytes::BufMut;

use super::{CONTROL_MAX, Opcode, mask};

/// Maximum reason of a close frame, in bytes; the code takes two more.
pub const CLOSE_REASON_MAX: usize = CONTROL_MAX - 2;

const FIN: u8 = 0x80;
const MASKED: u8 = 0x80;

/// Maximum header of a server frame, in bytes: two bytes and a 64-bit length, without a masking key.
pub const SERVER_HEADER_MAX: usize = 10;

/// Appends the header of an unfragmented server frame with `len` payload bytes.
pub fn server_header(opcode: Opcode, len: usize, out: &mut impl BufMut) {
    let mut head = [0; SERVER_HEADER_MAX];
    let n = header(FIN | opcode as u8, 0, len, &mut head);
    out.put_slice(&head[..n]);
}

/// Appends an unfragmented, unmasked server frame.
pub fn encode_server(opcode: Opcode, payload: &[u8], out: &mut impl BufMut) {
    server_header(opcode, payload.len(), out);
    out.put_slice(payload);
}

/// Appends a server's close frame; a reason that is too long is truncated at a character boundary.
///
/// `code` is sent unchanged: use [`WsViolation::close_code`](super::WsViolation::close_code) or
/// [`Code::ws_close`](crate::Code::ws_close).
pub fn encode_close(code: u16, reason: &str, out: &mut impl BufMut) {
    let reason = &reason[..reason.floor_char_boundary(CLOSE_REASON_MAX)];
    let mut body = [0; CONTROL_MAX];
    body[..2].copy_from_slice(&code.to_be_bytes());
    body[2..2 + reason.len()].copy_from_slice(reason.as_bytes());
    encode_server(Opcode::Close, &body[..2 + reason.len()], out);
}

/// Appends the reply to a peer's close frame, with the peer's code if it sent one.
pub fn encode_close_reply(theirs: Option<u16>, out: &mut impl BufMut) {
    match theirs {
        Some(code) => encode_close(code, "", out),
        None => encode_server(Opcode::Close, &[], out),
    }
}

/// Appends an unfragmented client frame, masked with `key`. A real client draws a fresh random key for each frame.
pub fn encode_client(opcode: Opcode, payload: &[u8], key: [u8; 4], out: &mut Vec<u8>) {
    encode_fragment(true, opcode, payload, Some(key), out);
}

/// Appends a frame of any kind. `last` marks the final fragment; a client must pass a masking `key`, a server must not.
pub fn encode_fragment(last: bool, opcode: Opcode, payload: &[u8], key: Option<[u8; 4]>, out: &mut Vec<u8>) {
    let mut head = [0; SERVER_HEADER_MAX];
    let first = if last { FIN } else { 0 } | opcode as u8;
    let n = header(first, if key.is_some() { MASKED } else { 0 }, payload.len(), &mut head);
    out.extend_from_slice(&head[..n]);
    out.extend_from_slice(&key.unwrap_or_default()[..if key.is_some() { 4 } else { 0 }]);
    let start = out.len();
    out.extend_from_slice(payload);
    if let Some(key) = key {
        mask(&mut out[start..], key);
    }
}

fn header(first: u8, masked: u8, len: usize, out: &mut [u8; SERVER_HEADER_MAX]) -> usize {
    out[0] = first;
    match len {
        0..=125 => {
            out[1] = masked | len as u8;
            2
        }
        126..=0xFFFF => {
            out[1] = masked | 126;
            out[2..4].copy_from_slice(&(len as u16).to_be_bytes());
            4
        }
        _ => {
            out[1] = masked | 127;
            out[2..10].copy_from_slice(&(len as u64).to_be_bytes());
            10
        }
    }
}
