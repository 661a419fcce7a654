//! Owner of one partition: reads the log in order, runs the ledger, archives, replies and publishes. The order of the
//! last steps is in ADRs 11 and 16.
//!
//! An error stops the owner or is retried; it never makes the owner skip a record, or answer one that the ledger did
//! not decide. Prevents S6 to S12 (seqs come from the log alone), S20 and S21 (ids are archived with it).

use std::{
    collections::BTreeSet,
    future::{Future, pending},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use tidegate_protocol::{
    machine::ledger::{Ledger, Outcome},
    record::{Body, Position, Record, Rules},
};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};
use tokio_util::sync::CancellationToken;

use self::logins::Logins;
use super::{
    archiver::Archiver,
    batch::RecordBatch,
    exit::{OwnerExit, retry},
    group_sizes::GroupSizes,
    lag::{self, LagTracker},
    membership::Members,
    position_check::{PositionCheck, PositionChecks},
    retention, rules,
    storm_actions::StormPorts,
};
use crate::{
    budget::{CacheBudget, CacheShare},
    bus::{Batch, Bounds, ReadError, TopicId},
    cluster::Cluster,
    delivery::{
        answer_cache::{AnswerCache, AnswerLog},
        trace_steps,
    },
    fault::planted::{Planted, is_planted},
    ingest::intake,
    mail::ConnKey,
    metrics::Metrics,
    partition::{dispatcher::Dispatcher, exit::PORT_RETRY_INTERVAL},
    routes::{NodeBoot, Route},
    store::{Fence, Scan, import},
    storms::StormTable,
    supervised, trace,
};

mod archive_step;
mod background;
mod load;
mod logins;
mod publish;

/// Most records of one read from the log.
const READ_RECORDS_MAX: usize = 4_096;

/// Approximate limit on the bytes of one read from the log.
const READ_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Records before the end of the log whose rows stay in memory after they are archived.
const CACHED_RECORDS: u64 = 200_000;

/// Interval at which rows are evicted while no records come in, and ends of storms are found.
const CACHE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Settings of an owner, from the configuration.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Most members of a group whose pushes are tracked until acked.
    pub small_group_max: usize,
    /// Retention of messages and dedup keys.
    pub retention: retention::Settings,
    /// Known and wanted versions of the ledger's rules.
    pub rules: rules::Settings,
    /// Time after the take-over from which messages are answered and published before they are archived; `None` for
    /// never. Needs a log whose records are durable when read, and must exceed the time in which peers discover the
    /// owner.
    pub answers_first: Option<Duration>,
    /// Memory for the rows that the node's owners cache.
    pub cache: Arc<CacheBudget>,
    /// Injected fault: id of the message at which the owner panics; empty for none.
    pub panic_on_msg_id: String,
}

/// Consumer of one partition: reads the log, runs the ledger, archives, replies and publishes.
pub(super) struct Owner {
    partition: u32,
    fence: Fence,
    topic: TopicId,
    ledger: Ledger,
    /// Members of groups, on a cluster.
    members: Members,
    /// Sizes of groups, on a single node.
    sizes: GroupSizes,
    cluster: Arc<Cluster>,
    settings: Settings,
    /// Memory of the ledger's cache.
    cache: CacheShare,
    archive: Archiver,
    since: Instant,
    /// Rules in force, for the background tasks that append.
    rules: watch::Sender<Rules>,
    /// Whether the log was empty when this run of the node began.
    is_log_new: bool,
    /// Answers given by this owner; `None` on a single node, where no origin asks again.
    answer_log: Option<AnswerLog>,
    /// Counts of accepted messages by group.
    storms: Arc<StormTable>,
    /// Ways to act on storms; `None` to report them only.
    storm_ports: Option<Arc<StormPorts>>,
    metrics: Metrics,
}

