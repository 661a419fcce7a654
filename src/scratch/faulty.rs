//! Fault-injecting wrapper of a `Scratch`.

use std::time::Duration;

use async_trait::async_trait;
use tidegate_protocol::id::{DeviceId, UserId};

use super::{
    ChainSave, ChainState, ChainStep, PermitAnswers, PermitCall, Scratch, ScratchError, WindowUpdate,
};
use crate::fault::{Breaks, Faulty};

impl Breaks for ScratchError {
    fn unavailable(why: String) -> Self {
        Self::Unavailable(why)
    }
    fn unknown(why: String) -> Self {
        Self::Unknown(why)
    }
}

#[async_trait]
impl Scratch for Faulty<dyn Scratch> {
    async fn save_chains(&self, saves: Vec<ChainSave>) -> Result<(), ScratchError> {
        self.call("save_chains", self.inner.save_chains(saves)).await
    }

    async fn advance_chain(&self, step: ChainStep) -> Result<bool, ScratchError> {
        self.call("advance_chain", self.inner.advance_chain(step)).await
    }

    async fn load_chain(&self, user: &UserId, device: &DeviceId) -> Result<Option<ChainState>, ScratchError> {
        self.call("load_chain", self.inner.load_chain(user, device)).await
    }

    async fn chain_devices(&self, user: &UserId) -> Result<Vec<DeviceId>, ScratchError> {
        self.call("chain_devices", self.inner.chain_devices(user)).await
    }

    async fn forget_chain(&self, user: &UserId, device: &DeviceId) -> Result<bool, ScratchError> {
        self.call("forget_chain", self.inner.forget_chain(user, device)).await
    }

    async fn mirror_windows(
        &self,
        window: Duration,
        updates: &[WindowUpdate],
    ) -> Result<Vec<u64>, ScratchError> {
        self.call("mirror_windows", self.inner.mirror_windows(window, updates)).await
    }

    async fn grant_permits(&self, calls: &[PermitCall]) -> Result<PermitAnswers, ScratchError> {
        self.call("grant_permits", self.inner.grant_permits(calls)).await
    }
}
