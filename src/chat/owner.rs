//! The owner of partitions: reads the log in order, asks the ledger, archives, then answers and delivers (DESIGN 6.1).
//!
//! Whatever goes wrong here stops the partition or retries; it never skips a record and never answers one that the
//! ledger did not decide. Defeats S6 to S12 (seqs come from the log alone), S20 and S21 (ids are archived with it).

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tidegate_protocol::{
    id::{ConversationId, ConversationKind, UserId},
    machine::ledger::{Ledger, Need, Outcome, Stop},
    record::{Body, MemberAction, Position, Record, RecordError},
};
use tokio::{sync::mpsc, task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    answered::{Answered, Voice},
    deliver::Outbound,
    login,
    members::Members,
    progress::{self, Heard, Tracker},
    retention::{self, Sweeper},
    send, steps,
};
use crate::{
    bus::{Batch, Bounds, ReadError, TopicId},
    mail::ConnKey,
    metrics::Metrics,
    ports::Ports,
    routes::Route,
    store::{Fence, Scan, StoreError},
    trace,
};

/// Most records decided in one batch, and about the most bytes.
const BATCH_RECORDS: usize = 4_096;
const BATCH_BYTES: usize = 4 * 1024 * 1024;

/// Between two tries of a port that is away.
pub(super) const RETRY: Duration = Duration::from_millis(200);

/// Records back to which rows stay in memory after they are archived.
const KEEP_RECORDS: u64 = 200_000;

/// Rows looked at for eviction after each batch.
const EVICT_BUDGET: usize = 8_192;

/// Memberships read from the store at a time.
const MEMBERSHIP_PAGE: usize = 1_000;

/// What the owner is told by the configuration.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Groups up to this many members are tracked until acked.
    pub small_group_max: usize,
    /// How long messages and dedup keys are kept.
    pub retention: retention::Settings,
    /// A fault for tests: the owner panics at this message; empty = none.
    pub panic_on_msg_id: String,
}

/// Why an owner gave its partition up.
#[derive(Debug, thiserror::Error)]
pub(super) enum GivenUp {
    #[error("the ledger stopped: {0}")]
    Ledger(#[from] Stop),
    #[error("the log stopped: {0}")]
    Log(#[from] ReadError),
    #[error("the store stopped: {0}")]
    Store(StoreError),
    #[error(
        "LOG_REPLACED: the log is not the one that was archived; restore it, or start with an empty store"
    )]
    LogReplaced,
    #[error(
        "LOG_REPLACED: the log goes from {first} to {next} and was archived up to {archived}, so records between are \
         missing; restore it, or start with an empty store"
    )]
    RecordsMissing { first: u64, next: u64, archived: u64 },
    /// By whoever assigned it.
    #[error("it was asked back")]
    Asked,
}

/// One partition in one owner's hands.
pub(super) struct Owner {
    partition: u32,
    fence: Fence,
    topic: TopicId,
    ledger: Ledger,
    members: Members,
    ports: Arc<Ports>,
    settings: Settings,
    progress: Tracker,
    /// None = there are no other nodes that would ask again.
    voice: Option<Voice>,
    metrics: Metrics,
}

/// Between two looks at whether the store still is where the owner left it. A store that was put back to an older state shows
/// too little until its owner notices, which need not wait for a next record.
const LOOK_EVERY: Duration = Duration::from_secs(3);

/// What an owner does next.
enum Step {
    Look,
    Logins(Vec<(ConnKey, Route)>),
    Read(Result<Batch, ReadError>),
}

/// A record with what the ledger said of it.
type Decided = (Record, Outcome);