/// Next input of an owner.
enum Step {
    Checked(PositionCheck),
    Logins(Vec<(ConnKey, Route)>),
    Archived(Result<Duration, OwnerExit>),
    CacheCheck,
    Read(Result<Batch, ReadError>),
}

/// Returns the output of the future that is ready first; of the former if both are.
async fn first_of<T>(former: impl Future<Output = T>, latter: impl Future<Output = T>) -> T {
    tokio::select! {
        biased;
        it = former => it,
        it = latter => it,
    }
}

/// Returns whether this run of the node appended the record.
fn is_of_this_run(record: &Bytes, me: &NodeBoot) -> bool {
    Record::decode(record.clone()).is_ok_and(|it| it.origin.node == me.node && it.origin.boot == me.boot)
}

/// Record with the outcome that the ledger gave it.
type Decided = (Record, Outcome);

impl Owner {
    /// Takes the partition over at the store, and checks that the log continues where the archive ends.
    pub(super) async fn take_over(
        partition: u32,
        cluster: &Arc<Cluster>,
        answered: Option<&Arc<AnswerCache>>,
        settings: Settings,
        metrics: &Metrics,
    ) -> Result<Self, OwnerExit> {
        let mut bounds =
            lag::from_log(&cluster.owned, partition, cluster.ports.bus.bounds(partition)).await?;
        let (fence, topic) = (Fence(rand::random()), bounds.topic);
        let taken = retry(|| cluster.ports.store.take_over(partition, fence, topic)).await?;
        if bounds.next < taken.position.offset || cluster.owned.unarchived().is_allowed() {
            // After the first check, the former owner may have published more than it archived. If the log still ends
            // below the archive, its end is lost: a read there would wait for a record other than the archived one.
            bounds = cluster.ports.bus.bounds(partition).await?;
            if bounds.next < taken.position.offset {
                return Err(OwnerExit::missing(bounds, taken.position.offset));
            }
        }
        // Retention deleted exactly the archived records: nothing is missing, and nothing is left to compare.
        let is_trimmed = taken.position.offset > 0 && bounds.first == taken.position.offset;
        let is_log_new = !is_trimmed && Self::check_log(partition, cluster, taken.position, bounds).await?;
        let mut ledger = Ledger::resume(taken.position, taken.rules, rand::random());
        ledger.know_up_to(settings.rules.known);
        ledger.knows(taken.rules.ledger_version)?;
        // Without a window every unknown key is looked up when it matters, so loading keys first is useless.
        if taken.rules.dedup_window > 0 {
            let from = taken.position.offset.saturating_sub(CACHED_RECORDS);
            let keys = Scan::Keys { from, after: None, limit: usize::MAX };
            let keys = retry(|| cluster.ports.store.scan(partition, fence, &keys)).await?;
            ledger.load(keys.position, keys.rows)?;
            ledger.keys_complete_from(from);
        }
        tracing::info!(partition, offset = taken.position.offset, "partition taken over");
        let next = taken.position.offset;
        let answer_log = answered.map(|answered| AnswerLog::begin(answered, partition, fence, next));
        let progress = LagTracker::begin(partition, &cluster.owned, taken.position.offset, bounds.next);
        let mark = cluster.owned.unarchived().begin(partition, taken.position.offset, bounds.next);
        let wall_ms = settings.retention.wall_ms;
        let archive = Archiver::new(partition, fence, cluster, progress, mark, wall_ms, metrics);
        Ok(Self {
            partition,
            fence,
            topic,
            ledger,
            members: Members::new(settings.small_group_max),
            sizes: GroupSizes::new(settings.small_group_max),
            cluster: Arc::clone(cluster),
            cache: CacheShare::new(&settings.cache),
            settings,
            archive,
            since: Instant::now(),
            rules: watch::Sender::new(taken.rules),
            is_log_new,
            answer_log,
            storms: cluster.storms.open(partition, &cluster.events, metrics),
            storm_ports: None,
            metrics: metrics.clone(),
        })
    }

