//! Memory budget of the row caches of all owners of a node.
//!
//! Everything in such a cache can be read from the store again, so it is the first memory that the node gives back: the
//! budget falls with the memory pressure, and rises again slowly.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use super::Pressure;

/// Share of the node's memory that the caches may use, unless it is configured.
const MEMORY_SHARE: u64 = 8;

/// Most bytes that the caches may use, unless it is configured.
const BYTES_DEFAULT_MAX: u64 = 1 << 30;

/// Smallest budget, which no memory pressure lowers.
const BYTES_MIN: usize = 1 << 20;

/// Memory budget of the row caches of a node, in bytes.
#[derive(Debug)]
pub struct CacheBudget {
    bytes_max: usize,
    /// Limit in force, lower than `bytes_max` under memory pressure.
    allowed: AtomicUsize,
    used: AtomicUsize,
    shares: AtomicUsize,
}

/// Share of one owner in the [`CacheBudget`], returned on drop.
#[derive(Debug)]
pub struct CacheShare {
    budget: Arc<CacheBudget>,
    bytes: usize,
}

impl Default for CacheBudget {
    fn default() -> Self {
        Self::new(BYTES_DEFAULT_MAX, u64::MAX)
    }
}

impl CacheBudget {
    /// Creates a budget of `configured` bytes; if that is 0, of an eighth of the node's `memory`, at most 1 GiB.
    pub fn new(configured: u64, memory: u64) -> Self {
        let bytes = if configured > 0 { configured } else { (memory / MEMORY_SHARE).min(BYTES_DEFAULT_MAX) };
        let bytes_max = usize::try_from(bytes).unwrap_or(usize::MAX).max(BYTES_MIN);
        let (used, shares) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { bytes_max, allowed: AtomicUsize::new(bytes_max), used, shares }
    }

    /// Returns the bytes that all owners use.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Adjusts the limit to the memory pressure. To be called at a steady interval.
    pub fn note_pressure(&self, pressure: Pressure) {
        let allowed = self.allowed.load(Ordering::Relaxed);
        // What is not used now can't be given back, so the limit falls from there.
        let excess = allowed.min(self.used());
        let allowed = match pressure {
            Pressure::Fine => (allowed + self.bytes_max / 64).min(self.bytes_max),
            Pressure::Refuse => (excess - excess / 8).max(self.bytes_max / 8),
            Pressure::Shed | Pressure::Full => excess / 2,
        };
        self.allowed.store(allowed.max(BYTES_MIN), Ordering::Relaxed);
    }
}

impl CacheShare {
    /// Creates an unused share.
    pub fn new(budget: &Arc<CacheBudget>) -> Self {
        budget.shares.fetch_add(1, Ordering::Relaxed);
        Self { budget: Arc::clone(budget), bytes: 0 }
    }

    /// Sets the bytes that the owner uses.
    pub fn set_bytes(&mut self, bytes: usize) {
        self.budget.used.fetch_add(bytes, Ordering::Relaxed);
        self.budget.used.fetch_sub(std::mem::replace(&mut self.bytes, bytes), Ordering::Relaxed);
    }

    /// Returns the bytes that the owner may use: what the others leave, but at least an equal share. So an owner whose
    /// cache grows takes nothing from those that use less than theirs.
    pub fn bytes_max(&self) -> usize {
        let allowed = self.budget.allowed.load(Ordering::Relaxed);
        let others = self.budget.used().saturating_sub(self.bytes);
        let equal = allowed / self.budget.shares.load(Ordering::Relaxed).max(1);
        allowed.saturating_sub(others).max(equal)
    }
}

impl Drop for CacheShare {
    fn drop(&mut self) {
        self.set_bytes(0);
        self.budget.shares.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn budget(bytes_max: usize) -> Arc<CacheBudget> {
        Arc::new(CacheBudget::new(bytes_max as u64, 0))
    }

    #[test]
    fn budget_is_a_share_of_the_memory_unless_configured() {
        let bytes = |configured, memory| CacheBudget::new(configured, memory).bytes_max;
        assert_eq!(bytes(0, 2 << 30), 256 * MIB);
        assert_eq!(bytes(0, 64 << 30), 1024 * MIB);
        assert_eq!(bytes(5 << 20, 64 << 30), 5 * MIB);
        assert_eq!(bytes(1, 1), BYTES_MIN);
    }

    #[test]
    fn an_owner_that_grows_takes_nothing_from_those_below_an_equal_share() {
        let budget = budget(12 * MIB);
        let mut shares = [(); 3].map(|()| CacheShare::new(&budget));
        assert_eq!(shares[0].bytes_max(), 12 * MIB);
        for (share, mib) in shares.iter_mut().zip([3, 5, 20]) {
            share.set_bytes(mib * MIB);
        }
        let most =
            |shares: &[CacheShare]| -> Vec<usize> { shares.iter().map(|it| it.bytes_max() / MIB).collect() };
        assert_eq!(most(&shares), [4, 4, 4]);
        for share in &mut shares {
            share.set_bytes(share.bytes.min(share.bytes_max()));
        }
        assert!(budget.used() <= 12 * MIB, "{budget:?}");
        let kept = shares.into_iter().next().unwrap();
        assert_eq!((budget.used(), kept.bytes_max()), (3 * MIB, 12 * MIB), "the other shares are returned");
    }

    #[test]
    fn x1_memory_pressure_lowers_the_budget_until_it_is_over() {
        let budget = budget(1024 * MIB);
        let mut share = CacheShare::new(&budget);
        share.set_bytes(900 * MIB);
        let mut under = |pressure, times| {
            for _ in 0..times {
                budget.note_pressure(pressure);
                share.set_bytes(share.bytes.min(share.bytes_max()));
            }
            share.bytes / MIB
        };
        assert_eq!(under(Pressure::Full, 1), 450);
        assert_eq!(under(Pressure::Shed, 1), 225);
        assert_eq!(under(Pressure::Full, 30), 1, "seconds later, nearly nothing is left");
        assert_eq!(under(Pressure::Fine, 10), 1);
        share.set_bytes(900 * MIB);
        assert_eq!(share.bytes_max() / MIB, 161, "it rises again slowly");
        budget.note_pressure(Pressure::Refuse);
        assert_eq!(share.bytes_max() / MIB, 140);
    }
}
