//! Answer cache: recent outcomes of this node's owners, for origins that query again because a reply was lost.
//!
//! An outcome is kept for as long as a client waits for its reply (SPEC, section 4). The store has those of earlier
//! owners, by dedup key.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    hash::BuildHasher as _,
    sync::Arc,
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use std::hash::RandomState;
use tidegate_protocol::{
    machine::ledger::{Key, Loaded, Need, Outcome},
    record::{Origin, Record},
};
use tokio::time::Instant;

use crate::{
    cluster::Cluster,
    link::{AnswerStatus, Ask, AskKey},
    routes::NodeBoot,
    store::Fence,
};

/// Retention of an outcome: longer than a client waits for its reply (5 s).
const ANSWER_RETENTION: Duration = Duration::from_secs(6);

/// Outcomes kept per partition; beyond that, the oldest are dropped.
const ANSWERS_MAX: usize = 1 << 15;

/// Recent outcomes of all owners of a node.
#[derive(Default)]
pub struct AnswerCache {
    partitions: Mutex<HashMap<u32, PartitionAnswers>>,
    hasher: RandomState,
}

/// Origin of a record: hash of the node's run, connection, request.
type OriginKey = (u64, u64, u64);

/// Recent outcomes of the owner of one partition.
struct PartitionAnswers {
    fence: Fence,
    /// Offset below which every record is published.
    next: u64,
    outcomes: HashMap<OriginKey, Outcome, RandomState>,
    order: VecDeque<(Instant, OriginKey)>,
}

impl AnswerCache {
    fn begin(&self, partition: u32, fence: Fence, next: u64) {
        let answers = PartitionAnswers { fence, next, outcomes: HashMap::default(), order: VecDeque::new() };
        self.partitions().insert(partition, answers);
    }

    fn end(&self, partition: u32, fence: Fence) {
        let mut partitions = self.partitions();
        if partitions.get(&partition).is_some_and(|answers| answers.fence == fence) {
            partitions.remove(&partition);
        }
    }

    fn record(&self, partition: u32, fence: Fence, decided: &[(Record, Outcome)], next: u64) {
        let now = Instant::now();
        let mut partitions = self.partitions();
        // A successor on this node may have replaced the entry.
        let Some(answers) = partitions.get_mut(&partition).filter(|it| it.fence == fence) else { return };
        answers.next = next;
        for (record, outcome) in decided {
            let Origin { node, boot, conn, request } = &record.origin;
            let key = (self.hasher.hash_one((node, boot)), *conn, *request);
            answers.outcomes.insert(key, *outcome);
            answers.order.push_back((now, key));
        }
        answers.forget(now);
    }

    /// Looks each query up in memory, with the fence of its partition; `None` if no local owner has the partition.
    fn lookup(&self, from: &NodeBoot, asks: &[Ask]) -> Vec<(AnswerStatus, Option<Fence>)> {
        let run = self.hasher.hash_one((&from.node, &from.boot));
        let partitions = self.partitions();
        let status = |ask: &Ask| {
            let Some(answers) = partitions.get(&ask.partition) else { return (AnswerStatus::NotOwner, None) };
            let status = match answers.outcomes.get(&(run, ask.conn, ask.request)) {
                Some(outcome) => AnswerStatus::Answered(*outcome),
                None if ask.offset >= answers.next => AnswerStatus::NotYet,
                None => AnswerStatus::Forgotten,
            };
            (status, Some(answers.fence))
        };
        asks.iter().map(status).collect()
    }

    fn partitions(&self) -> MutexGuard<'_, HashMap<u32, PartitionAnswers>> {
        self.partitions.lock()
    }
}

impl PartitionAnswers {
    fn forget(&mut self, now: Instant) {
        while let Some((_, key)) =
            self.order.pop_front_if(|(since, _)| now.saturating_duration_since(*since) >= ANSWER_RETENTION)
        {
            self.outcomes.remove(&key);
        }
        while self.order.len() > ANSWERS_MAX
            && let Some((_, key)) = self.order.pop_front()
        {
            self.outcomes.remove(&key);
        }
        if self.order.is_empty() {
            (self.outcomes, self.order) = (HashMap::default(), VecDeque::new());
        }
    }
}

/// Writer of one owner's outcomes, for as long as it owns the partition.
pub(crate) struct AnswerLog {
    cache: Arc<AnswerCache>,
    partition: u32,
    fence: Fence,
}

impl AnswerLog {
    /// Starts the log of an owner that begins at `next`.
    pub(crate) fn begin(cache: &Arc<AnswerCache>, partition: u32, fence: Fence, next: u64) -> Self {
        cache.begin(partition, fence, next);
        Self { cache: Arc::clone(cache), partition, fence }
    }

    /// Records outcomes that were published; every record below `next` is published too.
    pub(crate) fn record(&self, decided: &[(Record, Outcome)], next: u64) {
        self.cache.record(self.partition, self.fence, decided, next);
    }
}

impl Drop for AnswerLog {
    fn drop(&mut self) {
        self.cache.end(self.partition, self.fence);
    }
}

/// Replies to each query of that node's run, in order. Outcomes that memory lacks are read from the store, once per
/// partition and under its fence: a store that belongs to another owner by now gives no valid answer.
pub(crate) async fn words(
    cache: &Arc<AnswerCache>,
    cluster: &Cluster,
    from: &NodeBoot,
    asks: &[Ask],
) -> Vec<AnswerStatus> {
    let mut answers: Vec<(AnswerStatus, Option<Fence>)> = cache.lookup(from, asks);
    // Ordered, so that a simulation seed reproduces a run.
    let mut forgotten: BTreeMap<(u32, Fence), Vec<(usize, AskKey)>> = BTreeMap::new();
    for (index, ((status, fence), ask)) in answers.iter().zip(asks).enumerate() {
        if let (AnswerStatus::Forgotten, Some(fence), Some(key)) = (status, fence, ask.key) {
            forgotten.entry((ask.partition, *fence)).or_default().push((index, key));
        }
    }
    for ((partition, fence), keys) in forgotten {
        let needs: Vec<Need> = keys.iter().map(|(_, key)| Need::Key(key.hash)).collect();
        let found = match cluster.ports.store.load(partition, fence, &needs).await {
            Ok(found) => found.rows,
            Err(error) => {
                tracing::debug!(%error, partition, "lookup of earlier outcomes failed; the origin queries again");
                keys.iter().for_each(|(index, _)| answers[*index].0 = AnswerStatus::NotYet);
                continue;
            }
        };
        for ((index, key), row) in keys.into_iter().zip(found) {
            if let Loaded::Key(_, Some(row)) = row
                && let Some(outcome) = retry_outcome(&row, &key)
            {
                answers[index].0 = AnswerStatus::Answered(outcome);
            }
        }
    }
    answers.into_iter().map(|(status, _)| status).collect()
}

/// Returns the outcome that the ledger gives a retry with this key; which attempt was first is no longer known. `None`
/// if the key belongs to other content: its first outcome is not stored.
fn retry_outcome(key: &Key, query: &AskKey) -> Option<Outcome> {
    (key.body_hash == query.body_hash).then_some(match key.refused {
        Some(code) => Outcome::RefusedBefore { code },
        None => Outcome::Duplicate { seq: key.seq, time: key.time },
    })
}

#[cfg(test)]
mod tests;
