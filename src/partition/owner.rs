//! The owner of partitions: reads the log in order, asks the ledger, archives, answers and delivers (DESIGN 6.1; in which order, ADRs 11 and 16).
//!
//! Whatever goes wrong here stops the partition or retries; it never skips a record and never answers one that the
//! ledger did not decide. Defeats S6 to S12 (seqs come from the log alone), S20 and S21 (ids are archived with it).

use std::{
    collections::BTreeSet,
    future::{Future, pending},
    sync::Arc,
    time::Duration,
};

use tidegate_protocol::{
    id::ConversationKind,
    machine::ledger::{Ledger, Need, Outcome, Stop},
    record::{Body, Position, Record, RecordError, Rules},
};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use self::logins::Logins;
use super::{
    archiver::Archive,
    batch::Cut,
    exit::{GivenUp, retry, wait_for_store},
    lag::{self, Tracker},
    membership::Members,
    position_check::{Look, Looks},
    retention::{self, Sweeper},
    rules::{self, Switcher},
};
use crate::{
    bus::{Batch, ReadError, TopicId},
    delivery::{
        answer_cache::{Answered, Voice},
        local::Outbound,
        trace_steps,
    },
    ingest::intake,
    mail::ConnKey,
    metrics::Metrics,
    ports::Ports,
    routes::Route,
    store::{Fence, Scan},
    trace,
};

mod logins;
mod publish;

/// Most records read in one batch, and about the most bytes.
const BATCH_RECORDS: usize = 4_096;
const BATCH_BYTES: usize = 4 * 1024 * 1024;

/// Between two tries of a port that is away.
pub(crate) const RETRY: Duration = Duration::from_millis(200);

/// Records back to which rows stay in memory after they are archived.
const KEEP_RECORDS: u64 = 200_000;

/// Rows looked at for eviction after each batch.
const EVICT_BUDGET: usize = 8_192;

/// What the owner is told by the configuration.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Groups up to this many members are tracked until acked.
    pub small_group_max: usize,
    /// How long messages and dedup keys are kept.
    pub retention: retention::Settings,
    /// Which rules of the ledger are known, and wanted.
    pub rules: rules::Settings,
    /// Messages are answered and delivered before they are archived, once the partition was owned for so long; none = never.
    /// Only for a log whose records are durable when they are read, and as long as other nodes need to hear of an owner.
    pub answers_first: Option<Duration>,
    /// A fault for tests: the owner panics at this message; empty = none.
    pub panic_on_msg_id: String,
}

/// One partition in one owner's hands.
pub(crate) struct Owner {
    partition: u32,
    fence: Fence,
    topic: TopicId,
    ledger: Ledger,
    members: Members,
    ports: Arc<Ports>,
    settings: Settings,
    archive: Archive,
    since: Instant,
    /// Those in force, for who appends beside the loop.
    rules: watch::Sender<Rules>,
    /// None = there are no other nodes that would ask again.
    voice: Option<Voice>,
    metrics: Metrics,
}

/// What an owner does next.
enum Step {
    Looked(Look),
    Logins(Vec<(ConnKey, Route)>),
    Archived(Result<Duration, GivenUp>),
    Read(Result<Batch, ReadError>),
}

/// Whichever is ready; if both are, the former.
async fn first_of<T>(former: impl Future<Output = T>, latter: impl Future<Output = T>) -> T {
    tokio::select! {
        biased;
        it = former => it,
        it = latter => it,
    }
}

/// A record with what the ledger said of it.
type Decided = (Record, Outcome);

impl Owner {
    pub(crate) async fn take_over(
        partition: u32,
        ports: &Arc<Ports>,
        answered: Option<&Arc<Answered>>,
        settings: Settings,
        metrics: &Metrics,
    ) -> Result<Self, GivenUp> {
        let mut bounds = lag::from_log(&ports.owned, partition, ports.bus.bounds(partition)).await?;
        let (fence, topic) = (Fence(rand::random()), bounds.topic);
        let taken = retry(|| ports.store.take_over(partition, fence, topic)).await?;
        if bounds.next < taken.position.offset || ports.owned.ahead().is_allowed() {
            // The former owner may have gone on after the first look, and told more than it archived; an end that still is
            // before the archive is lost. A read there would wait for a record that is not the one that was archived.
            bounds = ports.bus.bounds(partition).await?;
            if bounds.next < taken.position.offset {
                return Err(GivenUp::missing(bounds, taken.position.offset));
            }
        }
        // Retention took everything that is archived, and no more: there is nothing to compare, and nothing missing.
        let forgotten = taken.position.offset > 0 && bounds.first == taken.position.offset;
        let last = match taken.position.offset.checked_sub(1) {
            _ if forgotten => None,
            Some(offset) => {
                let read = ports.bus.read(partition, offset, 1, 1);
                match lag::from_log(&ports.owned, partition, read).await {
                    Err(ReadError::OutOfRange(bounds)) => {
                        return Err(GivenUp::missing(bounds, taken.position.offset));
                    }
                    read => read?.records.into_iter().next(),
                }
            }
            None => None,
        };
        if !forgotten && !taken.position.matches(last.as_ref().map(|record| &record.bytes[..])) {
            return Err(GivenUp::LogReplaced);
        }
        let mut ledger = Ledger::resume(taken.position, taken.rules, rand::random());
        ledger.know_up_to(settings.rules.known);
        ledger.knows(taken.rules.ledger_version)?;
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
        let teller = ports.owned.ahead().begin(partition, taken.position.offset, bounds.next);
        let archive = Archive::new((partition, fence), ports, progress, teller, settings.retention.wall_ms);
        Ok(Self {
            partition,
            fence,
            topic,
            ledger,
            members: Members::new(settings.small_group_max),
            ports: Arc::clone(ports),
            settings,
            archive,
            since: Instant::now(),
            rules: watch::Sender::new(taken.rules),
            voice,
            metrics: metrics.clone(),
        })
    }

