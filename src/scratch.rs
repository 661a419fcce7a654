//! Port `Scratch`: auxiliary state that may be lost at any time, such as saved chains and rate-limit windows.

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

/// Limit on the stored done ids of a chain, and on the skipped ones: the largest number in flight (SPEC section 6).
pub const DONE_IDS_MAX: usize = 256;

/// State of a device's nextId chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainState {
    /// Epoch of the connection that saved the state; an older connection never overwrites a newer one's state.
    pub epoch: u64,
    /// Id of the device's next chained message.
    pub expected: MsgId,
    /// Ids released last, oldest first, whose retries are acked and never held. The oldest beyond [`DONE_IDS_MAX`] are
    /// dropped.
    pub done: Vec<MsgId>,
    /// Ids skipped last, oldest first, which are permanently refused. The oldest beyond [`DONE_IDS_MAX`] are dropped.
    pub skipped: Vec<MsgId>,
}

/// Chain state of one device, to be saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainSave {
    /// User of the device.
    pub user: UserId,
    /// Device of the chain.
    pub device: DeviceId,
    /// Current state of the chain.
    pub state: ChainState,
}

/// Rate-limit rule: at most `limit` hits of `key` within any `window`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowRule {
    /// Name of the counted subject, for instance `user:ann`.
    pub key: String,
    /// Length of the sliding window.
    pub window: Duration,
    /// Largest number of hits in the window.
    pub limit: u32,
}

/// Decision of the rules about one hit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hit {
    /// Hit allowed, and counted in every window.
    Allowed,
    /// Hit refused, and counted in none.
    Refused {
        /// Index of the refusing rule with the longest wait.
        rule: usize,
        /// Time after which that rule would allow the hit, if there are no other hits.
        retry_after: Duration,
    },
}

/// Failed or unconfirmed call. It must not refuse a client: callers use a fallback and count the error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScratchError {
    /// Call without effect; continue without it.
    #[error("scratch store unavailable: {0}")]
    Unavailable(String),
    /// Call in doubt; continue without it.
    #[error("no reply from the scratch store: {0}")]
    Unknown(String),
}

/// Store of state that may be lost.
#[async_trait]
pub trait Scratch: Send + Sync {
    /// Saves chain states, each independently. A state with an older epoch than the saved one changes nothing and is no
    /// error. Among equal epochs the last call wins, so a caller saves one device's states one after the other.
    async fn save_chains(&self, saves: Vec<ChainSave>) -> Result<(), ScratchError>;

    /// Returns the last saved state of the device's chain; `None` if there never was one or it was lost.
    async fn load_chain(&self, user: &UserId, device: &DeviceId) -> Result<Option<ChainState>, ScratchError>;

    /// Counts one hit against all rules at once: in every window or, if a rule refuses it, in none.
    ///
    /// Each (key, window) has its own count, and may occur once in `rules`. A refused hit does not delay its own retry.
    /// A limit of 0 always refuses, for the length of the window.
    async fn hit(&self, rules: &[WindowRule]) -> Result<Hit, ScratchError>;
}
