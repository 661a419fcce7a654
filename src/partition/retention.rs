//! Retention: what is older than a conversation keeps goes, and dedup keys older than any retry (DESIGN 1.2, 6.1).
//!
//! The owner looks at times and appends what follows as records, `Prune` and `Rules`; only those records act, so every
//! owner forgets the same. A look costs one read a conversation that does not keep for ever, and a page of what goes.

use std::time::Duration;

use bytes::Bytes;
use tidegate_protocol::{
    id::{ConversationId, ConversationKind, NodeId},
    machine::ledger::{Head, Loaded},
    record::{Body, Origin, Prune, Record, RuleChange, Rules},
    settings::Retention,
};

use tokio::sync::watch;

use crate::{
    bus::{AppendError, Bus},
    ingest::intake::partition_of,
    metrics::Metrics,
    store::{Direction, Fence, PageQuery, Scan, Store, StoreError},
};

/// The setting of a group that says how long it keeps its messages.
pub const SETTING: &str = "retention";

/// Conversations looked at in a turn, and keys.
const HEADS: usize = 256;
const KEYS: usize = 4_096;

/// Rows that one `Prune` takes at most: its archive must not keep sends waiting.
pub(crate) const ROWS: usize = 1_000;
const ROWS_BYTES: usize = 4 << 20;

/// Keys are looked through this often, about: a key lives up to this much longer than it must.
const KEYS_EVERY: Duration = Duration::from_secs(86_400);

const HOUR_MS: u64 = 3_600_000;

/// How long a conversation keeps its messages, by the broker's receive time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// `none`: for an hour, so that who is away for a moment still gets them.
    Hour,
    /// `1d`, `7d`, `30d`.
    Days(u64),
    /// `forever`.
    Forever,
}

impl Keep {
    /// Reads `none`, `1d`, `7d`, `30d` or `forever`.
    pub fn parse(text: &str) -> Option<Self> {
        Some(match Retention::from_word(text)? {
            Retention::None => Self::Hour,
            Retention::OneDay => Self::Days(1),
            Retention::SevenDays => Self::Days(7),
            Retention::ThirtyDays => Self::Days(30),
            Retention::Forever => Self::Forever,
        })
    }

    /// What holds in a conversation: the group's own setting where it has a valid one, or else the node's.
    pub fn of(conversation: &ConversationId, head: &Head, node: Self) -> Self {
        match conversation.kind() {
            ConversationKind::Group(_) => {
                head.settings.get(SETTING).and_then(|text| Self::parse(text)).unwrap_or(node)
            }
            ConversationKind::Direct(..) | ConversationKind::Room(_) => node,
        }
    }

    const fn ms(self) -> Option<u64> {
        match self {
            Self::Hour => Some(HOUR_MS),
            Self::Days(days) => Some(days * 24 * HOUR_MS),
            Self::Forever => None,
        }
    }

    /// Whether the round is one in which such conversations are looked at: a message goes late by at most a 60th.
    fn is_due(self, round: u64, every: Duration) -> bool {
        let ms = self.ms().unwrap_or(u64::MAX);
        let rounds = ms / 60 / u64::try_from(every.as_millis()).unwrap_or(u64::MAX).max(1);
        round.is_multiple_of(rounds.max(1))
    }
}

/// How an owner looks after retention.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// What holds where no group says otherwise.
    pub node: Keep,
    /// Between two rounds.
    pub every: Duration,
    /// Dedup keys live at least this long.
    pub keys: Duration,
    /// The wall clock, in ms since 1970.
    pub wall_ms: fn() -> u64,
}

/// Looks after the retention of one partition, for as long as its owner has it.
pub(crate) struct Sweeper<'a> {
    pub(crate) partition: u32,
    pub(crate) fence: Fence,
    pub(crate) bus: &'a dyn Bus,
    pub(crate) store: &'a dyn Store,
    pub(crate) settings: Settings,
    /// Those in force, as the owner has them.
    pub(crate) rules: watch::Receiver<Rules>,
    /// What was asked for last, and may not be in force yet.
    pub(crate) keys_from: u64,
    pub(crate) metrics: Option<Metrics>,
}

/// Why a round was not finished; the next one does it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unfinished {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Log(#[from] AppendError),
}