    /// Reads on until the partition is given up, by its own need or because `stopping` says so; or until it is `lost`, then
    /// without a step that nobody would tell of.
    pub(crate) async fn run(
        mut self,
        logins: &mut Logins,
        out: &mut Outbound,
        stopping: &CancellationToken,
        lost: &CancellationToken,
    ) -> GivenUp {
        // Ends with this, whichever way.
        let mut sweeper = JoinSet::new();
        sweeper.spawn(self.sweep());
        sweeper.spawn(self.switch());
        let mut looks = Looks::new(self.partition, self.fence, &self.ports);
        sweeper.spawn(lag::watch_end(self.partition, Arc::clone(&self.ports)));
        // Until then a log that is away is not read again; the archive goes on meanwhile.
        let mut rest = None;
        let mut logins_first = false;
        loop {
            let (next, archived) = (self.ledger.next_offset(), self.ledger.archived_position());
            logins_first = !logins_first;
            let step = self.step((next, archived), rest, (&mut looks, logins), logins_first);
            let step = tokio::select! {
                biased;
                () = lost.cancelled() => return self.archive.end(&mut self.ledger).await,
                // Everything decided was told, and is archived.
                () = stopping.cancelled() => return self.give_back(lost).await,
                step = step => step,
            };
            if matches!(step, Step::Read(_)) {
                rest = None;
            }
            let done = match step {
                Step::Looked(look) => look.judge(&mut self.ledger),
                Step::Logins(batch) => self.answer_logins(batch, out).await,
                Step::Archived(done) => done.and_then(|took| self.archive.go_on(&mut self.ledger, took)),
                Step::Read(Ok(batch)) => self.decide_all(batch, (logins, out), stopping, lost).await,
                Step::Read(Err(ReadError::Unavailable(error))) => {
                    tracing::warn!(error, "the log can't be read now");
                    rest = Some(Instant::now() + RETRY);
                    Ok(())
                }
                // Lost, and the log says so first.
                Step::Read(Err(ReadError::NotOwner)) => Err(self.archive.end(&mut self.ledger).await),
                Step::Read(Err(ReadError::OutOfRange(bounds))) => Err(GivenUp::missing(bounds, next)),
            };
            if let Err(error) = done {
                return error;
            }
        }
    }

    /// What comes next, of what may be there at once in a known order, so that a seed of the simulation is one run: what is ready
    /// for a moment only is first, logins and the log are by turns, or the one that always is ready would keep the other out.
    async fn step(
        &mut self,
        (next, archived): (u64, Position),
        rest: Option<Instant>,
        (looks, logins): (&mut Looks, &mut Logins),
        logins_first: bool,
    ) -> Step {
        let (writes, partition, ports) = (self.archive.is_writing(), self.partition, &self.ports);
        let read = async {
            if let Some(rest) = rest {
                sleep_until(rest).await;
            }
            ports.bus.read(partition, next, BATCH_RECORDS, BATCH_BYTES).await
        };
        let read = async {
            // Who has something to write does not wait for the log alone.
            let read = if writes { read.await } else { lag::from_log(&ports.owned, partition, read).await };
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
            done = self.archive.written() => Step::Archived(done),
            look = looks.next(archived) => Step::Looked(look),
            step = either => step,
        }
    }

    /// Archives what was told, unless it is lost meanwhile.
    async fn give_back(&mut self, lost: &CancellationToken) -> GivenUp {
        let done = tokio::select! {
            biased;
            () = lost.cancelled() => None,
            done = self.archive.all_beside(&mut self.ledger) => Some(done),
        };
        match done {
            Some(done) => done.err().unwrap_or(GivenUp::Asked),
            None => self.archive.end(&mut self.ledger).await,
        }
    }

