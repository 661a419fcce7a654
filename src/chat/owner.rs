//! The owner of partitions: reads the log in order, asks the ledger, archives, then answers and delivers (DESIGN 6.1).
//!
//! Whatever goes wrong here stops the partition or retries; it never skips a record and never answers one that the
//! ledger did not decide. Defeats S6 to S12 (seqs come from the log alone), S20 and S21 (ids are archived with it).

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tidegate_protocol::{
    id::{ConversationId, ConversationKind, ID_BYTES_MAX, UserId},
    machine::{
        ledger::{Ledger, Need, Outcome, Stop},
        session::Answer,
    },
    record::{Body, MemberAction, Position, Record},
};
use tokio::{sync::mpsc, task::JoinSet};

use super::{
    deliver::Outbound,
    retention::{self, Sweeper},
    send,
};
use crate::{
    bus::{Batch, OwnershipEvent, ReadError, TopicId},
    mail::ConnKey,
    metrics::Metrics,
    ports::Ports,
    store::{Fence, Scan, StoreError},
};

/// Most records decided in one batch, and about the most bytes.
const BATCH_RECORDS: usize = 4_096;
const BATCH_BYTES: usize = 4 * 1024 * 1024;

/// Between two tries of a port that is away.
const RETRY: Duration = Duration::from_millis(200);

/// Records back to which rows stay in memory after they are archived.
const KEEP_RECORDS: u64 = 200_000;

/// Rows looked at for eviction after each batch.
const EVICT_BUDGET: usize = 8_192;

/// Memberships read from the store at a time.
const MEMBERSHIP_PAGE: usize = 1_000;

/// Said with the refusal of an id that was refused before, though it might be allowed now.
const REFUSED_BEFORE: &str =
    "this id was refused before, and its chain went on: send the content under a new id";

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
enum GivenUp {
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
}

/// One partition in one owner's hands.
struct Owner {
    partition: u32,
    fence: Fence,
    topic: TopicId,
    ledger: Ledger,
    ports: Arc<Ports>,
    settings: Settings,
    metrics: Metrics,
}

/// A record with what the ledger said of it.
type Decided = (Record, Outcome);

/// Owns what the bus assigns. Profile `single` has one partition, whose owner also answers logins, in log order.
pub async fn own_all(
    ports: Arc<Ports>,
    mut logins: mpsc::Receiver<Vec<(ConnKey, UserId)>>,
    mut out: Outbound,
    settings: Settings,
    metrics: Metrics,
) {
    let mut ownership = loop {
        match ports.bus.join(&ports.me).await {
            Ok(ownership) => break ownership,
            Err(error) => {
                tracing::warn!(%error, "the owners could not be joined");
                tokio::time::sleep(RETRY).await;
            }
        }
    };
    while let Some(event) = ownership.next().await {
        let OwnershipEvent::Assigned(partition) = event else { continue };
        let error = match Owner::take_over(partition, &ports, settings.clone(), &metrics).await {
            Ok(owner) => Box::pin(owner.run(&mut logins, &mut out)).await,
            Err(error) => error,
        };
        tracing::error!(%error, partition, "a partition was given up: its conversations take no messages");
        ownership.release(partition).await;
        // Nobody else could take it: the node ends, and says so (`Node::broken`).
        return;
    }
}

impl Owner {
    async fn take_over(
        partition: u32,
        ports: &Arc<Ports>,
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
            Some(offset) => ports.bus.read(partition, offset, 1, 1).await?.records.into_iter().next(),
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
        Ok(Self {
            partition,
            fence,
            topic: bounds.topic,
            ledger,
            ports: Arc::clone(ports),
            settings,
            metrics: metrics.clone(),
        })
    }

