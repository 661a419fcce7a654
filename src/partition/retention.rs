//! Retention: expires messages older than their conversation keeps them, and dedup keys older than any retry (ADR 6,
//! flaw S22).
//!
//! The owner compares times with its clock, which it checks ([`clock_check`]), and appends `Prune` and `Rules` records. Only those records take effect, so
//! every owner expires the same data. A round costs one read per conversation that expires messages, and one page per
//! conversation that has any to expire.

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
    bus::{AppendError, Bus, partition_of},
    fault::planted::{Planted, is_planted},
    metrics::Metrics,
    store::{Direction, FEED_TRIM_ROWS, FeedBounds, Fence, PageQuery, Scan, Store, StoreError},
};

mod clock_check;

use self::clock_check::ClockCheck;

/// Key of the group setting that overrides the node's retention.
pub const RETENTION_SETTING: &str = "retention";

const HEADS_PAGE_ROWS: usize = 256;
const KEYS_PAGE_ROWS: usize = 4_096;

/// Most rows that one `Prune` removes, so that its archive does not delay sends.
pub(crate) const PRUNE_ROWS_MAX: usize = 1_000;
const PRUNE_PAGE_BYTES_MAX: usize = 4 << 20;

/// Approximate interval between two checks of the dedup keys, by which a key may outlive its retention.
const KEYS_CHECK_INTERVAL: Duration = Duration::from_secs(86_400);

const HOUR_MS: u64 = 3_600_000;

/// Retention of a conversation's messages, by the broker's receive time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// One hour (`none`), so that a briefly offline user still gets a message.
    Hour,
    /// A number of days (`1d`, `7d` or `30d`).
    Days(u64),
    /// No expiry (`forever`).
    Forever,
}

impl Keep {
    /// Parses `none`, `1d`, `7d`, `30d` or `forever`.
    pub fn parse(text: &str) -> Option<Self> {
        Some(match Retention::from_word(text)? {
            Retention::None => Self::Hour,
            Retention::OneDay => Self::Days(1),
            Retention::SevenDays => Self::Days(7),
            Retention::ThirtyDays => Self::Days(30),
            Retention::Forever => Self::Forever,
        })
    }

    /// Returns the retention of a conversation: its group's valid setting, or else the node's.
    pub fn of(conversation: &ConversationId, head: &Head, node: Self) -> Self {
        match conversation.kind() {
            ConversationKind::Group(_) => {
                head.settings.get(RETENTION_SETTING).and_then(|text| Self::parse(text)).unwrap_or(node)
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

    /// Returns whether conversations with this retention are checked in this round. A message expires late by at most a
    /// 60th of its retention.
    fn is_due(self, round: u64, every: Duration) -> bool {
        let ms = self.ms().unwrap_or(u64::MAX);
        let rounds = ms / 60 / u64::try_from(every.as_millis()).unwrap_or(u64::MAX).max(1);
        round.is_multiple_of(rounds.max(1))
    }
}

/// Retention of the feed.
#[derive(Clone, Copy, Debug)]
pub struct FeedRetention {
    /// Time for which entries are kept, by their receive time.
    pub keep: Duration,
    /// Most bytes of the feeds of all partitions, which each have an equal share.
    pub bytes_max: u64,
}

/// Settings of retention, from the configuration.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Retention of conversations without a setting of their own.
    pub node: Keep,
    /// Interval between two rounds.
    pub every: Duration,
    /// Minimum lifetime of a dedup key.
    pub keys: Duration,
    /// Retention of the feed.
    pub feed: FeedRetention,
    /// Wall clock, in ms since 1970.
    pub wall_ms: fn() -> u64,
}

/// Enforces retention in one partition, for as long as its owner has it.
pub(crate) struct Sweeper<'a> {
    pub(crate) partition: u32,
    pub(crate) fence: Fence,
    pub(crate) bus: &'a dyn Bus,
    pub(crate) store: &'a dyn Store,
    pub(crate) settings: Settings,
    /// Rules in force, as published by the owner.
    pub(crate) rules: watch::Receiver<Rules>,
    /// Last `keys_from` that this sweeper appended; may not be in force yet.
    pub(crate) keys_from: u64,
    pub(crate) metrics: Option<Metrics>,
    /// Check of the clock, and whether it was reported that nothing expires.
    pub(crate) clock: ClockCheck,
    pub(crate) is_distrust_logged: bool,
}

/// Error that ended a round early; the next round catches up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SweepError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Log(#[from] AppendError),
}

