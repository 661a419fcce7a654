//! Port `Routes`: which node holds which user's device, and which nodes are alive; leased, never the truth.
//!
//! A route is `(user, device) → token`; its owner is whoever knows the whole token, so nobody deletes what he has
//! not seen (flaws S1-S5). Everything here may be lost or rolled back at any time: users see delays, never wrong
//! order, and the beat of the node lease tells the nodes to assert their routes again (DESIGN 7).

use std::{fmt, time::Duration};

use async_trait::async_trait;
use tidegate_protocol::id::{ConversationId, DeviceId, NodeId, UserId};

mod eventing;
mod faulty;
mod memory;
mod node_description;
mod redis;

pub use self::eventing::{AnnouncedRoutes, LOOK_AGAIN, Sorted, sort};
pub use self::node_description::{About, Draining, TopicLag};
pub use self::redis::{Lapses, ROW_TTL, RedisRoutes};
pub use memory::{Leases, MemoryRoutes};

/// A run is taken for dead only when its beat has stood still this long, two renewals, under somebody's eyes, with the routes answering
/// all the time. After an outage all leases have run out at once: whoever comes back first must not retire the others.
pub const STILL_MIN: Duration = Duration::from_secs(6);

/// One run of a node: a node that restarts is another one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeBoot {
    /// The node's name, which outlives restarts.
    pub node: NodeId,
    /// Which run of it; never used twice for one name.
    pub boot: u64,
}

/// The owner of a route: a conn, named so that no other conn ever has the same name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token {
    /// Where the conn is.
    pub at: NodeBoot,
    /// Which of the device's conns: rises with each, also across a loss of all routes.
    pub epoch: u64,
}

/// One row: this device of this user is where the token says.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// Whose.
    pub user: UserId,
    /// With which device.
    pub device: DeviceId,
    /// The owner of the row.
    pub token: Token,
}

/// A wish to become the route of a device.
#[derive(Clone, Debug)]
pub struct Registration {
    /// Whose.
    pub user: UserId,
    /// With which device.
    pub device: DeviceId,
    /// Where the new conn is.
    pub at: NodeBoot,
    /// The new epoch is above this one: what the ledger has seen of the device, 0 when that is not known.
    pub above: u64,
    /// Only if the present row has exactly this token: how a conn takes a newer epoch without stealing the route
    /// from a newer conn.
    pub only_if: Option<Token>,
}

/// What a registration gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registered {
    /// The new row's owner.
    pub token: Token,
    /// The owner that it replaced, whose session is to be stopped.
    pub replaced: Option<Token>,
}

/// What a node says of itself with each renewal of its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    /// Which run of which node.
    pub boot: NodeBoot,
    /// Where other nodes reach it.
    pub peer_address: String,
    /// Client addresses, best first.
    pub client_addresses: Vec<String>,
    /// Ready, cordoned or draining.
    pub state: NodeState,
    /// Open conns now.
    pub conns: u32,
    /// How many conns it would hold.
    pub capacity: u32,
    /// The partitions that it owns now: whom to ask for a tail.
    pub owns: Vec<u32>,
    /// How far it is in those.
    pub stands: Vec<Standing>,
    /// Whether it is putting its routes back after a loss of them: until it is done a look-up may name too few.
    pub asserting: bool,
    /// For the assignment of clients, and for people.
    pub about: About,
    /// Up to which version of the ledger's rules its partitions may be switched, as far as it goes. A node that says nothing
    /// is of version 1.
    pub rules: u32,
}

/// How far an owner is in its partition; as of the renewal that said it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Which partition.
    pub partition: u32,
    /// Everything below is archived.
    pub position: u64,
    /// The end of the log, as far as the owner has heard.
    pub end: u64,
    /// For how long the oldest record that is not archived waits, in ms since the broker received it; 0 = none waits.
    pub behind_ms: u64,
    /// About how many bytes of the log wait, by the size of the records that were read last.
    pub behind_bytes: u64,
}

impl Standing {
    /// How many records wait to be archived.
    pub fn behind(&self) -> u64 {
        self.end.saturating_sub(self.position)
    }
}

/// Whether a node takes newcomers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// Takes newcomers.
    Ready,
    /// Serves whom it has; is not given out.
    Cordoned,
    /// Is leaving.
    Draining,
}

/// One node as the others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRow {
    /// What it said last.
    pub info: NodeInfo,
    /// How often it renewed.
    pub beat: u64,
    /// Whether its lease runs.
    pub lease: Lease,
}

/// Where a node's lease stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    /// Its routes and interests count.
    Live,
    /// It ran out; the node may come back until somebody retires it.
    Lapsed,
    /// Over for good; its rows are to be swept.
    Retired,
}

/// On what ground a node run is retired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retire {
    /// By itself, at the end of a drain.
    Leaving,
    /// By a reaper: only if its lease has run out.
    Lapsed,
}

/// A node that has members of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interest {
    /// Which run of which node.
    pub node: NodeBoot,
    /// The newest generation that it declared: changes when its local index of the group was built anew.
    pub generation: u64,
}

