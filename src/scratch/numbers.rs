//! Numbers with many writers: blocks reserved durably, handed out quickly (DESIGN 6.6).
//!
//! Live rooms, timelines and boxes number their entries from any node, without the log. The truth is a floor for each
//! key in a durable place ([`Floors`]); what hands the numbers of a reserved block out may be lost or rolled back at
//! any time, and then costs a hole. [`crate::scratch::RedisNumbers`] hands out with Redis.

use std::{
    collections::HashMap,
    num::NonZeroU64,
    ops::RangeInclusive,
    sync::{Mutex, PoisonError},
};

use async_trait::async_trait;

use super::ScratchError;

/// A block that nobody else ever gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// All its numbers; the first block of a key begins with 1.
    pub numbers: RangeInclusive<u64>,
    /// The fence: the epoch at the time. What was handed out under an older one is not to be trusted.
    pub epoch: u64,
}

/// Why the durable place did not do it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FloorError {
    /// Nothing is known to have happened; a block that was reserved all the same is a hole. The same call may succeed
    /// later.
    #[error("the store of the floors is away: {0}")]
    Away(String),
}

/// Where the floors are: durable.
///
/// Apart from `Store`, whose methods are about one partition and its owner: these rows have no partition, no owner and
/// no position (ADR 9). An adapter of `Store` is the natural place to implement it.
#[async_trait]
pub trait Floors: Send + Sync {
    /// Moves the floor of the key up by `size` in one durable compare-and-set and returns what lies between. Two calls
    /// never get the same number, whatever crashes and whoever retries; blocks of one key rise.
    async fn reserve(&self, key: &str, size: NonZeroU64) -> Result<Block, FloorError>;

    /// The epoch, 0 at first.
    async fn epoch(&self) -> Result<u64, FloorError>;

    /// Raises the epoch, durably, and returns it. All blocks reserved after it carry it.
    async fn raise(&self) -> Result<u64, FloorError>;
}

/// Hands numbers out.
#[async_trait]
pub trait Numbers: Send + Sync {
    /// The next `count` numbers of the key, one range without holes. Between ranges there may be holes.
    ///
    /// No number twice, and rising, until what hands them out is rolled back; from [`Numbers::changed`] on again. A
    /// writer that meets a number which is stored already (by unique key) calls `changed` and takes the next; whoever
    /// has no store to arbitrate must not tell things apart by number (rooms: by msg_id).
    async fn take(&self, key: &str, count: NonZeroU64) -> Result<RangeInclusive<u64>, ScratchError>;

    /// What hands out may have lost something: an unexpected beat, or a number met twice. After Ok nothing is
    /// handed out here that was reserved before; after an error nothing is that others could have been given, until it is Ok.
    async fn changed(&self) -> Result<(), ScratchError>;
}

/// The highest number that was seen of each key, the younger half of them: two maps, the older forgotten when the
/// younger is full.
#[derive(Debug)]
pub(super) struct Seen {
    young: HashMap<String, u64>,
    old: HashMap<String, u64>,
    half: usize,
}

impl Seen {
    pub(super) fn new(keys: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), half: (keys / 2).max(1) }
    }

    /// 0 when nothing is known.
    pub(super) fn get(&self, key: &str) -> u64 {
        self.young.get(key).or_else(|| self.old.get(key)).copied().unwrap_or(0)
    }

    pub(super) fn raise(&mut self, key: &str, number: u64) {
        let number = number.max(self.get(key));
        self.young.insert(key.to_owned(), number);
        if self.young.len() > self.half {
            self.old = std::mem::take(&mut self.young);
        }
    }
}

/// What is left of blocks that a node has reserved for itself alone.
#[derive(Debug)]
pub(super) struct Own {
    blocks: HashMap<String, RangeInclusive<u64>>,
    keys: usize,
}

impl Own {
    pub(super) fn new(keys: usize) -> Self {
        Self { blocks: HashMap::new(), keys }
    }

    /// The next `count` numbers, if there are so many.
    pub(super) fn take(&mut self, key: &str, count: u64) -> Option<RangeInclusive<u64>> {
        let block = self.blocks.get_mut(key)?;
        let (first, last) = (*block.start(), block.start() + (count - 1));
        if last > *block.end() {
            return None;
        }
        *block = last + 1..=*block.end();
        Some(first..=last)
    }

