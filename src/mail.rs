//! What other threads tell a shard, and the handle they tell it through.
//!
//! A mailbox is bounded in mails and in bytes. Full: the owner turns pushes into `Behind` and waits with the rest; a
//! shard never waits for another (room frames are shed and counted, everything else between shards goes through the
//! owner). Bytes are charged until the shard takes the mail; then its own bound counts them (`shard/hub.rs`).

use std::{
    collections::HashSet,
    io,
    net::SocketAddr,
    ops::RangeInclusive,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use prost::Message as _;
use tidegate_protocol::{
    Code,
    codec::PushFrame,
    id::{ConversationId, DeviceId, RoomId, UserId},
    machine::{drain::Pace, session::Answer},
    pb,
    settings::UserSettings,
};
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::{
    budget::Seat,
    link::Session,
    routes::{NodeBoot, Route, RoutesError},
    scratch::ChainState,
};

/// Mails a shard may have waiting.
pub const MAILBOX_MAX: usize = 4_096;

/// What an id, a count or a position counts in a mail, in bytes.
const ENTRY_BYTES: usize = 64;

/// Names one connection of this node for as long as the process lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnKey {
    /// Its shard.
    pub shard: u8,
    /// Its place in the shard's slab.
    pub slot: u32,
    /// How often the place was used before (24 bits): a late answer can't reach a later connection.
    pub generation: u32,
}

impl ConnKey {
    /// The key as one number, for the origin of records.
    pub fn pack(self) -> u64 {
        u64::from(self.shard) << 56 | u64::from(self.generation & 0xff_ffff) << 32 | u64::from(self.slot)
    }

    /// The key that was packed.
    pub fn unpack(packed: u64) -> Self {
        let byte = |shift: u32, mask: u64| (packed >> shift & mask) as u32;
        Self { shard: (packed >> 56) as u8, slot: byte(0, 0xffff_ffff), generation: byte(32, 0xff_ffff) }
    }
}

/// Handles to all shards, filled once all of them exist.
pub type ShardHandles = Arc<OnceLock<Vec<ShardHandle>>>;

/// A login whose route stands.
#[derive(Debug)]
pub struct LoginDone {
    /// The row, with the token that alone may delete it.
    pub route: Route,
    /// Whether another connection had it before.
    pub replaced: bool,
    /// Where the device's chain stands, as far as anybody remembers.
    pub chain: Option<ChainState>,
    /// What the user wishes, now and before.
    pub wishes: UserSettings,
}

/// A login that can't be completed now.
#[derive(Debug)]
pub struct LoginError {
    /// What to tell the client.
    pub code: Code,
    /// In words.
    pub reason: &'static str,
}

/// What the store said to a client's query.
#[derive(Debug)]
pub enum Found {
    /// A part of a history.
    Page(Box<pb::Page>),
    /// Where conversations stand, and behind which one to go on, if there may be more.
    States(Vec<pb::ConversationState>, Option<ConversationId>),
    /// Conversations that are not where the client believes.
    Positions(Vec<pb::Position>),
    /// A record of the client's got a seq.
    Accepted(Box<pb::SendAck>),
    /// It was carried out.
    Nothing,
}

/// Who gets a push.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Audience {
    /// These users, on all their connections here.
    Users(Arc<[UserId]>),
    /// These sessions, on another node's word.
    Sessions(Arc<[Session]>),
    /// The members of the delivery's group or room that are online here.
    Members,
}

impl Audience {
    /// How many are named; 0 where they are not.
    pub fn named(&self) -> usize {
        match self {
            Self::Members => 0,
            Self::Users(users) => users.len(),
            Self::Sessions(sessions) => sessions.len(),
        }
    }
}

/// One push on its way to connections.
#[derive(Clone)]
pub struct Delivery {
    /// Where it belongs.
    pub conversation: ConversationId,
    /// Its seq there.
    pub seq: u64,
    /// Who gets it.
    pub audience: Audience,
    /// The frame, encoded at most once per framing.
    pub frame: Arc<PushFrame>,
    /// The connection that sent it and knows already.
    pub origin: Option<ConnKey>,
    /// Whether it is sent again until acked (direct and small groups).
    pub tracked: bool,
}

