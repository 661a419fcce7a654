//! Port `Routes`: the node of each user's device, and the live nodes. Leased data, never the source of truth.
//!
//! A route is `(user, device) → token`. Deleting a row requires its whole token, so no caller deletes a row that it has
//! not seen (flaws S1-S5). Everything here may be lost or rolled back at any time. Users then see delays, never wrong
//! order, and an unexpected renewal counter makes each node re-assert its routes
//! (`docs/internals/adr/0009-redis-one-slot-at-a-time.md`).

use std::{fmt, time::Duration};

use async_trait::async_trait;
use tidegate_protocol::id::{ConversationId, DeviceId, NodeId, UserId};

mod device_policy;
mod faulty;
mod memory;
mod node_description;
mod redis;

pub use self::device_policy::{DevicePolicy, OnePer};
pub use self::node_description::{Draining, NodeDescription, TopicLag};
pub use self::redis::{Lapses, ROW_TTL, RedisRoutes};
pub use memory::{Leases, MemoryRoutes, SavedRoutes};

/// Time after which a run counts as dead if its renewal counter was observed unchanged (two renewals), with the routes
/// available throughout. After an outage all leases have expired, and the first node back must not retire the others.
pub const DEAD_AFTER: Duration = Duration::from_secs(6);

/// One run of a node; a restarted node is another run.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeBoot {
    /// Name of the node, kept across restarts.
    pub node: NodeId,
    /// Number of the run, never reused for one name.
    pub boot: u64,
}

/// Owner of a route: the globally unique name of a connection.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token {
    /// Run of the connection's node.
    pub at: NodeBoot,
    /// Epoch of the device's connection; rises with each one, even after a loss of all routes.
    pub epoch: u64,
}

/// Row of the routes: the token of one user's device.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// User of the row.
    pub user: UserId,
    /// Device of the row.
    pub device: DeviceId,
    /// Owner of the row.
    pub token: Token,
}

/// Request to register a connection as the route of a device.
#[derive(Clone, Debug)]
pub struct Registration {
    /// User of the connection.
    pub user: UserId,
    /// Device of the connection.
    pub device: DeviceId,
    /// Run of the connection's node.
    pub at: NodeBoot,
    /// Lower bound of the new epoch, exclusive: the highest that the ledger has seen from the device, or 0 if unknown.
    pub above: u64,
    /// Token that the present row must have. A connection takes a newer epoch this way, without taking the route from a
    /// newer connection.
    pub only_if: Option<Token>,
    /// Limits on the sessions of the user.
    pub policy: DevicePolicy,
}

/// Result of a registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registered {
    /// Owner of the new row.
    pub token: Token,
    /// Previous owner, whose session is to be stopped.
    pub replaced: Option<Token>,
    /// Rows of other devices, whose sessions are to be stopped: the new one takes their place by the policy. They stay
    /// until their connections are closed.
    pub evicted: Vec<(DeviceId, Token)>,
}

/// Information that a node announces with each renewal of its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    /// Run of the node.
    pub boot: NodeBoot,
    /// Address for other nodes.
    pub peer_address: String,
    /// Addresses for clients, best first.
    pub client_addresses: Vec<String>,
    /// Ready, cordoned or draining.
    pub state: NodeState,
    /// Number of open connections.
    pub conns: u32,
    /// Largest number of connections that the node accepts.
    pub capacity: u32,
    /// Partitions that the node owns, for finding the owner to query.
    pub owns: Vec<u32>,
    /// Archive position and lag of each owned partition.
    pub partition_lags: Vec<PartitionLag>,
    /// Whether the node is re-asserting its routes after a loss, so that lookups may be incomplete.
    pub asserting: bool,
    /// Details for client assignment, and for display.
    pub description: NodeDescription,
    /// Highest version of the ledger's rules that the node supports; 1 if it announces none.
    pub rules: u32,
}

impl NodeInfo {
    /// Creates the announcement of a ready node without connections or partitions; it accepts one connection and
    /// supports the first version of the ledger's rules.
    pub fn new(boot: NodeBoot) -> Self {
        Self {
            boot,
            peer_address: String::new(),
            client_addresses: Vec::new(),
            state: NodeState::Ready,
            conns: 0,
            capacity: 1,
            owns: Vec::new(),
            partition_lags: Vec::new(),
            asserting: false,
            description: NodeDescription::default(),
            rules: 1,
        }
    }
}

