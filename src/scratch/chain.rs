//! States of nextId chains, and how a connection saves its own: one small step for each change (ADR 2).

use std::mem;

use parking_lot::Mutex;
use tidegate_protocol::id::{DeviceId, MsgId, UserId};

use super::{Scratch, ScratchError};

/// Limit on the stored done ids of a chain, and on the skipped ones: the largest number in flight (SPEC section 6).
pub const DONE_IDS_MAX: usize = 256;

/// Limit on the saved chains of one user: those of the devices whose chains were saved last. It is more than the devices
/// that a user may connect, and a connected device whose chain was dropped saves its whole state again.
pub const CHAINS_PER_USER_MAX: usize = 64;

/// State of a device's nextId chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainState {
    /// Epoch of the connection that saved the state; an older connection never overwrites a newer one's state.
    pub epoch: u64,
    /// Number of changes that led to the state, over all connections whose states are known.
    pub changes: u64,
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

/// Id that a chain gains with one change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChainChange {
    /// The id that was expected is done.
    ExpectedDone,
    /// Another id is done, as after a login that declared it.
    Done(MsgId),
    /// The id is skipped.
    Skipped(MsgId),
}

/// One change of a chain's state, to be added to the saved state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainStep {
    /// User of the device.
    pub user: UserId,
    /// Device of the chain.
    pub device: DeviceId,
    /// Epoch of the connection.
    pub epoch: u64,
    /// Number of the change: one more than [`ChainState::changes`] of the state before it.
    pub number: u64,
    /// Id that the chain gains.
    pub change: ChainChange,
    /// Id of the device's next chained message.
    pub expected: MsgId,
}

/// Chain of one connection, and what of it the scratch store has. Shared by the shard and the saves in progress.
pub struct ChainSaver {
    user: UserId,
    device: DeviceId,
    epoch: u64,
    progress: Mutex<Progress>,
}

struct Progress {
    /// `None` before the first change of a chain without a saved state.
    state: Option<ChainState>,
    /// Number of changes in the last whole state that was passed to the store.
    whole: u64,
}

impl ChainState {
    /// Adds a change and drops the oldest id beyond the limit.
    pub(super) fn apply(&mut self, step: ChainStep) {
        let expected = mem::replace(&mut self.expected, step.expected);
        let (ids, id) = match step.change {
            ChainChange::ExpectedDone => (&mut self.done, expected),
            ChainChange::Done(id) => (&mut self.done, id),
            ChainChange::Skipped(id) => (&mut self.skipped, id),
        };
        ids.push(id);
        if ids.len() > DONE_IDS_MAX {
            ids.remove(0);
        }
        (self.epoch, self.changes) = (step.epoch, step.number);
    }
}

impl ChainSaver {
    /// Creates the saver of a connection, with the state that its login loaded.
    pub fn new(user: UserId, device: DeviceId, epoch: u64, loaded: Option<ChainState>) -> Self {
        Self { user, device, epoch, progress: Mutex::new(Progress { state: loaded, whole: 0 }) }
    }

    /// Returns the state with all changes so far.
    pub fn state(&self) -> Option<ChainState> {
        self.progress.lock().state.clone()
    }

    /// Adds a change and returns it as a step to be saved. `None` if the id was skipped before and nothing else
    /// changes: a client may send a skipped id repeatedly.
    pub fn advance(&self, change: ChainChange, expected: MsgId) -> Option<ChainStep> {
        let mut progress = self.progress.lock();
        let state = progress.state.get_or_insert_with(|| ChainState {
            epoch: self.epoch,
            changes: 0,
            expected: expected.clone(),
            done: Vec::new(),
            skipped: Vec::new(),
        });
        let change = match change {
            ChainChange::Done(id) if id == state.expected => ChainChange::ExpectedDone,
            ChainChange::Skipped(id) if expected == state.expected && state.skipped.contains(&id) => {
                return None;
            }
            other => other,
        };
        let step = ChainStep {
            user: self.user.clone(),
            device: self.device.clone(),
            epoch: self.epoch,
            number: state.changes + 1,
            change,
            expected,
        };
        state.apply(step.clone());
        Some(step)
    }

    /// Saves a step, or the whole state if the store has lost the state before it.
    pub async fn save(&self, scratch: &dyn Scratch, step: ChainStep) -> Result<(), ScratchError> {
        let number = step.number;
        if scratch.advance_chain(step).await? {
            return Ok(());
        }
        self.save_whole(scratch, number).await
    }

