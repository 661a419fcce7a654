//! Profile of a storm: how many messages were received in each second.

/// Maximum number of parts of a profile.
pub const PROFILE_PARTS_MAX: usize = 600;

/// Messages by second of their receipt, from one window before a storm until its end.
///
/// The parts of a storm that lasts longer than [`PROFILE_PARTS_MAX`] seconds are two seconds long, then four, and so on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StormProfile {
    start_ms: u64,
    part_ms: u64,
    counts: Vec<u32>,
}

impl StormProfile {
    pub(super) fn new(start_ms: u64) -> Self {
        Self { start_ms: start_ms / 1_000 * 1_000, part_ms: 1_000, counts: Vec::new() }
    }

    /// Creates a profile without messages, for a storm whose messages nobody has listed.
    pub fn empty(start_ms: u64) -> Self {
        Self::new(start_ms)
    }

    /// Returns the start of the first part, in ms of the wall clock.
    pub const fn start_ms(&self) -> u64 {
        self.start_ms
    }

    /// Returns the length of a part, in ms.
    pub const fn part_ms(&self) -> u64 {
        self.part_ms
    }

    /// Returns the messages of each part, at most [`PROFILE_PARTS_MAX`]. Parts without messages at the end are left out.
    pub fn counts(&self) -> &[u32] {
        &self.counts
    }

    /// Adds messages that were received at a time; those before the start are left out.
    pub(super) fn add(&mut self, received: u64, count: u32) {
        let Some(after) = received.checked_sub(self.start_ms) else { return };
        while after / self.part_ms >= PROFILE_PARTS_MAX as u64 {
            self.halve();
        }
        let part = (after / self.part_ms) as usize;
        if part >= self.counts.len() {
            self.counts.resize(part + 1, 0);
        }
        self.counts[part] = self.counts[part].saturating_add(count);
    }

    fn halve(&mut self) {
        let sum = |pair: &[u32]| pair.iter().fold(0_u32, |sum, count| sum.saturating_add(*count));
        self.counts = self.counts.chunks(2).map(sum).collect();
        self.part_ms = self.part_ms.saturating_mul(2);
    }
}