impl Owner {
    pub(super) async fn take_over(
        partition: u32,
        ports: &Arc<Ports>,
        answered: Option<&Arc<Answered>>,
        settings: Settings,
        metrics: &Metrics,
    ) -> Result<Self, GivenUp> {
        let bounds = ports.bus.bounds(partition).await?;
        let fence = Fence(rand::random());
        let taken = retry(|| ports.store.take_over(partition, fence, bounds.topic)).await?;
        // Retention took everything that is archived, and no more: there is nothing to compare, and nothing missing.
        let forgotten = taken.position.offset > 0 && bounds.first == taken.position.offset;
        let last = match taken.position.offset.checked_sub(1) {
            _ if forgotten => None,
            Some(offset) => match ports.bus.read(partition, offset, 1, 1).await {
                Err(ReadError::OutOfRange(bounds)) => {
                    return Err(missing(bounds, taken.position.offset));
                }
                read => read?.records.into_iter().next(),
            },
            None => None,
        };
        if !forgotten && !taken.position.matches(last.as_ref().map(|record| &record.bytes[..])) {
            return Err(GivenUp::LogReplaced);
        }
        let mut ledger = Ledger::resume(taken.position, taken.rules, rand::random());
        // Without a window every unknown key is looked up when it matters: there is no use in loading them first.
        if taken.rules.dedup_window > 0 {
            let from = taken.position.offset.saturating_sub(KEEP_RECORDS);
            let keys = Scan::Keys { from, after: None, limit: usize::MAX };
            let keys = retry(|| ports.store.scan(partition, fence, &keys)).await?;
            ledger.load(keys.position, keys.rows)?;
            ledger.keys_complete_from(from);
        }
        tracing::info!(partition, offset = taken.position.offset, "took a partition over");
        let next = taken.position.offset;
        let voice = answered.map(|answered| Voice::begin(answered, partition, fence, next));
        let progress = Tracker::begin(partition, &ports.owned, taken.position.offset, bounds.next);
        Ok(Self {
            partition,
            fence,
            topic: bounds.topic,
            ledger,
            members: Members::default(),
            ports: Arc::clone(ports),
            settings,
            progress,
            voice,
            metrics: metrics.clone(),
        })
    }

    /// Reads on until the partition is given up, by its own need or because `stopping` says so.
    pub(super) async fn run(
        mut self,
        logins: &mut Option<mpsc::Receiver<Vec<(ConnKey, Route)>>>,
        out: &mut Outbound,
        stopping: &CancellationToken,
    ) -> GivenUp {
        let ports = Arc::clone(&self.ports);
        // Ends with this, whichever way.
        let mut sweeper = JoinSet::new();
        sweeper.spawn(self.sweep());
        let mut looks = tokio::time::interval_at(Instant::now() + LOOK_EVERY, LOOK_EVERY);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        sweeper.spawn(progress::watch_end(self.partition, Arc::clone(&ports)));
        loop {
            let next = self.ledger.next_offset();
            let step = async {
                tokio::select! {
                    Some(batch) = next_logins(logins) => Step::Logins(batch),
                    _ = looks.tick() => Step::Look,
                    batch = ports.bus.read(self.partition, next, BATCH_RECORDS, BATCH_BYTES) => Step::Read(batch),
                }
            };
            let step = tokio::select! {
                biased;
                // Everything decided is archived and told.
                () = stopping.cancelled() => return GivenUp::Asked,
                step = step => step,
            };
            let done = match step {
                Step::Look => self.look().await,
                Step::Logins(batch) => self.answer_logins(batch, out).await,
                Step::Read(Ok(batch)) => self.decide(batch, out).await,
                Step::Read(Err(ReadError::Unavailable(error))) => {
                    tracing::warn!(error, "the log can't be read now");
                    tokio::time::sleep(RETRY).await;
                    Ok(())
                }
                Step::Read(Err(ReadError::OutOfRange(bounds))) => Err(missing(bounds, next)),
                Step::Read(Err(error)) => Err(error.into()),
            };
            if let Err(error) = done {
                return error;
            }
        }
    }

    /// Whether the store is where it was left, and still this owner's. One that does not answer now is asked again.
    async fn look(&mut self) -> Result<(), GivenUp> {
        match self.ports.store.load(self.partition, self.fence, &[]).await {
            Ok(rows) => Ok(self.ledger.load(rows.position, [])?),
            Err(StoreError::Unavailable(_) | StoreError::Unknown(_)) => Ok(()),
            Err(error) => Err(GivenUp::Store(error)),
        }
    }

    fn sweep(&self) -> impl Future<Output = ()> + Send + use<> {
        let (ports, metrics) = (Arc::clone(&self.ports), Some(self.metrics.clone()));
        let (partition, fence, settings) = (self.partition, self.fence, self.settings.retention);
        let rules = self.ledger.rules();
        async move {
            let (bus, store) = (&*ports.bus, &*ports.store);
            Sweeper { partition, fence, bus, store, settings, rules, metrics }.run().await;
        }
    }