    /// Lets the owner act on storms.
    #[must_use]
    pub(super) fn with_storm_ports(self, ports: &Arc<StormPorts>) -> Self {
        Self { storm_ports: Some(Arc::clone(ports)), ..self }
    }

    /// Checks that the log has the record that was archived last, or that an empty archive is not older than an import.
    /// Returns whether the log is new: empty, or begun by this run of the node, which takes requests before it owns the
    /// partition.
    async fn check_log(
        partition: u32,
        cluster: &Arc<Cluster>,
        archived: Position,
        bounds: Bounds,
    ) -> Result<bool, OwnerExit> {
        let record_at = async |offset| {
            let read = cluster.ports.bus.read(partition, offset, 1, 1);
            match lag::from_log(&cluster.owned, partition, read).await {
                Err(ReadError::OutOfRange(bounds)) => Err(OwnerExit::missing(bounds, archived.offset)),
                read => Ok(read?.records.into_iter().next()),
            }
        };
        let (last, is_new) = match archived.offset.checked_sub(1) {
            Some(offset) => (record_at(offset).await?, false),
            None if bounds.next > 0 => {
                let first = record_at(0).await?;
                if first.as_ref().is_some_and(|record| import::is_marker(&record.bytes)) {
                    return Err(OwnerExit::StoreBeforeImport);
                }
                (None, first.is_some_and(|record| is_of_this_run(&record.bytes, &cluster.me)))
            }
            None => (None, true),
        };
        if archived.matches(last.as_ref().map(|record| &record.bytes[..])) {
            Ok(is_new)
        } else {
            Err(OwnerExit::LogReplaced)
        }
    }

