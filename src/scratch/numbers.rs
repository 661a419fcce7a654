//! Number allocation for many writers: blocks are reserved durably, and their numbers issued quickly
//! (`docs/internals/adr/0009-redis-one-slot-at-a-time.md`).
//!
//! Live rooms number their entries from any node, without the log. The source of truth is a durable high-water mark per
//! key ([`Floors`]). The state that issues the numbers of a reserved block may be lost or rolled back at any time,
//! which costs a hole in the numbers. [`crate::scratch::RedisNumbers`] keeps that state in Redis.

use std::{collections::HashMap, num::NonZeroU64, ops::RangeInclusive};

use async_trait::async_trait;
use parking_lot::Mutex;
use tidegate_protocol::machine::storm::StormRule;

use super::ScratchError;

/// Reserved block of numbers, exclusive to its caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Numbers of the block; the first block of a key begins with 1.
    pub numbers: RangeInclusive<u64>,
    /// Epoch at the time of the reservation, which acts as fence: state of an older epoch must not issue numbers.
    pub epoch: u64,
}

/// Failed call on the number blocks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FloorError {
    /// Call in doubt; the same call may succeed later. A block reserved anyway becomes a hole.
    #[error("number store unavailable: {0}")]
    Unavailable(String),
}

/// Durable number blocks: a high-water mark (floor) per key.
///
/// Separate from `Store`, whose methods concern one partition and its owner: these rows have no partition, owner or
/// position (ADR 9). Adapters of `Store` implement it on the same database.
#[async_trait]
pub trait Floors: Send + Sync {
    /// Reserves the next `size` numbers of the key above `above` in one durable compare-and-set. No two calls ever return
    /// the same number, whatever crashes or is retried, and the blocks of a key rise, unless the floors themselves fall
    /// back to an older state; then `above`, the highest number that the caller knows to be issued, keeps it from being
    /// reserved again.
    async fn reserve(&self, key: &str, size: NonZeroU64, above: u64) -> Result<Block, FloorError>;

    /// Returns the epoch, which starts at 0.
    async fn epoch(&self) -> Result<u64, FloorError>;

    /// Durably raises the epoch above `above`, and returns it. All blocks reserved later carry it.
    async fn raise(&self, above: u64) -> Result<u64, FloorError>;
}

/// Window of a room that all nodes share, after a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedWindow {
    /// Messages in the window, of all nodes.
    pub count: u32,
    /// Storm of the room, or the one that has just ended.
    pub storm: Option<SharedStorm>,
    /// What changed, and nobody has acknowledged.
    pub change: Option<WindowChange>,
}

/// Storm of a room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedStorm {
    /// Number of the message that started the storm.
    pub seq: u64,
    /// Time of that message by the clock of the shared window, in ms.
    pub since_ms: u64,
    /// Largest count so far.
    pub peak: u32,
    /// Whether at most half of the threshold was counted, and no excess since.
    pub is_cooling: bool,
}

/// Change of a shared window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowChange {
    /// A storm has started.
    Started,
    /// The storm is over.
    Ended,
}

/// Allocator of numbers.
#[async_trait]
pub trait Numbers: Send + Sync {
    /// Returns the next `count` numbers of the key, as one contiguous range. There may be holes between ranges.
    ///
    /// Numbers rise and never repeat, unless the issuing state is rolled back; calling [`Numbers::changed`] restores
    /// that. A writer that finds a number already stored, by its unique key, calls `changed` and takes the next.
    /// Without such a store, a number must not serve as identity: room messages are identified by msg_id.
    async fn take(&self, key: &str, count: NonZeroU64) -> Result<RangeInclusive<u64>, ScratchError>;

    /// Takes numbers for messages, and counts these in the window that all nodes share; the window is `None` where there is
    /// none, or while it is unavailable, and the caller counts the messages.
    ///
    /// A storm is found at most 1/16 of the window late, and never too early: messages whose call was in doubt may not be
    /// counted. `known` is the first number of a storm of the key whose last change the caller knows, or 0; a change that
    /// nobody has acknowledged by it is returned again.
    async fn take_counted(
        &self,
        key: &str,
        count: NonZeroU64,
        _rule: StormRule,
        _known: u64,
    ) -> Result<(RangeInclusive<u64>, Option<SharedWindow>), ScratchError> {
        Ok((self.take(key, count).await?, None))
    }

    /// Returns the shared window of a key as of now, which may end its storm; `None` where there is none.
    async fn window(
        &self,
        _key: &str,
        _rule: StormRule,
        _known: u64,
    ) -> Result<Option<SharedWindow>, ScratchError> {
        Ok(None)
    }

    /// Reports that the issuing state may have lost writes, after an unexpected renewal counter or a repeated number.
    ///
    /// After `Ok`, no number reserved before is issued by this node. After an error, until a call succeeds, no number
    /// is issued that another node could have been given.
    async fn changed(&self) -> Result<(), ScratchError>;
}

/// Highest known number per key, for at least the `half` most recent keys. Two maps; the old one is dropped when the
/// young one is full.
#[derive(Debug)]
pub(super) struct HighestNumbers {
    young: HashMap<String, u64>,
    old: HashMap<String, u64>,
    half: usize,
}

