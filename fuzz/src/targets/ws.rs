//! Fuzz target for the WebSocket decoder of a server: the events do not depend on how the bytes are split.

use tidegate_protocol::ws::{Decoder, Kind, WsEvent, WsLimits, WsStep, WsViolation};

/// Decodes bytes in pieces and as a whole. The first byte is the size of the pieces.
pub fn ws(data: &[u8]) {
    let Some((size, bytes)) = data.split_first() else { return };
    let whole = feed([bytes], Decoder::server());
    assert_eq!(feed(bytes.chunks(usize::from(*size).max(1)), Decoder::server()), whole);
}

/// Limits of a message; small, so that a fuzzer reaches them.
const LIMITS: WsLimits = WsLimits { message_bytes_max: 300, fragments_max: 6 };

/// Owned copy of an event, or the end of the input.
#[derive(Clone, Debug, PartialEq)]
pub enum OwnedEvent {
    /// A complete message.
    Message(Kind, Vec<u8>),
    /// A fragment.
    Part,
    /// A ping with its payload.
    Ping(Vec<u8>),
    /// A pong with its payload.
    Pong(Vec<u8>),
    /// A close with its code and reason.
    Close(Option<u16>, String),
    /// A violation, after which nothing is decoded.
    Refused(WsViolation),
    /// Number of remaining bytes that are no complete frame.
    Rest(usize),
}

impl From<WsEvent<'_>> for OwnedEvent {
    fn from(event: WsEvent<'_>) -> Self {
        match event {
            WsEvent::Message { kind, payload } => Self::Message(kind, payload.into_owned()),
            WsEvent::Part => Self::Part,
            WsEvent::Ping(payload) => Self::Ping(payload.to_vec()),
            WsEvent::Pong(payload) => Self::Pong(payload.to_vec()),
            WsEvent::Close { code, reason } => Self::Close(code, reason.to_owned()),
        }
    }
}

/// Feeds the pieces as a connection would, and checks the properties that every caller relies on.
pub fn feed<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, mut decoder: Decoder) -> Vec<OwnedEvent> {
    let (mut input, mut events) = (Vec::new(), Vec::new());
    for part in pieces {
        input.extend_from_slice(part);
        loop {
            let before = input.clone();
            let consumed = match decoder.next(&mut input, &LIMITS) {
                Ok(WsStep::Need { at_least }) => {
                    assert!(at_least > before.len(), "a need that is already met would loop forever");
                    assert!(at_least <= LIMITS.message_bytes_max + 14, "{at_least}");
                    assert_eq!(input, before, "the input must not change until the frame is complete");
                    break;
                }
                Ok(WsStep::Frame { consumed, event }) => {
                    events.push(event.into());
                    consumed
                }
                Err(violation) => {
                    events.push(OwnedEvent::Refused(violation));
                    return events;
                }
            };
            input.drain(..consumed);
            assert!(decoder.held() <= 2 * LIMITS.message_bytes_max + 64, "{}", decoder.held());
        }
    }
    events.push(OwnedEvent::Rest(input.len()));
    events
}
