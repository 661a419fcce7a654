//! Archiver of one partition: collects what the ledger decided and writes it to the store, one transaction at a time,
//! before or after the batch is published (ADR 16).
//!
//! At most one batch is being written and one more is pending, so the published but unarchived records are bounded. An
//! owner that is aborted drops its open transaction; the store's fence decides whether that still counts (flaws S6 to
//! S9).

use std::{sync::Arc, time::Duration};

use tidegate_protocol::{
    machine::ledger::{Delta, Ledger, Outcome},
    record::{Position, Record},
};
use tokio::{task::JoinSet, time::Instant};

use super::{
    batch::{self, BatchSizer},
    exit::{OwnerExit, retry, wait_for_store},
    lag::{LagTracker, LogSpan},
};
use crate::{
    cluster::{Cluster, UnarchivedMark},
    delivery::trace_steps,
    metrics::Metrics,
    store::{Fence, StoreError, feed::EncodedBatch},
    supervised, trace,
};

/// Approximate limit on the bytes that collect in the pending batch during a transaction.
const PENDING_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Writes the decided records of one partition to the store, under its owner's fence.
pub(super) struct Archiver {
    partition: u32,
    fence: Fence,
    cluster: Arc<Cluster>,
    sizer: BatchSizer,
    progress: LagTracker,
    mark: UnarchivedMark,
    wall_ms: fn() -> u64,
    metrics: Metrics,
    pending: PendingBatch,
    /// Open transaction; at most one.
    writing: JoinSet<Result<Duration, OwnerExit>>,
    in_transaction: PendingBatch,
}

/// Decided records that are not being written yet.
#[derive(Default)]
struct PendingBatch {
    /// Log position after the batch; `None` if the batch is empty.
    to: Option<Position>,
    rows: usize,
    records: usize,
    /// Number of entries of the feed, once the batch is taken for writing.
    feed_entries: u64,
    span: Option<LogSpan>,
    /// Records that carry a trace, with their outcomes.
    traced: Vec<(Record, Outcome)>,
}

impl Archiver {
    /// Creates the archiver of an owner that has just taken over; reports to `progress` and `mark`.
    pub(super) fn new(
        partition: u32,
        fence: Fence,
        cluster: &Arc<Cluster>,
        progress: LagTracker,
        mark: UnarchivedMark,
        wall_ms: fn() -> u64,
        metrics: &Metrics,
    ) -> Self {
        Self {
            partition,
            fence,
            cluster: Arc::clone(cluster),
            sizer: BatchSizer::default(),
            progress,
            mark,
            wall_ms,
            metrics: metrics.clone(),
            pending: PendingBatch::default(),
            writing: JoinSet::new(),
            in_transaction: PendingBatch::default(),
        }
    }

    /// Returns the current limit on the rows of a batch.
    pub(super) fn sizer(&self) -> &BatchSizer {
        &self.sizer
    }

    /// Notes that a batch was read; it now waits for its archive.
    pub(super) fn note_read(&self, span: &LogSpan) {
        let is_next = self.pending.to.is_none() && !self.is_writing();
        self.progress.note_read(span, is_next, (self.wall_ms)());
    }

    /// Returns whether this many more rows and bytes fit into the pending batch.
    pub(super) fn fits(&self, rows: usize, bytes: u64) -> bool {
        let pending_bytes = self.pending.span.as_ref().map_or(0, LogSpan::bytes);
        self.pending.to.is_none()
            || (self.pending.rows + rows <= self.sizer.rows() && pending_bytes + bytes <= PENDING_BYTES_MAX)
    }

    /// Adds a decided batch that ends at `to`.
    pub(super) fn add(&mut self, to: Position, rows: usize, decided: &[(Record, Outcome)], span: LogSpan) {
        let pending = &mut self.pending;
        pending.to = Some(to);
        pending.rows += rows;
        pending.records += decided.len();
        pending.span = Some(match pending.span.take() {
            Some(before) => before.and(span),
            None => span,
        });
        pending.traced.extend(decided.iter().filter(|(record, _)| record.trace.is_some()).cloned());
    }

    /// Marks the pending batch as published but unarchived. To be called before its recipients are looked up.
    pub(super) fn mark_published(&self) {
        if let Some(to) = &self.pending.to {
            self.mark.set_published(to.offset);
        }
    }

    pub(super) fn is_writing(&self) -> bool {
        !self.writing.is_empty()
    }

    /// Starts to write the pending batch, unless a transaction is open.
    pub(super) fn start(&mut self, ledger: &mut Ledger) -> Result<(), OwnerExit> {
        let Some(delta) = self.take_pending(ledger)? else { return Ok(()) };
        let (cluster, partition, fence) = (Arc::clone(&self.cluster), self.partition, self.fence);
        let (rows, records) = (self.in_transaction.rows, self.in_transaction.records);
        let writing = async move { write(&cluster, partition, fence, &delta, rows, records).await };
        supervised::spawn_in(&mut self.writing, "the archiving of a batch", writing);
        Ok(())
    }

    /// Takes the pending batch for writing; `None` if it is empty or a transaction is open.
    fn take_pending(&mut self, ledger: &mut Ledger) -> Result<Option<Delta>, OwnerExit> {
        let Some(to) = self.pending.to.filter(|_| !self.is_writing()) else { return Ok(None) };
        self.in_transaction = std::mem::take(&mut self.pending);
        let delta = ledger.take_delta(to)?;
        if self.cluster.ports.store.has_feed() {
            self.in_transaction.feed_entries = EncodedBatch::count(&delta);
        }
        Ok(Some(delta))
    }

