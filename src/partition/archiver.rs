//! The archive of one partition: what the ledger decided is gathered and written, one transaction at a time, behind the
//! answers or before them (ADR 16).
//!
//! At most one portion is being written and another gathers behind it, so what was told and is not archived is bounded. An
//! owner that ends where it stands takes its transaction with it; the fence decides whether that counts (flaws S6 to S9).

use std::{sync::Arc, time::Duration};

use tidegate_protocol::{
    machine::ledger::{Delta, Ledger, Outcome},
    record::{Position, Record},
};
use tokio::{task::JoinSet, time::Instant};

use super::{
    batch::{self, Portion},
    exit::{GivenUp, wait_for_store},
    lag::{Heard, Tracker},
};
use crate::{
    cluster::Teller,
    delivery::trace_steps,
    ports::Ports,
    store::{Fence, StoreError},
    trace,
};

/// Bytes that gather behind the transaction that is under way, about.
const PILE_BYTES: u64 = 4 * 1024 * 1024;

/// What an owner archives by.
pub(crate) struct Archive {
    partition: u32,
    fence: Fence,
    ports: Arc<Ports>,
    portion: Portion,
    progress: Tracker,
    teller: Teller,
    wall_ms: fn() -> u64,
    pile: Pile,
    /// At most one, and what it writes.
    writing: JoinSet<Result<Duration, GivenUp>>,
    written: Pile,
}

/// Decided, and not archived yet.
#[derive(Default)]
struct Pile {
    /// The place behind it; none = there is nothing.
    to: Option<Position>,
    rows: usize,
    records: usize,
    heard: Option<Heard>,
    /// Those whose steps somebody follows.
    traced: Vec<(Record, Outcome)>,
}

impl Archive {
    /// Of an owner that has taken over; `progress` and `teller` tell of it.
    pub(crate) fn new(
        (partition, fence): (u32, Fence),
        ports: &Arc<Ports>,
        progress: Tracker,
        teller: Teller,
        wall_ms: fn() -> u64,
    ) -> Self {
        Self {
            partition,
            fence,
            ports: Arc::clone(ports),
            portion: Portion::default(),
            progress,
            teller,
            wall_ms,
            pile: Pile::default(),
            writing: JoinSet::new(),
            written: Pile::default(),
        }
    }

    /// How much is decided at a time.
    pub(crate) fn portion(&self) -> &Portion {
        &self.portion
    }

    /// A portion was read, and waits from here on.
    pub(crate) fn read(&self, heard: &Heard) {
        let is_next = self.pile.to.is_none() && !self.is_writing();
        self.progress.read(heard, is_next, (self.wall_ms)());
    }

    /// Whether so much more may gather.
    pub(crate) fn has_room(&self, rows: usize, bytes: u64) -> bool {
        let gathered = self.pile.heard.as_ref().map_or(0, Heard::bytes);
        self.pile.to.is_none()
            || (self.pile.rows + rows <= self.portion.rows() && gathered + bytes <= PILE_BYTES)
    }

    /// Takes a portion up to `to` that the ledger has decided.
    pub(crate) fn gather(&mut self, to: Position, rows: usize, decided: &[(Record, Outcome)], heard: Heard) {
        let pile = &mut self.pile;
        pile.to = Some(to);
        pile.rows += rows;
        pile.records += decided.len();
        pile.heard = Some(match pile.heard.take() {
            Some(before) => before.and(heard),
            None => heard,
        });
        pile.traced.extend(decided.iter().filter(|(record, _)| record.trace.is_some()).cloned());
    }

    /// What was gathered is about to be told.
    pub(crate) fn tells(&self) {
        if let Some(to) = &self.pile.to {
            self.teller.tells(to.offset);
        }
    }

    pub(crate) fn is_writing(&self) -> bool {
        !self.writing.is_empty()
    }

    /// Begins to write what has gathered, unless something is being written.
    pub(crate) fn start(&mut self, ledger: &mut Ledger) -> Result<(), GivenUp> {
        let Some(delta) = self.take(ledger)? else { return Ok(()) };
        let (ports, partition, fence) = (Arc::clone(&self.ports), self.partition, self.fence);
        let (rows, records) = (self.written.rows, self.written.records);
        self.writing.spawn(async move { write(&ports, partition, fence, &delta, rows, records).await });
        Ok(())
    }

