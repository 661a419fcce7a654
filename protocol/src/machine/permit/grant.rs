//! Server side of permits: the packed log of grants of one key, as the server's script keeps it.
//!
//! Form of the value, little endian: version 1 in one byte; the first time of the newest run in 7 bytes; then the runs,
//! oldest first, 12 bytes each: last time in 8 bytes, count in 4. Times are in microseconds of the server's clock. An empty
//! value has no runs. A value of another form counts as empty.

/// Maximum number of runs.
pub const GRANT_RUNS_MAX: usize = 34;

/// Largest value, in bytes.
pub const GRANT_BYTES_MAX: usize = HEADER_BYTES + GRANT_RUNS_MAX * RUN_BYTES;

const VERSION: u8 = 1;
const HEADER_BYTES: usize = 8;
const RUN_BYTES: usize = 12;

/// Largest limit whose log merges only grants of the same microsecond.
const EXACT_LIMIT_MAX: u32 = 16;

/// Merge times in the time for which a grant counts; one less than [`GRANT_RUNS_MAX`] keeps that bound.
const MERGE_PARTS: u64 = 33;

/// Call of the script for one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantRequest {
    /// Server's clock, in microseconds; below 2^53.
    pub now_us: u64,
    /// Permits that are asked for.
    pub want: u32,
    /// Earlier uses that are counted as granted now, whatever the limit.
    pub charge: u32,
    /// Limit of the rule.
    pub limit: u32,
    /// Window of the rule, in microseconds.
    pub window_us: u64,
    /// Time for which a permit may be used, in microseconds.
    pub life_us: u64,
}

/// Answer of the script for one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Permits that were granted.
    pub granted: u32,
    /// Time until one more can be granted, in microseconds; 0 if all that were asked for were granted.
    pub wait_us: u64,
    /// Permits and charges that count now.
    pub used: u64,
}

/// Grants that count, merged within a merge time: of the limits above 16, 1/33 of the time for which a grant counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GrantLog {
    /// Time of the first grant of the newest run.
    first_us: u64,
    /// Runs, oldest first.
    runs: Vec<GrantRun>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct GrantRun {
    /// Time of the last grant.
    last_us: u64,
    count: u32,
}

impl GrantLog {
    /// Parses the value of a key.
    pub fn decode(value: &[u8]) -> Self {
        let Some((header, rest)) = value.split_first_chunk::<HEADER_BYTES>() else { return Self::default() };
        let (runs, tail) = rest.as_chunks::<RUN_BYTES>();
        if header[0] != VERSION || !tail.is_empty() || runs.len() > GRANT_RUNS_MAX {
            return Self::default();
        }
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte));
        let run = |bytes: &[u8; RUN_BYTES]| GrantRun {
            last_us: number(&bytes[..8]),
            count: number(&bytes[8..]) as u32,
        };
        Self { first_us: number(&header[1..]), runs: runs.iter().map(run).collect() }
    }

    /// Returns the value of the key, at most [`GRANT_BYTES_MAX`] bytes; empty without runs.
    pub fn encode(&self) -> Vec<u8> {
        let mut value = Vec::with_capacity(HEADER_BYTES + self.runs.len() * RUN_BYTES);
        if self.runs.is_empty() {
            return value;
        }
        value.push(VERSION);
        value.extend_from_slice(&self.first_us.to_le_bytes()[..7]);
        for run in &self.runs {
            value.extend_from_slice(&run.last_us.to_le_bytes());
            value.extend_from_slice(&run.count.to_le_bytes());
        }
        value
    }

    /// Charges, grants as many permits as the limit leaves, and returns the answer.
    ///
    /// The caller writes the value back if it has changed, with an expiry of `window + life`; one that grants nothing may
    /// have changed too.
    pub fn grant(&mut self, request: &GrantRequest) -> Grant {
        let now = request.now_us;
        let counts_for = request.window_us.saturating_add(request.life_us);
        // A clock that was set back: what was granted later counts as granted now.
        self.first_us = self.first_us.min(now);
        self.runs.iter_mut().for_each(|run| run.last_us = run.last_us.min(now));
        self.runs.retain(|run| run.last_us.saturating_add(counts_for) >= now);
        let used = self.runs.iter().map(|run| u64::from(run.count)).sum::<u64>() + u64::from(request.charge);
        let limit = u64::from(request.limit);
        let granted = u64::from(request.want).min(limit.saturating_sub(used));
        let is_exact = request.limit <= EXACT_LIMIT_MAX;
        let merge_us = if is_exact { 1 } else { counts_for.div_ceil(MERGE_PARTS) };
        self.add(now, granted + u64::from(request.charge), merge_us);
        let used = used + granted;
        let wait_us =
            if granted < u64::from(request.want) { self.wait(now, used, limit, counts_for) } else { 0 };
        // At most `want`, so it fits.
        Grant { granted: granted as u32, wait_us, used }
    }

    fn add(&mut self, now: u64, count: u64, merge_us: u64) {
        if count == 0 {
            return;
        }
        let saturated = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        match self.runs.last_mut() {
            Some(newest) if now - self.first_us < merge_us => {
                *newest = GrantRun { last_us: now, count: saturated(u64::from(newest.count) + count) };
            }
            _ => {
                self.runs.push(GrantRun { last_us: now, count: saturated(count) });
                self.first_us = now;
            }
        }
        if self.runs.len() > GRANT_RUNS_MAX {
            self.merge_closest();
        }
    }

    /// Merges the first two neighbours that are closest; the merged run counts as long as the later one. Only a change of the
    /// rule or of the clock, or charges to an exact log, lead here.
    fn merge_closest(&mut self) {
        let gap = |at: &usize| self.runs[at + 1].last_us - self.runs[*at].last_us;
        let Some(at) = (0..self.runs.len() - 1).min_by_key(gap) else { return };
        let earlier = self.runs.remove(at);
        self.runs[at].count = self.runs[at].count.saturating_add(earlier.count);
    }

    /// Returns the time until less than the limit counts.
    fn wait(&self, now: u64, used: u64, limit: u64, counts_for: u64) -> u64 {
        let mut left = used;
        let mut wait = 0;
        for run in &self.runs {
            left = left.saturating_sub(run.count.into());
            wait = run.last_us.saturating_add(counts_for) + 1 - now;
            if left < limit {
                break;
            }
        }
        wait
    }
}