/// Why a call on the routes failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RoutesError {
    /// Nothing happened; the same call may succeed later. Deliveries go on by asking the peers.
    #[error("the routes are away: {0}")]
    Unavailable(String),
    /// It may have happened. Every call may be repeated: a registration then takes one more epoch.
    #[error("the routes did not answer: {0}")]
    Unknown(String),
    /// It may have happened, or happen yet: nothing came in time from servers that may only be slow. Said of
    /// [`Routes::renew`] and [`Routes::nodes`] alone; other calls are [`Self::Unknown`] then.
    #[error("the routes are slow: {0}")]
    Late(String),
    /// A registration that may stand, or stand yet, with this token: [`Routes::register`] alone says so. Nobody else takes that row
    /// away as long as the node lives.
    #[error("the routes did not answer a registration: {why}")]
    InDoubt {
        /// What is known of the reason.
        why: String,
        /// What the row has, if it stands.
        token: Token,
    },
    /// The row is not the caller's any more (`only_if` failed): close the conn `REPLACED`.
    #[error("the route belongs to another conn now")]
    NotCurrent(Option<Token>),
    /// This run of the node was retired: close all conns and start anew with a fresh boot.
    #[error("this run of the node was retired")]
    LeaseLost,
}

/// Who is where.
///
/// Rows of one device are atomic: a call sees and leaves either all of a row or nothing of it. Nothing is atomic
/// across rows; a batch is a pipeline. Calls for one row take effect in some order that agrees with real time.
/// A node run that was retired is refused everything that would write ([`RoutesError::LeaseLost`]), so that a node
/// which was stopped and reaped can't come back with rows that nobody sweeps (flaws S3, S5).
#[async_trait]
pub trait Routes: Send + Sync {
    /// Makes the caller's conn the route of the device; the newest registration wins, whatever was there.
    ///
    /// The epoch comes from here: above every epoch ever given to that (user, device), also after everything was
    /// lost, and above `above`. With `only_if`, replaces exactly that owner or fails with
    /// [`RoutesError::NotCurrent`] and changes nothing; `replaced` is then that owner itself.
    async fn register(&self, wish: Registration) -> Result<Registered, RoutesError>;

    /// Deletes each row if its present token is exactly the given one; says for each whether it was deleted now.
    ///
    /// The only way to delete a row, for a closing conn, a drain, a peer that heard "not here" and the reaper alike.
    /// What was deleted may stay in [`Routes::rows_of`] until it is removed once more: a departure that was not told yet
    /// is then found by whoever sweeps the run (ADR 14).
    async fn remove(&self, rows: &[Route]) -> Result<Vec<bool>, RoutesError>;

    /// The rows of each user, in the order asked; an unknown user has none.
    ///
    /// Says nothing about leases: compare with [`Routes::nodes`], of which callers keep a recent copy.
    async fn lookup(&self, users: &[UserId]) -> Result<Vec<Vec<(DeviceId, Token)>>, RoutesError>;

    /// Puts rows of the caller's own conns back after a loss: each is written unless the present row has a newer
    /// epoch. Says for each whether it stands now; one that does not was replaced. All rows are of one node run.
    async fn reassert(&self, rows: &[Route]) -> Result<Vec<bool>, RoutesError>;

    /// Announces a node run or renews its lease, and returns its beat: 1 at first, then one more each time.
    ///
    /// Any other value than the last one plus one says that the routes were emptied, rolled back or failed over
    /// meanwhile: the caller then re-asserts its routes and interests. So does an answer of another server than before, which
    /// may lack only what came after the last beat: it is told once, as [`RoutesError::Unknown`]. The caller knows the lease time, and takes its
    /// own lease for lost when it has not been able to renew within it.
    async fn renew(&self, info: &NodeInfo) -> Result<u64, RoutesError>;

    /// All node runs that have announced themselves and are live, or lapsed and not retired yet, or retired with rows
    /// left to sweep.
    async fn nodes(&self) -> Result<Vec<NodeRow>, RoutesError>;

    /// Ends a node run for good; true if it is retired now, by this call or before; false if its lease still lives
    /// (only with [`Retire::Lapsed`]). After true that run writes no row any more, so a sweep ends.
    async fn retire(&self, of: &NodeBoot, ground: Retire) -> Result<bool, RoutesError>;

    /// Up to `limit` rows of a node run, above `after` in the order of (user, device); an empty page is the end.
    ///
    /// A page is not a lock: what it names may have moved on, which is why only [`Routes::remove`] deletes.
    async fn rows_of(
        &self,
        of: &NodeBoot,
        after: Option<(UserId, DeviceId)>,
        limit: usize,
    ) -> Result<Vec<Route>, RoutesError>;

    /// Says that the node run has members of these conversations, for one interest lease from now on. Interests are
    /// never withdrawn, they lapse: a late withdrawal would take away what a quick return has just declared.
    /// An older generation than the present one renews and leaves the number.
    async fn declare(&self, by: &NodeBoot, interests: &[(ConversationId, u64)]) -> Result<(), RoutesError>;

    /// The live node runs with live interest in each conversation, in the order asked. After a loss it may name too
    /// few until every node has re-asserted; callers address all nodes until then.
    async fn interested(&self, conversations: &[ConversationId]) -> Result<Vec<Vec<Interest>>, RoutesError>;
}

impl fmt::Display for NodeBoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{:x}", self.node, self.boot)
    }
}

impl fmt::Debug for NodeBoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.at, self.epoch)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
