//! Sweep of expired dedup keys, in small steps so that it does not delay the writer.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use tidegate_protocol::record::Hash16;

use super::{Database, DatabaseError, batch::WriteBatch, codec};

/// Keys examined per step.
const STEP_KEYS: usize = 1_024;

/// Interval between steps: 100 million keys take half an hour, without delaying other writes.
const STEP_INTERVAL: Duration = Duration::from_millis(20);

/// State of the sweep of all partitions.
#[derive(Default)]
pub(super) struct KeySweep {
    last_step: Option<Instant>,
    partitions: HashMap<u32, SweepProgress>,
}

/// Progress of the sweep in one partition.
#[derive(Clone, Copy)]
struct SweepProgress {
    /// Offset below which no keys are left.
    to: u64,
    /// Sweep in progress: its target offset, and the next key to examine.
    pending: Option<(u64, Hash16)>,
}

/// Progress that applies once the step is written.
#[derive(Clone, Copy)]
pub(super) struct SweepStep(SweepProgress);

impl KeySweep {
    /// Returns whether the next step is due, and starts the next interval if so.
    pub(super) fn is_due(&mut self) -> bool {
        let due = self.last_step.is_none_or(|at| at.elapsed() >= STEP_INTERVAL);
        if due {
            self.last_step = Some(Instant::now());
        }
        due
    }

    /// Returns whether there may be keys to remove.
    pub(super) fn has_work(&self, partition: u32, keys_from: u64) -> bool {
        let progress = self.partitions.get(&partition);
        progress.map_or(keys_from > 0, |progress| progress.pending.is_some() || progress.to < keys_from)
    }

    /// Adds the next step to the batch; `None` if there is nothing to do.
    pub(super) fn stage(
        &mut self,
        database: &Database,
        partition: u32,
        keys_from: u64,
        batch: &mut WriteBatch,
    ) -> Result<Option<SweepStep>, DatabaseError> {
        let progress = match self.partitions.get(&partition) {
            Some(progress) => *progress,
            None => SweepProgress { to: swept_to(database, partition)?, pending: None },
        };
        self.partitions.insert(partition, progress);
        if progress.pending.is_none() && progress.to >= keys_from {
            return Ok(None);
        }
        let (target, from) = progress.pending.unwrap_or((keys_from, Hash16::default()));
        let (first, last) = (codec::key_key(partition, &from), codec::key_key(partition, &[u8::MAX; 16]));
        for (index, entry) in database.keys.range(first..=last).enumerate() {
            let (key, value) = entry.into_inner()?;
            if index == STEP_KEYS {
                let pending = Some((target, codec::key_hash(&key)?));
                return Ok(Some(SweepStep(SweepProgress { to: progress.to, pending })));
            }
            if codec::key(&value)?.offset < target {
                batch.remove(&database.keys, key);
            }
        }
        batch.insert(&database.state, codec::swept_key(partition), target.to_be_bytes());
        Ok(Some(SweepStep(SweepProgress { to: target, pending: None })))
    }

    /// Marks the step as written.
    pub(super) fn done(&mut self, partition: u32, step: Option<SweepStep>) {
        if let Some(SweepStep(progress)) = step {
            self.partitions.insert(partition, progress);
        }
    }
}

fn swept_to(database: &Database, partition: u32) -> Result<u64, DatabaseError> {
    let value = database.state.get(codec::swept_key(partition))?;
    let to = value.map(|value| value[..].try_into().map(u64::from_be_bytes).map_err(|_| codec::damaged()));
    Ok(to.transpose()?.unwrap_or(0))
}