impl HighestNumbers {
    pub(super) fn new(keys: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), half: (keys / 2).max(1) }
    }

    /// Returns the highest number of the key, or 0 if unknown.
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

/// Remainders of the blocks that a node has reserved for itself.
#[derive(Debug)]
pub(super) struct OwnBlocks {
    blocks: HashMap<String, RangeInclusive<u64>>,
    keys: usize,
}

impl OwnBlocks {
    pub(super) fn new(keys: usize) -> Self {
        Self { blocks: HashMap::new(), keys }
    }

    /// Takes the next `count` numbers, if the block has that many.
    pub(super) fn take(&mut self, key: &str, count: u64) -> Option<RangeInclusive<u64>> {
        let block = self.blocks.get_mut(key)?;
        let (first, last) = (*block.start(), block.start() + (count - 1));
        if last > *block.end() {
            return None;
        }
        *block = last + 1..=*block.end();
        Some(first..=last)
    }

    /// Stores a new block; the remainder of the previous one becomes a hole.
    pub(super) fn put(&mut self, key: &str, block: RangeInclusive<u64>) {
        if self.blocks.len() >= self.keys && !self.blocks.contains_key(key) {
            self.blocks.clear();
        }
        self.blocks.insert(key.to_owned(), block);
    }

    /// Drops the block of a key, since higher numbers were issued; its remainder becomes a hole.
    pub(super) fn remove(&mut self, key: &str) {
        self.blocks.remove(key);
    }

    pub(super) fn clear(&mut self) {
        self.blocks.clear();
    }
}

/// Numbers of a single node. Those of a key rise from the clock at its first number, so that none repeats after a
/// restart.
pub struct ClockNumbers {
    now_ms: fn() -> u64,
    /// Last number of each key, and an upper bound of the numbers of evicted keys.
    state: Mutex<(HashMap<String, u64>, u64)>,
}

/// Limit on the keys whose last number is remembered; at the limit all are evicted.
const CLOCK_KEYS_MAX: usize = 100_000;

impl ClockNumbers {
    /// Creates the allocator. `now_ms` is the wall clock, in ms since 1970.
    pub fn new(now_ms: fn() -> u64) -> Self {
        Self { now_ms, state: Mutex::default() }
    }
}

#[async_trait]
impl Numbers for ClockNumbers {
    async fn take(&self, key: &str, count: NonZeroU64) -> Result<RangeInclusive<u64>, ScratchError> {
        let mut state = self.state.lock();
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

    /// Does nothing, since this state is never rolled back.
    async fn changed(&self) -> Result<(), ScratchError> {
        Ok(())
    }
}

/// Number blocks in memory, for tests; as durable as the process.
#[derive(Debug, Default)]
pub struct MemoryFloors {
    state: Mutex<FloorState>,
}

/// Floors by key, and the epoch.
#[derive(Clone, Debug, Default)]
pub struct FloorState {
    floors: HashMap<String, u64>,
    epoch: u64,
}

impl MemoryFloors {
    /// Copies the state.
    pub fn save(&self) -> FloorState {
        self.state.lock().clone()
    }

    /// Falls back to an earlier state.
    pub fn restore(&self, saved: FloorState) {
        *self.state.lock() = saved;
    }
}

#[async_trait]
impl Floors for MemoryFloors {
    async fn reserve(&self, key: &str, size: NonZeroU64, above: u64) -> Result<Block, FloorError> {
        let mut state = self.state.lock();
        let epoch = state.epoch;
        let floor = state.floors.entry(key.to_owned()).or_default();
        let before = above.max(*floor);
        *floor = before + size.get();
        Ok(Block { numbers: before + 1..=*floor, epoch })
    }

    async fn epoch(&self) -> Result<u64, FloorError> {
        Ok(self.state.lock().epoch)
    }

    async fn raise(&self, above: u64) -> Result<u64, FloorError> {
        let mut state = self.state.lock();
        state.epoch = state.epoch.max(above) + 1;
        Ok(state.epoch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn clock_numbers_rise_per_key_and_across_a_restart() {
        let take = async |numbers: &ClockNumbers, count| {
            numbers.take("r:hall", NonZeroU64::new(count).unwrap()).await.unwrap()
        };
        let numbers = ClockNumbers::new(|| 1_000);
        assert_eq!(take(&numbers, 2).await, 1_001..=1_002);
        assert_eq!(take(&numbers, 1).await, 1_003..=1_003);
        assert_eq!(take(&ClockNumbers::new(|| 2_000), 1).await, 2_001..=2_001);
        // An evicted key does not get a number again.
        for n in 0..CLOCK_KEYS_MAX {
            numbers.take(&n.to_string(), NonZeroU64::MIN).await.unwrap();
        }
        assert_eq!(take(&numbers, 1).await, 1_004..=1_004);
    }

    #[test]
    fn own_block_is_issued_once_and_its_remainder_is_a_hole() {
        let mut own = OwnBlocks::new(2);
        assert_eq!(own.take("a", 1), None);
        own.put("a", 11..=20);
        assert_eq!(
            (own.take("a", 4), own.take("a", 7), own.take("a", 6)),
            (Some(11..=14), None, Some(15..=20))
        );
        assert_eq!(own.take("a", 1), None);
        own.put("a", 31..=40);
        own.remove("a");
        assert_eq!(own.take("a", 1), None);
    }
}
