//! WebSocket decoder: bytes to frames and messages. Limits apply to the claimed length, before any allocation.

use std::{borrow::Cow, str};

use super::{CONTROL_MAX, Kind, Opcode, WsEvent, WsLimits, WsStep, WsViolation, mask};

/// Decoder state of one connection; 16 bytes while no fragmented message is open.
#[derive(Debug)]
pub struct Decoder {
    open: Option<Box<Assembly>>,
    expect_masked: bool,
}

/// Fragmented message that is still incomplete.
#[derive(Debug)]
struct Assembly {
    kind: Kind,
    fragments: u32,
    /// Length of the text that is checked as UTF-8, in bytes; the rest is at most a part of one character.
    valid: usize,
    bytes: Vec<u8>,
}

impl Decoder {
    /// Creates a server's decoder: frames come from a client and must be masked.
    pub const fn server() -> Self {
        Self { open: None, expect_masked: true }
    }

    /// Creates a client's decoder: frames come from a server and must not be masked.
    pub const fn client() -> Self {
        Self { open: None, expect_masked: false }
    }

    /// Returns the heap bytes of the open fragmented message, zero if there is none.
    pub fn held(&self) -> usize {
        self.open.as_ref().map_or(0, |open| size_of::<Assembly>() + open.bytes.capacity())
    }

    /// Returns whether a fragmented message is open.
    pub const fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Decodes one frame from the start of `input`, which must begin where the frame begins.
    ///
    /// The payload is unmasked in place once the frame is complete, so the caller must consume each decoded frame.
    /// After a violation the connection must be closed; further results are meaningless.
    pub fn next<'a>(&mut self, input: &'a mut [u8], limits: &WsLimits) -> Result<WsStep<'a>, WsViolation> {
        let head = match Head::read(input, self.expect_masked)? {
            HeadRead::Head(head) => head,
            HeadRead::Need(at_least) => return Ok(WsStep::Need { at_least }),
        };
        let len = self.admit(&head, limits)?;
        let consumed = head.payload_at + len;
        let Some(frame) = input.get_mut(..consumed) else {
            return Ok(WsStep::Need { at_least: consumed });
        };
        let (head_bytes, payload) = frame.split_at_mut(head.payload_at);
        if self.expect_masked {
            mask(payload, *head_bytes.last_chunk().expect("a masked header ends with its key"));
        }
        let event = match head.opcode {
            Opcode::Ping => WsEvent::Ping(payload),
            Opcode::Pong => WsEvent::Pong(payload),
            Opcode::Close => close(payload)?,
            Opcode::Text => self.begin(Kind::Text, head.last, payload)?,
            Opcode::Binary => self.begin(Kind::Binary, head.last, payload)?,
            Opcode::Continuation => self.continue_message(head.last, payload)?,
        };
        Ok(WsStep::Frame { consumed, event })
    }

    /// Checks whether a frame with this header is allowed now, before its payload arrives, and returns its length.
    fn admit(&self, head: &Head, limits: &WsLimits) -> Result<usize, WsViolation> {
        let open = self.open.as_deref();
        let (fragments, before) = match (head.opcode, open) {
            (Opcode::Continuation, None) => return Err(WsViolation::NothingToContinue),
            (Opcode::Text | Opcode::Binary, Some(_)) => return Err(WsViolation::MessageOpen),
            (Opcode::Continuation, Some(open)) => (open.fragments, open.bytes.len()),
            (Opcode::Text | Opcode::Binary, None) => (0, 0),
            // Control frames are part of no message, and their length has been checked.
            _ => return Ok(head.len as usize),
        };
        if fragments >= limits.fragments_max {
            return Err(WsViolation::TooManyFragments { max: limits.fragments_max });
        }
        let max = limits.message_bytes_max;
        match usize::try_from(head.len) {
            Ok(len) if len <= max.saturating_sub(before) => Ok(len),
            _ => Err(WsViolation::MessageTooLarge { claimed: head.len.saturating_add(before as u64), max }),
        }
    }

    fn begin<'a>(&mut self, kind: Kind, last: bool, payload: &'a [u8]) -> Result<WsEvent<'a>, WsViolation> {
        if last {
            if kind == Kind::Text && str::from_utf8(payload).is_err() {
                return Err(WsViolation::NotUtf8);
            }
            return Ok(WsEvent::Message { kind, payload: Cow::Borrowed(payload) });
        }
        let mut open = Box::new(Assembly { kind, fragments: 0, valid: 0, bytes: Vec::new() });
        open.add(payload)?;
        self.open = Some(open);
        Ok(WsEvent::Part)
    }

    fn continue_message<'a>(&mut self, last: bool, payload: &[u8]) -> Result<WsEvent<'a>, WsViolation> {
        let open = self.open.as_mut().ok_or(WsViolation::NothingToContinue)?;
        open.add(payload)?;
        if !last {
            return Ok(WsEvent::Part);
        }
        if open.kind == Kind::Text && open.valid != open.bytes.len() {
            return Err(WsViolation::NotUtf8);
        }
        let open = self.open.take().ok_or(WsViolation::NothingToContinue)?;
        Ok(WsEvent::Message { kind: open.kind, payload: Cow::Owned(open.bytes) })
    }
}