    /// Runs the ledger over a batch, archives the outcome, then tells everybody concerned.
    async fn decide(&mut self, batch: Batch, out: &mut Outbound) -> Result<(), GivenUp> {
        if batch.bounds.topic != self.topic {
            return Err(GivenUp::LogReplaced);
        }
        let mut decided: Vec<Decided> = Vec::with_capacity(batch.records.len());
        let mut records = Vec::with_capacity(batch.records.len());
        let mut needs = BTreeSet::new();
        let mut to = None;
        let mut heard = Heard::of(batch.bounds);
        for record in batch.records {
            to = Some(Position::behind(record.offset, &record.bytes));
            let bytes = record.bytes.len();
            let decoded = Record::decode(record.bytes);
            heard.record(bytes, decoded.as_ref().map(|record| record.received_at).ok());
            if let Ok(decoded) = &decoded {
                self.ledger.needs(decoded, &mut needs);
            }
            records.push((record.offset, decoded));
        }
        self.progress.read(&heard, (self.settings.retention.wall_ms)());
        self.load(needs).await?;
        if out.has_reach() {
            self.read_members(&records).await?;
        }
        for (offset, record) in records {
            match record {
                Ok(record) => {
                    if cfg!(debug_assertions) && send::is_message(&record, &self.settings.panic_on_msg_id) {
                        panic!("a fault injected by fault.panic_on_msg_id in fault.panic_in=owner");
                    }
                    let outcome = self.apply(offset, &record).await?;
                    decided.push((record, outcome));
                }
                Err(error) => {
                    // A poison record voids only itself; nobody waits for its answer.
                    self.metrics.quarantined.increment(1);
                    tracing::error!(%error, offset, partition = self.partition, "a record can't be decoded");
                    self.ledger.skip(offset)?;
                }
            }
        }
        steps::note(&self.ports.trace, &decided, trace::Step::Decided, self.partition);
        if let Some(to) = to {
            self.archive(to).await?;
            self.progress.archived(to.offset, &heard, (self.settings.retention.wall_ms)());
        }
        steps::note(&self.ports.trace, &decided, trace::Step::Archived, self.partition);
        for (record, outcome) in &decided {
            self.tell(record, *outcome, out).await?;
        }
        if let Some(voice) = &self.voice {
            voice.said(&decided, self.ledger.next_offset());
        }
        out.flush().await;
        self.members.trim();
        self.ledger.evict(self.ledger.next_offset().saturating_sub(KEEP_RECORDS), EVICT_BUDGET);
        Ok(())
    }

    async fn apply(&mut self, offset: u64, record: &Record) -> Result<Outcome, GivenUp> {
        loop {
            match self.ledger.apply(offset, record) {
                Err(Stop::Missing) => {
                    let mut needs = BTreeSet::new();
                    self.ledger.needs(record, &mut needs);
                    self.load(needs).await?;
                }
                other => return Ok(other?),
            }
        }
    }

    async fn load(&mut self, needs: BTreeSet<Need>) -> Result<(), GivenUp> {
        if needs.is_empty() {
            return Ok(());
        }
        let needs: Vec<Need> = needs.into_iter().collect();
        let store = &self.ports.store;
        let rows = retry(|| store.load(self.partition, self.fence, &needs)).await?;
        Ok(self.ledger.load(rows.position, rows.rows)?)
    }

    async fn archive(&mut self, to: Position) -> Result<(), GivenUp> {
        let delta = self.ledger.take_delta(to)?;
        let store = &self.ports.store;
        retry(|| store.archive(self.partition, self.fence, &delta)).await?;
        self.ledger.archived(to)?;
        if let Err(error) = self.ports.bus.trim(self.partition, to.offset).await {
            tracing::debug!(%error, "the log keeps what is archived for now");
        }
        Ok(())
    }

    /// As they are before the batch: from there on each change moves them on.
    async fn read_members(&mut self, records: &[(u64, Result<Record, RecordError>)]) -> Result<(), GivenUp> {
        for record in records.iter().filter_map(|(_, record)| record.as_ref().ok()) {
            let Some(group) = record.conversation() else { continue };
            if matches!(group.kind(), ConversationKind::Group(_)) {
                while let Err(error) = self.members.read(&*self.ports.store, group).await {
                    wait_for_store(error).await?;
                }
            }
        }
        Ok(())
    }

