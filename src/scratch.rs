//! Port `Scratch`: auxiliary state that may be lost at any time: saved chains, windows of groups that other systems read,
//! and permits of rules in cluster scope.

use std::time::Duration;

use async_trait::async_trait;
use tidegate_protocol::id::{DeviceId, UserId};

mod chain;
mod faulty;
mod memory;
mod mirror;
mod numbers;
mod permits;
mod redis;
mod redis_numbers;

pub use self::{
    chain::{CHAINS_PER_USER_MAX, ChainChange, ChainSave, ChainSaver, ChainState, ChainStep, DONE_IDS_MAX},
    memory::MemoryScratch,
    mirror::{MIRROR_MEMBERS_MAX, WindowEntry, WindowUpdate},
    numbers::{
        Block, ClockNumbers, FloorError, Floors, MemoryFloors, Numbers, SharedStorm, SharedWindow,
        WindowChange,
    },
    permits::{PermitAnswers, PermitCall},
    redis::RedisScratch,
    redis_numbers::RedisNumbers,
};

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

    /// Returns the devices of a user whose chains are saved now, at most [`CHAINS_PER_USER_MAX`].
    async fn chain_devices(&self, user: &UserId) -> Result<Vec<DeviceId>, ScratchError>;

    /// Removes the saved state of a device's chain; returns whether there was one. A connection whose chain goes on saves its
    /// whole state again.
    async fn forget_chain(&self, user: &UserId, device: &DeviceId) -> Result<bool, ScratchError>;

    /// Adds accepted messages to the mirrors of their groups' windows, and returns the number of messages in the window
    /// of each. The windows end now by the clock of the store; messages from before them, and from more than
    /// [`RECEIVE_SKEW_MS`](tidegate_protocol::machine::storm::RECEIVE_SKEW_MS) ahead, are left out.
    ///
    /// A message that is in the mirror already is not added again. Above [`MIRROR_MEMBERS_MAX`] messages in a window they
    /// are counted by the second, and those of one second leave the window together.
    async fn mirror_windows(
        &self,
        window: Duration,
        updates: &[WindowUpdate],
    ) -> Result<Vec<u64>, ScratchError>;

    /// Grants permits of rules in cluster scope, as [`GrantLog`](tidegate_protocol::machine::permit::GrantLog) does by the
    /// clock of the store. A key is forgotten once none of its grants counts.
    async fn grant_permits(&self, calls: &[PermitCall]) -> Result<PermitAnswers, ScratchError>;
}