    /// A new block; what is left of older ones is a hole.
    pub(super) fn put(&mut self, key: &str, block: RangeInclusive<u64>) {
        if self.blocks.len() >= self.keys && !self.blocks.contains_key(key) {
            self.blocks.clear();
        }
        self.blocks.insert(key.to_owned(), block);
    }

    /// Higher numbers were given: what is left is a hole.
    pub(super) fn forget(&mut self, key: &str) {
        self.blocks.remove(key);
    }

    pub(super) fn clear(&mut self) {
        self.blocks.clear();
    }
}

/// Numbers of a node on its own: those of a key rise from the clock at its first one, so that a restart repeats none.
pub struct ClockNumbers {
    now_ms: fn() -> u64,
    /// The last number of each key, and one that no number of a forgotten key was above.
    state: Mutex<(HashMap<String, u64>, u64)>,
}

/// Keys that a node on its own remembers.
const CLOCK_KEYS_MAX: usize = 100_000;

impl ClockNumbers {
    /// `now_ms` is the wall clock, in ms since 1970.
    pub fn new(now_ms: fn() -> u64) -> Self {
        Self { now_ms, state: Mutex::default() }
    }
}

#[async_trait]
impl Numbers for ClockNumbers {
    async fn take(&self, key: &str, count: NonZeroU64) -> Result<RangeInclusive<u64>, ScratchError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, above) = &mut *state;
        if last.len() >= CLOCK_KEYS_MAX && !last.contains_key(key) {
            *above = last.values().copied().max().unwrap_or_default().max(*above);
            last.clear();
        }
        let number = last.entry(key.to_owned()).or_insert_with(|| (self.now_ms)().max(*above));
        let first = *number + 1;
        *number += count.get();
        Ok(first..=*number)
    }

    /// It loses nothing.
    async fn changed(&self) -> Result<(), ScratchError> {
        Ok(())
    }
}

/// Floors in memory, for tests: as durable as the process.
#[derive(Debug, Default)]
pub struct MemoryFloors {
    state: Mutex<(HashMap<String, u64>, u64)>,
}

#[async_trait]
impl Floors for MemoryFloors {
    async fn reserve(&self, key: &str, size: NonZeroU64) -> Result<Block, FloorError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let epoch = state.1;
        let floor = state.0.entry(key.to_owned()).or_default();
        let numbers = *floor + 1..=*floor + size.get();
        *floor += size.get();
        Ok(Block { numbers, epoch })
    }

    async fn epoch(&self) -> Result<u64, FloorError> {
        Ok(self.state.lock().unwrap_or_else(PoisonError::into_inner).1)
    }

    async fn raise(&self) -> Result<u64, FloorError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.1 += 1;
        Ok(state.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn numbers_of_the_clock_rise_in_a_key_and_after_a_restart() {
        let take = async |numbers: &ClockNumbers, count| {
            numbers.take("r:hall", NonZeroU64::new(count).unwrap()).await.unwrap()
        };
        let numbers = ClockNumbers::new(|| 1_000);
        assert_eq!(take(&numbers, 2).await, 1_001..=1_002);
        assert_eq!(take(&numbers, 1).await, 1_003..=1_003);
        assert_eq!(take(&ClockNumbers::new(|| 2_000), 1).await, 2_001..=2_001);
        // However many keys there are, none gets a number again.
        for n in 0..CLOCK_KEYS_MAX {
            numbers.take(&n.to_string(), NonZeroU64::MIN).await.unwrap();
        }
        assert_eq!(take(&numbers, 1).await, 1_004..=1_004);
    }

    #[test]
    fn a_block_of_ones_own_is_given_out_once_and_its_rest_is_a_hole() {
        let mut own = Own::new(2);
        assert_eq!(own.take("a", 1), None);
        own.put("a", 11..=20);
        assert_eq!(
            (own.take("a", 4), own.take("a", 7), own.take("a", 6)),
            (Some(11..=14), None, Some(15..=20))
        );
        assert_eq!(own.take("a", 1), None);
        own.put("a", 31..=40);
        own.forget("a");
        assert_eq!(own.take("a", 1), None);
    }
}