impl Sweeper<'_> {
    /// Runs the rounds until another owner has the partition.
    pub(crate) async fn run(mut self) {
        let start = tokio::time::Instant::now() + self.settings.every;
        let mut tick = tokio::time::interval_at(start, self.settings.every);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        for round in 0_u64.. {
            tick.tick().await;
            match self.round(round).await {
                Err(SweepError::Store(StoreError::Fenced)) => return,
                Err(error) => {
                    tracing::warn!(%error, partition = self.partition, "retention round failed; next one retries")
                }
                Ok(()) => {}
            }
        }
    }

    /// Returns the time by which data may expire now, or `None` while the clock of this node is not trusted.
    async fn trusted_now(&mut self) -> Result<Option<u64>, SweepError> {
        let of_store = self.store.now_ms().await?;
        if is_planted(Planted::PruneByOneClock) {
            return Ok(Some((self.settings.wall_ms)()));
        }
        let now = self.clock.now((self.settings.wall_ms)(), of_store, tokio::time::Instant::now());
        if let Some(metrics) = &self.metrics {
            metrics.clock_distrusted.set(f64::from(u8::from(now.is_err())));
        }
        match now {
            Ok(now) => {
                self.is_distrust_logged = false;
                Ok(Some(now))
            }
            Err(error) => {
                if !std::mem::replace(&mut self.is_distrust_logged, true) {
                    tracing::error!(%error, partition = self.partition, "messages and dedup keys do not expire");
                }
                Ok(None)
            }
        }
    }

    /// Checks all conversations and keys that are due in this round.
    pub(crate) async fn round(&mut self, round: u64) -> Result<(), SweepError> {
        let now = self.trusted_now().await?;
        match self.trim_feed(now).await {
            // Messages and keys expire also while the feed can't be trimmed.
            Err(error) if !matches!(error, SweepError::Store(StoreError::Fenced)) => {
                tracing::warn!(%error, partition = self.partition, "the feed is not trimmed; it is tried again");
            }
            trimmed => trimmed?,
        }
        let Some(now) = now else { return Ok(()) };
        let mut after = None;
        // When the node's retention is not due, only groups with a setting of their own can be.
        let node = self.settings.node;
        let with_settings = node.ms().is_none() || !node.is_due(round, self.settings.every);
        loop {
            let scan = Scan::Heads { after, limit: HEADS_PAGE_ROWS, with_settings };
            let page = self.store.scan(self.partition, self.fence, &scan).await?.rows;
            let is_last = page.len() < HEADS_PAGE_ROWS;
            after = None;
            for row in page {
                if let Loaded::Head(id, Some(head)) = row {
                    self.prune(&id, &head, round, now).await?;
                    after = Some(id);
                }
            }
            if is_last || after.is_none() {
                break;
            }
        }
        if self.keys_are_due(round) || is_planted(Planted::KeysForgotten) {
            self.expire_keys(now).await?;
        }
        Ok(())
    }

    /// Removes old entries of the feed, in steps that delay no archive. While no clock is trusted, only its size counts.
    async fn trim_feed(&self, now: Option<u64>) -> Result<(), SweepError> {
        let FeedRetention { keep, bytes_max } = self.settings.feed;
        let keep = u64::try_from(keep.as_millis()).unwrap_or(u64::MAX);
        let before_ms = now.map_or(0, |now| now.saturating_sub(keep));
        let bounds = FeedBounds { before_ms, bytes_max: bytes_max / u64::from(self.bus.partitions().max(1)) };
        loop {
            let removed = self.store.trim_feed(self.partition, self.fence, bounds).await?;
            if let Some(metrics) = &self.metrics {
                metrics.feed_batches_removed.increment(removed);
            }
            if removed < FEED_TRIM_ROWS as u64 {
                return Ok(());
            }
        }
    }

    /// Returns whether the dedup keys are checked in this round, once a day. The owner's fence draws the round:
    /// partitions taken over together are not checked together, and one that moves often is checked as often as others.
    fn keys_are_due(&self, round: u64) -> bool {
        let rounds = (KEYS_CHECK_INTERVAL.as_millis() / self.settings.every.as_millis().max(1)).max(1);
        u128::from(round) % rounds == self.fence.0 % rounds
    }

    async fn prune(&self, id: &ConversationId, head: &Head, round: u64, now: u64) -> Result<(), SweepError> {
        let keep = Keep::of(id, head, self.settings.node);
        let mine = partition_of(id, self.bus.partitions()) == self.partition;
        let Some(ms) = keep.ms().filter(|_| mine && keep.is_due(round, self.settings.every)) else {
            return Ok(());
        };
        let before = now.saturating_sub(ms);
        let mut cursor = head.pruned_to;
        // Reads one row first, because most conversations have nothing to expire.
        let mut limit = 1;
        while cursor < head.last_seq {
            let query =
                PageQuery { cursor, direction: Direction::Forward, limit, max_bytes: PRUNE_PAGE_BYTES_MAX };
            let rows = self.store.page(id, query).await?.rows;
            // Stops at the first young row, whatever the times of the rows after it.
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
            limit = PRUNE_ROWS_MAX;
        }
        Ok(())
    }

    /// Appends the lowest offset whose dedup key is still needed. Each key's own time counts, so that a clock that was
    /// set back expires no key early.
    async fn expire_keys(&mut self, now: u64) -> Result<(), SweepError> {
        let mut keep = u64::try_from(self.settings.keys.as_millis()).unwrap_or(u64::MAX);
        if is_planted(Planted::KeysForgotten) {
            keep = 0;
        }
        let Some(before) = now.checked_sub(keep) else { return Ok(()) };
        let current_from = self.rules.borrow().keys_from.max(self.keys_from);
        let (mut after, mut from) = (None, None);
        loop {
            let scan = Scan::Keys { from: current_from, after, limit: KEYS_PAGE_ROWS };
            let page = self.store.scan(self.partition, self.fence, &scan).await?;
            // Keys added during the scan belong to records after this position.
            let mut oldest = from.unwrap_or(page.position.offset);
            let is_last = page.rows.len() < KEYS_PAGE_ROWS;
            for row in page.rows {
                if let Loaded::Key(hash, Some(key)) = row {
                    after = Some(hash);
                    if key.time >= before {
                        oldest = oldest.min(key.offset);
                    }
                }
            }
            from = Some(oldest);
            if is_last {
                break;
            }
        }
        let keys_from = from.unwrap_or(0);
        if keys_from > current_from {
            let rules = *self.rules.borrow();
            // In version 1 every record sets the window; from version 2 on an omitted field keeps its value.
            let dedup_window = (rules.ledger_version < 2).then_some(rules.dedup_window);
            let change = RuleChange { ledger_version: rules.ledger_version, dedup_window, keys_from };
            self.append(Body::Rules(change)).await?;
            tracing::info!(partition = self.partition, keys_from, "old dedup keys expired");
            self.keys_from = keys_from;
        }
        Ok(())
    }

    async fn append(&self, body: Body) -> Result<(), AppendError> {
        append(self.bus, self.partition, body, (self.settings.wall_ms)()).await
    }
}

/// Appends a record of an owner to its own partition; no origin waits for the answer.
pub(crate) async fn append(bus: &dyn Bus, partition: u32, body: Body, now: u64) -> Result<(), AppendError> {
    let node = NodeId::new("-").map_err(|error| AppendError::Rejected(error.to_string()))?;
    let origin = Origin { node, boot: 0, conn: crate::delivery::pending::ADMIN_CONN, request: u64::MAX };
    let record: Bytes = Record { origin, received_at: now, body, trace: None }.encode();
    bus.append(partition, vec![record]).await.map(drop)
}

#[cfg(test)]
mod tests;
