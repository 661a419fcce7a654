//! What the owners of this node have said lately, for origins that ask again because the answer did not come (DESIGN 6.1).
//!
//! A word is kept for as long as a client waits. What an earlier owner said, the store still knows by the dedup key.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    hash::BuildHasher as _,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use foldhash::quality::RandomState;
use tidegate_protocol::{
    machine::ledger::{Key, Loaded, Need, Outcome},
    record::{Origin, Record},
};
use tokio::time::Instant;

use crate::{
    link::{Ask, AskKey, Word},
    ports::Ports,
    routes::NodeBoot,
    store::Fence,
};

/// How long a word is kept: longer than a client waits (5 s).
const KEPT: Duration = Duration::from_secs(6);

/// Words kept of one partition; of more, the oldest go first.
const WORDS_MAX: usize = 1 << 15;

/// The words of all owners of a node.
#[derive(Default)]
pub struct Answered {
    partitions: Mutex<HashMap<u32, Words>>,
    hasher: RandomState,
}

/// A record by its origin: which run of which node (as a hash), conn, request.
type Name = (u64, u64, u64);

/// What the owner of one partition has said.
struct Words {
    fence: Fence,
    /// All records below were told.
    next: u64,
    said: HashMap<Name, Outcome, RandomState>,
    order: VecDeque<(Instant, Name)>,
}

impl Answered {
    fn begin(&self, partition: u32, fence: Fence, next: u64) {
        let words = Words { fence, next, said: HashMap::default(), order: VecDeque::new() };
        self.partitions().insert(partition, words);
    }

    fn end(&self, partition: u32, fence: Fence) {
        let mut partitions = self.partitions();
        if partitions.get(&partition).is_some_and(|words| words.fence == fence) {
            partitions.remove(&partition);
        }
    }

    fn said(&self, (partition, fence): (u32, Fence), decided: &[(Record, Outcome)], next: u64) {
        let now = Instant::now();
        let mut partitions = self.partitions();
        // Its successor here may have begun.
        let Some(words) = partitions.get_mut(&partition).filter(|it| it.fence == fence) else { return };
        words.next = next;
        for (record, outcome) in decided {
            let Origin { node, boot, conn, request } = &record.origin;
            let name = (self.hasher.hash_one((node, boot)), *conn, *request);
            words.said.insert(name, *outcome);
            words.order.push_back((now, name));
        }
        words.forget(now);
    }

    /// What is known of each of these from memory, and under which fence of their partition; none = not the owner.
    fn recall(&self, from: &NodeBoot, asks: &[Ask]) -> Vec<(Word, Option<Fence>)> {
        let run = self.hasher.hash_one((&from.node, &from.boot));
        let partitions = self.partitions();
        let word = |ask: &Ask| {
            let Some(words) = partitions.get(&ask.partition) else { return (Word::NotOwner, None) };
            let word = match words.said.get(&(run, ask.conn, ask.request)) {
                Some(outcome) => Word::Said(*outcome),
                None if ask.offset >= words.next => Word::NotYet,
                None => Word::Forgotten,
            };
            (word, Some(words.fence))
        };
        asks.iter().map(word).collect()
    }

    fn partitions(&self) -> MutexGuard<'_, HashMap<u32, Words>> {
        self.partitions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Words {
    fn forget(&mut self, now: Instant) {
        while let Some((_, name)) =
            self.order.pop_front_if(|(since, _)| now.saturating_duration_since(*since) >= KEPT)
        {
            self.said.remove(&name);
        }
        while self.order.len() > WORDS_MAX
            && let Some((_, name)) = self.order.pop_front()
        {
            self.said.remove(&name);
        }
        if self.order.is_empty() {
            (self.said, self.order) = (HashMap::default(), VecDeque::new());
        }
    }
}

/// What one owner tells, for as long as it owns.
pub(crate) struct Voice {
    answered: Arc<Answered>,
    partition: u32,
    fence: Fence,
}

impl Voice {
    /// Of an owner that begins at `next`.
    pub(crate) fn begin(answered: &Arc<Answered>, partition: u32, fence: Fence, next: u64) -> Self {
        answered.begin(partition, fence, next);
        Self { answered: Arc::clone(answered), partition, fence }
    }

    /// It told these, and with them everything below `next`.
    pub(crate) fn said(&self, decided: &[(Record, Outcome)], next: u64) {
        self.answered.said((self.partition, self.fence), decided, next);
    }
}

impl Drop for Voice {
    fn drop(&mut self) {
        self.answered.end(self.partition, self.fence);
    }
}

/// One word for each ask of that run of a node, in order. What memory does not know is looked up in the store, once for
/// each partition and under its fence: an answer of a store that is another's already would be no answer.
pub(crate) async fn words(
    answered: &Arc<Answered>,
    ports: &Ports,
    from: &NodeBoot,
    asks: &[Ask],
) -> Vec<Word> {
    let mut words: Vec<(Word, Option<Fence>)> = answered.recall(from, asks);
    // In order, so that a simulation runs the same way each time.
    let mut lost: BTreeMap<(u32, Fence), Vec<(usize, AskKey)>> = BTreeMap::new();
    for (place, ((word, fence), ask)) in words.iter().zip(asks).enumerate() {
        if let (Word::Forgotten, Some(fence), Some(key)) = (word, fence, ask.key) {
            lost.entry((ask.partition, *fence)).or_default().push((place, key));
        }
    }
    for ((partition, fence), keys) in lost {
        let needs: Vec<Need> = keys.iter().map(|(_, key)| Need::Key(key.hash)).collect();
        let found = match ports.store.load(partition, fence, &needs).await {
            Ok(found) => found.rows,
            Err(error) => {
                tracing::debug!(%error, partition, "what was answered before can't be looked up now");
                keys.iter().for_each(|(place, _)| words[*place].0 = Word::NotYet);
                continue;
            }
        };
        for ((place, key), row) in keys.into_iter().zip(found) {
            if let Loaded::Key(_, Some(row)) = row
                && let Some(outcome) = as_again(&row, &key)
            {
                words[place].0 = Word::Said(outcome);
            }
        }
    }
    words.into_iter().map(|(word, _)| word).collect()
}

/// What the ledger says to a retry of what the key is of; that is told, for nobody knows any more which of them was the
/// first. None: the key is of another content, so what was said is not written down.
fn as_again(key: &Key, asked: &AskKey) -> Option<Outcome> {
    (key.body_hash == asked.body_hash).then_some(match key.refused {
        Some(code) => Outcome::RefusedBefore { code },
        None => Outcome::Duplicate { seq: key.seq, time: key.time },
    })
}

#[cfg(test)]
mod tests;