impl Sweeper<'_> {
    /// Until another owner has the partition.
    pub(crate) async fn run(mut self) {
        let start = tokio::time::Instant::now() + self.settings.every;
        let mut tick = tokio::time::interval_at(start, self.settings.every);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        for round in 0_u64.. {
            tick.tick().await;
            match self.round(round).await {
                Err(Unfinished::Store(StoreError::Fenced)) => return,
                Err(error) => {
                    tracing::warn!(%error, partition = self.partition, "retention waits for the next round")
                }
                Ok(()) => {}
            }
        }
    }

    /// One look at everything that is due.
    pub(crate) async fn round(&mut self, round: u64) -> Result<(), Unfinished> {
        let mut after = None;
        // What keeps as long as the node says is looked at when that is due; else only groups that may say otherwise.
        let node = self.settings.node;
        let with_settings = node.ms().is_none() || !node.is_due(round, self.settings.every);
        loop {
            let scan = Scan::Heads { after, limit: HEADS, with_settings };
            let page = self.store.scan(self.partition, self.fence, &scan).await?.rows;
            let whole = page.len() < HEADS;
            after = None;
            for row in page {
                if let Loaded::Head(id, Some(head)) = row {
                    self.look_at(&id, &head, round).await?;
                    after = Some(id);
                }
            }
            if whole || after.is_none() {
                break;
            }
        }
        if self.keys_are_due(round) {
            self.forget_keys().await?;
        }
        Ok(())
    }

    /// Once a day, in a round that the owner's fence draws: partitions that were taken over together are not looked through
    /// together, and one that moves often is looked through as often as any other.
    fn keys_are_due(&self, round: u64) -> bool {
        let rounds = (KEYS_EVERY.as_millis() / self.settings.every.as_millis().max(1)).max(1);
        u128::from(round) % rounds == self.fence.0 % rounds
    }

    async fn look_at(&self, id: &ConversationId, head: &Head, round: u64) -> Result<(), Unfinished> {
        let keep = Keep::of(id, head, self.settings.node);
        let mine = partition_of(id, self.bus.partitions()) == self.partition;
        let Some(ms) = keep.ms().filter(|_| mine && keep.is_due(round, self.settings.every)) else {
            return Ok(());
        };
        let before = (self.settings.wall_ms)().saturating_sub(ms);
        let mut cursor = head.pruned_to;
        // A first look at one row: most have nothing to give.
        let mut limit = 1;
        while cursor < head.last_seq {
            let query = PageQuery { cursor, direction: Direction::Forward, limit, max_bytes: ROWS_BYTES };
            let rows = self.store.page(id, query).await?.rows;
            // Up to the first that is young enough, whatever the clocks of those behind it said.
            let old = rows.iter().take_while(|stored| stored.row.time < before);
            let (count, up_to) = old.fold((0, cursor), |(count, _), stored| (count + 1, stored.row.seq));
            if limit > 1 && up_to > cursor {
                self.append(Body::Prune(Prune { conversation: id.clone(), up_to })).await?;
                if let Some(metrics) = &self.metrics {
                    metrics.expired.increment(count);
                }
            }
            if count < rows.len() as u64 || rows.is_empty() {
                return Ok(());
            }
            if limit > 1 {
                cursor = up_to;
            }
            limit = ROWS;
        }
        Ok(())
    }

    /// Finds the oldest record of which a key is still needed; by each key's own time, so that no clock that was set
    /// back makes one go too early.
    async fn forget_keys(&mut self) -> Result<(), Unfinished> {
        let keep = u64::try_from(self.settings.keys.as_millis()).unwrap_or(u64::MAX);
        let Some(before) = (self.settings.wall_ms)().checked_sub(keep) else { return Ok(()) };
        let known = self.rules.borrow().keys_from.max(self.keys_from);
        let (mut after, mut from) = (None, None);
        loop {
            let scan = Scan::Keys { from: known, after, limit: KEYS };
            let page = self.store.scan(self.partition, self.fence, &scan).await?;
            // Keys that come meanwhile are of records behind this place.
            let mut oldest = from.unwrap_or(page.position.offset);
            let whole = page.rows.len() < KEYS;
            for row in page.rows {
                if let Loaded::Key(hash, Some(key)) = row {
                    after = Some(hash);
                    if key.time >= before {
                        oldest = oldest.min(key.offset);
                    }
                }
            }
            from = Some(oldest);
            if whole {
                break;
            }
        }
        let keys_from = from.unwrap_or(0);
        if keys_from > known {
            let rules = *self.rules.borrow();
            // Version 1 knows no record without a window; from 2 on what is not named stays.
            let dedup_window = (rules.ledger_version < 2).then_some(rules.dedup_window);
            let change = RuleChange { ledger_version: rules.ledger_version, dedup_window, keys_from };
            self.append(Body::Rules(change)).await?;
            tracing::info!(partition = self.partition, keys_from, "old dedup keys are forgotten");
            self.keys_from = keys_from;
        }
        Ok(())
    }

    async fn append(&self, body: Body) -> Result<(), AppendError> {
        append(self.bus, self.partition, body, (self.settings.wall_ms)()).await
    }
}

/// Appends what an owner says of its own partition: nobody waits for the answer.
pub(crate) async fn append(bus: &dyn Bus, partition: u32, body: Body, now: u64) -> Result<(), AppendError> {
    let node = NodeId::new("-").map_err(|error| AppendError::Rejected(error.to_string()))?;
    let origin = Origin { node, boot: 0, conn: crate::ingest::admin::ADMIN_CONN, request: u64::MAX };
    let record: Bytes = Record { origin, received_at: now, body, trace: None }.encode();
    bus.append(partition, vec![record]).await.map(drop)
}

#[cfg(test)]
mod tests;
