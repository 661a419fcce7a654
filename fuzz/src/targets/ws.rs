//! WebSocket framing as a server reads it: any cut of any bytes gives the same events.

use tidegate_protocol::ws::{Decoder, Event, Kind, Limits, Step, Violation};

/// The first byte is the size of the pieces in which the others come.
pub fn ws(data: &[u8]) {
    let Some((size, bytes)) = data.split_first() else { return };
    let at_once = feed([bytes], Decoder::server());
    assert_eq!(feed(bytes.chunks(usize::from(*size).max(1)), Decoder::server()), at_once);
}

/// Small, so that a fuzzer reaches them.
const LIMITS: Limits = Limits { message_bytes_max: 300, fragments_max: 6 };

/// An event that outlives its input.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen {
    /// A whole one.
    Message(Kind, Vec<u8>),
    /// A fragment.
    Part,
    /// With its payload.
    Ping(Vec<u8>),
    /// With its payload.
    Pong(Vec<u8>),
    /// Code and reason.
    Close(Option<u16>, String),
    /// The end of all reading.
    Refused(Violation),
    /// Bytes left over that are no whole frame.
    Rest(usize),
}

impl From<Event<'_>> for Seen {
    fn from(event: Event<'_>) -> Self {
        match event {
            Event::Message { kind, payload } => Self::Message(kind, payload.into_owned()),
            Event::Part => Self::Part,
            Event::Ping(payload) => Self::Ping(payload.to_vec()),
            Event::Pong(payload) => Self::Pong(payload.to_vec()),
            Event::Close { code, reason } => Self::Close(code, reason.to_owned()),
        }
    }
}

/// Feeds `bytes` in the given cuts, as a connection would, and checks what every caller relies on.
pub fn feed<'a>(bytes: impl IntoIterator<Item = &'a [u8]>, mut decoder: Decoder) -> Vec<Seen> {
    let (mut input, mut seen) = (Vec::new(), Vec::new());
    for part in bytes {
        input.extend_from_slice(part);
        loop {
            let before = input.clone();
            let consumed = match decoder.next(&mut input, &LIMITS) {
                Ok(Step::Need { at_least }) => {
                    assert!(at_least > before.len(), "a need that is met already would loop forever");
                    assert!(at_least <= LIMITS.message_bytes_max + 14, "{at_least}");
                    assert_eq!(input, before, "input must be left alone until the frame is whole");
                    break;
                }
                Ok(Step::Frame { consumed, event }) => {
                    seen.push(event.into());
                    consumed
                }
                Err(violation) => {
                    seen.push(Seen::Refused(violation));
                    return seen;
                }
            };
            input.drain(..consumed);
            assert!(decoder.held() <= 2 * LIMITS.message_bytes_max + 64, "{}", decoder.held());
        }
    }
    seen.push(Seen::Rest(input.len()));
    seen
}
