//! Port `Scratch`: auxiliary state that may be lost at any time, such as saved chains and rate-limit windows.

use std::time::Duration;

use async_trait::async_trait;
use tidegate_protocol::id::{DeviceId, UserId};

mod chain;
mod faulty;
mod memory;
mod numbers;
mod redis;
mod redis_numbers;

pub use self::{
    chain::{CHAINS_PER_USER_MAX, ChainChange, ChainSave, ChainSaver, ChainState, ChainStep, DONE_IDS_MAX},
    memory::MemoryScratch,
    numbers::{Block, ClockNumbers, FloorError, Floors, MemoryFloors, Numbers},
    redis::RedisScratch,
    redis_numbers::RedisNumbers,
};

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
    /// Saves whole chain states, each independently. Of one user, the states of the [`CHAINS_PER_USER_MAX`] devices are kept
    /// whose chains were saved or advanced last. A state with an older epoch than the saved one, or with the same
    /// epoch and fewer changes, changes nothing and is no error.
    async fn save_chains(&self, saves: Vec<ChainSave>) -> Result<(), ScratchError>;

    /// Adds one change to the saved state of a chain, at a cost that does not grow with the number of its ids. A change
    /// that is older than the saved state, by its epoch or by its number in the same epoch, changes nothing: calls may
    /// be repeated.
    ///
    /// Returns false if the saved state is not the one before the change, because some of it was lost or another
    /// connection saved it meanwhile; then save the whole state.
    async fn advance_chain(&self, step: ChainStep) -> Result<bool, ScratchError>;

    /// Returns the last saved state of the device's chain; `None` if there never was one or it was lost.
    async fn load_chain(&self, user: &UserId, device: &DeviceId) -> Result<Option<ChainState>, ScratchError>;

    /// Counts one hit against all rules at once: in every window or, if a rule refuses it, in none.
    ///
    /// Each (key, window) has its own count, and may occur once in `rules`. A refused hit does not delay its own retry.
    /// A limit of 0 always refuses, for the length of the window.
    async fn hit(&self, rules: &[WindowRule]) -> Result<Hit, ScratchError>;
}
