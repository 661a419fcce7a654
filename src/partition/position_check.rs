//! Background check that the store is still at its owner's position.
//!
//! A store restored to an older state shows too little until the owner notices. Polling finds that without waiting for
//! the next record, and a hung store blocks nothing else.

use std::{sync::Arc, time::Duration};

use tidegate_protocol::{machine::ledger::Ledger, record::Position};
use tokio::{
    task::JoinSet,
    time::{self, Instant, Interval},
};

use super::exit::OwnerExit;
use crate::{
    cluster::Cluster,
    store::{Fence, StoreError},
    supervised,
};

const POSITION_CHECK_INTERVAL: Duration = Duration::from_secs(3);

/// Periodic position checks of one owner.
pub(super) struct PositionChecks {
    partition: u32,
    fence: Fence,
    cluster: Arc<Cluster>,
    tick: Interval,
    /// Check in progress; at most one.
    checking: JoinSet<PositionCheck>,
}

/// Position found in the store, with the archived position when the check began.
pub(super) struct PositionCheck {
    from: Position,
    found: Result<Position, StoreError>,
}

impl PositionChecks {
    pub(super) fn new(partition: u32, fence: Fence, cluster: &Arc<Cluster>) -> Self {
        let mut tick = time::interval_at(Instant::now() + POSITION_CHECK_INTERVAL, POSITION_CHECK_INTERVAL);
        tick.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
        Self { partition, fence, cluster: Arc::clone(cluster), tick, checking: JoinSet::new() }
    }

    /// Waits for the next check to finish; `archived` is the position that the store should have. Cancel-safe.
    pub(super) async fn next(&mut self, archived: Position) -> PositionCheck {
        loop {
            tokio::select! {
                biased;
                Some(Ok(check)) = self.checking.join_next() => return check,
                _ = self.tick.tick(), if self.checking.is_empty() => self.begin(archived),
            }
        }
    }

    fn begin(&mut self, from: Position) {
        let (partition, fence, cluster) = (self.partition, self.fence, Arc::clone(&self.cluster));
        supervised::spawn_in(&mut self.checking, "a check of the position", async move {
            let found = cluster.ports.store.load(partition, fence, &[]).await;
            PositionCheck { from, found: found.map(|rows| rows.position) }
        });
    }
}

impl PositionCheck {
    /// Returns an error unless the store still has the owner's fence and position. A store that does not answer is
    /// checked again.
    pub(super) fn verify(self, ledger: &mut Ledger) -> Result<(), OwnerExit> {
        match self.found {
            // A batch was archived in the meantime; the check may have read the position before or after that.
            Ok(_) if ledger.archived_position() != self.from => Ok(()),
            Ok(position) => Ok(ledger.load(position, [])?),
            Err(StoreError::Unavailable(_) | StoreError::NoConnection(_) | StoreError::Unknown(_)) => Ok(()),
            Err(error) => Err(OwnerExit::Store(error)),
        }
    }
}
