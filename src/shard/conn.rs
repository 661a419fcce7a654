//! Connection state of a shard: 12 hot bytes per connection in a dense array, the rest in one box.

use std::{
    cell::OnceCell,
    cmp::Reverse,
    net::IpAddr,
    sync::{Arc, atomic::AtomicBool},
};

use prost::Message as _;
use tidegate_protocol::{
    Code, Time,
    codec::{PushFrame, Wire},
    id::{ConversationId, RoomId},
    machine::{
        session::{Query, Session, Submit},
        window::Window,
    },
    pb, ws,
};
use tokio::time::Instant;

mod acks;
mod probes;

use self::{acks::RecentAcks, probes::ProbedConversations};
use super::{context::ConnSettings, outbox::Outbox};
use crate::{
    auth::{Grants, TokenIdentity, TokenTerm},
    budget::{ConnectionPermit, SendShare, shed::Weight},
    config::AllowAction,
    conversation::sync,
    hooks::AppReason,
    limits::{ConnectionKeys, LimitWaits},
    mail::ConnKey,
    net::upgrade::Cookies,
    routes::Route,
    scratch::ChainSaver,
};

/// Flag: logged in and indexed, so it may be pushed to.
pub(super) const LIVE: u8 = 1;
/// Flag: the outbox is not empty, so nothing may be written past it.
pub(super) const WAITING: u8 = 2;
/// Flag: listed for the flush at the end of the turn.
pub(super) const DIRTY: u8 = 4;
/// Flag: everything is sent, the connection only lingers.
pub(super) const LINGERING: u8 = 8;
/// Flag: listed to be read without a poll event.
pub(super) const LISTED: u8 = 16;

/// Place of the connection's class in live rooms among the flags, which has the two highest bits.
const CLASS_SHIFT: u32 = 6;

/// Returns the class in live rooms that the flags hold.
pub(super) const fn class_of(flags: u8) -> u8 {
    flags >> CLASS_SHIFT
}

/// Puts a class in live rooms, at most 3, into the flags.
pub(super) const fn set_class(flags: &mut u8, class: u8) {
    *flags = *flags & !(3 << CLASS_SHIFT) | (class & 3) << CLASS_SHIFT;
}

/// Part of a connection that a fan-out touches, small enough that four share a cache line.
pub(super) struct Hot<S> {
    pub(super) stream: Option<S>,
    pub(super) generation: u32,
    pub(super) wire: Wire,
    pub(super) flags: u8,
}

/// Framing of the bytes that a connection receives.
pub(super) enum Stage {
    /// Not detected yet.
    Detect,
    /// An HTTP request, expected to upgrade to a WebSocket.
    Http,
    /// An assign request whose token is being checked; further input is discarded.
    Assigning,
    /// Protobuf frames with a varint length.
    Tcp,
    /// JSON lines.
    Json,
    /// WebSocket messages.
    Ws(ws::Decoder),
}

/// Bytes of an incomplete frame; allocated only while there is one.
pub(super) struct PartialFrame {
    pub(super) bytes: Vec<u8>,
    /// Number of bytes already searched for a newline.
    pub(super) scanned: usize,
    pub(super) since: Time,
}

/// Push that waits for its ack.
#[derive(Clone)]
pub(super) struct TrackedPush {
    pub(super) conversation: ConversationId,
    pub(super) seq: u64,
    pub(super) frame: Arc<PushFrame>,
}

/// Phase of a closing connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// The final frame is being written, until this time at the latest.
    Flushing(Time),
    /// The write side is shut; input is discarded until this time.
    Lingering(Time),
    /// The slot can be freed.
    Closed,
}

/// User that a certificate names. Its box takes one word of a connection; that of the text would take two.
pub(super) struct CertifiedUser(pub(super) Box<str>);

/// State of a connection that has registered a route.
pub(super) struct LoginState {
    pub(super) route: Route,
    /// Rights of its token; `None` if the token names none.
    pub(super) grants: Option<Arc<Grants>>,
    /// Times of its token.
    pub(super) term: TokenTerm,
    /// Keys of its subjects in rules, which depend on its rights; set by the first request that rules count.
    pub(super) limit_keys: OnceCell<Box<ConnectionKeys>>,
    /// Time of the login, in ms since 1970.
    pub(super) since_ms: u64,
    /// Time from which the client may send another refresh.
    pub(super) next_refresh: Time,
    /// Its share in the sends of its user.
    pub(super) sends: SendShare,
    /// Newest acks; `None` before the first one, and while nothing asks for them.
    pub(super) acks: Option<Box<RecentAcks>>,
    /// Chain of the device, if it has one.
    pub(super) chain: Option<Arc<ChainSaver>>,
    /// Wait of the last refusal by a limit; `None` before the first one.
    pub(super) announced: Option<AnnouncedWait>,
    /// Time from which another refused request for a conversation that the user may not see is evidence.
    pub(super) next_probe: Time,
    /// Conversations of such requests; `None` before the first one.
    pub(super) probed: Option<Box<ProbedConversations>>,
    /// Sends without an answer that the hook `message.before` has denied.
    pub(super) denials: Vec<RecordedDenial>,
    /// Sends without an answer that a gate has admitted.
    pub(super) gated_sends: u32,
    /// Tickets of void sends that wait for a newer epoch.
    pub(super) outdated: Vec<u64>,
    /// Conversation after which the next `ping` with positions searches for conversations that the client did not name;
    /// only for users with very many of them.
    pub(super) positions_after: Option<Box<ConversationId>>,
    /// Whether it has watched who of a conversation is online.
    pub(super) is_watching: bool,
}