    async fn tell(&mut self, record: &Record, outcome: Outcome, out: &mut Outbound) -> Result<(), GivenUp> {
        match outcome {
            Outcome::Accepted { seq, .. } => {
                self.metrics.accepts.increment(1);
                self.deliver(record, seq, out).await?;
            }
            Outcome::Duplicate { .. } => self.metrics.duplicates.increment(1),
            Outcome::Refused { .. } | Outcome::RefusedBefore { .. } => self.metrics.refusals.increment(1),
            Outcome::Void { .. } | Outcome::Noted => {}
        }
        out.outcome(record, outcome);
        steps::note_answer(&self.ports.trace, record, outcome);
        Ok(())
    }

    async fn deliver(&mut self, record: &Record, seq: u64, out: &mut Outbound) -> Result<(), GivenUp> {
        let Some(conversation) = record.conversation() else { return Ok(()) };
        if matches!(record.body, Body::Prune(_) | Body::Rules(_)) {
            return Ok(());
        }
        let tracked = self.is_small(conversation, out).await?;
        let named = match &record.body {
            _ if !out.has_reach() => None,
            Body::Member(change) => Some(self.members.change(change)),
            _ => Some(self.members.of(conversation)),
        };
        match &record.body {
            Body::Message(message) => out.message(record, message, seq, tracked, named.as_ref()),
            Body::Member(change) => {
                out.change(record, change, seq, tracked, named.as_ref());
                if change.action == MemberAction::Delete {
                    self.part_all(conversation, out).await?;
                }
            }
            Body::Recall(recall) => out.recall(record, recall, seq, tracked, named.as_ref()),
            Body::Prune(_) | Body::Rules(_) => {}
        }
        Ok(())
    }

    /// Direct conversations and small groups are tracked until acked.
    async fn is_small(&self, conversation: &ConversationId, out: &Outbound) -> Result<bool, GivenUp> {
        let max = self.settings.small_group_max;
        match conversation.kind() {
            ConversationKind::Direct(..) => Ok(true),
            ConversationKind::Room(_) => Ok(false),
            ConversationKind::Group(_) if out.has_reach() => Ok(self.members.is_small(conversation, max)),
            ConversationKind::Group(_) => {
                let store = &self.ports.store;
                let summary = retry(|| store.summary(conversation, None)).await?;
                Ok(summary.is_none_or(|summary| summary.members <= max as u64))
            }
        }
    }

    async fn part_all(&self, conversation: &ConversationId, out: &mut Outbound) -> Result<(), GivenUp> {
        let store = &self.ports.store;
        let mut after: Option<UserId> = None;
        loop {
            let page = retry(|| store.members(conversation, after.as_ref(), MEMBERSHIP_PAGE)).await?;
            let Some((last, _)) = page.last() else { return Ok(()) };
            after = Some(last.clone());
            out.part(conversation, page.into_iter().map(|(user, _)| user).collect());
        }
    }

    /// The groups of users who log in, as of everything decided so far (DESIGN 6.4, reader at login).
    async fn answer_logins(&self, logins: Vec<(ConnKey, Route)>, out: &mut Outbound) -> Result<(), GivenUp> {
        for (key, route) in logins {
            let groups = retry(|| login::groups_of(&*self.ports.store, &route.user)).await?;
            out.memberships(key, groups).await;
        }
        Ok(())
    }
}

/// The log does not go on where it was archived to.
fn missing(Bounds { first, next, .. }: Bounds, archived: u64) -> GivenUp {
    GivenUp::RecordsMissing { first, next, archived }
}

/// The next users who log in; never, where they are none of an owner's.
async fn next_logins(
    logins: &mut Option<mpsc::Receiver<Vec<(ConnKey, Route)>>>,
) -> Option<Vec<(ConnKey, Route)>> {
    match logins {
        Some(logins) => logins.recv().await,
        None => std::future::pending().await,
    }
}

/// Calls the store until it answers; what can't be mended by waiting ends the ownership.
async fn retry<T, F>(mut call: impl FnMut() -> F) -> Result<T, GivenUp>
where
    F: Future<Output = Result<T, StoreError>>,
{
    loop {
        match call().await {
            Ok(done) => return Ok(done),
            Err(error) => wait_for_store(error).await?,
        }
    }
}

async fn wait_for_store(error: StoreError) -> Result<(), GivenUp> {
    match error {
        StoreError::Unavailable(_) | StoreError::Unknown(_) => {
            tracing::warn!(%error, "waiting for the store");
            tokio::time::sleep(RETRY).await;
            Ok(())
        }
        StoreError::LogReplaced(_) => Err(GivenUp::LogReplaced),
        other => Err(GivenUp::Store(other)),
    }
}
