//! Log of admitted hits in runs: few of them inline, the others on the heap.

use super::RateLimit;
use crate::Time;

/// Maximum number of runs of a log.
pub const RUNS_MAX: usize = 18;

/// Earlier runs that are kept inline; with the newest one, five runs.
const INLINE: usize = 4;

/// Earlier runs that a log on the heap is moved inline from.
const SHRINK_AT: usize = 2;

/// Bits of a time that the base of a log leaves out.
const BASE_BITS: u32 = 16;

/// Admitted hits that count until the last of them has expired.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    /// Time of the last hit, in ms since the base.
    last: u32,
    /// Number of hits; 0 in an empty slot.
    count: u32,
}

/// The run that further hits may join.
#[derive(Clone, Copy, Debug, Default)]
struct NewestRun {
    /// Time of the first hit, in ms since the base.
    first: u32,
    run: Run,
}

/// Runs before the newest one, oldest first; empty slots follow.
#[derive(Clone, Debug)]
enum Older {
    Inline([Run; INLINE]),
    Heap(Box<[Run; RUNS_MAX - 1]>),
}

/// Hits of one key that still count, in at most [`RUNS_MAX`] runs.
///
/// Times may go back by a little, as those of several threads do: a hit counts as of the newest time of a counted hit,
/// so a clock that stands still or steps back makes a wait longer and never admits more.
///
/// The limit may differ from call to call. Each hit is admitted by the limit of its own call, and a change never makes
/// earlier hits expire sooner than their window; only a longer window does not find hits that have expired.
#[derive(Clone, Debug, Default)]
pub struct RateLog {
    /// Upper bits of the time that the runs are relative to.
    base: u32,
    newest: NewestRun,
    older: Older,
}

impl RateLog {
    /// Returns whether a hit is admitted now; counts nothing.
    ///
    /// # Errors
    /// The limit is reached; the error is the earliest time at which a hit is admitted if no other one is before.
    pub fn check(&mut self, limit: &RateLimit, now: Time) -> Result<(), Time> {
        self.expire(limit, now);
        let mut left = self.total();
        if left < limit.count {
            return Ok(());
        }
        let mut free_at = 0;
        for run in self.older.runs().iter().chain([&self.newest.run]) {
            left = left.saturating_sub(run.count);
            free_at = self.expires_at(*run, limit);
            if left < limit.count {
                break;
            }
        }
        Err(Time::from_millis(free_at))
    }

    /// Counts a hit, which [`Self::check`] has admitted.
    pub fn commit(&mut self, limit: &RateLimit, now: Time) {
        self.commit_many(limit, 1, now);
    }

    /// Counts several hits of the same time.
    pub fn commit_many(&mut self, limit: &RateLimit, count: u32, now: Time) {
        if count == 0 {
            return;
        }
        self.expire(limit, now);
        self.add(limit, count, now);
    }

    /// Counts a hit that [`Self::check`] has admitted at the same time, so that no run expires in between.
    pub fn commit_checked(&mut self, limit: &RateLimit, now: Time) {
        self.add(limit, 1, now);
    }

    fn add(&mut self, limit: &RateLimit, count: u32, now: Time) {
        let at = self.offset(now);
        let newest = &mut self.newest;
        let since = u64::from(at - newest.first);
        if newest.run.count > 0 && (since == 0 || since < limit.merge_ms) {
            newest.run = Run { last: at, count: newest.run.count.saturating_add(count) };
            return;
        }
        let before = std::mem::replace(newest, NewestRun { first: at, run: Run { last: at, count } });
        if before.run.count > 0 {
            self.older.push(before.run);
        }
    }

    /// Returns the number of hits that count now.
    pub fn used(&mut self, limit: &RateLimit, now: Time) -> u32 {
        self.expire(limit, now);
        self.total()
    }

    /// Returns the number of runs, at most [`RUNS_MAX`].
    pub fn runs(&self) -> usize {
        self.older.runs().len() + usize::from(self.newest.run.count > 0)
    }