/// Send that was appended as denied; its answer gets the text of the application.
pub(super) struct RecordedDenial {
    /// Ticket of the send.
    pub(super) ticket: u64,
    /// Code that the ledger remembers, unless it has an older answer.
    pub(super) code: Code,
    /// Code and text of the application.
    pub(super) reason: Arc<AppReason>,
}

/// Wait that a refusal has named.
#[derive(Clone, Copy)]
pub(super) struct AnnouncedWait {
    /// Time of the refusal.
    pub(super) at: Time,
    /// End of the wait.
    pub(super) until: Time,
}

/// Boxed state of one connection.
pub(super) struct Conn {
    pub(super) key: ConnKey,
    /// Limits and deadlines that were in force at its start.
    pub(super) settings: Arc<ConnSettings>,
    pub(super) stage: Stage,
    pub(super) session: Session,
    pub(super) login: Option<Box<LoginState>>,
    pub(super) outbox: Option<Box<Outbox>>,
    pub(super) window: Option<Box<Window<TrackedPush>>>,
    pub(super) partial: Option<Box<PartialFrame>>,
    pub(super) open_query: Option<Box<OpenQuery>>,
    /// Page of the client, until its first login; only with a hook `login`.
    pub(super) page: Option<Box<ClientPage>>,
    /// Request that waits for a decision.
    pub(super) held: Option<Box<Held>>,
    pub(super) ending: Option<Ending>,
    /// Time since which the socket takes no bytes; `None` if it takes them.
    pub(super) blocked_since: Option<Time>,
    /// Whether the socket refused bytes and the poll has not reported it writable since: a write would be wasted.
    pub(super) refused: bool,
    /// Number of frames before the login.
    pub(super) early_frames: u8,
    /// Whether a gate has admitted the login in progress.
    pub(super) is_login_gated: bool,
    /// Lower half of the time of its hello, in ms: a whole one would take the box into the next size.
    pub(super) hello_at_ms: u32,
    /// Whether reading is paused while bytes may wait in the socket.
    pub(super) paused: bool,
    /// Whether the poll has reported the end of input; earlier input may still be unread.
    pub(super) peer_ended: bool,
    /// Whether the end of input has been read.
    pub(super) half_closed: bool,
    pub(super) address: IpAddr,
    pub(super) permit: ConnectionPermit,
    /// User that the certificate of the client names; `None` for any.
    pub(super) certified_user: Option<Box<CertifiedUser>>,
}

impl Conn {
    pub(super) fn is_open(&self) -> bool {
        self.ending.is_none()
    }

    /// Returns the memory that the connection makes the node hold: incomplete frames, chained
    /// messages that wait for others, and the outbox of a blocked socket. Frames that were queued in this turn were not
    /// offered to the socket yet, so they say nothing about the client.
    pub(super) fn weight(&self, flags: u8) -> Weight {
        let partial = self.partial.as_ref().map_or(0, |partial| partial.bytes.capacity());
        let fragments = if let Stage::Ws(decoder) = &self.stage { decoder.held() } else { 0 };
        let outbox = self.outbox.as_ref().filter(|_| self.blocked_since.is_some());
        let outbox = outbox.map_or(0, |outbox| outbox.bytes());
        let page = self.page.as_ref().map_or(0, |page| page.bytes());
        let held = self.held.as_ref().map_or(0, |held| held.request.bytes());
        let bytes = partial + fragments + outbox + page + held + self.session.held_bytes();
        Weight { is_stranger: self.login.is_none(), class: Reverse(class_of(flags)), bytes }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.ending == Some(Ending::Closed)
    }
}

/// Connections of one shard: a slab of boxes, parallel to the dense array.
pub(super) struct Conns<S> {
    pub(super) hot: Vec<Hot<S>>,
    boxes: Vec<Option<Box<Conn>>>,
    /// Tick at which the sweep must check each slot.
    pub(super) deadlines: Vec<u32>,
    free: Vec<u32>,
}