    /// Saves the whole state, unless an earlier call has passed the change of that number to the store: many steps in
    /// flight find the state lost at once.
    pub async fn save_whole(&self, scratch: &dyn Scratch, number: u64) -> Result<(), ScratchError> {
        match self.whole_with(number) {
            Some(save) => scratch.save_chains(vec![save]).await,
            None => Ok(()),
        }
    }

    fn whole_with(&self, number: u64) -> Option<ChainSave> {
        let mut progress = self.progress.lock();
        if progress.whole >= number {
            return None;
        }
        let state = progress.state.clone()?;
        progress.whole = state.changes;
        // The state may still have the epoch of the connection that saved it.
        let state = ChainState { epoch: self.epoch, ..state };
        Some(ChainSave { user: self.user.clone(), device: self.device.clone(), state })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        fault::{Fault, FaultPlan, Faulty},
        scratch::MemoryScratch,
    };

    fn id(n: usize) -> MsgId {
        MsgId::new(&format!("m{n}")).unwrap()
    }

    fn ann() -> (UserId, DeviceId) {
        (UserId::new("ann").unwrap(), DeviceId::new("phone").unwrap())
    }

    fn saver() -> ChainSaver {
        let (user, device) = ann();
        ChainSaver::new(user, device, 7, None)
    }

    fn faulty() -> (Faulty<dyn Scratch>, Arc<FaultPlan>) {
        let plan = FaultPlan::none();
        let memory: Arc<dyn Scratch> = Arc::new(MemoryScratch::new(1 << 20, || 0));
        (Faulty::new(memory, Arc::clone(&plan)), plan)
    }

    async fn is_saved(scratch: &dyn Scratch, saver: &ChainSaver) -> bool {
        let (user, device) = ann();
        scratch.load_chain(&user, &device).await.unwrap() == saver.state()
    }

    fn done(saver: &ChainSaver, n: usize) -> ChainStep {
        saver.advance(ChainChange::Done(id(n)), id(n + 1)).unwrap()
    }

    #[tokio::test]
    async fn x10_messages_after_the_first_are_saved_in_steps() {
        let ((scratch, plan), saver) = (faulty(), saver());
        for n in 0..600 {
            saver.save(&scratch, done(&saver, n)).await.unwrap();
            assert!(is_saved(&scratch, &saver).await, "message {n}");
        }
        assert_eq!([plan.calls("save_chains"), plan.calls("advance_chain")], [1, 600]);
        assert_eq!(saver.state().unwrap().done, (344..600).map(id).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn x10_lost_step_is_in_the_whole_state_that_the_next_one_saves() {
        let ((scratch, plan), saver) = (faulty(), saver());
        for n in 0..3 {
            saver.save(&scratch, done(&saver, n)).await.unwrap();
        }
        plan.plan("advance_chain", Fault::Fail);
        saver.save(&scratch, done(&saver, 3)).await.unwrap_err();
        saver.save(&scratch, done(&saver, 4)).await.unwrap();
        assert!(is_saved(&scratch, &saver).await);
        plan.plan("advance_chain", Fault::LoseAnswer);
        saver.save(&scratch, done(&saver, 5)).await.unwrap_err();
        saver.save(&scratch, done(&saver, 6)).await.unwrap();
        assert!(is_saved(&scratch, &saver).await);
        assert_eq!(plan.calls("save_chains"), 2, "the step whose reply was lost took effect");
    }

    #[tokio::test]
    async fn x10_many_steps_in_flight_save_a_lost_state_once() {
        let ((scratch, plan), saver) = (faulty(), saver());
        let steps: Vec<ChainStep> = (0..100).map(|n| done(&saver, n)).collect();
        for step in steps {
            saver.save(&scratch, step).await.unwrap();
        }
        assert!(is_saved(&scratch, &saver).await);
        assert_eq!(plan.calls("save_chains"), 1);
    }

    #[test]
    fn x10_skipped_id_that_is_sent_again_costs_nothing() {
        let saver = saver();
        assert!(saver.advance(ChainChange::Skipped(id(0)), id(1)).is_some());
        assert_eq!(saver.advance(ChainChange::Skipped(id(0)), id(1)), None);
        assert!(saver.advance(ChainChange::Skipped(id(0)), id(2)).is_some(), "the expected id differs");
        assert_eq!(done(&saver, 2).change, ChainChange::ExpectedDone);
        assert_eq!(done(&saver, 9).change, ChainChange::Done(id(9)), "a login declared it");
    }
}