    /// Waits for the open transaction and returns its duration. Cancel-safe; never ready without a transaction.
    pub(super) async fn transaction_done(&mut self) -> Result<Duration, OwnerExit> {
        match self.writing.join_next().await {
            Some(Ok(done)) => done,
            Some(Err(error)) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Err(OwnerExit::Revoked),
            },
            None => std::future::pending().await,
        }
    }

    /// Notes that the open transaction succeeded, and starts the next one.
    pub(super) fn advance(&mut self, ledger: &mut Ledger, took: Duration) -> Result<(), OwnerExit> {
        self.complete(ledger, took)?;
        self.start(ledger)
    }

    fn complete(&mut self, ledger: &mut Ledger, took: Duration) -> Result<(), OwnerExit> {
        let done = std::mem::take(&mut self.in_transaction);
        if let (Some(to), Some(span)) = (done.to, done.span) {
            self.sizer.note_duration(took);
            ledger.archived(to)?;
            self.mark.archived(to.offset);
            self.cluster.owned.feeds().archived(self.partition, self.fence);
            self.metrics.feed_entries.increment(done.feed_entries);
            self.progress.note_archived(to.offset, &span, self.pending.span.as_ref(), (self.wall_ms)());
            trace_steps::note(&self.cluster.trace, &done.traced, trace::Step::Archived, self.partition);
        }
        Ok(())
    }

    /// Waits for the open transaction of an owner that lost its partition; readers of its published records wait for
    /// that too.
    pub(super) async fn end(&mut self, ledger: &mut Ledger) -> OwnerExit {
        if self.is_writing() {
            let done = self.transaction_done().await.and_then(|took| self.complete(ledger, took));
            return done.err().unwrap_or(OwnerExit::Revoked);
        }
        OwnerExit::Revoked
    }

    /// Writes one batch, if any is pending.
    pub(super) async fn flush_one(&mut self, ledger: &mut Ledger) -> Result<(), OwnerExit> {
        self.start(ledger)?;
        if self.is_writing() {
            let took = self.transaction_done().await?;
            self.advance(ledger, took)?;
        }
        Ok(())
    }

    /// Archives all pending batches.
    pub(super) async fn flush(&mut self, ledger: &mut Ledger) -> Result<(), OwnerExit> {
        loop {
            if self.is_writing() {
                let took = self.transaction_done().await?;
                self.complete(ledger, took)?;
            }
            // Inline, not spawned: the owner has nothing else to do.
            let Some(delta) = self.take_pending(ledger)? else { return Ok(()) };
            let (rows, records) = (self.in_transaction.rows, self.in_transaction.records);
            let took = write(&self.cluster, self.partition, self.fence, &delta, rows, records).await?;
            self.complete(ledger, took)?;
        }
    }

    /// Like [`Self::flush`], but may be cancelled; [`Self::end`] then awaits the open transaction.
    pub(super) async fn flush_cancellable(&mut self, ledger: &mut Ledger) -> Result<(), OwnerExit> {
        self.start(ledger)?;
        while self.is_writing() {
            let took = self.transaction_done().await?;
            self.advance(ledger, took)?;
        }
        Ok(())
    }
}

/// Archives the delta, with retries, and returns the duration of the attempt that succeeded.
///
/// An attempt without a reply may have been committed before another owner took over. That owner begins behind it and
/// publishes none of it, so this one must (flaw S67).
async fn write(
    cluster: &Cluster,
    partition: u32,
    fence: Fence,
    delta: &Delta,
    rows: usize,
    records: usize,
) -> Result<Duration, OwnerExit> {
    let mut is_committed_perhaps = false;
    loop {
        let began = Instant::now();
        let done = cluster.ports.store.archive(partition, fence, delta).await;
        match (done, began.elapsed()) {
            (Ok(()), took) => {
                if let Err(error) = cluster.ports.bus.trim(partition, delta.to.offset).await {
                    tracing::debug!(%error, partition, "log not trimmed; archived records stay for now");
                }
                return Ok(took);
            }
            (Err(StoreError::Fenced), took)
                if is_committed_perhaps && is_archived(cluster, delta).await? =>
            {
                return Ok(took);
            }
            // The same batch would fail again. An `Unknown` outcome is retried unchanged, because it may have been
            // committed; after `NoConnection` the size is not the cause.
            (Err(StoreError::Unavailable(_)), took) if batch::is_too_large(rows, records, took) => {
                return Err(OwnerExit::BatchTooLarge(rows));
            }
            (Err(error), _) => {
                is_committed_perhaps |= matches!(error, StoreError::Unknown(_));
                wait_for_store(error).await?;
            }
        }
    }
}

/// Returns whether the store has archived all records of the delta, whichever owner wrote them: each decides the same.
async fn is_archived(cluster: &Cluster, delta: &Delta) -> Result<bool, OwnerExit> {
    // Without a conversation there is nothing to publish.
    let Some((conversation, _)) = delta.heads.first() else { return Ok(false) };
    let summary = retry(|| cluster.ports.store.summary(conversation, None)).await?;
    Ok(summary.and_then(|it| it.archived).is_some_and(|archived| archived >= delta.to.offset))
}