    /// Processes the log until the owner exits by itself, `stopping` is cancelled, or the partition is `lost`. Once
    /// lost, starts nothing whose result would not be published.
    pub(super) async fn run(
        mut self,
        logins: &mut Logins,
        out: &mut Dispatcher,
        stopping: &CancellationToken,
        lost: &CancellationToken,
    ) -> OwnerExit {
        // Dropping this ends its tasks, however `run` ends.
        let mut sweeper = JoinSet::new();
        supervised::spawn_in(&mut sweeper, "the sweep of an owner", self.sweep());
        supervised::spawn_in(&mut sweeper, "the switch of rules", self.switch());
        supervised::spawn_in(&mut sweeper, "the past of storms", self.read_past());
        supervised::spawn_in(&mut sweeper, "the actions on storms", self.act_on_storms());
        let mut checks = PositionChecks::new(self.partition, self.fence, &self.cluster);
        self.cluster.owned.feeds().begin(self.partition, self.fence);
        let watch = lag::watch_end(self.partition, Arc::clone(&self.cluster));
        supervised::spawn_in(&mut sweeper, "the watch of the log's end", watch);
        // Time before which an unavailable log is not read again; archiving continues.
        let mut read_after = None;
        let mut logins_first = false;
        let (mut checked_at, mut cache_checks) = (Instant::now(), interval(CACHE_CHECK_INTERVAL));
        cache_checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let (next, archived) = (self.ledger.next_offset(), self.ledger.archived_position());
            logins_first = !logins_first;
            let step = self.step(next, archived, read_after, &mut checks, logins, logins_first);
            let step = tokio::select! {
                biased;
                () = lost.cancelled() => return self.archive.end(&mut self.ledger).await,
                // Every decided record is published by now, but may be unarchived.
                () = stopping.cancelled() => return self.release(lost).await,
                step = step => step,
                _ = cache_checks.tick() => Step::CacheCheck,
            };
            if matches!(step, Step::Read(_)) {
                read_after = None;
            }
            let done = match step {
                Step::Checked(check) => check.verify(&mut self.ledger),
                Step::Logins(batch) => self.answer_logins(batch, out).await,
                Step::Archived(done) => done.and_then(|took| self.archive.advance(&mut self.ledger, took)),
                Step::CacheCheck => Ok(()),
                Step::Read(Ok(batch)) => self.decide_all(batch, logins, out, stopping, lost).await,
                Step::Read(Err(ReadError::Unavailable(error))) => {
                    tracing::warn!(error, partition = self.partition, "log unavailable; retrying");
                    read_after = Some(Instant::now() + PORT_RETRY_INTERVAL);
                    Ok(())
                }
                // Ownership is lost; the log reported it before the group did.
                Step::Read(Err(ReadError::NotOwner)) => Err(self.archive.end(&mut self.ledger).await),
                Step::Read(Err(ReadError::OutOfRange(bounds))) => Err(OwnerExit::missing(bounds, next)),
            };
            if let Err(error) = done {
                return error;
            }
            // Here and not with the tick, which waits while the log always has records.
            if checked_at.elapsed() >= CACHE_CHECK_INTERVAL {
                checked_at = Instant::now();
                cache_checks.reset();
                self.storms.tick((self.settings.retention.wall_ms)());
                self.evict();
            }
        }
    }

    /// Waits for the next input. The poll order is fixed so that a simulation seed reproduces a run: short-lived events
    /// first, then logins and log reads in alternation, so that neither starves the other.
    async fn step(
        &mut self,
        next: u64,
        archived: Position,
        read_after: Option<Instant>,
        checks: &mut PositionChecks,
        logins: &mut Logins,
        logins_first: bool,
    ) -> Step {
        let (writes, partition, cluster) = (self.archive.is_writing(), self.partition, &self.cluster);
        let read = async {
            if let Some(time) = read_after {
                sleep_until(time).await;
            }
            cluster.ports.bus.read(partition, next, READ_RECORDS_MAX, READ_BYTES_MAX).await
        };
        let read = async {
            // With an open transaction the owner waits for the store too, so a stall must count.
            let read = if writes { read.await } else { lag::from_log(&cluster.owned, partition, read).await };
            Step::Read(read)
        };
        let taken = async {
            match logins::next(logins).await {
                Some(batch) => Step::Logins(batch),
                None => pending().await,
            }
        };
        let either =
            async { if logins_first { first_of(taken, read).await } else { first_of(read, taken).await } };
        tokio::select! {
            biased;
            done = self.archive.transaction_done() => Step::Archived(done),
            check = checks.next(archived) => Step::Checked(check),
            step = either => step,
        }
    }

    /// Archives the published records, unless the partition is lost in the meantime.
    async fn release(&mut self, lost: &CancellationToken) -> OwnerExit {
        self.cluster.owned.feeds().leave(self.partition, self.fence);
        let done = tokio::select! {
            biased;
            () = lost.cancelled() => None,
            done = self.archive.flush_cancellable(&mut self.ledger) => Some(done),
        };
        match done {
            Some(done) => done.err().unwrap_or(OwnerExit::Revoked),
            None => self.archive.end(&mut self.ledger).await,
        }
    }

    /// Decides, archives and publishes the records of one read, in batches.
    async fn decide_all(
        &mut self,
        batch: Batch,
        logins: &mut Logins,
        out: &mut Dispatcher,
        stopping: &CancellationToken,
        lost: &CancellationToken,
    ) -> Result<(), OwnerExit> {
        if batch.bounds.topic != self.topic {
            return Err(OwnerExit::LogReplaced);
        }
        let mut rest = &batch.records[..];
        while let Some(part) = self.archive.sizer().next_batch(batch.bounds, &mut rest) {
            let decided = tokio::select! {
                biased;
                () = lost.cancelled() => None,
                decided = self.decide(part, out.is_clustered()) => Some(decided?),
            };
            let Some(decided) = decided else { return Err(self.archive.end(&mut self.ledger).await) };
            // Not cancelled by `lost`: records archived here must be published here.
            Box::pin(publish::to_the_end(self.publish_all(&decided, logins, out), lost)).await?;
            if stopping.is_cancelled() {
                return Err(self.release(lost).await);
            }
        }
        Ok(())
    }

    /// Runs the ledger over a batch.
    async fn decide(&mut self, batch: RecordBatch, has_reach: bool) -> Result<Vec<Decided>, OwnerExit> {
        let RecordBatch { records, rows, to, span } = batch;
        while !self.archive.fits(rows, span.bytes()) {
            self.archive.flush_one(&mut self.ledger).await?;
        }
        let mut decided: Vec<Decided> = Vec::with_capacity(records.len());
        let mut needs = BTreeSet::new();
        let known = records.iter().filter_map(|(_, record)| record.as_ref().ok());
        known.for_each(|record| self.ledger.needs(record, &mut needs));
        self.archive.note_read(&span);
        if has_reach {
            self.read_members(&records).await?;
        }
        // After the members, and under the fence: fails if a successor may have changed them.
        self.load(needs).await?;
        for (offset, record) in records {
            match record {
                Ok(record) => {
                    if cfg!(debug_assertions) && intake::is_message(&record, &self.settings.panic_on_msg_id) {
                        panic!("a fault injected by fault.panic_on_msg_id in fault.panic_in=owner");
                    }
                    let outcome = self.apply(offset, &record).await?;
                    decided.push((record, outcome));
                }
                Err(error) => {
                    // An undecodable record voids only itself; it has no origin to answer.
                    self.metrics.quarantined.increment(1);
                    let partition = self.partition;
                    tracing::error!(%error, offset, partition, "undecodable record quarantined");
                    self.ledger.skip(offset)?;
                }
            }
        }
        trace_steps::note(&self.cluster.trace, &decided, trace::Step::Decided, self.partition);
        self.archive.add(to, rows, &decided, span);
        Ok(decided)
    }

    /// Publishes the outcomes of a batch, before or after it is archived.
    async fn publish_all(
        &mut self,
        decided: &[Decided],
        logins: &mut Logins,
        out: &mut Dispatcher,
    ) -> Result<(), OwnerExit> {
        if self.answers_first(decided) {
            self.archive.mark_published();
            self.archive.start(&mut self.ledger)?;
        } else {
            self.archive_all(decided, logins, out).await?;
        }
        self.publish_rules();
        self.count_messages(decided);
        let messages_first;
        let mut in_order = decided;
        if is_planted(Planted::PushBeforeMembership) {
            messages_first = publish::messages_first(decided);
            in_order = &messages_first;
        }
        for (record, outcome) in in_order {
            self.publish(record, *outcome, out).await?;
        }
        if let Some(answer_log) = &self.answer_log {
            answer_log.record(decided, self.ledger.next_offset());
        }
        out.flush().await;
        self.members.trim();
        self.sizes.trim();
        self.evict();
        Ok(())
    }

    /// Evicts rows that are not needed, or that do not fit into this owner's share of the node's cache.
    fn evict(&mut self) {
        self.cache.set_bytes(self.ledger.cached_bytes());
        let before = self.ledger.next_offset().saturating_sub(CACHED_RECORDS);
        self.ledger.evict(before, self.cache.bytes_max());
        self.cache.set_bytes(self.ledger.cached_bytes());
    }

    /// Returns whether a batch is published before it is archived. A record that changes recipients is archived first,
    /// because members are read from the store.
    fn answers_first(&self, decided: &[Decided]) -> bool {
        let after = self.settings.answers_first;
        after.is_some_and(|after| self.since.elapsed() >= after)
            // Readers' barriers query only visible nodes, so a hidden one must archive first.
            && self.cluster.peers.sees(&self.cluster.me)
            && decided.iter().all(|(record, _)| matches!(record.body, Body::Message(_)))
    }
}

#[cfg(test)]
mod tests;