impl Assembly {
    /// Appends a fragment; refuses text immediately once it can't be UTF-8 any more.
    fn add(&mut self, payload: &[u8]) -> Result<(), WsViolation> {
        self.fragments += 1;
        self.bytes.extend_from_slice(payload);
        if self.kind == Kind::Text {
            match str::from_utf8(&self.bytes[self.valid..]) {
                Ok(_) => self.valid = self.bytes.len(),
                Err(error) if error.error_len().is_none() => self.valid += error.valid_up_to(),
                Err(_) => return Err(WsViolation::NotUtf8),
            }
        }
        Ok(())
    }
}

/// Header of a frame.
struct Head {
    last: bool,
    opcode: Opcode,
    len: u64,
    payload_at: usize,
}

/// Result of reading a header: the header, or the input length that it needs.
enum HeadRead {
    Head(Head),
    Need(usize),
}

impl Head {
    /// Reads a header up to its length. The masking key may still be missing, as the length is checked without it.
    fn read(input: &[u8], expect_masked: bool) -> Result<HeadRead, WsViolation> {
        let Some(&first) = input.first() else { return Ok(HeadRead::Need(2)) };
        if first & 0x70 != 0 {
            return Err(WsViolation::ReservedBits);
        }
        let opcode = Opcode::from_bits(first & 0x0F).ok_or(WsViolation::UnknownOpcode(first & 0x0F))?;
        let last = first & 0x80 != 0;
        if opcode.is_control() && !last {
            return Err(WsViolation::ControlFragmented);
        }
        let Some(&second) = input.get(1) else { return Ok(HeadRead::Need(2)) };
        match (second & 0x80 != 0, expect_masked) {
            (false, true) => return Err(WsViolation::Unmasked),
            (true, false) => return Err(WsViolation::Masked),
            _ => {}
        }
        let short = second & 0x7F;
        if opcode.is_control() && usize::from(short) > CONTROL_MAX {
            return Err(WsViolation::ControlTooLong);
        }
        let (len, min, length_end) = match short {
            126 => {
                let Some(bytes) = input.get(2..).and_then(<[u8]>::first_chunk) else {
                    return Ok(HeadRead::Need(4));
                };
                (u64::from(u16::from_be_bytes(*bytes)), 126, 4)
            }
            127 => {
                let Some(bytes) = input.get(2..).and_then(<[u8]>::first_chunk) else {
                    return Ok(HeadRead::Need(10));
                };
                (u64::from_be_bytes(*bytes), 0x1_0000, 10)
            }
            short => (u64::from(short), 0, 2),
        };
        if len >> 63 != 0 {
            return Err(WsViolation::LengthTopBit);
        }
        if len < min {
            return Err(WsViolation::LengthNotMinimal);
        }
        let payload_at = length_end + if expect_masked { 4 } else { 0 };
        Ok(HeadRead::Head(Self { last, opcode, len, payload_at }))
    }
}

fn close(payload: &[u8]) -> Result<WsEvent<'_>, WsViolation> {
    let Some((code, reason)) = payload.split_first_chunk() else {
        return match payload {
            [] => Ok(WsEvent::Close { code: None, reason: "" }),
            _ => Err(WsViolation::CloseTooShort),
        };
    };
    let code = u16::from_be_bytes(*code);
    // Registered by RFC 6455 and IANA, or free for libraries and applications; 1004-1006 and 1015 must not be sent.
    if !matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) {
        return Err(WsViolation::CloseCode(code));
    }
    let reason = str::from_utf8(reason).map_err(|_| WsViolation::NotUtf8)?;
    Ok(WsEvent::Close { code: Some(code), reason })
}