/// Archive position and lag of one partition, as of its owner's last lease renewal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartitionLag {
    /// Partition number.
    pub partition: u32,
    /// Offset below which everything is archived.
    pub position: u64,
    /// End of the log, as last known to the owner.
    pub end: u64,
    /// Age of the oldest unarchived record, in ms since the broker received it; 0 if there is none.
    pub behind_ms: u64,
    /// Approximate bytes of unarchived records, by the size of those read last.
    pub behind_bytes: u64,
}

impl PartitionLag {
    /// Returns the number of unarchived records.
    pub fn behind(&self) -> u64 {
        self.end.saturating_sub(self.position)
    }
}

/// Willingness of a node to accept new clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// Node that accepts new clients.
    Ready,
    /// Node that serves its clients but is not assigned new ones.
    Cordoned,
    /// Node in a drain.
    Draining,
}

/// State of one node, as seen by the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRow {
    /// Last announcement of the node.
    pub info: NodeInfo,
    /// Renewal counter, which rises with each lease renewal.
    pub renewals: u64,
    /// State of the lease.
    pub lease: Lease,
}

#[cfg(test)]
impl NodeRow {
    /// Creates the row of a node that has renewed its lease once.
    pub(crate) fn new(info: NodeInfo, lease: Lease) -> Self {
        Self { info, renewals: 1, lease }
    }
}

/// State of a node run's lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    /// Lease in force: the run's routes and interests count.
    Live,
    /// Lease expired: the run may renew it until it is retired.
    Lapsed,
    /// Run permanently ended: its rows are to be swept.
    Retired,
}

/// Reason for retiring a node run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retire {
    /// End of the node's own drain.
    Leaving,
    /// Expired lease, found by a reaper; a live lease is not ended.
    Lapsed,
}

/// Node that has members of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interest {
    /// Run of the node.
    pub node: NodeBoot,
    /// Latest declared generation, which changes when the node rebuilds its index of the group.
    pub generation: u64,
}

/// Failed or unconfirmed call on the routes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RoutesError {
    /// Call without effect; the same call may succeed later. Deliveries continue by querying the peers.
    #[error("routes unavailable: {0}")]
    Unavailable(String),
    /// Call in doubt. Every call may be repeated; a registration then takes another epoch.
    #[error("no reply from the routes: {0}")]
    Unknown(String),
    /// Call in doubt that may still take effect: the servers did not reply in time, and may only be slow. Returned by
    /// [`Routes::renew`] and [`Routes::nodes`] only; other calls return [`Self::Unknown`].
    #[error("routes slow: {0}")]
    Late(String),
    /// Registration in doubt that may be in force with this token, or still become so. Returned by [`Routes::register`]
    /// only. No other node removes the row while this node is live.
    #[error("registration not confirmed by the routes: {why}")]
    InDoubt {
        /// Known part of the reason.
        why: String,
        /// Token of the row, if the registration is in force.
        token: Token,
    },
    /// Row with another owner (`only_if` failed): close the connection with `REPLACED`.
    #[error("the route belongs to another connection")]
    NotCurrent(Option<Token>),
    /// Registration refused: the user has the maximum number of devices. Nothing changed.
    #[error("the user has the maximum number of devices")]
    TooManyDevices,
    /// Retired run of the node: close all connections and restart with a new boot.
    #[error("this run of the node was retired")]
    LeaseLost,
}

/// Routes of devices, leases of nodes, and interests of nodes in conversations.
///
/// The row of a device is atomic: a call reads and writes all of it or none. Nothing is atomic across rows; a batch is
/// a pipeline. Calls for one row are linearizable. A retired node run may not write ([`RoutesError::LeaseLost`]), so a
/// node that was stopped and reaped can't return with rows that no sweep finds (flaws S3, S5).
#[async_trait]
pub trait Routes: Send + Sync {
    /// Registers the caller's connection as the route of the device. The newest registration wins over any present row.
    ///
    /// Assigns the epoch: above every epoch ever assigned to that (user, device), even after a loss of everything, and
    /// above `above`. With `only_if`, replaces exactly that owner, which is then also `replaced`, or fails with
    /// [`RoutesError::NotCurrent`] and changes nothing. Without it the policy applies: the rows of other devices that the
    /// new session replaces are returned, and their epochs are lower; or a device that has no row gets none
    /// ([`RoutesError::TooManyDevices`]).
    async fn register(&self, registration: Registration) -> Result<Registered, RoutesError>;

