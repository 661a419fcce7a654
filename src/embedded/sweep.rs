//! Takes dedup keys away that the rules forget, a few at a time, so that the writer stays quick.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use tidegate_protocol::record::Hash16;

use super::{Database, Trouble, batch::WriteBatch, codec};

/// Keys looked at in a step.
const STEP: usize = 1_024;

/// Between two steps: a hundred million keys take half an hour, and hold nobody up.
const EVERY: Duration = Duration::from_millis(20);

/// How far old keys are swept.
#[derive(Default)]
pub(super) struct KeySweep {
    stepped: Option<Instant>,
    partitions: HashMap<u32, Swept>,
}

/// How far those of a partition are.
#[derive(Clone, Copy)]
struct Swept {
    /// Nothing below this offset is left.
    to: u64,
    /// The sweep that goes on: its offset, and the next key to look at.
    going: Option<(u64, Hash16)>,
}

/// What a step came to, once it is written.
#[derive(Clone, Copy)]
pub(super) struct Step(Swept);

impl KeySweep {
    /// Whether it is time for the next step.
    pub(super) fn is_due(&mut self) -> bool {
        let due = self.stepped.is_none_or(|at| at.elapsed() >= EVERY);
        if due {
            self.stepped = Some(Instant::now());
        }
        due
    }

    /// Whether there may be something to take away.
    pub(super) fn has_work(&self, partition: u32, keys_from: u64) -> bool {
        let swept = self.partitions.get(&partition);
        swept.map_or(keys_from > 0, |swept| swept.going.is_some() || swept.to < keys_from)
    }

    /// Puts the next step into the batch; none when there is nothing to do.
    pub(super) fn stage(
        &mut self,
        database: &Database,
        partition: u32,
        keys_from: u64,
        batch: &mut WriteBatch,
    ) -> Result<Option<Step>, Trouble> {
        let swept = match self.partitions.get(&partition) {
            Some(swept) => *swept,
            None => Swept { to: swept_to(database, partition)?, going: None },
        };
        self.partitions.insert(partition, swept);
        if swept.going.is_none() && swept.to >= keys_from {
            return Ok(None);
        }
        let (target, from) = swept.going.unwrap_or((keys_from, Hash16::default()));
        let (first, last) = (codec::key_key(partition, &from), codec::key_key(partition, &[u8::MAX; 16]));
        for (index, entry) in database.keys.range(first..=last).enumerate() {
            let (key, value) = entry.into_inner()?;
            if index == STEP {
                let going = Some((target, codec::key_hash(&key)?));
                return Ok(Some(Step(Swept { to: swept.to, going })));
            }
            if codec::key(&value)?.offset < target {
                batch.remove(&database.keys, key);
            }
        }
        batch.insert(&database.state, codec::swept_key(partition), target.to_be_bytes());
        Ok(Some(Step(Swept { to: target, going: None })))
    }

    /// Notes that the step is written.
    pub(super) fn done(&mut self, partition: u32, step: Option<Step>) {
        if let Some(Step(swept)) = step {
            self.partitions.insert(partition, swept);
        }
    }
}

fn swept_to(database: &Database, partition: u32) -> Result<u64, Trouble> {
    let value = database.state.get(codec::swept_key(partition))?;
    let to = value.map(|value| value[..].try_into().map(u64::from_be_bytes).map_err(|_| codec::damaged()));
    Ok(to.transpose()?.unwrap_or(0))
}
