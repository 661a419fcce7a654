//! Cursor of an endpoint in the feed of one partition, as versioned bytes.
//!
//! The layout of version 1, all numbers as varints: the version; the number of lanes and the feed number of each; the
//! last order; 1 if the receiver wants no events any more, else 0; the parked conversations, each with key, next seq, last
//! seq, pruned seq, 1 if it awaits a replay, else 0, tries, milliseconds of failures, and of refusals plus one; the events
//! set aside, each with key, kind, seq, tries, time and failure. A list begins with its length.

use prost::encoding::{decode_varint, encode_varint};
use std::time::Duration;

use super::{WebhookEvent, WebhookEventKind, WebhookFailure};
use crate::id::ConversationId;

/// Most lanes of an endpoint.
pub const LANES_MAX: usize = 32;

/// Most parked conversations of an endpoint in one partition, and at which a node parks no more of all its partitions. A lane
/// whose next event should be parked then waits.
pub const PARKED_MAX: usize = 1_000;

/// Most events set aside of an endpoint in one partition, and at which a node sets no more aside in all its partitions. An
/// event that should be set aside then stays parked.
pub const ASIDE_MAX: usize = 1_000;

/// Longest encoded cursor, which bounds the parked conversations and the events set aside, too.
pub const CURSOR_BYTES_MAX: usize = 128 * 1024;

/// Share of [`CURSOR_BYTES_MAX`] for the parked conversations; the rest, without that of the lanes, is for events set
/// aside.
pub(super) const PARKED_BYTES_MAX: usize = 64 * 1024;

/// Share of [`CURSOR_BYTES_MAX`] for the events set aside.
pub(super) const ASIDE_BYTES_MAX: usize = 63 * 1024;

/// Longest varint.
const VARINT_BYTES_MAX: usize = 10;

/// Version of the layout.
const VERSION: u64 = 1;

/// Cursor of an endpoint in one partition: what the receiver has taken. Any node may read it, for an operator's view; only
/// the owner of the partition writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookCursor {
    /// Feed number of each lane: each of its events up to there is taken, parked, set aside or not wanted.
    pub lanes: Vec<u64>,
    /// Number of the last order that was carried out.
    pub last_order: u64,
    /// Whether the receiver has answered that it does not want any events any more.
    pub is_disabled: bool,
    /// Conversations whose next event keeps failing.
    pub parked: Vec<ParkedConversation>,
    /// Events that the receiver has not taken, and that are no longer sent.
    pub aside: Vec<WebhookAside>,
}

/// Conversation that is delivered apart from its lane, because its next event keeps failing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParkedConversation {
    /// Conversation.
    pub conversation: ConversationId,
    /// Seq that is sent next.
    pub next: u64,
    /// Last seq that its lane has passed; below `next` if all are taken.
    pub up_to: u64,
    /// Seq of a pruning that its lane has passed, sent last; 0 for none.
    pub pruned: u64,
    /// Whether the next event that its lane reads is delivered again, with all that follow it: an operator ordered a replay,
    /// or the store fell back to an older state.
    pub awaits_replay: bool,
    /// Failed tries of the next event.
    pub tries: u32,
    /// Time for which the next event has failed while others succeeded.
    pub failing: Duration,
    /// Time of these for which the receiver has refused the next event, without another failure since.
    pub refused: Option<Duration>,
}

/// Event that was set aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookAside {
    /// Event.
    pub event: WebhookEvent,
    /// Tries that failed.
    pub tries: u32,
    /// Time at which it was set aside, in ms since 1970.
    pub at_ms: u64,
    /// Reason of the last failure.
    pub failure: WebhookFailure,
}

/// Reason why bytes are no cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WebhookCursorError {
    /// The layout is that of a newer node.
    #[error("cursor has version {0}, which this version does not know; run the version that wrote it")]
    Version(u64),
    /// The bytes are damaged, or exceed a bound.
    #[error("cursor is damaged")]
    Damaged,
}

/// Returns an upper bound of the encoded size of a parked conversation.
pub(super) fn parked_bytes(conversation: &ConversationId) -> usize {
    conversation.as_str().len() + 7 * VARINT_BYTES_MAX
}

/// Returns an upper bound of the encoded size of an event set aside.
pub(super) fn aside_bytes(conversation: &ConversationId) -> usize {
    // Length, kind and failure need two, one and three bytes.
    conversation.as_str().len() + 6 + 3 * VARINT_BYTES_MAX
}

impl WebhookCursor {
    /// Creates a cursor behind the feed number, with so many lanes.
    pub fn at(number: u64, lanes: usize) -> Self {
        Self {
            lanes: vec![number; lanes.clamp(1, LANES_MAX)],
            last_order: 0,
            is_disabled: false,
            parked: Vec::new(),
            aside: Vec::new(),
        }
    }

    /// Returns the feed number up to which all events are taken, parked, set aside or not wanted.
    pub fn lowest(&self) -> u64 {
        self.lanes.iter().copied().min().unwrap_or(0)
    }

