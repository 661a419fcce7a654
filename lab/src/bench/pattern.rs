//! Payloads with their publisher, number and time, which can't be mistaken for one another.

/// Bytes of a payload before the pattern: publisher, number, stamp.
pub(super) const HEADER: usize = 16;

/// Makes and checks payloads of one size.
pub(super) struct Pattern {
    size: usize,
    table: Vec<u8>,
}

/// Header of a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) publisher: u32,
    pub(super) number: u32,
    /// Monotonic nanoseconds at which it was scheduled.
    pub(super) time: u64,
}

impl Pattern {
    /// Creates a pattern for payloads of `size` bytes, at least [`HEADER`].
    pub(super) fn new(size: usize) -> Self {
        let size = size.max(HEADER);
        Self { size, table: (0..size + 256).map(|at| (at as u8).wrapping_mul(31)).collect() }
    }

    /// Returns the bytes after the header. They depend on the number, so that a swapped or stale payload does not pass.
    fn fill(&self, number: u32) -> &[u8] {
        let from = (number & 0xff) as usize;
        &self.table[from..from + self.size - HEADER]
    }

    /// Returns the payload for `stamp`.
    pub(super) fn make(&self, stamp: Stamp) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.size);
        out.extend_from_slice(&stamp.publisher.to_le_bytes());
        out.extend_from_slice(&stamp.number.to_le_bytes());
        out.extend_from_slice(&stamp.time.to_le_bytes());
        out.extend_from_slice(self.fill(stamp.number));
        out
    }

    /// Returns the header of `data` if it is an intact payload of this pattern.
    pub(super) fn check(&self, data: &[u8]) -> Option<Stamp> {
        if data.len() != self.size {
            return None;
        }
        let (publisher, rest) = data.split_first_chunk()?;
        let (number, rest) = rest.split_first_chunk()?;
        let (time, fill) = rest.split_first_chunk()?;
        let number = u32::from_le_bytes(*number);
        (fill == self.fill(number)).then_some(Stamp {
            publisher: u32::from_le_bytes(*publisher),
            number,
            time: u64::from_le_bytes(*time),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_says_what_was_put_in() {
        let pattern = Pattern::new(128);
        for number in [0, 1, 255, 256, 70_000] {
            let stamp = Stamp { publisher: 3, number, time: 1 << 40 };
            let data = pattern.make(stamp);
            assert_eq!(data.len(), 128);
            assert_eq!(pattern.check(&data), Some(stamp));
        }
    }

    #[test]
    fn a_changed_byte_or_length_is_seen() {
        let pattern = Pattern::new(64);
        let data = pattern.make(Stamp { publisher: 0, number: 9, time: 1 });
        for at in (4..8).chain(HEADER..64) {
            let mut bad = data.clone();
            bad[at] ^= 1;
            let same = pattern.check(&bad).is_some_and(|stamp| stamp.number == 9);
            assert!(!same, "byte {at}");
        }
        assert_eq!(pattern.check(&data[..63]), None);
    }
}