    async fn run(
        mut self,
        logins: &mut mpsc::Receiver<Vec<(ConnKey, UserId)>>,
        out: &mut Outbound,
    ) -> GivenUp {
        let ports = Arc::clone(&self.ports);
        // Ends with this, whichever way.
        let mut sweeper = JoinSet::new();
        sweeper.spawn(self.sweep());
        loop {
            let next = self.ledger.next_offset();
            tokio::select! {
                Some(batch) = logins.recv() => {
                    if let Err(error) = self.answer_logins(batch, out).await {
                        return error;
                    }
                }
                batch = ports.bus.read(self.partition, next, BATCH_RECORDS, BATCH_BYTES) => {
                    let result = match batch {
                        Ok(batch) => self.decide(batch, out).await,
                        Err(ReadError::Unavailable(error)) => {
                            tracing::warn!(error, "the log can't be read now");
                            tokio::time::sleep(RETRY).await;
                            Ok(())
                        }
                        Err(error) => Err(error.into()),
                    };
                    if let Err(error) = result {
                        return error;
                    }
                }
            }
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
        for record in batch.records {
            to = Some(Position::behind(record.offset, &record.bytes));
            let decoded = Record::decode(record.bytes);
            if let Ok(decoded) = &decoded {
                self.ledger.needs(decoded, &mut needs);
            }
            records.push((record.offset, decoded));
        }
        self.load(needs).await?;
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
        if let Some(to) = to {
            self.archive(to).await?;
        }
        for (record, outcome) in &decided {
            self.tell(record, *outcome, out).await?;
        }
        out.flush().await;
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

    async fn tell(&mut self, record: &Record, outcome: Outcome, out: &mut Outbound) -> Result<(), GivenUp> {
        let answer = match outcome {
            Outcome::Accepted { seq, time, .. } => {
                self.metrics.accepts.increment(1);
                self.deliver(record, seq, out).await?;
                Answer::Accepted { seq, time }
            }
            Outcome::Duplicate { seq, time } => {
                self.metrics.duplicates.increment(1);
                Answer::Duplicate { seq, time }
            }
            Outcome::Refused { code } => {
                self.metrics.refusals.increment(1);
                Answer::Refused { code, message: "".into() }
            }
            Outcome::RefusedBefore { code } => {
                self.metrics.refusals.increment(1);
                Answer::Refused { code, message: REFUSED_BEFORE.into() }
            }
            // A newer connection of the device has spoken: this one must come back with a newer epoch.
            Outcome::Void { .. } => Answer::AppendFailed,
            Outcome::Noted => return Ok(()),
        };
        out.answer(record, answer);
        Ok(())
    }

    async fn deliver(&self, record: &Record, seq: u64, out: &mut Outbound) -> Result<(), GivenUp> {
        match &record.body {
            Body::Message(message) => {
                let tracked = self.is_small(&message.conversation).await?;
                out.message(record, message, seq, tracked);
            }
            Body::Member(change) => {
                let tracked = self.is_small(&change.conversation).await?;
                out.change(record, change, seq, tracked);
                if change.action == MemberAction::Delete {
                    self.part_all(&change.conversation, out).await?;
                }
            }
            Body::Recall(recall) => {
                let tracked = self.is_small(&recall.conversation).await?;
                out.recall(record, recall, seq, tracked);
            }
            Body::Prune(_) | Body::Rules(_) => {}
        }
        Ok(())
    }

    /// Direct conversations and small groups are tracked until acked.
    async fn is_small(&self, conversation: &ConversationId) -> Result<bool, GivenUp> {
        match conversation.kind() {
            ConversationKind::Direct(..) => Ok(true),
            ConversationKind::Room(_) => Ok(false),
            ConversationKind::Group(_) => {
                let store = &self.ports.store;
                let summary = retry(|| store.summary(conversation, None)).await?;
                Ok(summary.is_none_or(|summary| summary.members <= self.settings.small_group_max as u64))
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
    async fn answer_logins(&self, logins: Vec<(ConnKey, UserId)>, out: &mut Outbound) -> Result<(), GivenUp> {
        for (key, user) in logins {
            let groups = self.groups_of(&user).await?;
            out.memberships(key, groups).await;
        }
        Ok(())
    }

    async fn groups_of(&self, user: &UserId) -> Result<Vec<ConversationId>, GivenUp> {
        let store = &self.ports.store;
        let mut groups = Vec::new();
        // Direct conversations come first, may be thousands, and are none of this.
        let mut after = last_direct();
        loop {
            let page = retry(|| store.memberships(user, after.as_ref(), MEMBERSHIP_PAGE)).await?;
            let Some(last) = page.last() else { return Ok(groups) };
            after = Some(last.conversation.clone());
            let whole = page.len() < MEMBERSHIP_PAGE;
            let is_group = |id: &ConversationId| matches!(id.kind(), ConversationKind::Group(_));
            let mine =
                page.into_iter().filter(|row| row.standing.member.is_in() && row.head.deleted_seq == 0);
            groups.extend(mine.map(|row| row.conversation).filter(is_group));
            if whole {
                return Ok(groups);
            }
        }
    }
}

/// The last key that a direct conversation can have.
fn last_direct() -> Option<ConversationId> {
    let user = UserId::new(&"z".repeat(ID_BYTES_MAX)).ok()?;
    Some(ConversationId::direct(&user, &user))
}

/// Calls the store until it answers; what can't be mended by waiting ends the ownership.
async fn retry<T, F>(mut call: impl FnMut() -> F) -> Result<T, GivenUp>
where
    F: Future<Output = Result<T, StoreError>>,
{
    loop {
        match call().await {
            Err(error @ (StoreError::Unavailable(_) | StoreError::Unknown(_))) => {
                tracing::warn!(%error, "waiting for the store");
                tokio::time::sleep(RETRY).await;
            }
            Err(StoreError::LogReplaced(_)) => return Err(GivenUp::LogReplaced),
            other => return other.map_err(GivenUp::Store),
        }
    }
}
