//! Allowances of the peers: how many bytes of figures a node takes from each of them.
//!
//! A peer decides what it answers, and could fill each answer with rows that were not asked for.

use std::{collections::HashMap, time::Duration};

use tidegate_protocol::id::NodeId;
use tokio::time::Instant;

/// Bytes of figures that a peer may return at once: several full pages, one for each console that opens.
pub(super) const BURST_BYTES: u64 = 4 << 20;

/// Bytes of figures that a peer may return each second in the long run; a row of values has less than 2 KiB.
pub(super) const BYTES_PER_SECOND: u64 = 64 << 10;

/// Time after which an allowance is whole again, whatever was used; one answer may exceed it.
const RECOVERY_MAX: Duration = Duration::from_secs(600);

/// Used bytes of each peer, by name: a restart does not restore an allowance. An entry is removed when its allowance
/// is whole again.
#[derive(Debug, Default)]
pub(super) struct Allowances(HashMap<NodeId, Used>);

/// Use of one allowance.
#[derive(Debug)]
struct Used {
    /// Time at which the allowance is whole again.
    whole_at: Instant,
    /// Whether it was exceeded since it was whole.
    is_exceeded: bool,
}

/// Answer of a peer that exceeds its allowance.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Exceeded {
    /// Whether it is the first one since the allowance was whole.
    pub(super) is_first: bool,
}

impl Allowances {
    /// Returns whether a peer has bytes left, so that it may be queried.
    pub(super) fn has_left(&mut self, peer: &NodeId, now: Instant) -> bool {
        self.0.retain(|_, used| used.whole_at > now);
        self.0.get(peer).is_none_or(|used| used.whole_at - now < time_of(BURST_BYTES))
    }

    /// Counts the bytes of an answer.
    ///
    /// # Errors
    /// They exceed the allowance: the answer is to be dropped. They count all the same.
    pub(super) fn take(&mut self, peer: &NodeId, bytes: u64, now: Instant) -> Result<(), Exceeded> {
        let used = self.0.entry(peer.clone()).or_insert(Used { whole_at: now, is_exceeded: false });
        let waits = used.whole_at.saturating_duration_since(now).saturating_add(time_of(bytes));
        used.whole_at = now + waits.min(RECOVERY_MAX);
        if waits <= time_of(BURST_BYTES) {
            return Ok(());
        }
        Err(Exceeded { is_first: !std::mem::replace(&mut used.is_exceeded, true) })
    }
}

/// Returns the time in which a peer may return so many bytes in the long run.
fn time_of(bytes: u64) -> Duration {
    Duration::from_millis(bytes.saturating_mul(1_000) / BYTES_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 1 << 20;

    #[tokio::test(start_paused = true)]
    async fn allowance_is_a_burst_and_then_a_rate() {
        let (mut allowances, now) = (Allowances::default(), Instant::now());
        let [liar, other] = ["n2", "n3"].map(|name| NodeId::new(name).unwrap());
        for _ in 0..BURST_BYTES / PAGE {
            assert!(allowances.has_left(&liar, now));
            assert_eq!(allowances.take(&liar, PAGE, now), Ok(()));
        }
        assert!(!allowances.has_left(&liar, now) && allowances.has_left(&other, now));
        assert_eq!(allowances.take(&liar, 1, now), Ok(()), "less than what comes back in a millisecond");
        // A minute of full answers, as fast as queries allow.
        let (mut answers, mut firsts) = (0, 0);
        for second in 1..=60 {
            let at = now + Duration::from_secs(second);
            if allowances.has_left(&liar, at) {
                answers += 1;
                firsts += u64::from(allowances.take(&liar, PAGE, at).unwrap_err().is_first);
            }
        }
        assert!((answers * PAGE) / 60 <= BYTES_PER_SECOND + PAGE / 60, "{answers}");
        assert!(answers > 1, "it is queried again");
        assert_eq!(firsts, 1, "one warning");
        assert_eq!(allowances.take(&other, PAGE, now), Ok(()));
        let whole = now + Duration::from_secs(300);
        assert!(allowances.has_left(&liar, whole) && allowances.0.is_empty());
        assert_eq!(allowances.take(&liar, u64::MAX, whole), Err(Exceeded { is_first: true }));
        assert!(allowances.has_left(&liar, whole + RECOVERY_MAX));
    }

    #[tokio::test(start_paused = true)]
    async fn peer_that_returns_what_is_new_never_exceeds_it() {
        let (mut allowances, now) = (Allowances::default(), Instant::now());
        let peer = NodeId::new("n2").unwrap();
        allowances.take(&peer, PAGE, now).unwrap();
        for second in 1..10_000 {
            let at = now + Duration::from_secs(second);
            assert!(allowances.has_left(&peer, at));
            allowances.take(&peer, 8 << 10, at).unwrap();
        }
    }
}
