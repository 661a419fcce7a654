//! Looks whether the store still is where its owner left it, beside everything else: a store that was put back to an older
//! state shows too little until its owner notices, which need not wait for a next record, and one that hangs holds up nobody.

use std::{sync::Arc, time::Duration};

use tidegate_protocol::{machine::ledger::Ledger, record::Position};
use tokio::{
    task::JoinSet,
    time::{self, Instant, Interval},
};

use super::exit::GivenUp;
use crate::{
    ports::Ports,
    store::{Fence, StoreError},
};

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(3);

/// The looks of one owner.
pub(crate) struct Looks {
    partition: u32,
    fence: Fence,
    ports: Arc<Ports>,
    tick: Interval,
    /// At most one.
    looking: JoinSet<Look>,
}

/// Where the store was, and where it was known to be when somebody went to look.
pub(crate) struct Look {
    from: Position,
    seen: Result<Position, StoreError>,
}

impl Looks {
    pub(crate) fn new(partition: u32, fence: Fence, ports: &Arc<Ports>) -> Self {
        let mut tick = time::interval_at(Instant::now() + LOOK_EVERY, LOOK_EVERY);
        tick.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
        Self { partition, fence, ports: Arc::clone(ports), tick, looking: JoinSet::new() }
    }

    /// The next look that came to an end; `archived` is where the store is known to be. Cancel-safe.
    pub(crate) async fn next(&mut self, archived: Position) -> Look {
        loop {
            tokio::select! {
                biased;
                Some(Ok(look)) = self.looking.join_next() => return look,
                _ = self.tick.tick(), if self.looking.is_empty() => self.begin(archived),
            }
        }
    }

    fn begin(&mut self, from: Position) {
        let (partition, fence, ports) = (self.partition, self.fence, Arc::clone(&self.ports));
        self.looking.spawn(async move {
            let seen = ports.store.load(partition, fence, &[]).await;
            Look { from, seen: seen.map(|rows| rows.position) }
        });
    }
}

impl Look {
    /// Whether the store still is this owner's, and where it left it. One that does not answer now is asked again.
    pub(crate) fn judge(self, ledger: &mut Ledger) -> Result<(), GivenUp> {
        match self.seen {
            // Something was archived meanwhile: this may have been seen before or after that.
            Ok(_) if ledger.archived_position() != self.from => Ok(()),
            Ok(position) => Ok(ledger.load(position, [])?),
            Err(StoreError::Unavailable(_) | StoreError::NoConnection(_) | StoreError::Unknown(_)) => Ok(()),
            Err(error) => Err(GivenUp::Store(error)),
        }
    }
}