    /// Deletes each row whose present token equals the given one; returns for each whether this call deleted it.
    ///
    /// This is the only way to delete a row: for a closing connection, a drain, a peer's "not here", and the reaper. A
    /// deleted row may stay in [`Routes::rows_of`] until it is removed a second time, so that a sweep of the run finds
    /// a departure that is not published yet (ADR 14).
    async fn remove(&self, rows: &[Route]) -> Result<Vec<bool>, RoutesError>;

    /// Returns the rows of each user, in the order of `users`; an unknown user has none.
    ///
    /// Ignores leases: compare with a recent copy of [`Routes::nodes`].
    async fn lookup(&self, users: &[UserId]) -> Result<Vec<Vec<(DeviceId, Token)>>, RoutesError>;

    /// Re-asserts rows of the caller's connections after a loss, and returns for each whether it is in force now.
    ///
    /// A row is written unless the present row has a newer epoch; a row not in force was replaced. All rows must belong
    /// to one node run.
    async fn reassert(&self, rows: &[Route]) -> Result<Vec<bool>, RoutesError>;

    /// Announces a node run or renews its lease. Returns its renewal counter, which starts at 1 and rises by one each
    /// time.
    ///
    /// Any other value means that the routes were emptied, rolled back or failed over since the last renewal; the
    /// caller then re-asserts its routes and interests. A reply from another server than before has the same effect,
    /// since that server may lack the writes after the last renewal. It is reported once, as [`RoutesError::Unknown`].
    /// The caller knows the lease time, and treats its own lease as lost if it could not renew within it.
    async fn renew(&self, info: &NodeInfo) -> Result<u64, RoutesError>;

    /// Returns the announced node runs: live ones, lapsed ones not retired yet, and retired ones with rows left to
    /// sweep.
    async fn nodes(&self) -> Result<Vec<NodeRow>, RoutesError>;

    /// Permanently ends a node run; returns whether it is retired now, by this call or before.
    ///
    /// Returns false only with [`Retire::Lapsed`], if the lease is live. A retired run writes no more rows, so a sweep
    /// of it terminates.
    async fn retire(&self, of: &NodeBoot, ground: Retire) -> Result<bool, RoutesError>;

    /// Returns up to `limit` rows of a node run, above `after` in the order of (user, device). An empty page is the
    /// end.
    ///
    /// A page is not a lock: its rows may have changed owner since, so only [`Routes::remove`] deletes.
    async fn rows_of(
        &self,
        of: &NodeBoot,
        after: Option<(UserId, DeviceId)>,
        limit: usize,
    ) -> Result<Vec<Route>, RoutesError>;

    /// Requests that the node run compares its sessions with the rows soon ([`Routes::recheck_requested`]): a newer
    /// session replaced one of them, and the run could not be called. Remembered for an hour or more; several requests
    /// may count as one.
    async fn request_recheck(&self, of: &NodeBoot) -> Result<(), RoutesError>;

    /// Returns a number that differs after each request for a recheck of the node run; `None` if none is remembered.
    async fn recheck_requested(&self, of: &NodeBoot) -> Result<Option<u64>, RoutesError>;

    /// Declares that the node run has members of these conversations, for one interest lease from now. Returns for each
    /// whether the interest was in force already: false for one declared within the lease means that it was lost.
    ///
    /// Interests expire and are never withdrawn: a late withdrawal could remove an interest just declared again. An
    /// older generation than the present one renews the lease and keeps the newer generation.
    async fn declare(
        &self,
        by: &NodeBoot,
        interests: &[(ConversationId, u64)],
    ) -> Result<Vec<bool>, RoutesError>;

    /// Returns the live node runs with live interest in each conversation, in the order of `conversations`.
    ///
    /// After a loss the result may be incomplete until every node has re-asserted; callers address all nodes until
    /// then.
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