    /// Encodes the cursor in at most [`CURSOR_BYTES_MAX`] bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        encode_varint(VERSION, &mut out);
        encode_len(self.lanes.len(), &mut out);
        for number in &self.lanes {
            encode_varint(*number, &mut out);
        }
        for number in [self.last_order, u64::from(self.is_disabled)] {
            encode_varint(number, &mut out);
        }
        encode_len(self.parked.len(), &mut out);
        for parked in &self.parked {
            encode_key(&parked.conversation, &mut out);
            let refused = parked.refused.map_or(0, |time| millis(time).saturating_add(1));
            let (tries, failing) = (u64::from(parked.tries), millis(parked.failing));
            let awaits_replay = u64::from(parked.awaits_replay);
            let seqs = [parked.next, parked.up_to, parked.pruned];
            for number in seqs.into_iter().chain([awaits_replay, tries, failing, refused]) {
                encode_varint(number, &mut out);
            }
        }
        encode_len(self.aside.len(), &mut out);
        for aside in &self.aside {
            encode_key(&aside.event.conversation, &mut out);
            let event = &aside.event;
            let (tries, failure) = (u64::from(aside.tries), aside.failure.number());
            for number in [event.kind.number(), event.seq, tries, aside.at_ms, failure] {
                encode_varint(number, &mut out);
            }
        }
        out
    }

    /// Decodes the bytes of [`Self::encode`].
    ///
    /// # Errors
    /// The bytes have another version, are damaged or too long.
    pub fn decode(bytes: &[u8]) -> Result<Self, WebhookCursorError> {
        let mut rest = bytes;
        match number(&mut rest)? {
            VERSION => {}
            other => return Err(WebhookCursorError::Version(other)),
        }
        if bytes.len() > CURSOR_BYTES_MAX {
            return Err(WebhookCursorError::Damaged);
        }
        let lanes = list(&mut rest, LANES_MAX, number)?;
        let (last_order, is_disabled) = (number(&mut rest)?, flag(&mut rest)?);
        let parked = list(&mut rest, PARKED_MAX, decode_parked)?;
        let aside = list(&mut rest, ASIDE_MAX, decode_aside)?;
        if lanes.is_empty() || !rest.is_empty() {
            return Err(WebhookCursorError::Damaged);
        }
        Ok(Self { lanes, last_order, is_disabled, parked, aside })
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn encode_len(len: usize, out: &mut Vec<u8>) {
    encode_varint(len as u64, out);
}

fn encode_key(conversation: &ConversationId, out: &mut Vec<u8>) {
    encode_len(conversation.as_str().len(), out);
    out.extend_from_slice(conversation.as_str().as_bytes());
}

fn number(rest: &mut &[u8]) -> Result<u64, WebhookCursorError> {
    decode_varint(rest).map_err(|_| WebhookCursorError::Damaged)
}

fn small(rest: &mut &[u8]) -> Result<u32, WebhookCursorError> {
    u32::try_from(number(rest)?).map_err(|_| WebhookCursorError::Damaged)
}

fn flag(rest: &mut &[u8]) -> Result<bool, WebhookCursorError> {
    match number(rest)? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(WebhookCursorError::Damaged),
    }
}

/// Decodes a list of at most `max` items.
fn list<T>(
    rest: &mut &[u8],
    max: usize,
    item: fn(&mut &[u8]) -> Result<T, WebhookCursorError>,
) -> Result<Vec<T>, WebhookCursorError> {
    let len = usize::try_from(number(rest)?).ok().filter(|len| *len <= max);
    (0..len.ok_or(WebhookCursorError::Damaged)?).map(|_| item(rest)).collect()
}

fn decode_key(rest: &mut &[u8]) -> Result<ConversationId, WebhookCursorError> {
    let len = usize::try_from(number(rest)?).ok().filter(|len| *len <= rest.len());
    let (key, after) = rest.split_at(len.ok_or(WebhookCursorError::Damaged)?);
    *rest = after;
    let key = std::str::from_utf8(key).ok().and_then(|key| ConversationId::parse(key).ok());
    key.ok_or(WebhookCursorError::Damaged)
}

fn decode_parked(rest: &mut &[u8]) -> Result<ParkedConversation, WebhookCursorError> {
    Ok(ParkedConversation {
        conversation: decode_key(rest)?,
        next: number(rest)?,
        up_to: number(rest)?,
        pruned: number(rest)?,
        awaits_replay: flag(rest)?,
        tries: small(rest)?,
        failing: Duration::from_millis(number(rest)?),
        refused: number(rest)?.checked_sub(1).map(Duration::from_millis),
    })
}

fn decode_aside(rest: &mut &[u8]) -> Result<WebhookAside, WebhookCursorError> {
    let conversation = decode_key(rest)?;
    let kind = WebhookEventKind::from_number(number(rest)?).ok_or(WebhookCursorError::Damaged)?;
    let event = WebhookEvent { conversation, seq: number(rest)?, kind };
    let (tries, at_ms) = (small(rest)?, number(rest)?);
    let failure = WebhookFailure::from_number(number(rest)?).ok_or(WebhookCursorError::Damaged)?;
    Ok(WebhookAside { event, tries, at_ms, failure })
}