    /// What has gathered, to be written; none when there is nothing, or something is being written.
    fn take(&mut self, ledger: &mut Ledger) -> Result<Option<Delta>, GivenUp> {
        let Some(to) = self.pile.to.filter(|_| !self.is_writing()) else { return Ok(None) };
        self.written = std::mem::take(&mut self.pile);
        Ok(Some(ledger.take_delta(to)?))
    }

    /// Waits until what is being written is archived. Cancel-safe; never ready while nothing is written.
    pub(crate) async fn written(&mut self) -> Result<Duration, GivenUp> {
        match self.writing.join_next().await {
            Some(Ok(done)) => done,
            Some(Err(error)) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Err(GivenUp::Asked),
            },
            None => std::future::pending().await,
        }
    }

    /// That is archived; the next is begun.
    pub(crate) fn go_on(&mut self, ledger: &mut Ledger, took: Duration) -> Result<(), GivenUp> {
        self.note(ledger, took)?;
        self.start(ledger)
    }

    fn note(&mut self, ledger: &mut Ledger, took: Duration) -> Result<(), GivenUp> {
        let done = std::mem::take(&mut self.written);
        if let (Some(to), Some(heard)) = (done.to, done.heard) {
            self.portion.archived(took);
            ledger.archived(to)?;
            self.teller.archived(to.offset);
            self.progress.archived(to.offset, &heard, self.pile.heard.as_ref(), (self.wall_ms)());
            trace_steps::note(&self.ports.trace, &done.traced, trace::Step::Archived, self.partition);
        }
        Ok(())
    }

    /// Of an owner that was lost: waits for what becomes of the transaction under way, as readers do for what it told.
    pub(crate) async fn end(&mut self, ledger: &mut Ledger) -> GivenUp {
        if self.is_writing() {
            let done = self.written().await.and_then(|took| self.note(ledger, took));
            return done.err().unwrap_or(GivenUp::Asked);
        }
        GivenUp::Asked
    }

    /// Waits for one transaction, if there is anything to write.
    pub(crate) async fn one(&mut self, ledger: &mut Ledger) -> Result<(), GivenUp> {
        self.start(ledger)?;
        if self.is_writing() {
            let took = self.written().await?;
            self.go_on(ledger, took)?;
        }
        Ok(())
    }

    /// Waits until everything that has gathered is archived.
    pub(crate) async fn all(&mut self, ledger: &mut Ledger) -> Result<(), GivenUp> {
        loop {
            if self.is_writing() {
                let took = self.written().await?;
                self.note(ledger, took)?;
            }
            // Here and not beside: there is nothing else to do meanwhile.
            let Some(delta) = self.take(ledger)? else { return Ok(()) };
            let (rows, records) = (self.written.rows, self.written.records);
            let took = write(&self.ports, self.partition, self.fence, &delta, rows, records).await?;
            self.note(ledger, took)?;
        }
    }

    /// The same for an owner that may be lost meanwhile: [`Self::end`] finds what is under way.
    pub(crate) async fn all_beside(&mut self, ledger: &mut Ledger) -> Result<(), GivenUp> {
        self.start(ledger)?;
        while self.is_writing() {
            let took = self.written().await?;
            self.go_on(ledger, took)?;
        }
        Ok(())
    }
}

/// Archives until it is done, and gives the time of the try that did it.
async fn write(
    ports: &Ports,
    partition: u32,
    fence: Fence,
    delta: &Delta,
    rows: usize,
    records: usize,
) -> Result<Duration, GivenUp> {
    loop {
        let began = Instant::now();
        let done = ports.store.archive(partition, fence, delta).await;
        match (done, began.elapsed()) {
            (Ok(()), took) => {
                if let Err(error) = ports.bus.trim(partition, delta.to.offset).await {
                    tracing::debug!(%error, "the log keeps what is archived for now");
                }
                return Ok(took);
            }
            // The same would fail again. One that may have happened is asked about as it was, and one that was not begun for
            // want of a connection is none too large.
            (Err(StoreError::Unavailable(_)), took) if batch::is_too_large(rows, records, took) => {
                return Err(GivenUp::TooMuch(rows));
            }
            (Err(error), _) => wait_for_store(error).await?,
        }
    }
}