/// Tick of a slot without a deadline.
pub(super) const NO_DEADLINE: u32 = u32::MAX;

impl<S> Conns<S> {
    /// Creates a slab without slots.
    pub(super) fn new() -> Self {
        Self { hot: Vec::new(), boxes: Vec::new(), deadlines: Vec::new(), free: Vec::new() }
    }

    /// Returns the number of slots in use.
    pub(super) fn len(&self) -> usize {
        self.hot.len() - self.free.len()
    }

    /// Reserves a slot; returns it with the generation of its next connection.
    pub(super) fn reserve(&mut self) -> (u32, u32) {
        match self.free.pop() {
            Some(slot) => (slot, self.hot[slot as usize].generation),
            None => {
                self.hot.push(Hot { stream: None, generation: 0, wire: Wire::JsonLine, flags: 0 });
                self.boxes.push(None);
                self.deadlines.push(NO_DEADLINE);
                (self.hot.len() as u32 - 1, 0)
            }
        }
    }

    /// Takes the box out, so that the rest of the shard can be borrowed with it.
    pub(super) fn take(&mut self, slot: u32) -> Option<Box<Conn>> {
        self.boxes.get_mut(slot as usize)?.take()
    }

    /// Puts a taken box back.
    pub(super) fn put(&mut self, conn: Box<Conn>) {
        let slot = conn.key.slot as usize;
        self.boxes[slot] = Some(conn);
    }

    /// Returns the slot of a key, if that very connection still exists.
    pub(super) fn find(&self, key: ConnKey) -> Option<u32> {
        let hot = self.hot.get(key.slot as usize)?;
        (hot.stream.is_some() && hot.generation == key.generation).then_some(key.slot)
    }

    /// Returns the boxed state of a slot, if it is not taken out.
    pub(super) fn peek(&self, slot: u32) -> Option<&Conn> {
        self.boxes.get(slot as usize)?.as_deref()
    }

    /// Releases the slot, and returns its stream for the caller to close.
    pub(super) fn release(&mut self, slot: u32) -> Option<S> {
        let hot = &mut self.hot[slot as usize];
        hot.generation = (hot.generation + 1) & 0xff_ffff;
        hot.flags = 0;
        self.deadlines[slot as usize] = NO_DEADLINE;
        self.free.push(slot);
        self.hot[slot as usize].stream.take()
    }

    /// Returns all slots in use.
    pub(super) fn slots(&self) -> Vec<u32> {
        (0..self.hot.len() as u32).filter(|slot| self.hot[*slot as usize].stream.is_some()).collect()
    }
}

/// Open query of a connection; allocated only while there is one.
pub(super) struct OpenQuery {
    pub(super) id: u64,
    /// Positions that the client declared in a `sync`.
    pub(super) positions: Arc<sync::Positions>,
    /// Whether a part of the answer is sent; the query continues or ends once the client has taken it.
    pub(super) is_sent: bool,
    /// Conversation after which a `sync` continues.
    pub(super) next: Option<ConversationId>,
    /// Set before the query appends to the log: from then on a timeout is answered `UNKNOWN`.
    pub(super) appends: Arc<AtomicBool>,
    /// Conversation that the query names, if it names one.
    pub(super) conversation: Option<ConversationId>,
    /// Begin of the query, if a gate has admitted it.
    pub(super) gated_since: Option<Time>,
    /// Most conversations in the next part of a `sync`.
    pub(super) limit: usize,
    /// Unread messages in the conversations that a `sync` has sent so far.
    pub(super) unread: u64,
}

impl OpenQuery {
    /// Creates the state of a query that has just begun.
    pub(super) fn new(id: u64, appends: Arc<AtomicBool>) -> Self {
        let (positions, next, conversation) = (Arc::default(), None, None);
        let (gated_since, limit) = (None, sync::STATES_MAX);
        Self { id, positions, is_sent: false, next, appends, conversation, gated_since, limit, unread: 0 }
    }
}

/// Origin and cookies of the page that opened the connection, for the hook `login`.
pub(super) struct ClientPage {
    /// Web origin.
    pub(super) origin: Option<String>,
    /// Cookies for the login.
    pub(super) cookies: Cookies,
}

impl ClientPage {
    fn bytes(&self) -> usize {
        self.origin.as_ref().map_or(0, String::len) + self.cookies.bytes()
    }
}

/// Request that waits for a decision, of the block list of its recipient or of the hook `allow`, or until a limit admits it.
pub(super) struct Held {
    pub(super) request: HeldRequest,
    /// Whether nothing further of the connection is handled meanwhile; otherwise only its later sends wait.
    pub(super) pauses: bool,
}

