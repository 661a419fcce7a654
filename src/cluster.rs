//! The cluster as one node knows it: its own run, the ports that the nodes share, peers, owned partitions, unarchived
//! records and archive lags.
//!
//! A single node is a cluster without peers.

use std::sync::{Arc, atomic::AtomicBool};

use crate::{
    bans::{BanBoard, SuspensionBoard},
    events::Events,
    evidence::EvidenceBoard,
    figures::Figures,
    ports::Ports,
    priorities::Priorities,
    revocation::Revocations,
    routes::NodeBoot,
    storms::StormBoard,
    trace::Tracer,
};

mod archive_lag;
mod bans;
mod barrier;
pub(crate) mod barrier_calls;
mod blocks;
mod closed_rooms;
mod erasures;
mod follower;
mod guard;
mod interest;
mod owned;
mod owned_feeds;
mod peers;
mod priorities;
mod storm_entries;
mod suspensions;
mod unarchived;

pub use archive_lag::{LagLimit, Lags};
pub use bans::BanHandler;
pub use barrier::PublishedOffsets;
pub(crate) use blocks::follow_blocks;
pub use blocks::{BlockVerdict, Blocks};
pub use closed_rooms::{CLOSED_ROOMS_MAX, ClosedRoomHandler, ClosedRooms};
pub use erasures::ErasureHandler;
pub use follower::{FOLLOW_INTERVAL, Followed, FollowedPage, Follower, GUARD_STALE_AFTER, guard_page};
pub(crate) use guard::follow_guard;
pub use guard::{GUARD_LOAD_TIMEOUT, GuardChange, GuardEntries, GuardHandler};
pub use owned::{Owned, OwnerProgress};
pub use owned_feeds::{FeedBoard, OwnedFeed, OwnedFeeds};
pub use peers::{PeerSnapshot, Peers};
pub use priorities::PriorityHandler;
pub use storm_entries::StormHandler;
pub use suspensions::SuspensionHandler;
pub use unarchived::{Unarchived, UnarchivedMark};

/// Ports of a node, and the state that its layers share: a call of a port may wait or fail, the rest is in memory.
pub struct Cluster {
    /// Run of this node.
    pub me: NodeBoot,
    /// Adapters.
    pub ports: Ports,
    /// Partitions that this node owns; owners update them, and the lease announces them.
    pub owned: Arc<Owned>,
    /// Other nodes, as the lease last fetched them; kept while the routes are unavailable.
    pub peers: Arc<Peers>,
    /// Steps of messages on this node, as far as they are recorded.
    pub trace: Arc<Tracer>,
    /// Events of this node: online and offline devices, read marks, blocked chains, storms.
    pub events: Arc<Events>,
    /// Block lists, as far as this node knows them.
    pub blocks: Blocks,
    /// Figures of this node: values by second, codes given to clients, clients that moved.
    pub figures: Arc<Figures>,
    /// Whether shards note which messages their connections have acked: an endpoint of webhooks wants to know.
    pub notes_acks: AtomicBool,
    /// Revocations in force on this node.
    pub revocations: Arc<Revocations>,
    /// Entries of the guard: rules, bans and the like, which all nodes share.
    pub guard: GuardEntries,
    /// Bans in force on this node.
    pub bans: Arc<BanBoard>,
    /// Priorities of users in live rooms that are in force on this node.
    pub priorities: Arc<Priorities>,
    /// Live rooms that are closed, as this node knows them.
    pub closed_rooms: Arc<ClosedRooms>,
    /// Suspensions in force on this node.
    pub suspensions: Arc<SuspensionBoard>,
    /// Security events and scores of this node.
    pub evidence: Arc<EvidenceBoard>,
    /// Storms of groups whose partitions this node owns.
    pub storms: Arc<StormBoard>,
}

impl Cluster {
    /// Creates the state of a node that has discovered no peer, owns nothing, records no steps and publishes no
    /// events.
    pub fn new(me: NodeBoot, ports: Ports) -> Self {
        let bans = Arc::<BanBoard>::default();
        Self {
            me,
            ports,
            owned: Arc::default(),
            peers: Arc::default(),
            trace: Arc::default(),
            events: Arc::default(),
            blocks: Blocks::default(),
            figures: Arc::default(),
            notes_acks: AtomicBool::new(false),
            revocations: Arc::default(),
            guard: GuardEntries::default(),
            evidence: Arc::new(EvidenceBoard::new(Arc::clone(&bans))),
            bans,
            priorities: Arc::default(),
            closed_rooms: Arc::default(),
            suspensions: Arc::default(),
            storms: Arc::default(),
        }
    }
}
