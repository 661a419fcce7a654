//! Counts of the codes given to clients: refused sends and requests, refused logins, closed connections.

use std::{
    array,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use tidegate_protocol::Code;

/// Length of a period of counting, in ms.
pub const CODES_EVERY_MS: u64 = 10_000;

/// Rows of codes that are kept: 15 minutes.
pub const CODES_ROWS_MAX: usize = 90;

/// Counter for each code. Counting is one relaxed addition.
#[derive(Debug)]
pub struct CodeCounts([AtomicU64; Code::ALL.len()]);

impl Default for CodeCounts {
    fn default() -> Self {
        Self(array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl CodeCounts {
    /// Counts a code, except `BYE`, which is the answer to a client that leaves.
    pub fn count(&self, code: Code) {
        // The codes are in ascending order.
        if code != Code::Bye
            && let Ok(at) = Code::ALL.binary_search(&code)
        {
            self.0[at].fetch_add(1, Relaxed);
        }
    }

    /// Counts the code of an encoded frame.
    pub fn count_number(&self, number: u32) {
        if let Some(code) = u16::try_from(number).ok().and_then(Code::from_number) {
            self.count(code);
        }
    }

    /// Takes the counts; codes without one are omitted.
    fn take(&self) -> Vec<(u32, u64)> {
        let counts = Code::ALL.iter().zip(&self.0).map(|(code, count)| (code, count.swap(0, Relaxed)));
        counts.filter(|(_, count)| *count > 0).map(|(code, count)| (code.number().into(), count)).collect()
    }
}

/// Counts of one period, in which something was counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodesRow {
    /// End of the period, in ms since 1970 by the node's clock.
    pub at_ms: u64,
    /// Codes with their counts, ascending.
    pub counts: Vec<(u32, u64)>,
}

/// Division of time into periods.
#[derive(Debug, Default)]
pub struct CodePeriods {
    /// Number of the period that is open; `None` before the first call.
    open: Option<u64>,
}

impl CodePeriods {
    /// Returns the row of the period that has ended; `None` if none has ended since the last call, or nothing was
    /// counted. To be called each second.
    pub fn take(&mut self, counts: &CodeCounts, now_ms: u64) -> Option<CodesRow> {
        let now = now_ms / CODES_EVERY_MS;
        let ended = self.open.replace(now).is_some_and(|open| open != now);
        let counts = if ended { counts.take() } else { Vec::new() };
        (!counts.is_empty()).then(|| CodesRow { at_ms: now * CODES_EVERY_MS, counts })
    }
}