    /// Returns the bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        match &self.older {
            Older::Inline(_) => 0,
            Older::Heap(runs) => size_of_val(&**runs),
        }
    }

    #[inline]
    fn total(&self) -> u32 {
        let mut total = self.newest.run.count;
        for run in self.older.slots() {
            if run.count == 0 {
                break;
            }
            total = total.saturating_add(run.count);
        }
        total
    }

    fn base_ms(&self) -> u64 {
        u64::from(self.base) << BASE_BITS
    }

    /// Returns the first time at which the run does not count any more.
    fn expires_at(&self, run: Run, limit: &RateLimit) -> u64 {
        self.base_ms() + u64::from(run.last) + limit.window_ms + 1
    }

    #[inline]
    fn expire(&mut self, limit: &RateLimit, now: Time) {
        // Runs whose last hit is not after this, in ms since the base, have expired: none in most calls.
        let Some(until) = now.as_millis().checked_sub(self.base_ms() + limit.window_ms + 1) else { return };
        let has_expired = |run: &Run| run.count > 0 && u64::from(run.last) <= until;
        if has_expired(&self.newest.run) {
            *self = Self::default();
        } else if has_expired(&self.older.slots()[0]) {
            let expired = self.older.slots().iter().take_while(|run| has_expired(run)).count();
            self.older.remove_first(expired);
        }
    }

    /// Returns the time relative to the base, not before the newest hit. Moves the base of a log that is used for long.
    fn offset(&mut self, now: Time) -> u32 {
        if self.newest.run.count == 0 {
            self.base = u32::try_from(now.as_millis() >> BASE_BITS).unwrap_or(u32::MAX);
        } else if now.as_millis().saturating_sub(self.base_ms()) > u32::MAX.into() {
            let oldest = self.older.runs().first().map_or(u32::MAX, |run| run.last).min(self.newest.first);
            let moved = oldest >> BASE_BITS;
            self.base = self.base.saturating_add(moved);
            self.newest.first -= moved << BASE_BITS;
            self.newest.run.last -= moved << BASE_BITS;
            for run in self.older.runs_mut() {
                run.last -= moved << BASE_BITS;
            }
        }
        let offset = now.as_millis().saturating_sub(self.base_ms());
        u32::try_from(offset).unwrap_or(u32::MAX).max(self.newest.run.last)
    }
}

impl Default for Older {
    fn default() -> Self {
        Self::Inline([Run::default(); INLINE])
    }
}

impl Older {
    fn slots(&self) -> &[Run] {
        match self {
            Self::Inline(runs) => runs,
            Self::Heap(runs) => &**runs,
        }
    }

    fn slots_mut(&mut self) -> &mut [Run] {
        match self {
            Self::Inline(runs) => runs,
            Self::Heap(runs) => &mut **runs,
        }
    }

    fn len(&self) -> usize {
        self.slots().iter().take_while(|run| run.count > 0).count()
    }

    fn runs(&self) -> &[Run] {
        &self.slots()[..self.len()]
    }

    fn runs_mut(&mut self) -> &mut [Run] {
        let len = self.len();
        &mut self.slots_mut()[..len]
    }

    fn push(&mut self, run: Run) {
        let len = self.len();
        match self {
            Self::Inline(runs) if len == INLINE => {
                let mut more = Box::new([Run::default(); RUNS_MAX - 1]);
                more[..INLINE].copy_from_slice(runs);
                more[INLINE] = run;
                *self = Self::Heap(more);
            }
            // Only a change of the limit leads here.
            Self::Heap(runs) if len == runs.len() => {
                merge_closest(&mut **runs);
                runs[len - 1] = run;
            }
            Self::Inline(_) | Self::Heap(_) => self.slots_mut()[len] = run,
        }
    }

    fn remove_first(&mut self, count: usize) {
        let slots = self.slots_mut();
        slots.copy_within(count.., 0);
        let kept = slots.len() - count;
        slots[kept..].fill(Run::default());
        if let Self::Heap(runs) = self
            && runs[SHRINK_AT].count == 0
        {
            let mut few = [Run::default(); INLINE];
            few.copy_from_slice(&runs[..INLINE]);
            *self = Self::Inline(few);
        }
    }
}

/// Merges the two neighbours that are closest in time, which empties the last slot. The merged run expires with the
/// later one, so that no hit counts for too short a time.
fn merge_closest(runs: &mut [Run]) {
    let gap = |at: &usize| runs[at + 1].last - runs[*at].last;
    let Some(at) = (0..runs.len().saturating_sub(1)).min_by_key(gap) else { return };
    runs[at + 1].count = runs[at + 1].count.saturating_add(runs[at].count);
    runs.copy_within(at + 1.., at);
    if let Some(last) = runs.last_mut() {
        *last = Run::default();
    }
}