/// A volatile frame on its way to connections.
#[derive(Clone)]
pub struct Volatile {
    /// Where it belongs.
    pub conversation: ConversationId,
    /// Who gets it.
    pub audience: Audience,
    /// Who of the members is one by the store, where the indexes of a node may be behind it; none = they are exact.
    pub only: Option<Arc<HashSet<UserId>>>,
    /// The frame, encoded at most once per framing.
    pub frame: Arc<PushFrame>,
    /// The connection that sent it, if it is one of this node.
    pub origin: Option<ConnKey>,
}

/// How large a group is, as the store has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Size {
    /// Whether it takes signals.
    pub small: bool,
    /// Its members, where the indexes of a node may be behind the store; none = they are exact.
    pub members: Option<Arc<HashSet<UserId>>>,
}

/// What a shard is told.
pub enum Mail {
    /// A new connection.
    Accepted(mio::net::TcpStream, SocketAddr, Seat),
    /// Answers to sends, in log order.
    Answers(Vec<(ConnKey, u64, Answer)>),
    /// Sends that are void: the ledger has seen newer epochs of their devices there.
    Outdated(Vec<Outdated>),
    /// The route of a connection with a newer epoch, or why it has none.
    Renewed(ConnKey, Result<Route, RoutesError>),
    /// Pushes and index changes, in log order.
    Deliver(Vec<Item>),
    /// The login use-case is done.
    LoginDone(ConnKey, Result<LoginDone, LoginError>),
    /// The answer to the connection's open query, or why there is none.
    Found(ConnKey, Result<Found, (Code, &'static str)>),
    /// The groups of a user whose connection is about to be live, in log order with `Deliver`.
    Memberships(ConnKey, Vec<ConversationId>),
    /// The device is at home elsewhere, with this epoch: older connections end `REPLACED`. Who asks hears whether one did.
    Replaced(UserId, DeviceId, u64, Option<oneshot::Sender<bool>>),
    /// So many frames of a room were lost on the way to this shard: its members are told.
    Missed(ConversationId, u64),
    /// A volatile frame.
    Signal(Volatile),
    /// How large a group is, or why nobody knows: for a volatile frame of that connection, which asked in that frame.
    Sized(ConnKey, u64, Volatile, Result<Size, (Code, &'static str)>),
    /// Numbers for what was said in a room, and the nodes that have members; or why there are none.
    Numbered(ConversationId, Result<Turn, Code>),
    /// The connection may say that it is in the room: the other nodes know, or will.
    Joined(ConnKey, u64, RoomId),
    /// A part of the node's drain.
    Drain(Drain),
    /// A part of putting the node's routes back after a loss of them.
    Reassert(Reassert),
    /// Close every connection with this code, then stop the shard.
    Stop(Code),
    /// Close the connections with the fullest outboxes: memory is short.
    ShedMemory,
}

/// A send whose connection has an epoch below one that the ledger has seen of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outdated {
    /// The connection.
    pub key: ConnKey,
    /// The send.
    pub ticket: u64,
    /// The newest epoch that was seen in that conversation.
    pub newest: u64,
}

/// What a shard does when the routes lost something.
pub enum Reassert {
    /// Say whose routes the connections have, from this place on.
    Collect(u32, oneshot::Sender<Slice>),
    /// Of each whether it stands now: a connection whose route does not ends `REPLACED`, a route whose connection is gone
    /// is removed.
    Settle(Vec<(ConnKey, Route, bool)>),
}

/// Numbers for some messages of a room.
#[derive(Debug)]
pub struct Turn {
    /// One each.
    pub numbers: RangeInclusive<u64>,
    /// The other nodes that have members of it.
    pub nodes: Vec<NodeBoot>,
}

/// A part of a shard's routes.
#[derive(Debug)]
pub struct Slice {
    /// Connections and the routes they have.
    pub rows: Vec<(ConnKey, Route)>,
    /// Where to go on, if there is more.
    pub next: Option<u32>,
}

/// What a shard does in a drain.
pub enum Drain {
    /// Tell the clients their slots of this pace, and close them when their slots are over.
    Begin(Pace, Arc<Progress>),
    /// Close them all, each after its answers.
    Rush,
    /// End those that are left.
    Cut,
    /// Forget the slots: the node stays.
    Forget,
}

/// How far the shards are with a drain.
#[derive(Debug, Default)]
pub struct Progress {
    /// Clients that have not been told, and one for each shard that has not begun.
    pub unnoticed: AtomicUsize,
    /// Clients whose slot is not over, and one for each shard that has not begun.
    pub waiting: AtomicUsize,
}

impl Progress {
    /// That of `shards` shards before any of them has begun.
    pub fn not_begun(shards: usize) -> Self {
        Self { unnoticed: AtomicUsize::new(shards), waiting: AtomicUsize::new(shards) }
    }
}

/// A delivery, or a change of a group's members: one stream, so that a kick is exact.
#[derive(Clone)]
pub enum Item {
    /// Push this.
    Push(Delivery),
    /// These users are members from here on.
    Join(ConversationId, Arc<[UserId]>),
    /// These users are no members from here on.
    Part(ConversationId, Arc<[UserId]>),
    /// Of the members here only these are members from here on.
    Keep(ConversationId, Arc<HashSet<UserId>>),
    /// Pushes were left out because there was no room for them: who should have got them hears up to where.
    Behind(Lag),
}

/// Pushes that were left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lag {
    /// Of which conversation.
    pub conversation: ConversationId,
    /// The last seq that was left out.
    pub max_seq: u64,
    /// Who should have got them.
    pub audience: Audience,
}

impl Item {
    /// About what it holds while it waits, in bytes.
    pub fn weight(&self) -> usize {
        match self {
            Self::Push(delivery) => delivery.weight(),
            Self::Join(_, users) | Self::Part(_, users) => (4 + users.len()) * ENTRY_BYTES,
            Self::Keep(_, users) => (4 + users.len()) * ENTRY_BYTES,
            Self::Behind(_) => 2 * ENTRY_BYTES,
        }
    }
}

impl Delivery {
    /// About what it holds while it waits, in bytes.
    pub fn weight(&self) -> usize {
        4 * ENTRY_BYTES + self.frame.proto().len()
    }
}

impl Volatile {
    fn weight(&self) -> usize {
        (4 + self.only.as_ref().map_or(0, |users| users.len())) * ENTRY_BYTES + self.frame.proto().len()
    }
}

impl Mail {
    /// About what it holds beside its own place, in bytes; 0 for what the number of mails bounds well enough.
    pub fn weight(&self) -> usize {
        match self {
            Self::Deliver(items) => items.iter().map(Item::weight).sum(),
            Self::Answers(answers) => answers.len() * ENTRY_BYTES,
            Self::Outdated(outdated) => outdated.len() * ENTRY_BYTES,
            Self::Memberships(_, groups) => groups.len() * ENTRY_BYTES,
            Self::Found(_, Ok(Found::Page(page))) => page.encoded_len(),
            Self::Found(_, Ok(Found::States(states, _))) => states.len() * 2 * ENTRY_BYTES,
            Self::Found(_, Ok(Found::Positions(positions))) => positions.len() * ENTRY_BYTES,
            Self::Reassert(Reassert::Settle(routes)) => routes.len() * 3 * ENTRY_BYTES,
            Self::Signal(signal) | Self::Sized(_, _, signal, _) => signal.weight(),
            Self::Found(..)
            | Self::Accepted(..)
            | Self::LoginDone(..)
            | Self::Renewed(..)
            | Self::Replaced(..)
            | Self::Missed(..)
            | Self::Numbered(..)
            | Self::Joined(..)
            | Self::Drain(_)
            | Self::Reassert(_)
            | Self::Stop(_)
            | Self::ShedMemory => 0,
        }
    }
}

/// How other threads reach one shard.
#[derive(Clone)]
pub struct ShardHandle {
    mailbox: mpsc::Sender<(u32, Mail)>,
    /// Bytes that still fit.
    room: Arc<Semaphore>,
    bytes_max: u32,
    waker: Arc<mio::Waker>,
    awake: Arc<AtomicBool>,
    conns: Arc<AtomicUsize>,
    told: Arc<AtomicUsize>,
}

/// The receiving side of a [`ShardHandle`], owned by the shard.
pub struct Mailbox {
    mails: mpsc::Receiver<(u32, Mail)>,
    room: Arc<Semaphore>,
    awake: Arc<AtomicBool>,
    /// Connections of the shard, for the acceptor's even hand-out.
    pub conns: Arc<AtomicUsize>,
    /// Those of them that were sent everything and only linger.
    pub told: Arc<AtomicUsize>,
}

/// A mailbox of at most `bytes_max` bytes, whose sender wakes `waker`'s poll.
pub fn mailbox(waker: mio::Waker, bytes_max: usize) -> (ShardHandle, Mailbox) {
    let bytes_max = u32::try_from(bytes_max).unwrap_or(u32::MAX);
    let room = Arc::new(Semaphore::new(bytes_max as usize));
    let (sender, mails) = mpsc::channel(MAILBOX_MAX);
    let (awake, conns, told): (Arc<AtomicBool>, Arc<AtomicUsize>, Arc<AtomicUsize>) = Default::default();
    let handle = ShardHandle {
        mailbox: sender,
        room: Arc::clone(&room),
        bytes_max,
        waker: Arc::new(waker),
        awake: Arc::clone(&awake),
        conns: Arc::clone(&conns),
        told: Arc::clone(&told),
    };
    (handle, Mailbox { mails, room, awake, conns, told })
}

impl ShardHandle {
    /// Waits for room, then posts.
    ///
    /// # Errors
    /// Fails when the shard has stopped.
    pub async fn post(&self, mail: Mail) -> io::Result<()> {
        let charge = self.charge(mail.weight());
        let permit = self.room.acquire_many(charge).await.map_err(|_| stopped())?;
        let place = self.mailbox.reserve().await.map_err(|_| stopped())?;
        permit.forget();
        place.send((charge, mail));
        self.wake()
    }

    /// Like [`Self::post`], for threads without a runtime, and for mails that weigh nothing.
    ///
    /// # Errors
    /// Fails when the shard has stopped.
    pub fn post_blocking(&self, mail: Mail) -> io::Result<()> {
        debug_assert_eq!(mail.weight(), 0, "nobody could wait for its bytes here");
        self.mailbox.blocking_send((0, mail)).map_err(|_| stopped())?;
        self.wake()
    }

    /// Posts if there is room at once; says whether it did.
    pub fn try_post(&self, mail: Mail) -> bool {
        let charge = self.charge(mail.weight());
        let Ok(permit) = self.room.try_acquire_many(charge) else { return false };
        if self.mailbox.try_send((charge, mail)).is_err() {
            return false;
        }
        permit.forget();
        self.wake().is_ok()
    }

    /// Whether so many bytes fit now; mails that are posted meanwhile may take the room.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.room.available_permits() >= self.charge(bytes) as usize
    }

    /// A mail that is larger than the whole mailbox has it for itself.
    fn charge(&self, bytes: usize) -> u32 {
        u32::try_from(bytes).unwrap_or(u32::MAX).min(self.bytes_max)
    }

    /// Connections the shard has.
    pub fn conns(&self) -> usize {
        self.conns.load(Ordering::Relaxed)
    }

    /// Connections that have not been sent everything, their Close included.
    pub fn unfinished(&self) -> usize {
        self.conns().saturating_sub(self.told.load(Ordering::Relaxed))
    }

    /// Counts a connection on its way to the shard; the shard counts it down when it ends.
    pub fn count_in(&self) {
        self.conns.fetch_add(1, Ordering::Relaxed);
    }

    fn wake(&self) -> io::Result<()> {
        std::sync::atomic::fence(Ordering::SeqCst);
        if self.awake.swap(true, Ordering::AcqRel) { Ok(()) } else { self.waker.wake() }
    }
}

impl Mailbox {
    /// The next mail, if any.
    pub fn take(&mut self) -> Option<Mail> {
        let (charge, mail) = self.mails.try_recv().ok()?;
        self.room.add_permits(charge as usize);
        Some(mail)
    }

    /// To be called before the mailbox is looked at for the last time before sleeping.
    pub fn about_to_sleep(&self) {
        self.awake.store(false, Ordering::Release);
        std::sync::atomic::fence(Ordering::SeqCst);
    }

    /// From here to [`Self::about_to_sleep`] posting needs no system call.
    pub fn awoke(&self) {
        self.awake.store(true, Ordering::Release);
    }

    /// Whether mail waits.
    pub fn is_empty(&self) -> bool {
        self.mails.is_empty()
    }
}

impl Drop for Mailbox {
    /// Nobody waits for the room of a shard that has stopped.
    fn drop(&mut self) {
        self.room.close();
    }
}

fn stopped() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the shard has stopped")
}

#[cfg(test)]
mod tests;
