//! Port `Scratch`: state that makes things quicker or kinder and may be lost at any time.

use std::time::Duration;

use async_trait::async_trait;
use tidegate_protocol::id::{DeviceId, MsgId, UserId};

mod faulty;
mod memory;
mod numbers;
mod redis;
mod redis_numbers;

pub use self::{
    memory::MemoryScratch,
    numbers::{Block, ClockNumbers, FloorError, Floors, MemoryFloors, Numbers},
    redis::RedisScratch,
    redis_numbers::RedisNumbers,
};

/// How many done ids of a chain are worth keeping, and how many skipped ones: what one device may have in flight
/// (DESIGN 6.3).
pub const DONE_IDS_MAX: usize = 256;

/// Where the nextId chain of a device stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainState {
    /// The conn that says so; a newer conn's word is never overwritten by an older one's.
    pub epoch: u64,
    /// The id that the device's next chained message carries.
    pub expected: MsgId,
    /// The ids released last, oldest first: retries of these are acked, never held. At most [`DONE_IDS_MAX`], the
    /// oldest beyond are dropped.
    pub done: Vec<MsgId>,
    /// The ids given up last, oldest first: refused for good. At most [`DONE_IDS_MAX`], the oldest beyond are dropped.
    pub skipped: Vec<MsgId>,
}

/// A chain state with its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainSave {
    /// Whose.
    pub user: UserId,
    /// Of which device.
    pub device: DeviceId,
    /// What is true now.
    pub state: ChainState,
}

/// One rule to ask: not more than `limit` hits of `key` within any `window`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowRule {
    /// What is counted, e.g. `user:ann`.
    pub key: String,
    /// The length of the sliding window.
    pub window: Duration,
    /// The most hits in it.
    pub limit: u32,
}

/// What the rules say to one hit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hit {
    /// Counted in every window.
    Allowed,
    /// Counted in none.
    Refused {
        /// Which rule, as an index into those asked; the one to wait longest for.
        rule: usize,
        /// After this time the same hit would pass that rule, if nobody else hits.
        retry_after: Duration,
    },
}

/// Why scratch did not do it. Nobody refuses a client for this: callers fall back and count.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScratchError {
    /// Nothing happened; go on without.
    #[error("scratch is away: {0}")]
    Unavailable(String),
    /// It may have happened; go on without.
    #[error("scratch did not answer: {0}")]
    Unknown(String),
}

/// What may be lost.
#[async_trait]
pub trait Scratch: Send + Sync {
    /// Saves chain states, each alone: one with an older epoch than the saved one changes nothing, without an error.
    /// Among equal epochs the last call wins; a caller saves one device's states one after the other.
    async fn save_chains(&self, saves: Vec<ChainSave>) -> Result<(), ScratchError>;

    /// The last saved state of the device's chain; none if there never was one or it was lost.
    async fn load_chain(&self, user: &UserId, device: &DeviceId) -> Result<Option<ChainState>, ScratchError>;

    /// Counts one hit against all rules at once, each (key, window) a count of its own and named at most once: it is counted in all of them or, if any refuses, in none.
    /// A refused hit never pushes its own retry away. A limit of 0 refuses always, for the length of the window.
    async fn hit(&self, rules: &[WindowRule]) -> Result<Hit, ScratchError>;
}