    fn sweep(&self) -> impl Future<Output = ()> + Send + use<> {
        let (ports, metrics) = (Arc::clone(&self.ports), Some(self.metrics.clone()));
        let (partition, fence, settings) = (self.partition, self.fence, self.settings.retention);
        let rules = self.rules.subscribe();
        async move {
            let (bus, store) = (&*ports.bus, &*ports.store);
            Sweeper { partition, fence, bus, store, settings, rules, keys_from: 0, metrics }.run().await;
        }
    }

    fn switch(&self) -> impl Future<Output = ()> + Send + use<> {
        let (ports, partition) = (Arc::clone(&self.ports), self.partition);
        let (settings, wall_ms) = (self.settings.rules, self.settings.retention.wall_ms);
        let rules = self.rules.subscribe();
        async move {
            let (me, bus, peers) = (&ports.me, &*ports.bus, &*ports.peers);
            Switcher { partition, me, bus, peers, settings, rules, wall_ms }.run().await;
        }
    }

    /// Tells who appends beside the loop what is in force.
    fn note_rules(&self) {
        let (now, before) = (self.ledger.rules(), *self.rules.borrow());
        if now.ledger_version > before.ledger_version {
            self.metrics.rules_switched.increment(1);
            tracing::info!(
                partition = self.partition,
                version = now.ledger_version,
                "the rules were switched"
            );
        }
        if now != before {
            self.rules.send_replace(now);
        }
    }

    /// A batch, portion by portion.
    async fn decide_all(
        &mut self,
        batch: Batch,
        (logins, out): (&mut Logins, &mut Outbound),
        stopping: &CancellationToken,
        lost: &CancellationToken,
    ) -> Result<(), GivenUp> {
        if batch.bounds.topic != self.topic {
            return Err(GivenUp::LogReplaced);
        }
        let mut rest = &batch.records[..];
        while let Some(cut) = self.archive.portion().cut(batch.bounds, &mut rest) {
            let decided = tokio::select! {
                biased;
                () = lost.cancelled() => None,
                decided = self.decide(cut, out.has_reach()) => Some(decided?),
            };
            let Some(decided) = decided else { return Err(self.archive.end(&mut self.ledger).await) };
            // Not broken off: what is archived here is told here.
            self.tell_all(&decided, logins, out).await?;
            if stopping.is_cancelled() {
                return Err(self.give_back(lost).await);
            }
        }
        Ok(())
    }

    /// Runs the ledger over a portion.
    async fn decide(&mut self, cut: Cut, has_reach: bool) -> Result<Vec<Decided>, GivenUp> {
        let Cut { records, rows, to, heard } = cut;
        while !self.archive.has_room(rows, heard.bytes()) {
            self.archive.one(&mut self.ledger).await?;
        }
        let mut decided: Vec<Decided> = Vec::with_capacity(records.len());
        let mut needs = BTreeSet::new();
        let known = records.iter().filter_map(|(_, record)| record.as_ref().ok());
        known.for_each(|record| self.ledger.needs(record, &mut needs));
        self.archive.read(&heard);
        if has_reach {
            self.read_members(&records).await?;
        }
        // Behind that, and under the fence: members that a successor changed are not told.
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
                    // A poison record voids only itself; nobody waits for its answer.
                    self.metrics.quarantined.increment(1);
                    tracing::error!(%error, offset, partition = self.partition, "a record can't be decoded");
                    self.ledger.skip(offset)?;
                }
            }
        }
        trace_steps::note(&self.ports.trace, &decided, trace::Step::Decided, self.partition);
        self.archive.gather(to, rows, &decided, heard);
        Ok(decided)
    }

    /// Tells everybody concerned, before the outcome is archived or behind it.
    async fn tell_all(
        &mut self,
        decided: &[Decided],
        logins: &mut Logins,
        out: &mut Outbound,
    ) -> Result<(), GivenUp> {
        if self.answers_first(decided) {
            self.archive.tells();
            self.archive.start(&mut self.ledger)?;
        } else {
            self.archive_all(decided, logins, out).await?;
        }
        self.note_rules();
        for (record, outcome) in decided {
            self.tell(record, *outcome, out).await?;
        }
        if let Some(voice) = &self.voice {
            voice.said(decided, self.ledger.next_offset());
        }
        out.flush().await;
        self.members.trim();
        self.ledger.evict(self.ledger.next_offset().saturating_sub(KEEP_RECORDS), EVICT_BUDGET);
        Ok(())
    }

    /// Whatever changes who is told of what is archived first: who is a member is read from the store.
    fn answers_first(&self, decided: &[Decided]) -> bool {
        let after = self.settings.answers_first;
        after.is_some_and(|after| self.since.elapsed() >= after)
            // Who is out of sight of the others is asked by nobody whether it has archived.
            && self.ports.peers.sees(&self.ports.me)
            && decided.iter().all(|(record, _)| matches!(record.body, Body::Message(_)))
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
}