/// Request that waits, by what it waits for.
pub(super) enum HeldRequest {
    /// Decision that allows or refuses it.
    Deciding(DecidedRequest),
    /// Permits of a limit, which decides about it again then.
    Asking(AskingRequest, LimitWaits),
}

/// Kind of a request that a decision allows or refuses.
pub(super) enum DecidedRequest {
    Send(Submit),
    /// Send that a limit lets wait.
    Delayed(Submit),
    Join {
        id: u64,
        room: RoomId,
    },
    Signal {
        id: u64,
        conversation: ConversationId,
        signal: Box<pb::Signal>,
    },
}

/// Kind of a request that waits for permits of a limit, and is decided by its limits again.
pub(super) enum AskingRequest {
    /// Send, after the hook if there is one.
    Send(Submit),
    /// Login with a valid token.
    Login(Box<AskingLogin>),
    Query {
        id: u64,
        query: Box<Query>,
    },
    Join {
        id: u64,
        room: RoomId,
    },
}

/// Login that waits for permits of a limit.
pub(super) struct AskingLogin {
    pub(super) device: String,
    /// Time at which the login began.
    pub(super) asked_at: Instant,
    pub(super) identity: TokenIdentity,
}

impl From<DecidedRequest> for HeldRequest {
    fn from(request: DecidedRequest) -> Self {
        Self::Deciding(request)
    }
}

impl DecidedRequest {
    /// Returns what the request does, for the hook; the start of a conversation is a write, too.
    pub(super) const fn action(&self) -> AllowAction {
        match self {
            Self::Send(_) | Self::Delayed(_) => AllowAction::Write,
            Self::Join { .. } => AllowAction::Join,
            Self::Signal { .. } => AllowAction::Signal,
        }
    }
}

impl HeldRequest {
    /// Returns the memory of the content that waits.
    fn bytes(&self) -> usize {
        match self {
            Self::Deciding(DecidedRequest::Send(submit) | DecidedRequest::Delayed(submit))
            | Self::Asking(AskingRequest::Send(submit), _) => submit.content_bytes(),
            Self::Deciding(DecidedRequest::Signal { signal, .. }) => signal.encoded_len(),
            Self::Asking(AskingRequest::Query { query, .. }, _) => bytes_of(query),
            Self::Deciding(DecidedRequest::Join { .. })
            | Self::Asking(AskingRequest::Join { .. } | AskingRequest::Login(_), _) => 0,
        }
    }
}

/// Returns the memory of a query: only its lists may be long.
fn bytes_of(query: &Query) -> usize {
    match query {
        Query::Sync(positions) | Query::Positions(positions) => {
            let names = positions.iter().map(|(conversation, _)| conversation.as_str().len()).sum::<usize>();
            names + size_of_val(&**positions)
        }
        Query::Hide { seqs, .. } => size_of_val(&**seqs),
        _ => 0,
    }
}

impl Conn {
    /// Returns whether a request of the connection waits for the hook `allow` or a limit; until then nothing further of it is
    /// handled.
    pub(super) fn is_paused_by_request(&self) -> bool {
        self.held.as_ref().is_some_and(|held| held.pauses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_of_a_query_that_waits_for_a_permit_are_counted() {
        let positions =
            (0..100).map(|n| (ConversationId::parse(&format!("g:{n:062}")).unwrap(), 1)).collect();
        let request = AskingRequest::Query { id: 1, query: Box::new(Query::Sync(positions)) };
        let bytes = HeldRequest::Asking(request, LimitWaits::default()).bytes();
        assert!((100 * (64 + 8)..100 * (64 + 64)).contains(&bytes), "{bytes}");
    }

    #[test]
    fn send_that_waits_with_a_replaced_content_is_weighed_with_both() {
        let mut submit = Submit {
            ticket: 1,
            id: 1,
            conversation: ConversationId::parse("g:a").unwrap(),
            msg_id: tidegate_protocol::id::MsgId::new("m").unwrap(),
            attempt: 0,
            content: vec![0; 2_000].into(),
            order: Default::default(),
            flags: 0,
            trace: None,
            ruling: Default::default(),
        };
        submit.ruling.sent = Some(vec![0; 300].into());
        assert_eq!(HeldRequest::Deciding(DecidedRequest::Delayed(submit)).bytes(), 2_300);
    }

    #[test]
    fn hot_state_is_12_bytes_and_box_stays_below_its_limit() {
        // In debug builds mio stores the poll's id with each socket.
        assert_eq!(size_of::<Hot<mio::net::TcpStream>>(), if cfg!(debug_assertions) { 24 } else { 12 });
        assert!(size_of::<Conn>() <= 448, "{}", size_of::<Conn>());
    }
}
